"""perf_analyzer drives `render` over gRPC."""

import json
import subprocess
import sys
from pathlib import Path

from tests.e2e.asking import MODEL, user
from triton_renderer.launcher.supervisor import Stack


def test_perf_analyzer_runs_on_render(stack: Stack, tmp_path: Path) -> None:
    request = json.dumps({"kind": "chat", "id": "perf", "body": {"model": MODEL, "messages": user("Hello")}})
    data = tmp_path / "input.json"
    data.write_text(json.dumps({"data": [{"request": [request]}]}))
    arguments = [
        *("-m", "render", "-u", stack.triton_grpc, "-i", "grpc", "--input-data", str(data)),
        *("--measurement-mode", "count_windows", "--measurement-request-count", "50", "--stability-percentage", "999"),
        *("--concurrency-range", "2", "--max-trials", "3"),
    ]
    command = [sys.executable, "-m", "triton_renderer.launcher.cli", "perf-analyzer", "--", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Throughput:" in result.stdout
