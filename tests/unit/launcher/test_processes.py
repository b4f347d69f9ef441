import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from triton_renderer.launcher import processes
from triton_renderer.launcher.processes import Child, Deadline, StopSignal, kill_marked, marked, new_mark

STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""
WITH_GRANDCHILDREN = """
import subprocess, sys, time
for new_session in (False, True):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=new_session)
print("ready", flush=True)
time.sleep(60)
"""


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)


def start(code: str, mark: str, tmp_path: Path) -> Child:
    log = tmp_path / "log"
    child = Child.start("child", [sys.executable, "-c", code], os.environ, mark, log)
    wait_until(lambda: "ready" in log.read_text() or child.ended)
    return child


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(processes, "SHM", folder)
    return folder


def test_marks_differ() -> None:
    assert len({new_mark() for _ in range(100)}) == 100


def test_everything_with_the_mark_is_killed_in_any_session_and_without_its_parent(tmp_path: Path, shm: Path) -> None:
    mark = new_mark()
    child = start(WITH_GRANDCHILDREN, mark, tmp_path)
    assert len(marked(mark)) == 3
    child.process.kill()
    child.process.wait()
    assert len(marked(mark)) == 2
    kill_marked(mark)
    assert marked(mark) == []


def test_processes_of_another_server_stay(tmp_path: Path, shm: Path) -> None:
    other_mark = new_mark()
    other = start(STUBBORN, other_mark, tmp_path)
    try:
        kill_marked(new_mark())
        assert other.ended is None
    finally:
        kill_marked(other_mark)
    assert other.ended == "was killed by SIGKILL"


def test_killing_without_any_time_left_still_kills(tmp_path: Path, shm: Path) -> None:
    mark = new_mark()
    child = start(STUBBORN, mark, tmp_path)
    kill_marked(mark, 0.0)
    wait_until(lambda: child.ended == "was killed by SIGKILL")


def test_a_deadline_runs_from_the_first_question() -> None:
    now = 100.0
    deadline = Deadline(10.0, lambda: now)
    now = 200.0
    assert deadline.left(6.0) == 6.0
    now = 207.0
    assert (deadline.left(6.0), deadline.left(1.0)) == (3.0, 1.0)
    now = 300.0
    assert deadline.left(6.0) == 0.0


def test_only_regions_with_the_prefix_are_removed(shm: Path) -> None:
    mark, other_mark = new_mark(), new_mark()
    for name in (f"{mark}1", f"{mark}2", f"{other_mark}1", "unrelated"):
        (shm / name).touch()
    kill_marked(mark)
    assert {path.name for path in shm.iterdir()} == {f"{other_mark}1", "unrelated"}


def test_a_child_runs_in_a_session_of_its_own_with_the_given_environment(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "not given")
    log = tmp_path / "log"
    code = "import os, sys; print(os.getsid(0) == os.getpid(), os.environ['COLOUR'], 'SECRET' in os.environ, file=sys.stderr)"
    child = Child.start("child", [sys.executable, "-c", code], {"COLOUR": "red"}, new_mark(), log)
    child.process.wait()
    assert log.read_text() == "True red False\n"
    assert child.ended == "ended with exit code 0"


def test_a_willing_child_ends_before_its_grace(tmp_path: Path) -> None:
    child = start("import time; print('ready', flush=True); time.sleep(60)", new_mark(), tmp_path)
    began = time.monotonic()
    child.stop(10.0, StopSignal())
    assert child.ended == "was killed by SIGTERM"
    assert time.monotonic() - began < 5


def test_a_stubborn_child_is_killed_after_its_grace(tmp_path: Path) -> None:
    child = start(STUBBORN, new_mark(), tmp_path)
    began = time.monotonic()
    child.stop(0.3, StopSignal())
    assert child.ended == "was killed by SIGKILL"
    assert 0.3 <= time.monotonic() - began < 5


def test_a_user_in_a_hurry_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    child = start(STUBBORN, new_mark(), tmp_path)
    signals = StopSignal()
    signals.hurry = True
    began = time.monotonic()
    child.stop(30.0, signals)
    assert child.ended == "was killed by SIGKILL"
    assert time.monotonic() - began < 5


def test_stopping_a_child_that_has_ended_does_nothing(tmp_path: Path) -> None:
    child = start("raise SystemExit(3)", new_mark(), tmp_path)
    child.process.wait()
    child.stop(1.0, StopSignal())
    assert child.ended == "ended with exit code 3"


SIGNALLED = """
import time
from triton_renderer.launcher.processes import StopSignal
signals = StopSignal()
signals.install()
print("installed", flush=True)
while not signals.number: time.sleep(0.01)
print("first", signals.number, flush=True)
while not signals.hurry: time.sleep(0.01)
print("second", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_means_hurry_but_not_an_echo_of_the_first(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", SIGNALLED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "installed\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"first {number}\n"
        process.send_signal(number)  # at once, as from make to its group and to its child
        time.sleep(processes.DOUBLE_SIGNAL_S + 0.2)
        assert process.poll() is None
        process.send_signal(number)
        assert process.stdout.readline() == "second\n"


def test_zombies_are_not_living_processes(tmp_path: Path) -> None:
    mark = new_mark()
    child = start(STUBBORN, mark, tmp_path)
    os.kill(child.process.pid, signal.SIGKILL)
    wait_until(lambda: psutil.Process(child.process.pid).status() == psutil.STATUS_ZOMBIE)
    assert marked(mark) == []
    child.process.wait()
