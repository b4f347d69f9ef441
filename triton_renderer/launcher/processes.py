"""Child processes that leave nothing behind.

Everything started for one server carries the same mark in its environment. By it all of it is found again, whatever
session, process group or parent it has by then: a stage's process outlives a tritonserver that was killed, for one.
"""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

SHM = Path("/dev/shm")
MARK = "TRITON_RENDERER_RUN"
DOUBLE_SIGNAL_S = 0.5
KILL_TIMEOUT_S = 3.0


def new_mark() -> str:
    """A mark that no other server on this host has; it is also the prefix of the server's shared-memory regions."""
    return f"triton_renderer_{os.getpid()}_{secrets.token_hex(4)}_"


def marked(mark: str) -> list[psutil.Process]:
    """Every living process with `mark` in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue  # gone, or another user's
    return found


class Deadline:
    """The time that several stops have together. It runs from the first question about it."""

    def __init__(self, total_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._total_s = total_s
        self._clock = clock
        self._end: float | None = None

    def left(self, wanted_s: float) -> float:
        """Seconds that may still be spent, at most `wanted_s`."""
        if self._end is None:
            self._end = self._clock() + self._total_s
        return max(0.0, min(wanted_s, self._end - self._clock()))


def kill_marked(mark: str, timeout_s: float = KILL_TIMEOUT_S) -> None:
    """Kills every process with `mark`, and those that they start meanwhile, then removes their shared-memory regions.

    Whatever `timeout_s` is, each that is there now is killed; it bounds the wait for their ends.
    """
    deadline = time.monotonic() + timeout_s
    while processes := marked(mark):
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    for region in SHM.glob(f"{mark}*"):
        region.unlink(missing_ok=True)


class StopSignal:
    """SIGINT, SIGTERM and SIGHUP: the first asks for an orderly end, another one for an end at once."""

    def __init__(self) -> None:
        self.number = 0
        """The first signal that came; 0 before."""
        self.hurry = False
        self._since = 0.0

    def install(self) -> None:
        """Handles the signals from now on. For the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # Plain assignments: a handler that takes a lock can meet its own thread holding it.
        if not self.number:
            self.number, self._since = number, time.monotonic()
        elif time.monotonic() - self._since > DOUBLE_SIGNAL_S:  # a signal to the group and one from make are one wish
            self.hurry = True


@dataclass
class Child:
    """A running process in a session of its own, so that a terminal's Ctrl-C reaches only its parent."""

    name: str
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, name: str, command: Sequence[str], environment: Mapping[str, str], mark: str, log: Path) -> "Child":
        """Starts `command` in `environment`, which nothing but the mark is added to; its output becomes the file `log`.

        Straight into the file, not through a pipe of ours: the child must never wait for its parent.
        """
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**environment, MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(name, process)

    @property
    def ended(self) -> str | None:
        """How the process ended; None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def stop(self, grace_s: float, signals: StopSignal) -> None:
        """Asks the process to end and waits, at most `grace_s` seconds, less when the user is in a hurry; then kills it."""
        if self.process.poll() is None:
            self.process.terminate()
        deadline = time.monotonic() + grace_s
        while self.process.poll() is None and time.monotonic() < deadline and not signals.hurry:
            time.sleep(0.05)
        self.process.kill()  # does nothing to a process that has ended
        self.process.wait()
