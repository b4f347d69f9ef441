"""perf_analyzer drives `render` over gRPC, with the inputs that the repository holds."""

import subprocess
import sys
from pathlib import Path

import pytest

from triton_renderer.launcher.supervisor import Stack

INPUTS = Path(__file__).parents[2] / "client" / "perf"


@pytest.mark.parametrize("name", ["render_text.json", "render_picture.json"])
def test_perf_analyzer_runs_on_render(stack: Stack, name: str) -> None:
    arguments = [
        *("-m", "render", "-u", stack.triton_grpc, "-i", "grpc", "--input-data", str(INPUTS / name)),
        *("--measurement-mode", "count_windows", "--measurement-request-count", "50", "--stability-percentage", "999"),
        *("--concurrency-range", "2", "--max-trials", "3"),
    ]
    command = [sys.executable, "-m", "triton_renderer.launcher.cli", "perf-analyzer", "--", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Throughput:" in result.stdout
