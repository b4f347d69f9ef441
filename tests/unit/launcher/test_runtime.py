import os
import sys
from pathlib import Path

import pytest

from triton_renderer.launcher import runtime as module
from triton_renderer.launcher.interpreter import libpython
from triton_renderer.launcher.runtime import PerfAnalyzer, Runtime
from triton_renderer.settings import load_settings

RUNTIME = Runtime(Path("/opt/triton"))


def command(**settings: object) -> list[str]:
    return RUNTIME.command(load_settings(**settings), Path("models"))


def test_the_command_serves_the_repository_on_the_ports_of_the_settings() -> None:
    program, *flags = command(triton_http_port=1, triton_grpc_port=2, triton_metrics_port=3)
    assert program == "/opt/triton/bin/tritonserver"
    assert {
        "--model-repository=models",
        "--backend-directory=/opt/triton/backends",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--http-port=1",
        "--grpc-port=2",
        "--metrics-port=3",
    } <= set(flags)


def test_a_render_server_loads_its_two_stages_alone() -> None:
    loaded = [flag for flag in command(role="render") if flag.startswith("--load-model")]
    assert loaded == ["--load-model=render", "--load-model=derender"]


def test_a_host_name_becomes_an_address() -> None:
    assert {"--http-address=127.0.0.1", "--grpc-address=127.0.0.1"} <= set(command(triton_host="localhost"))


def test_the_address_of_the_shim_does_not_put_triton_on_the_network() -> None:
    flags = command(host="0.0.0.0")
    assert {"--http-address=127.0.0.1", "--grpc-address=127.0.0.1"} <= set(flags)
    assert not any("0.0.0.0" in flag for flag in flags)


@pytest.mark.parametrize(("users", "count"), [(None, "100000"), ("", "100000"), ("0", "0")])
def test_the_stages_threads_spin_as_long_as_the_user_says(
    users: str | None, count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if users is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", users)
    assert RUNTIME.environment()["GOMP_SPINCOUNT"] == count


@pytest.mark.parametrize("gpu", [True, False])
def test_gpu_metrics_are_switched_off_only_without_a_gpu(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_gpu", lambda: gpu)
    assert ("--allow-gpu-metrics=false" in command()) is not gpu


def test_the_interpreters_own_library_comes_first_and_then_those_of_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/lib")
    folders = RUNTIME.environment()["LD_LIBRARY_PATH"].split(":")
    assert folders == [str(libpython().parent), "/opt/triton/lib", "/usr/local/lib"]


def test_no_empty_folder_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert "" not in RUNTIME.environment()["LD_LIBRARY_PATH"].split(":")
    assert PerfAnalyzer(Path("p"), Path("/libraries")).environment() == {"LD_LIBRARY_PATH": "/libraries"}


def test_the_first_python3_on_the_path_is_the_running_one() -> None:
    first, rest = RUNTIME.environment()["PATH"].split(":", 1)
    assert (Path(first) / "python3").samefile(sys.executable)
    assert rest == os.environ["PATH"]
