import sys
import time
from pathlib import Path

import httpx
import pytest

from triton_renderer.launcher import supervisor
from triton_renderer.launcher.errors import LaunchError
from triton_renderer.launcher.processes import Deadline, StopSignal, marked
from triton_renderer.launcher.runtime import Runtime
from triton_renderer.launcher.supervisor import STOP_S, Shim, Stopped, TritonServer, base_url, free_ports, serve
from triton_renderer.settings import Settings, load_settings

HEALTHY = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *arguments): print("asked", flush=True)
print(os.environ["SHIM_PORT"], os.environ["COLOUR"], flush=True)
http.server.HTTPServer(("127.0.0.1", int(os.environ["SHIM_PORT"])), Handler).serve_forever()
"""


class ScriptedShim(Shim):
    """The shim's supervision around any script."""

    script = HEALTHY

    def _command(self) -> list[str]:
        return [sys.executable, "-c", self.script]


@pytest.fixture
def settings() -> Settings:
    return load_settings(**free_ports())


def test_ports_are_free_and_differ() -> None:
    assert len(set(free_ports().values())) == 4


def test_a_server_on_all_addresses_is_reached_by_loopback() -> None:
    assert base_url("0.0.0.0", 9000) == "http://127.0.0.1:9000"
    assert base_url("127.0.0.2", 9000) == "http://127.0.0.2:9000"


def test_it_is_entered_when_ready_and_left_when_gone(settings: Settings, tmp_path: Path) -> None:
    said: list[str] = []
    with ScriptedShim(settings, tmp_path / "logs", environment={"COLOUR": "red"}, say=said.append) as shim:
        shim.check()
        assert shim.url == f"http://127.0.0.1:{settings.shim_port}"
        assert len(marked(shim._mark)) == 1
    assert marked(shim._mark) == []
    assert said[0] == f"shim | {settings.shim_port} red"
    assert "asked" in shim.log.read_text()


def test_a_process_that_ends_before_it_is_ready_is_reported_with_its_log(settings: Settings, tmp_path: Path) -> None:
    said: list[str] = []
    shim = ScriptedShim(settings, tmp_path, say=said.append)
    shim.script = "print('the disk is full'); raise SystemExit(4)"
    with pytest.raises(LaunchError, match=r"^shim ended with exit code 4; its log is .*shim\.log$"), shim:
        pytest.fail("it was not ready")
    assert said == ["shim | the disk is full"]


def test_a_process_that_ends_later_is_noticed(settings: Settings, tmp_path: Path) -> None:
    with ScriptedShim(settings, tmp_path, environment={"COLOUR": "red"}) as shim:
        marked(shim._mark)[0].kill()
        time.sleep(0.2)
        with pytest.raises(LaunchError, match="shim was killed by SIGKILL"):
            shim.check()


def test_a_signal_ends_the_waiting_and_the_process(settings: Settings, tmp_path: Path) -> None:
    signals = StopSignal()
    signals.number = 15
    shim = ScriptedShim(settings, tmp_path, signals=signals)
    shim.script = "import time; time.sleep(60)"
    began = time.monotonic()
    with pytest.raises(Stopped), shim:
        pytest.fail("it was not ready")
    assert marked(shim._mark) == []
    assert time.monotonic() - began < 10


def test_an_error_inside_leaves_no_process(settings: Settings, tmp_path: Path) -> None:
    shim = ScriptedShim(settings, tmp_path, environment={"COLOUR": "red"})
    with pytest.raises(ZeroDivisionError), shim:
        _ = 1 / 0
    assert marked(shim._mark) == []


STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + HEALTHY


class StubbornShim(ScriptedShim):
    """Ends by force alone."""

    script = STUBBORN
    grace_s = 6.0


class FakeTriton(TritonServer):
    """Triton's supervision around a script that tells what it sees of the environment, and ends by force alone."""

    def _command(self) -> list[str]:
        code = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        return [sys.executable, "-c", code + "print(sorted(os.environ), flush=True); time.sleep(60)"]

    def _is_ready(self) -> bool:
        return "PATH" in self.log.read_text()


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`serve` starts stubborn scripts in the places of Triton and the shim."""
    monkeypatch.setattr(supervisor, "install_runtime", lambda: Runtime(tmp_path))
    monkeypatch.setattr(supervisor, "TritonServer", FakeTriton)
    monkeypatch.setattr(supervisor, "Shim", StubbornShim)


def test_shim_and_triton_end_within_one_deadline(
    settings: Settings, tmp_path: Path, fakes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert STOP_S < 15
    monkeypatch.setattr(supervisor, "STOP_S", 2.0)
    with serve(settings, tmp_path / "logs", environment={"COLOUR": "red"}) as stack:
        marks = [stack._triton._mark, stack._shim._mark]
        assert [len(marked(mark)) for mark in marks] == [1, 1]
        began = time.monotonic()
    assert 2.0 <= time.monotonic() - began < 4.0
    assert [marked(mark) for mark in marks] == [[], []]


@pytest.mark.parametrize("where", ["settings", "environment"])
def test_the_key_is_not_given_to_triton(where: str, tmp_path: Path, fakes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "environment":
        monkeypatch.setenv("API_KEY", "secret")
    settings = load_settings(**free_ports(), api_key="secret")
    with FakeTriton(settings, tmp_path, environment={"COLOUR": "red"}, deadline=Deadline(0.1)) as triton:
        seen = triton.log.read_text()
    assert "'COLOUR'" in seen
    assert "'SHIM_PORT'" in seen
    assert "API_KEY" not in seen


@pytest.mark.parametrize(
    ("role", "loaded", "ready"),
    [
        ("all", ["render", "encode", "prefill_decode", "derender", "generate", "chat"], True),
        ("all", ["render", "encode", "prefill_decode", "derender", "chat"], False),
        ("render", ["render", "derender"], True),
        ("render", ["render"], False),
    ],
)
@pytest.mark.usefixtures("fakes")
def test_triton_is_ready_when_every_model_of_its_role_is(
    role: str, loaded: list[str], ready: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = [{"name": path.parent.name} for path in supervisor.MODEL_REPOSITORY.glob("*/config.pbtxt")]
    for entry in index:
        if entry["name"] in loaded:
            entry["state"] = "READY"
    answer = httpx.Response(200, json=index)
    monkeypatch.setattr(httpx, "post", lambda url, **_: answer)
    triton = TritonServer(load_settings(**free_ports(), role=role), tmp_path)
    assert triton._is_ready() is ready
    assert set(triton._missing().split(", ")) == ({"render", "derender"} if role == "render" else {e["name"] for e in index})


def test_each_server_is_reached_at_its_own_address(tmp_path: Path, fakes: None) -> None:
    settings = load_settings(**free_ports(), host="127.0.0.2", triton_host="127.0.0.3")
    assert Shim(settings, tmp_path).url == f"http://127.0.0.2:{settings.shim_port}"
    triton = FakeTriton(settings, tmp_path)
    assert triton.http_url == f"http://127.0.0.3:{settings.triton_http_port}"
    assert triton.grpc_url == f"127.0.0.3:{settings.triton_grpc_port}"
