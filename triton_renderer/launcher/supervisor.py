"""Starts, watches and stops a server: tritonserver, which starts the stages, and the shim in front of it.

    with serve(settings, log_dir) as stack:              # Triton and the shim
        stack.shim_url, stack.triton_http, stack.triton_grpc, stack.stub_pids()
    with TritonServer(settings, log_dir) as triton:      # Triton alone, with any model repository
        triton.http_url, triton.grpc_url, triton.stub_pids()

Both are entered when everything is ready, else they raise LaunchError; both leave no process and no shared memory behind.
`load_settings(**free_ports())` gives settings under which several servers run beside each other.
"""

import os
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

from triton_renderer.launcher.checks import PORTS
from triton_renderer.launcher.errors import LaunchError
from triton_renderer.launcher.logs import LogFollower, failed_model, interesting, loaded_model
from triton_renderer.launcher.processes import KILL_TIMEOUT_S, Child, Deadline, StopSignal, kill_marked, marked, new_mark
from triton_renderer.launcher.runtime import MODEL_REPOSITORY, install_runtime
from triton_renderer.settings import Settings, reachable
from triton_renderer.tensors import MODELS_OF_ROLE

POLL_S = 0.1
STILL_WAITING_S = 10.0
STARTING_GRACE_S = 1.0
PROBE_TIMEOUT_S = 5.0
TRITON_EXIT_TIMEOUT_S = 3
"""How long tritonserver waits for its stages when it ends. With a dead one it always waits so long."""
STOP_S = 13.0
"""How long the shim and Triton together may take to end: whoever stops the launcher, a container's runtime or a test, kills
it some time after its signal, and nothing would be left to clean up."""

Say = Callable[[str], None]


class Stopped(Exception):
    """A signal came while the server was starting."""


