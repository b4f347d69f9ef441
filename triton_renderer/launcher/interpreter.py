"""Can Triton's Python backend embed this Python? Standard library only: `python -m` runs it before anything is installed.

The stub of the Python backend links libpython3.11.so.1.0. It has to be the library of the very interpreter whose packages
are used: under another 3.11's library numpy works, but `ssl` and with it transformers does not.
"""

import ctypes
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from triton_renderer.launcher.errors import LaunchError

PYTHON = (3, 11)


def check_interpreter() -> None:
    """Raises LaunchError where this Python is of another version, or lacks venv or its shared library."""
    if sys.version_info[:2] != PYTHON:
        wanted, found = _dotted(PYTHON), _dotted(sys.version_info[:3])
        raise LaunchError(
            f"Python {wanted} is needed, {sys.executable} is {found}: name one with PYTHON=/path/to/python{wanted}"
        )
    if find_spec("venv") is None or find_spec("ensurepip") is None:
        raise LaunchError(f"{sys.executable} cannot make environments: apt install python{_dotted(PYTHON)}-venv")
    libpython()


def libpython() -> Path:
    """The shared library of this interpreter, of its very version. Raises LaunchError where there is none."""
    name = f"libpython{_dotted(PYTHON)}.so.1.0"
    folder = Path(sysconfig.get_config_var("LIBDIR"))
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    found = [path for path in (folder / name, folder / multiarch / name, Path(sys.base_prefix, "lib", name)) if path.is_file()]
    for path in found:
        if _version_of(path) == sys.hexversion:
            return path
    problem = f"{found[0]} is not the library of" if found else f"{name} is not in {folder}, where Triton needs it for"
    raise LaunchError(
        f"{problem} {sys.executable} ({_dotted(sys.version_info[:3])}): install it "
        f"(Debian, Ubuntu: apt install libpython{_dotted(PYTHON)}; "
        f"pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install {_dotted(PYTHON)}) or name another Python with PYTHON=…"
    )


def _version_of(path: Path) -> "int | None":
    """`sys.hexversion` of a Python library; None for a file that is none."""
    try:
        return ctypes.c_ulong.in_dll(ctypes.CDLL(str(path)), "Py_Version").value
    except (OSError, ValueError):
        return None


def _dotted(version: "tuple[int, ...]") -> str:
    return ".".join(str(part) for part in version)


if __name__ == "__main__":
    try:
        check_interpreter()
    except LaunchError as error:
        sys.exit(f"error: {error}")
