"""What can be refused before anything is started, each with one clear line."""

import errno
import importlib.metadata
import re
import shutil
import socket
from itertools import combinations
from pathlib import Path

from triton_renderer.launcher.errors import LaunchError
from triton_renderer.launcher.interpreter import libpython
from triton_renderer.settings import Settings, SettingsError
from triton_renderer.tensors import STAGES_OF_ROLE

SHM = Path("/dev/shm")
SHM_REGION_BYTES = 2**20
"""What the Python backend takes for each stage at start; it grows with the payloads."""
HOST_OF = {
    "shim_port": "host",
    "triton_http_port": "triton_host",
    "triton_grpc_port": "triton_host",
    "triton_metrics_port": "triton_host",
}
"""For each setting that is a port, the one that is its address."""
PORTS = tuple(HOST_OF)
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def check_all(settings: Settings) -> None:
    """Raises SettingsError for a setting that cannot be used here, LaunchError for anything else that stands in the way."""
    check_model(settings.model)
    check_media_folder(settings.allowed_local_media_path)
    check_ports(settings)
    libpython()
    check_numpy(importlib.metadata.version("numpy"))
    check_installed("xgrammar")
    check_shared_memory(settings, shutil.disk_usage(SHM).free)


def check_model(model: str) -> None:
    """Raises SettingsError where `model` is meant as a folder, but is none with a config.json.

    Whether a Hugging Face id exists is found by the stages when they load.
    """
    folder = Path(model)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise SettingsError(f"MODEL={model!r}: the folder holds no config.json, so it is not a Hugging Face model")
    elif not HUB_ID.fullmatch(model) or folder.exists() or (folder.parent != Path() and folder.parent.is_dir()):
        raise SettingsError(f"MODEL={model!r}: there is no such folder, and it is no Hugging Face id")


def check_media_folder(folder: str | None) -> None:
    """Raises SettingsError where requests are to read files from something that is no folder."""
    if folder is not None and not (Path(folder).is_absolute() and Path(folder).is_dir()):
        raise SettingsError(f"ALLOWED_LOCAL_MEDIA_PATH={folder!r}: the absolute path of a folder is expected")


def check_ports(settings: Settings) -> None:
    """Raises SettingsError where two ports are the same or a host is no address of this machine, LaunchError for a port in use."""
    ports: dict[str, int] = {name: getattr(settings, name) for name in PORTS}
    for one, other in combinations(ports, 2):
        if ports[one] == ports[other]:
            raise SettingsError(f"{one.upper()} and {other.upper()} are both {ports[one]}: each needs a port of its own")
    for name, port in ports.items():
        _check_port(name, port, HOST_OF[name], getattr(settings, HOST_OF[name]))


def _check_port(name: str, port: int, host_name: str, host: str) -> None:
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        raise SettingsError(f"{host_name.upper()}={host!r}: not an IPv4 address or a host name ({error.strerror})") from error
    try:
        _bind(address, port)
    except OSError as error:
        setting = f"{name.upper()}={port}"
        match error.errno:
            case errno.EADDRINUSE:
                raise LaunchError(f"{setting}: the port is in use on {host}; stop its user or set another") from error
            case errno.EADDRNOTAVAIL:
                raise SettingsError(f"{host_name.upper()}={host!r}: this machine has no such address") from error
            case _:
                raise LaunchError(f"{setting}: cannot listen on {host}: {error.strerror}") from error


def _bind(address: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a closed connection is no user
        probe.bind((address, port))
        probe.listen()


def check_numpy(version: str) -> None:
    """Raises LaunchError for a numpy under which this stub's tensors silently come out empty."""
    if int(version.partition(".")[0]) >= 2:
        raise LaunchError(
            f"numpy {version} is installed, but Triton's Python backend needs numpy<2: pip install 'numpy==1.26.4'"
        )


def check_installed(package: str) -> None:
    """Raises LaunchError for a missing package among those that pip installs on their own, without their dependencies."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise LaunchError(
            f"{package} is not installed: pip install --no-deps --requirement without-dependencies.txt"
        ) from error


def check_shared_memory(settings: Settings, free_bytes: int) -> None:
    """Raises LaunchError where the largest request would not fit into /dev/shm.

    Tensors cross between stages in shared memory: the largest body on its way into render, and once more on to encode, or
    out of a server that only renders.
    """
    stages = len(STAGES_OF_ROLE[settings.role])
    needed = stages * SHM_REGION_BYTES + 2 * settings.max_request_bytes
    if free_bytes < needed:
        raise LaunchError(
            f"{SHM} has {_mib(free_bytes)} free, {_mib(needed)} are needed ({stages} stages of {_mib(SHM_REGION_BYTES)} and "
            f"twice MAX_REQUEST_BYTES={settings.max_request_bytes}): make it larger (docker run --shm-size=1g) or lower MAX_REQUEST_BYTES"
        )


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
