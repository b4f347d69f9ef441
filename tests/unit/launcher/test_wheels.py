import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from triton_renderer.launcher import wheels
from triton_renderer.launcher.errors import LaunchError
from triton_renderer.launcher.runtime import PERF_ANALYZER, TRITON
from triton_renderer.launcher.wheels import Wheel, unpack_once


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """A wheel that pip finds in a folder, without any network."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    path = folder / "tool-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tool/bin/run", "#!/bin/sh\necho it runs\n")
        archive.writestr("tool/lib/liba-123.so", "a")
        archive.writestr("tool/unwanted.py", "no")
        archive.writestr("tool-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tool\nVersion: 1.0\n")
        archive.writestr("tool-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tool-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return Wheel(
        requirement="tool==1.0",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        files=((r"tool/(bin/.+)", r"\1"), (r"tool/lib/(.+)", r"lib/\1"), (r"tool/lib/liba-.+", "plain/liba.so")),
        programs=("bin/run",),
    )


def unpacked(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_wanted_files_are_unpacked_and_programs_run(wheel: Wheel, tmp_path: Path) -> None:
    folder = tmp_path / "environment" / "tool-1.0"
    unpack_once(wheel, folder)
    assert unpacked(folder) == {"bin/run", "lib/liba-123.so", "plain/liba.so", "wheel.sha256"}
    assert subprocess.run([folder / "bin" / "run"], capture_output=True, check=True, timeout=10).stdout == b"it runs\n"
    assert [path.name for path in folder.parent.iterdir() if not path.name.endswith(".lock")] == ["tool-1.0"]


def test_a_second_time_pip_is_not_asked(wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack_once(wheel, tmp_path / "tool")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    unpack_once(wheel, tmp_path / "tool")


def test_an_incomplete_folder_is_replaced(wheel: Wheel, tmp_path: Path) -> None:
    folder = tmp_path / "tool"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "run").write_text("half a pro")
    (folder / "leftover").touch()
    unpack_once(wheel, folder)
    assert "leftover" not in unpacked(folder)
    assert (folder / "bin" / "run").read_text().endswith("runs\n")


def test_another_file_than_the_pinned_one_is_refused_and_leaves_nothing(wheel: Wheel, tmp_path: Path) -> None:
    other = Wheel(wheel.requirement, "0" * 64, wheel.files, wheel.programs)
    with pytest.raises(LaunchError, match="is not the expected file"):
        unpack_once(other, tmp_path / "tool")
    assert not (tmp_path / "tool").exists()


def test_a_wheel_that_cannot_be_had_is_named(wheel: Wheel, tmp_path: Path) -> None:
    other = Wheel("tool==2.0", wheel.sha256, wheel.files, wheel.programs)
    with pytest.raises(LaunchError, match=r"pip could not download tool==2\.0"):
        unpack_once(other, tmp_path / "tool")


def test_two_at_once_unpack_it_once(wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = []
    download = wheels._download
    monkeypatch.setattr(wheels, "_download", lambda *arguments: downloads.append(1) or download(*arguments))
    threads = [threading.Thread(target=unpack_once, args=(wheel, tmp_path / "tool")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert downloads == [1]
    assert (tmp_path / "tool" / "wheel.sha256").is_file()


def test_the_runtime_takes_the_stub_of_this_python_only() -> None:
    stubs = "pytriton/tritonserver/python_backend_stubs/{}/triton_python_backend_stub"
    version = ".".join(map(str, sys.version_info[:2]))
    assert TRITON.targets(stubs.format(version)) == ["backends/python/triton_python_backend_stub"]
    assert TRITON.targets(stubs.format("3.10")) == []
    assert TRITON.targets("pytriton/tritonserver/bin/tritonserver") == ["bin/tritonserver"]
    assert TRITON.targets("pytriton/triton.py") == []
    assert TRITON.targets("nvidia_pytriton.libs/libpython3-419a3a08.13.so.1.0") == []


def test_perf_analyzer_gets_its_libraries_under_their_plain_names() -> None:
    assert TRITON.targets("nvidia_pytriton.libs/libb64-98cb6333.so.0d")[-1] == "perf_analyzer/libb64.so.0d"
    assert TRITON.targets("nvidia_pytriton.libs/libcudart-0.so.12.6.77")[-1] == "perf_analyzer/libcudart.so.12"
    assert PERF_ANALYZER.targets("tritonclient-2.50.0.data/data/bin/perf_analyzer") == ["bin/perf_analyzer"]
    assert os.path.basename(PERF_ANALYZER.programs[0]) == "perf_analyzer"
