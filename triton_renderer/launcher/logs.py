"""The logs of the child processes: whole in files, their interesting lines on the terminal as they come."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.1
TRANSIENT_S = 5.0
"""A progress bar rewrites its line many times a second; one in this many seconds is shown."""

_TRITON = re.compile(r'([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ \d+ [\w.]+:\d+\] ?"?(.*?)"?\s*')
_HARMLESS = ("CUDA driver version is insufficient", "CudaDriverHelper has not been initialized", "no pinned memory pool")
_LOADED = re.compile(r"successfully loaded '(\S+)'")
_FAILED = re.compile(r"failed to load '(\S+)' version \d+: (.*)")


class LogFollower(threading.Thread):
    """Reads a growing file and gives each line to `sink`, until `finish` is called."""

    def __init__(self, path: Path, sink: Callable[[str], None]) -> None:
        super().__init__(name=f"follow {path.name}", daemon=True)
        self._path = path
        self._sink = sink
        self._finished = threading.Event()

    def finish(self) -> None:
        """Reads what is left in the file and ends."""
        self._finished.set()
        self.join()

    def run(self) -> None:
        transient_at = 0.0
        with self._path.open(encoding="utf-8", errors="replace", newline="") as file:
            rest = ""
            while True:
                last = self._finished.is_set()  # asked before reading: what was written before `finish` is read
                *lines, rest = re.split(r"(?<=\n)|(?<=\r)(?!\n)", rest + file.read())
                for line in lines:
                    if line.endswith("\r"):
                        if time.monotonic() - transient_at < TRANSIENT_S:
                            continue
                        transient_at = time.monotonic()
                    self._sink(line.rstrip())
                if last:
                    if rest:
                        self._sink(rest.rstrip())
                    return
                self._finished.wait(POLL_S)


def loaded_model(line: str) -> str | None:
    """The model that a line of Triton's log reports as loaded."""
    match = _LOADED.search(line)
    return match[1] if match else None


def failed_model(line: str) -> tuple[str, str] | None:
    """The model that a line of Triton's log reports as failed, and the reason in one line."""
    match = _FAILED.search(line)
    if match is None:
        return None
    model, text = match.groups()
    reason = text.split("\\n")[0].rstrip('"').removeprefix("Internal: ")
    return model, f"its process died ({reason})" if "is not healthy" in reason else reason


def interesting(line: str) -> str | None:
    """What of a line of tritonserver's output belongs on the terminal; None for nothing.

    That is what the stages print, and Triton's own warnings and errors, but for those about the absence of a GPU.
    """
    if any(words in line for words in _HARMLESS) or not line.strip() or line[0] in "+|":
        return None
    match = _TRITON.fullmatch(line)
    if match is None:
        return line
    level, text = match.groups()
    return None if level == "I" else text.replace("\\n", "\n").strip()
