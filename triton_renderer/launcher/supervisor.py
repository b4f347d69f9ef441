"""Starts, watches and stops a server: tritonserver, which starts the stages, and the shim in front of it.

    with serve(settings, log_dir) as stack:      # Triton and the shim
        stack.shim_url, stack.triton.http_url
    with TritonServer(settings, log_dir) as triton:      # Triton alone, any model repository
        triton.grpc_url, triton.stub_pids()

Both come back when everything is ready, or raise LaunchError; both leave no process and no shared memory behind.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

from triton_renderer.launcher.errors import LaunchError
from triton_renderer.launcher.logs import LogFollower, failed_model, interesting, loaded_model
from triton_renderer.launcher.processes import Child, StopSignal, kill_marked, marked, new_mark
from triton_renderer.launcher.runtime import EXIT_TIMEOUT_S, MODEL_REPOSITORY, install_runtime
from triton_renderer.settings import Settings

POLL_S = 0.1
STILL_LOADING_S = 10.0
SHIM_GRACE_S = 3.0
SHIM_START_S = 60.0
TRITON_GRACE_S = EXIT_TIMEOUT_S + 4.0
PROBE_TIMEOUT_S = 5.0

Say = Callable[[str], None]


class Stopped(Exception):
    """A signal came while the server was starting."""


def say(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def free_ports() -> dict[str, int]:
    """Four ports that nobody listens on now, as settings: `load_settings(**free_ports())`."""
    names = ("shim_port", "triton_http_port", "triton_grpc_port", "triton_metrics_port")
    with ExitStack() as sockets:
        ports = {}
        for name in names:
            probe = sockets.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports[name] = probe.getsockname()[1]
    return ports


class TritonServer:
    """tritonserver with every model of a repository."""

    def __init__(
        self,
        settings: Settings,
        log_dir: Path,
        *,
        repository: Path = MODEL_REPOSITORY,
        environment: Mapping[str, str] | None = None,
        signals: StopSignal | None = None,
        say: Say = say,
    ) -> None:
        """`environment` is added to that of the stages, which already holds `settings`. The log is `log_dir`/triton.log."""
        self.settings = settings
        self.log = log_dir / "triton.log"
        self._repository = repository
        self._environment = environment or {}
        self._signals = signals or StopSignal()
        self._say = say
        self._mark = new_mark()
        self._ready = False
        self._started = 0.0
        self._loaded: set[str] = set()
        self._failed: tuple[str, str] | None = None

    @property
    def http_url(self) -> str:
        """Base URL of Triton's HTTP endpoint."""
        return f"http://{self._address}:{self.settings.triton_http_port}"

    @property
    def grpc_url(self) -> str:
        """`host:port` of Triton's gRPC endpoint, as tritonclient wants it."""
        return f"{self._address}:{self.settings.triton_grpc_port}"

    @property
    def metrics_url(self) -> str:
        """URL of Triton's metrics."""
        return f"http://{self._address}:{self.settings.triton_metrics_port}/metrics"

    @property
    def _address(self) -> str:
        return reachable(self.settings.host)

    def stub_pids(self) -> dict[str, int]:
        """The process of each Python model now running, by the model's name: of several, the newest."""
        pids = {}
        for process in sorted(marked(self._mark), key=psutil.Process.create_time):
            try:
                command = process.cmdline()
            except psutil.NoSuchProcess:
                continue
            if command and Path(command[0]).name == "triton_python_backend_stub":
                pids[Path(command[1]).parents[1].name] = process.pid  # …/<model>/<version>/model.py
        return pids

    def __enter__(self) -> Self:
        try:
            self._start()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()
