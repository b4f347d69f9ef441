"""kill -9 of each stage's process while requests run: they end, /health names the stage, it comes back by itself."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.asking import MODEL, image_part, noise, user
from triton_renderer.launcher.supervisor import Stack, free_ports, serve
from triton_renderer.settings import load_settings

STAGES = ("render", "encode", "prefill_decode", "derender")
ENDS_WITHIN_S = 10.0
BACK_WITHIN_S = 60.0
LONG = {"model": MODEL, "messages": user("Hello"), "temperature": 0, "max_tokens": 8000, "ignore_eos": True}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with serve(load_settings(enable_scale_out=True, **free_ports()), tmp_path_factory.mktemp("logs")) as stack:
        yield stack


class Client(threading.Thread):
    """Keeps one request open and notes how it ends. Other requests follow, so that one is always under way."""

    def __init__(self, url: str, body: dict[str, object]) -> None:
        super().__init__()
        self.url, self.body = url, body
        self.stop = threading.Event()
        self.started = threading.Event()
        self.failures: list[tuple[float, str]] = []
        self.longest_wait = 0.0

    def run(self) -> None:
        while not self.stop.is_set():
            begun = time.monotonic()
            problem = self.ask()
            self.longest_wait = max(self.longest_wait, time.monotonic() - begun)
            if problem:
                self.failures.append((time.monotonic(), problem))
                time.sleep(0.05)

    def ask(self) -> str | None:
        """None for an answer, else what went wrong."""
        try:
            with httpx.stream("POST", self.url, json=self.body, timeout=60) as response:
                text = ""
                for line in response.iter_lines():
                    self.started.set()
                    text = line if line else text
                    if self.stop.is_set():
                        return None  # leaving ends the work behind it
                    if '"error"' in line:
                        return line
                if response.status_code != 200:
                    return f"{response.status_code} {text}"
                return None
        except httpx.HTTPError as error:
            return repr(error)


def health(stack: Stack) -> httpx.Response:
    return httpx.get(f"{stack.shim_url}/health", timeout=5)


def names_as_down(stack: Stack, stage: str) -> bool:
    answer = health(stack)
    return answer.status_code == 503 and f"`{stage}`" in answer.json()["error"]["message"]


def wait_for(condition: object, timeout_s: float, what: str) -> float:
    started = time.monotonic()
    while not condition():  # type: ignore[operator]
        assert time.monotonic() - started < timeout_s, f"{what} took more than {timeout_s} s"
        time.sleep(0.02)
    return time.monotonic() - started


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def our_regions() -> set[str]:
    """Shared memory of the servers that this process started."""
    return {path.name for path in Path("/dev/shm").glob(f"triton_renderer_{os.getpid()}_*")}


def end(stack: Stack, clients: list[Client]) -> None:
    """Ends the clients, with what they have under way.

    The plain request is aborted again and again: the client may be about to send one when it is told to stop.
    """
    deadline = time.monotonic() + ENDS_WITHIN_S
    for client in clients:
        client.stop.set()
    for client in clients:
        while client.is_alive() and time.monotonic() < deadline:
            httpx.post(f"{stack.shim_url}/inference/v1/abort_requests", json={"request_ids": ["chatcmpl-plain"]}, timeout=5)
            client.join(0.5)
        assert not client.is_alive(), "a request hangs"


@pytest.mark.parametrize("stage", STAGES)
def test_killed_stage_fails_what_is_open_and_comes_back(stack: Stack, stage: str) -> None:
    url = f"{stack.shim_url}/v1/chat/completions"
    pictures = {"model": MODEL, "messages": user(image_part(noise(1, 500, 400)), "?"), "max_tokens": 2}
    clients = [Client(url, LONG | {"stream": True}), Client(url, LONG | {"request_id": "plain"}), Client(url, pictures)]
    for client in clients:
        client.start()
    try:
        assert all(client.started.wait(30) for client in (clients[0], clients[2]))
        time.sleep(0.3)
        killed = time.monotonic()
        os.kill(stack.stub_pids()[stage], signal.SIGKILL)
        wait_for(lambda: names_as_down(stack, stage), ENDS_WITHIN_S, "/health to name the stage")
        # Streams through prefill_decode and derender cannot go on; those past render and encode may.
        if stage in ("prefill_decode", "derender"):
            wait_for(lambda: all(client.failures for client in clients[:2]), ENDS_WITHIN_S, "the open requests to end")
            assert max(client.failures[0][0] for client in clients[:2]) - killed < ENDS_WITHIN_S
        # The picture client is in all four stages, one after another.
        wait_for(lambda: clients[2].failures, ENDS_WITHIN_S, "the open picture request to end")
        back = wait_for(lambda: health(stack).status_code == 200, BACK_WITHIN_S, f"{stage} to come back")
        print(f"{stage}: back {back:.1f} s after the kill was noticed")
    finally:
        for client in clients:
            client.stop.set()
        end(stack, clients)
    answer = httpx.post(url, json=LONG | {"max_tokens": 3}, timeout=30)
    assert answer.status_code == 200, answer.text
    for client in clients:
        for _, problem in client.failures:
            assert "503" in problem, problem
    assert clients[2].longest_wait < ENDS_WITHIN_S


def test_both_gpu_stages_killed_at_once_come_back(stack: Stack) -> None:
    pids = stack.stub_pids()
    for stage in ("encode", "prefill_decode"):
        os.kill(pids[stage], signal.SIGKILL)
    wait_for(lambda: health(stack).status_code == 503, ENDS_WITHIN_S, "/health to notice")
    wait_for(lambda: health(stack).status_code == 200, BACK_WITHIN_S, "the stages to come back")
    body = {"model": MODEL, "messages": user(image_part(noise(2)), "?"), "max_tokens": 2}
    assert httpx.post(f"{stack.shim_url}/v1/chat/completions", json=body, timeout=30).status_code == 200


def test_server_with_a_killed_stage_stops_in_time_and_leaves_nothing(tmp_path: Path) -> None:
    before = our_regions()
    with serve(load_settings(**free_ports()), tmp_path) as stack:
        assert our_regions() > before
        stubs = [psutil.Process(pid) for pid in stack.stub_pids().values()]
        os.kill(stack.stub_pids()["prefill_decode"], signal.SIGKILL)
        started = time.monotonic()
    assert time.monotonic() - started < 15
    assert our_regions() <= before
    # SIGKILL was sent by now; the kernel may still be taking the process down.
    wait_for(lambda: not any(map(lives, stubs)), 5, "the killed processes to go")
