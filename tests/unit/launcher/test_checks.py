import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from triton_renderer.launcher.checks import (
    PORTS,
    check_installed,
    check_media_folder,
    check_model,
    check_numpy,
    check_ports,
    check_shared_memory,
)
from triton_renderer.launcher.errors import LaunchError
from triton_renderer.launcher.supervisor import free_ports
from triton_renderer.settings import Settings, SettingsError, load_settings


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_four_free_ports_pass() -> None:
    check_ports(load_settings(**free_ports()))


@pytest.mark.parametrize("name", PORTS)
def test_a_port_in_use_is_named_with_its_setting(name: str, busy_port: int) -> None:
    with pytest.raises(LaunchError, match=rf"^{name.upper()}={busy_port}: the port is in use"):
        check_ports(load_settings(**(free_ports() | {name: busy_port})))


def test_a_port_whose_last_connection_was_just_closed_is_free(busy_port: int) -> None:
    ports = free_ports()
    with (
        socket.create_server(("127.0.0.1", ports["shim_port"])) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        accepted, _ = server.accept()
        accepted.close()  # this side closes first and stays behind in TIME_WAIT
        client.recv(1)
    check_ports(load_settings(**ports))


def test_two_settings_with_one_port_are_refused() -> None:
    ports = free_ports()
    ports["triton_grpc_port"] = ports["shim_port"]
    with pytest.raises(SettingsError, match=f"^SHIM_PORT and TRITON_GRPC_PORT are both {ports['shim_port']}"):
        check_ports(load_settings(**ports))


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "::"])
@pytest.mark.parametrize("name", ["host", "triton_host"])
def test_a_host_that_is_not_this_machine_is_refused(name: str, host: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{name.upper()}='{host}'"):
        check_ports(load_settings(**free_ports(), **{name: host}))


@pytest.mark.parametrize("name", PORTS)
def test_a_port_in_use_on_another_address_is_free(name: str, busy_port: int) -> None:
    elsewhere = {"host": "127.0.0.2", "triton_host": "127.0.0.3"}
    check_ports(load_settings(**(free_ports() | {name: busy_port}), **elsewhere))


@pytest.mark.parametrize("model", ["/no/such/folder", "./missing", "../missing", "~/missing", "a/b/c", "two words"])
def test_a_path_that_leads_nowhere_is_refused(model: str) -> None:
    with pytest.raises(SettingsError, match="there is no such folder"):
        check_model(model)


def test_a_relative_path_into_a_folder_that_exists_is_not_taken_for_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_model("models/mistyped")
    Path("models").mkdir()
    with pytest.raises(SettingsError, match="there is no such folder"):
        check_model("models/mistyped")


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no config\.json"):
        check_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    check_model(str(tmp_path))


def test_the_folder_of_local_media_must_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "file").touch()
    check_media_folder(None)
    check_media_folder(str(tmp_path / "pictures"))
    for wrong in ("pictures", str(tmp_path / "file"), str(tmp_path / "missing")):
        with pytest.raises(SettingsError, match=rf"^ALLOWED_LOCAL_MEDIA_PATH='{wrong}': the absolute path of a folder"):
            check_media_folder(wrong)


def test_a_file_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("weights").touch()
    with pytest.raises(SettingsError, match="there is no such folder"):
        check_model("weights")


@pytest.mark.parametrize("model", ["Qwen/Qwen3-VL-2B-Instruct", "gpt2"])
def test_hub_ids_are_left_to_the_stages(model: str) -> None:
    check_model(model)


@pytest.mark.parametrize(("version", "fits"), [("1.26.4", True), ("2.0.0", False), ("2.3.1", False), ("10.1", False)])
def test_numpy_2_is_refused(version: str, fits: bool) -> None:
    if fits:
        check_numpy(version)
    else:
        with pytest.raises(LaunchError, match=f"numpy {version} is installed"):
            check_numpy(version)


def test_shared_memory_of_docker_is_too_small_for_the_default_request_size() -> None:
    with pytest.raises(LaunchError, match="64 MiB free, 132 MiB are needed"):
        check_shared_memory(Settings(), 64 * 2**20)
    check_shared_memory(Settings(), 132 * 2**20)


def test_a_render_server_needs_memory_for_two_stages() -> None:
    with pytest.raises(LaunchError, match=r"130 MiB are needed \(2 stages"):
        check_shared_memory(load_settings(role="render"), 64 * 2**20)
    check_shared_memory(load_settings(role="render"), 130 * 2**20)


def test_smaller_requests_need_less_shared_memory() -> None:
    check_shared_memory(load_settings(max_request_bytes=16 * 2**20), 64 * 2**20)


def test_package_that_pip_installs_on_its_own_must_be_there() -> None:
    check_installed("xgrammar")
    with pytest.raises(LaunchError, match="no-such-package is not installed: pip install --no-deps"):
        check_installed("no-such-package")