def say(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def free_ports() -> dict[str, int]:
    """Ports that nobody listens on now, one for each setting that is a port."""
    with ExitStack() as stack:
        sockets = {name: stack.enter_context(socket.socket()) for name in PORTS}
        for probe in sockets.values():
            probe.bind(("127.0.0.1", 0))
        return {name: probe.getsockname()[1] for name, probe in sockets.items()}


def base_url(host: str, port: int) -> str:
    """How a process on this machine reaches `port` of a server that listens on `host`."""
    return f"http://{reachable(host)}:{port}"


class _Server(ABC):
    """A child process with a log, as a context: entered when the process is ready, left when all of it is gone."""

    name: str
    grace_s: float
    """How long the process may take to end."""
    withheld: frozenset[str] = frozenset()
    """Variables that the process does not get."""

    def __init__(
        self,
        settings: Settings,
        log_dir: Path,
        *,
        environment: Mapping[str, str] | None = None,
        signals: StopSignal | None = None,
        deadline: Deadline | None = None,
        say: Say = say,
    ) -> None:
        """`environment` is added to `settings` and to this process's own. The log is `log_dir`/<name>.log.

        `deadline` is for the end, and may be shared with other servers that end before or after.
        """
        self.settings = settings
        self.log = log_dir / f"{self.name}.log"
        self._environment = environment or {}
        self._signals = signals or StopSignal()
        self._deadline = deadline or Deadline(STOP_S)
        self._say = say
        self._mark = new_mark()
        self._child: Child | None = None
        self._follower: LogFollower | None = None
        self._ready = False
        self._stopping = False

    @abstractmethod
    def _command(self) -> list[str]:
        """The program and its arguments."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether the process does its work by now."""

    @abstractmethod
    def _missing(self) -> str:
        """What is being waited for, in words."""

    def _read(self, line: str) -> None:
        """Takes one line of the log. What a process says of its being stopped is for the file alone."""
        if not self._stopping:
            self._say(f"{self.name} | {line}")

    def check(self) -> None:
        """Raises LaunchError where the process has ended."""
        ended = self._child.ended if self._child else "was not started"
        if ended:
            raise LaunchError(f"{self.name} {ended}; its log is {self.log}")

    def __enter__(self) -> Self:
        try:
            self._start()
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stop()

    def _start(self) -> None:
        command = self._command()
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(f"the folder for logs cannot be made: {error}") from error
        environment = {**os.environ, **self.settings.environment(), **self._environment}
        for name in self.withheld:
            environment.pop(name, None)
        self._child = Child.start(self.name, command, environment, self._mark, self.log)
        self._follower = LogFollower(self.log, self._read)
        self._follower.start()

    def _wait(self) -> None:
        started = time.monotonic()
        told = started
        while not self._is_ready():
            self.check()
            if self._signals.number:
                raise Stopped
            now = time.monotonic()
            if now - told > STILL_WAITING_S:
                told = now
                self._say(f"{self.name} | waiting for {self._missing()} ({now - started:.0f} s)")
            time.sleep(POLL_S)
        self._ready = True

    def _stop(self) -> None:
        if self._child:
            self._stopping = self._child.ended is None
            self._child.stop(self._deadline.left(self.grace_s if self._ready else STARTING_GRACE_S), self._signals)
        kill_marked(self._mark, self._deadline.left(KILL_TIMEOUT_S))
        if self._follower:
            self._follower.finish()


class TritonServer(_Server):
    """tritonserver with every model of a repository that belongs to the role of the settings."""

    name = "triton"
    grace_s = TRITON_EXIT_TIMEOUT_S + 3.0
    withheld = frozenset({"API_KEY"})  # only the shim asks for it, and code of a model runs here

    def __init__(
        self,
        settings: Settings,
        log_dir: Path,
        *,
        repository: Path = MODEL_REPOSITORY,
        environment: Mapping[str, str] | None = None,
        signals: StopSignal | None = None,
        deadline: Deadline | None = None,
        say: Say = say,
    ) -> None:
        """`environment` is added to that of the stages, which holds `settings` already. The log is `log_dir`/triton.log."""
        self._runtime = install_runtime()
        self._repository = repository
        models = {path.parent.name for path in repository.glob("*/config.pbtxt")}
        self._models = frozenset(models if settings.role == "all" else models.intersection(MODELS_OF_ROLE[settings.role]))
        self._waiting = set(self._models)
        self._failed: tuple[str, str] | None = None
        self._since = time.monotonic()
        super().__init__(
            settings,
            log_dir,
            environment={**self._runtime.environment(), **(environment or {})},
            signals=signals,
            deadline=deadline,
            say=say,
        )

    @property
    def http_url(self) -> str:
        """Base URL of Triton's HTTP endpoint."""
        return base_url(self.settings.triton_host, self.settings.triton_http_port)

    @property
    def grpc_url(self) -> str:
        """`host:port` of Triton's gRPC endpoint, as tritonclient wants it."""
        return base_url(self.settings.triton_host, self.settings.triton_grpc_port).removeprefix("http://")

    def stub_pids(self) -> dict[str, int]:
        """The living process of each Python model, by the model's name; of several the newest."""
        pids = {}
        for process in sorted(marked(self._mark), key=psutil.Process.create_time):
            try:
                command = process.cmdline()
            except psutil.NoSuchProcess:
                continue
            if command and Path(command[0]).name == "triton_python_backend_stub":
                pids[Path(command[1]).parents[1].name] = process.pid  # …/<model>/<version>/model.py
        return pids

    def check(self) -> None:
        """Raises LaunchError where tritonserver has ended, or a model could not be loaded at the start."""
        if self._failed and not self._ready:
            model, reason = self._failed
            raise LaunchError(f"{model} could not be loaded: {reason} (the whole log: {self.log})")
        super().check()

    def _command(self) -> list[str]:
        return [
            *self._runtime.command(self.settings, self._repository),
            f"--exit-timeout-secs={TRITON_EXIT_TIMEOUT_S}",
            f"--backend-config=python,shm-region-prefix-name={self._mark}",
        ]

    def _is_ready(self) -> bool:
        try:
            answer = httpx.post(f"{self.http_url}/v2/repository/index", json={}, timeout=PROBE_TIMEOUT_S, trust_env=False)
        except httpx.TransportError:
            return False  # it listens only when it has tried to load every model
        if not answer.is_success:
            return False
        return self._models <= {model["name"] for model in answer.json() if model.get("state") == "READY"}

    def _missing(self) -> str:
        return ", ".join(sorted(self._waiting)) or "Triton's endpoints"

    def _read(self, line: str) -> None:
        if model := loaded_model(line):
            self._waiting.discard(model)
            self._say(f"{self.name} | loaded {model} ({time.monotonic() - self._since:.1f} s)")
        self._failed = self._failed or failed_model(line)
        if words := interesting(line):
            super()._read(words)


class Shim(_Server):
    """The HTTP server in front of Triton."""

    name = "shim"
    grace_s = 6.0

    @property
    def url(self) -> str:
        """Base URL of the OpenAI and renderer API."""
        return base_url(self.settings.host, self.settings.shim_port)

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "client.shim"]

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=PROBE_TIMEOUT_S, trust_env=False).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _missing(self) -> str:
        return f"{self.url}/health"


class Stack:
    """A running server with both its processes."""

    def __init__(self, triton: TritonServer, shim: Shim) -> None:
        self._triton = triton
        self._shim = shim

    @property
    def shim_url(self) -> str:
        """Base URL of the OpenAI and renderer API."""
        return self._shim.url

    @property
    def triton_http(self) -> str:
        """Base URL of Triton's HTTP endpoint."""
        return self._triton.http_url

    @property
    def triton_grpc(self) -> str:
        """`host:port` of Triton's gRPC endpoint."""
        return self._triton.grpc_url

    def stub_pids(self) -> dict[str, int]:
        """The living process of each stage, by the stage's name."""
        return self._triton.stub_pids()

    def check(self) -> None:
        """Raises LaunchError where tritonserver or the shim has ended."""
        self._triton.check()
        self._shim.check()


@contextmanager
def serve(
    settings: Settings,
    log_dir: Path,
    *,
    repository: Path = MODEL_REPOSITORY,
    environment: Mapping[str, str] | None = None,
    signals: StopSignal | None = None,
    say: Say = say,
) -> Iterator[Stack]:
    """Triton with the shim in front. `environment` is added to that of both. They end within `STOP_S` seconds.

    Raises LaunchError where one of them does not come up, Stopped where `signals` came before.
    """
    deadline = Deadline(STOP_S)
    with (
        TritonServer(
            settings, log_dir, repository=repository, environment=environment, signals=signals, deadline=deadline, say=say
        ) as triton,
        Shim(settings, log_dir, environment=environment, signals=signals, deadline=deadline, say=say) as shim,
    ):
        yield Stack(triton, shim)
