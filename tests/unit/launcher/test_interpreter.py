import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from triton_renderer.launcher import interpreter
from triton_renderer.launcher.errors import LaunchError
from triton_renderer.launcher.interpreter import check_interpreter, libpython


def test_the_running_interpreter_has_its_library() -> None:
    check_interpreter()
    assert libpython().name == "libpython3.11.so.1.0"


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "hexversion", 0x030B01F0)
    with pytest.raises(LaunchError, match=r"is not the library of .*: install it .*apt install libpython3\.11"):
        libpython()


def test_a_python_without_its_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"LIBDIR": str(tmp_path)}.get)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    with pytest.raises(LaunchError, match=r"libpython3\.11\.so\.1\.0 is not in .*--enable-shared"):
        libpython()


def test_a_file_that_is_no_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"LIBDIR": str(tmp_path)}.get)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    (tmp_path / "libpython3.11.so.1.0").write_text("empty")
    with pytest.raises(LaunchError, match="is not the library of"):
        libpython()


def test_another_version_of_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))
    with pytest.raises(LaunchError, match=r"^Python 3\.11 is needed, .* is 3\.12\.1"):
        check_interpreter()


def test_a_python_without_venv_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "find_spec", lambda name: None if name == "ensurepip" else name)
    with pytest.raises(LaunchError, match=r"apt install python3\.11-venv"):
        check_interpreter()


def test_it_runs_with_the_standard_library_alone() -> None:
    project = Path(interpreter.__file__).resolve().parents[2]
    command = [sys.executable, "-S", "-m", interpreter.__name__]
    assert subprocess.run(command, cwd=project, check=False, timeout=30).returncode == 0
