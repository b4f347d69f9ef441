"""Start and stop: of a real tritonserver with a repository of two small models, and of the whole `triton-renderer serve`."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from triton_renderer.launcher.errors import LaunchError
from triton_renderer.launcher.processes import SHM, StopSignal, marked
from triton_renderer.launcher.supervisor import Stopped, TritonServer, free_ports
from triton_renderer.settings import load_settings

START_S = 240.0
"""Four stages import torch and transformers; on a busy machine of two cores that takes its time."""
STOP_S = 15.0

CONFIG = """
backend: "python"
max_batch_size: 0
input [{ name: "count" data_type: TYPE_INT64 dims: [1] }]
output [{ name: "number" data_type: TYPE_INT64 dims: [1] }]
model_transaction_policy { decoupled: true }
instance_group [{ kind: KIND_CPU }]
"""
MODEL = """
import os, signal, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        name = args["model_name"]
        names = ("COLOUR", "SHIM_PORT", "GOMP_SPINCOUNT", "API_KEY")
        print(name, "sees", *(os.environ.get(name) for name in names), file=sys.stderr, flush=True)
        if os.environ.get("RAISE") == name:
            raise ValueError("these weights are not here")
        if os.environ.get("DIE") == name:
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get("SLEEP") == name:
            time.sleep(60)

    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "count").as_numpy()[0])
            threading.Thread(target=self.count, args=(request.get_response_sender(), count), daemon=True).start()

    def count(self, sender, count):
        for number in range(count):
            last = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if number == count - 1 else 0
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("number", np.array([number]))]), flags=last)
            time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for name in ("first", "second"):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(CONFIG)
        (root / name / "1" / "model.py").write_text(MODEL)
    return root


@pytest.fixture
def start(repository: Path, tmp_path: Path) -> Iterator[Callable[..., TritonServer]]:
    """Makes servers, not yet entered, and sees afterwards that nothing is left of them."""
    servers = []

    def make(signals: StopSignal | None = None, **environment: str) -> TritonServer:
        settings, log_dir = load_settings(**free_ports()), tmp_path / str(len(servers))
        server = TritonServer(settings, log_dir, repository=repository, environment=environment, signals=signals)
        servers.append(server)
        return server

    yield make
    for server in servers:
        assert marked(server._mark) == []
        assert regions(server) == []


def regions(server: TritonServer) -> list[Path]:
    return list(SHM.glob(f"{server._mark}*"))


def count(server: TritonServer, model: str, upto: int, seen: list[int]) -> tritonclient.grpc.InferenceServerClient:
    """Lets `model` count; the numbers arrive in `seen`."""

    def take(result: tritonclient.grpc.InferResult | None, error: InferenceServerException | None) -> None:
        if result is not None:
            seen.append(int(result.as_numpy("number")[0]))

    client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
    tensor = tritonclient.grpc.InferInput("count", [1], "INT64")
    tensor.set_data_from_numpy(np.array([upto]))
    client.start_stream(take)
    client.async_stream_infer(model, [tensor])
    return client


def wait_until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)


def test_every_model_is_ready_when_the_server_is_entered(start: Callable[..., TritonServer]) -> None:
    with start(COLOUR="red", GOMP_SPINCOUNT="250", API_KEY="secret") as server:
        pids = server.stub_pids()
        assert pids.keys() == {"first", "second"}
        for name, pid in pids.items():
            assert f"/{name}/1/model.py" in " ".join(psutil.Process(pid).cmdline())
            assert httpx.get(f"{server.http_url}/v2/models/{name}/ready", trust_env=False).status_code == httpx.codes.OK
        assert len(regions(server)) == 2
        seen: list[int] = []
        with count(server, "first", 3, seen):
            wait_until(lambda: seen == [0, 1, 2])
        assert f"first sees red {server.settings.shim_port} 250 None" in server.log.read_text()
        began = time.monotonic()
    assert time.monotonic() - began < STOP_S


def test_a_killed_stage_does_not_delay_the_end(start: Callable[..., TritonServer]) -> None:
    with start() as server:
        seen: list[int] = []
        client = count(server, "first", 10_000, seen)
        wait_until(lambda: seen)
        os.kill(server.stub_pids()["first"], signal.SIGKILL)  # its stream hangs from now on
        wait_until(lambda: server.stub_pids().keys() == {"second"})
        server.check()  # Triton itself lives
        began = time.monotonic()
    assert time.monotonic() - began < STOP_S
    client.stop_stream(cancel_requests=True)
    client.close()


def test_a_reloaded_stage_is_found_under_its_name(start: Callable[..., TritonServer]) -> None:
    with start() as server:
        before = server.stub_pids()
        os.kill(before["first"], signal.SIGKILL)
        for action in ("unload", "load"):
            url = f"{server.http_url}/v2/repository/models/first/{action}"
            httpx.post(url, json={}, timeout=30, trust_env=False).raise_for_status()
        after = server.stub_pids()
        assert after["first"] != before["first"]
        assert after["second"] == before["second"]


