"""The Triton runtime: a real tritonserver without a container, kept inside the environment.

<environment>/triton-2.51.0/         bin/tritonserver, lib/, backends/python/ with the stub for this Python
<environment>/perf-analyzer-2.50.0/  bin/perf_analyzer
"""

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from triton_renderer.launcher.interpreter import PYTHON, libpython
from triton_renderer.launcher.wheels import Wheel, unpack_once
from triton_renderer.settings import Settings
from triton_renderer.tensors import MODELS_OF_ROLE

MODEL_REPOSITORY = Path(__file__).resolve().parents[2] / "model_repository"
LOAD_TIMEOUT_S = 3600
"""How long one stage may load; one that dies is noticed at once."""
DEFAULTS = {
    # Between two parallel regions OpenMP's threads spin, by default so long that where another process takes one of two cores,
    # they wait for one that has no core, and decoding is 50 times slower. Asleep at once, they are woken 200 times a step, and
    # a step of 40 ms takes 60. So they spin for a few milliseconds.
    "GOMP_SPINCOUNT": "100000",
}
"""Variables of the stages that hold unless the user's own environment sets them."""

TRITON = Wheel(
    requirement="nvidia-pytriton==0.7.0",
    sha256="21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df",
    files=(
        (r"pytriton/tritonserver/(bin/tritonserver|backends/python/[^/]+)", r"\1"),
        (rf"pytriton/tritonserver/python_backend_stubs/{PYTHON[0]}\.{PYTHON[1]}/([^/]+)", r"backends/python/\1"),
        (r"nvidia_pytriton\.libs/((?!libpython)[^/]+)", r"lib/\1"),  # tritonserver looks in $ORIGIN/../lib
        (r"nvidia_pytriton\.libs/libb64-[^/]+", "perf_analyzer/libb64.so.0d"),
        (r"nvidia_pytriton\.libs/libcudart-[^/]+", "perf_analyzer/libcudart.so.12"),
        (r"[^/]+\.dist-info/licenses/(.+)", r"licenses/\1"),
    ),
    programs=("bin/tritonserver", "backends/python/triton_python_backend_stub"),
)
PERF_ANALYZER = Wheel(
    requirement="tritonclient==2.50.0",
    sha256="421fbb69ae6ab8cdb2c35b82134fcef2fe11e7af7718b1fcbc53335ab9bfe889",
    files=(
        (r"[^/]+\.data/data/(bin/perf_analyzer)", r"\1"),
        (r"[^/]+\.data/data/(LICENSE\.txt)", r"licenses/\1"),
    ),
    programs=("bin/perf_analyzer",),
)


@dataclass(frozen=True)
class Runtime:
    """An unpacked tritonserver with its Python backend."""

    root: Path

    def command(self, settings: Settings, repository: Path) -> list[str]:
        """The command line that serves `repository`, as far as the role goes, on Triton's host and ports of `settings`."""
        address = socket.gethostbyname(settings.triton_host)  # Triton's HTTP endpoint takes no names
        return [
            str(self.root / "bin" / "tritonserver"),
            f"--model-repository={repository}",
            f"--backend-directory={self.root / 'backends'}",
            "--model-control-mode=explicit",  # so that a stage that died can be loaded again
            *[f"--load-model={model}" for model in (["*"] if settings.role == "all" else MODELS_OF_ROLE[settings.role])],
            "--disable-auto-complete-config",  # which would run each model.py twice, and import torch twice
            f"--http-address={address}",
            f"--grpc-address={address}",
            f"--http-port={settings.triton_http_port}",
            f"--grpc-port={settings.triton_grpc_port}",
            f"--metrics-port={settings.triton_metrics_port}",
            f"--backend-config=python,stub-timeout-seconds={LOAD_TIMEOUT_S}",
            *([] if has_gpu() else ["--allow-gpu-metrics=false"]),
        ]

    def search_paths(self) -> dict[str, list[Path]]:
        """The folders that `command` needs in front of those of LD_LIBRARY_PATH and PATH.

        The stub ignores PYTHONPATH and its like: it embeds the libpython that LD_LIBRARY_PATH leads to, and takes its
        packages from the environment of the first `python3` on PATH. Raises LaunchError where this Python has no library.
        """
        return {"LD_LIBRARY_PATH": [libpython().parent, self.root / "lib"], "PATH": [Path(sys.executable).parent]}

    def environment(self) -> dict[str, str]:
        """`DEFAULTS`, and `search_paths` as variables, with what this process's own hold behind them."""
        chosen = {name: os.environ.get(name) or value for name, value in DEFAULTS.items()}
        return chosen | _extended(self.search_paths())


@dataclass(frozen=True)
class PerfAnalyzer:
    """An unpacked perf_analyzer: run `program` with `environment()` added to the environment."""

    program: Path
    libraries: Path

    def environment(self) -> dict[str, str]:
        """The variables that `program` needs."""
        return _extended({"LD_LIBRARY_PATH": [self.libraries]})


def install_runtime(prefix: Path = Path(sys.prefix)) -> Runtime:
    """The runtime in the environment `prefix`, downloaded and unpacked where it is not there yet.

    Raises LaunchError where that fails.
    """
    root = prefix / "triton-2.51.0"
    unpack_once(TRITON, root)
    return Runtime(root)


def install_perf_analyzer(prefix: Path = Path(sys.prefix)) -> PerfAnalyzer:
    """perf_analyzer in the environment `prefix`, downloaded and unpacked where it is not there yet.

    Raises LaunchError where that fails.
    """
    runtime = install_runtime(prefix)
    root = prefix / "perf-analyzer-2.50.0"
    unpack_once(PERF_ANALYZER, root)
    return PerfAnalyzer(root / "bin" / "perf_analyzer", runtime.root / "perf_analyzer")


def has_gpu() -> bool:
    """An NVIDIA driver is there, natively or through WSL."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()


def _extended(search_paths: dict[str, list[Path]]) -> dict[str, str]:
    return {
        name: ":".join(filter(None, [*map(str, folders), os.environ.get(name, "")])) for name, folders in search_paths.items()
    }
