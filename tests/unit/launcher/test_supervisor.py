import sys
import time
from pathlib import Path

import pytest

from triton_renderer.launcher.errors import LaunchError
from triton_renderer.launcher.processes import StopSignal, marked
from triton_renderer.launcher.supervisor import Shim, Stopped, base_url, free_ports
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
    assert base_url(load_settings(host="0.0.0.0"), 9000) == "http://127.0.0.1:9000"
    assert base_url(load_settings(host="127.0.0.2"), 9000) == "http://127.0.0.2:9000"


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
