"""What is seen of a running server from outside: its metrics, its processes' memory, its shared memory."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from triton_renderer.settings import Settings
from triton_renderer.tensors import STAGES

SHM = Path("/dev/shm")


def wait_for(condition: Callable[[], object], timeout_s: float, what: str) -> float:
    """How long it took, in seconds; fails after `timeout_s`."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, f"{what} took more than {timeout_s} s"
        time.sleep(0.02)
    return time.monotonic() - started


def metrics(url: str) -> dict[tuple[str, ...], float]:
    """What a /metrics page shows, by the sample's name and the values of its labels, which stand there in the order of their names."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=10).text)
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def our_regions() -> dict[str, int]:
    """Shared memory of the servers that this process started: bytes that it takes, by name."""
    found = {}
    for path in SHM.glob(f"triton_renderer_{os.getpid()}_*"):
        try:
            found[path.name] = path.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # gone by now
    return found


def resident(settings: Settings) -> dict[str, int]:
    """Resident memory of every process of the server with these settings, in bytes: tritonserver, the stages, the shim."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        if process.environ().get("SHIM_PORT") != str(settings.shim_port):
            continue
        command = process.cmdline()
        program = Path(command[0]).name
        if program == "triton_python_backend_stub":
            program = Path(command[1]).parents[1].name  # …/<model>/<version>/model.py
        found["shim" if "client.shim" in command else program] = process.memory_info().rss
    assert found.keys() == {"tritonserver", "shim", *STAGES}, found
    return found