def test_a_tritonserver_that_was_killed_leaves_nothing(start: Callable[..., TritonServer]) -> None:
    with start() as server:
        psutil.Process(server.stub_pids()["first"]).parent().kill()
        with pytest.raises(LaunchError, match=r"^triton was killed by SIGKILL; its log is .*triton\.log$"):
            wait_until(server.check)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("RAISE", "ValueError: these weights are not here"), ("DIE", r"its process died \(Stub process .* is not healthy")],
)
def test_a_stage_that_fails_to_load_is_named_in_one_line(
    fault: str, reason: str, start: Callable[..., TritonServer], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LaunchError, match=f"^second could not be loaded: {reason}") as failure, start(**{fault: "second"}):
        pytest.fail("it was not ready")
    assert "\n" not in str(failure.value)
    assert "triton | failed to load 'second'" in capsys.readouterr().out


def test_a_signal_while_stages_load_ends_the_start(start: Callable[..., TritonServer]) -> None:
    signals = StopSignal()
    timer = threading.Timer(4.0, setattr, (signals, "number", signal.SIGTERM))
    timer.start()
    with pytest.raises(Stopped), start(signals, SLEEP="second"):
        pytest.fail("it was not ready")
    assert not timer.is_alive()


def test_two_servers_do_not_disturb_each_other(start: Callable[..., TritonServer]) -> None:
    with start() as lasting:
        with start() as passing:
            assert len(regions(lasting)) == len(regions(passing)) == 2
            assert not set(lasting.stub_pids().values()) & set(passing.stub_pids().values())
            seen: list[int] = []
            client = count(lasting, "second", 200, seen)
            wait_until(lambda: seen)
        wait_until(lambda: len(seen) == 200)
        client.close()
        assert len(regions(lasting)) == 2


class Command:
    """`triton-renderer serve`, by default on free ports, with the model that comes with the project."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.ports = free_ports()
        self.flags = [part for name, port in self.ports.items() for part in (f"--{name.replace('_', '-')}", str(port))]
        self.output = folder / f"output-{self.ports['shim_port']}"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "triton_renderer.launcher.cli", "serve", *self.flags, *flags],
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def ready_line(self) -> str | None:
        found = re.search(r"^ready: .*$", self.output.read_text(), re.MULTILINE)
        return found[0] if found else None

    def wait_until_ready(self) -> str:
        wait_until(lambda: self.ready_line or self.process.poll() is not None, START_S)
        assert self.ready_line, self.output.read_text()
        return self.ready_line

    def family(self) -> list[psutil.Process]:
        """Every process of the server but the first."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def stage(self, name: str) -> psutil.Process:
        return next(process for process in self.family() if f"/{name}/1/model.py" in " ".join(process.cmdline()))

    def shim(self) -> psutil.Process:
        return next(process for process in self.family() if "client.shim" in process.cmdline())

    def regions(self) -> list[Path]:
        return list(SHM.glob(f"triton_renderer_{self.process.pid}_*"))


@pytest.fixture
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Command]:
    """A server that is starting; its flags are the test's parameter."""
    command = Command(tmp_path, *getattr(request, "param", ()))
    yield command
    command.process.send_signal(signal.SIGTERM)
    command.process.wait(STOP_S)


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended. A zombie, which waits for init to notice, has."""
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.timeout(300)
def test_serve_from_the_ready_line_to_ctrl_c_with_a_dead_stage(command: Command, tmp_path: Path) -> None:
    line = command.wait_until_ready()
    family = command.family()
    assert len(family) >= 6  # tritonserver, four stages, the shim
    assert command.regions()

    assert line.startswith("ready: shapes-vl at http://127.0.0.1:")
    assert all(str(port) in line for port in command.ports.values())
    if shutil.which("curl"):
        pasted = ["bash", "-c", line.split("; try: ")[1]]
        assert "red circle" in subprocess.run(pasted, capture_output=True, text=True, timeout=60, check=True).stdout

    second = Command(tmp_path, *command.flags)
    assert second.process.wait(30) == 1
    assert f"SHIM_PORT={command.ports['shim_port']}: the port is in use" in second.output.read_text()
    assert living(family) == family

    command.stage("prefill_decode").kill()
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(STOP_S) == 0
    wait_until(lambda: not living(family), 2.0)
    assert command.regions() == []


@pytest.mark.timeout(300)
def test_a_shim_that_dies_ends_everything_with_an_error(command: Command) -> None:
    command.wait_until_ready()
    family = command.family()
    command.shim().kill()
    assert command.process.wait(STOP_S) == 1
    assert "triton-renderer: error: shim was killed by SIGKILL" in command.output.read_text()
    wait_until(lambda: not living(family), 2.0)
    assert command.regions() == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", [["--model", "."]], indirect=True)
def test_a_model_that_cannot_be_loaded_is_refused_with_the_reason_of_a_stage(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no such thing"}')
    assert command.process.wait(START_S) == 1
    last = command.output.read_text().splitlines()[-1]
    assert re.match(r"triton-renderer: error: \w+ could not be loaded: .*no such thing", last), last
    assert command.regions() == []
