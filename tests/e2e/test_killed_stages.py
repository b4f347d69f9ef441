"""kill -9 of each stage's process while requests run: they end, /health names the stage, it comes back by itself."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import tritonclient.grpc

from tests.e2e.asking import MODEL, image_part, noise, probe, user
from tests.e2e.watching import our_regions, wait_for
from triton_renderer.launcher.supervisor import Stack, free_ports, serve
from triton_renderer.settings import load_settings

FINISHED = re.compile(r'"finish_reason": ?"')
STAGES = ("render", "encode", "prefill_decode", "derender")
ENDS_WITHIN_S = 10.0
BACK_WITHIN_S = 60.0
PLACES = 8
LONG: dict[str, object] = {"model": MODEL, "messages": user("Hello"), "temperature": 0, "max_tokens": 8000, "ignore_eos": True}


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
        lines = []
        try:
            with httpx.stream("POST", self.url, json=self.body, timeout=60) as response:
                for line in response.iter_lines():
                    self.started.set()
                    if self.stop.is_set():
                        return None  # leaving ends the work behind it
                    if line:
                        lines.append(line)
        except httpx.HTTPError as error:
            return repr(error)
        if response.status_code != 200:
            return f"{response.status_code} {lines[-1]}"
        if not any('"error"' in line for line in lines):
            return None
        # A stream that breaks off: the error, the end, and nothing that looks like the end of an answer.
        assert lines.pop() == "data: [DONE]"
        assert not any('"error"' in line or FINISHED.search(line) for line in lines[:-1])
        return lines[-1]


def health(stack: Stack) -> httpx.Response:
    return httpx.get(f"{stack.shim_url}/health", timeout=5)


def names_as_down(stack: Stack, stage: str) -> bool:
    answer = health(stack)
    return answer.status_code == 503 and f"`{stage}`" in str(answer.json()["error"]["message"])


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def load(stack: Stack) -> tuple[int, int]:
    """Sequences that run in the engine, and requests that wait there."""
    with tritonclient.grpc.InferenceServerClient(stack.triton_grpc) as client:
        facts = probe(client, "prefill_decode")
    return facts["running"], facts["waiting"]


def end(stack: Stack, clients: list[Client]) -> None:
    """Ends the clients, with what they have under way.

    Plain requests are aborted again and again: a client may be about to send one when it is told to stop.
    """
    deadline = time.monotonic() + ENDS_WITHIN_S
    ids = [client.body["request_id"] for client in clients if "request_id" in client.body]
    for client in clients:
        client.stop.set()
    for client in clients:
        while client.is_alive() and time.monotonic() < deadline:
            httpx.post(f"{stack.shim_url}/inference/v1/abort_requests", json={"request_ids": ids}, timeout=5)
            client.join(0.5)
        assert not client.is_alive(), "a request hangs"


def check_endings(clients: list[Client], killed: float) -> None:
    """Each client's request that was under way at `killed` has failed in time, and it and all later ones say why."""
    for client in clients:
        assert client.failures[0][0] - killed < ENDS_WITHIN_S
        for _, problem in client.failures:
            assert "503" in problem, problem


@pytest.mark.parametrize("stage", STAGES)
def test_killed_stage_fails_what_is_open_and_comes_back(stack: Stack, stage: str) -> None:
    url = f"{stack.shim_url}/v1/chat/completions"
    pictures = {"model": MODEL, "messages": user(image_part(noise(1, 500, 400)), "?"), "max_tokens": 2}
    clients = [Client(url, LONG | {"stream": True}), Client(url, LONG | {"request_id": "plain"}), Client(url, pictures)]
    for client in clients:
        client.start()
    try:
        assert all(client.started.wait(30) for client in (clients[0], clients[2]))
        wait_for(lambda: load(stack)[0] >= 2, 30, "the stream and the plain request to run")
        killed = time.monotonic()
        os.kill(stack.stub_pids()[stage], signal.SIGKILL)
        wait_for(lambda: names_as_down(stack, stage), ENDS_WITHIN_S, "/health to name the stage")
        # Each of the requests needs every stage.
        wait_for(lambda: all(client.failures for client in clients), ENDS_WITHIN_S, "the open requests to end")
        back = wait_for(lambda: health(stack).status_code == 200, BACK_WITHIN_S, f"{stage} to come back")
        print(f"{stage}: back {back:.1f} s after the kill was noticed")
    finally:
        end(stack, clients)
    check_endings(clients, killed)
    assert clients[2].longest_wait < ENDS_WITHIN_S
    answer = httpx.post(url, json=LONG | {"max_tokens": 3}, timeout=30)
    assert answer.status_code == 200, answer.text


def test_killed_engine_fails_streams_plain_requests_and_those_that_wait(tmp_path: Path) -> None:
    """Half of them by text, half by tokens; as many wait for a place as have one."""
    with serve(load_settings(enable_scale_out=True, max_running_requests=PLACES, **free_ports()), tmp_path) as stack:
        tokens: dict[str, object] = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 8000, "ignore_eos": True}}
        routes = {"/v1/chat/completions": LONG, "/inference/v1/generate": tokens}
        clients = [
            Client(stack.shim_url + route, body | {"request_id": f"{number}", "stream": number % 4 < 2})
            for number, (route, body) in enumerate([*routes.items()] * PLACES)
        ]
        placed, waiting = clients[:PLACES], clients[PLACES:]
        try:
            for client in placed:
                client.start()
            assert all(client.started.wait(30) for client in placed if client.body["stream"])
            wait_for(lambda: load(stack) == (PLACES, 0), 30, "the first requests to run")
            for client in waiting:
                client.start()
            wait_for(lambda: load(stack) == (PLACES, PLACES), 30, "the other requests to wait")
            killed = time.monotonic()
            os.kill(stack.stub_pids()["prefill_decode"], signal.SIGKILL)
            wait_for(lambda: all(client.failures for client in clients), ENDS_WITHIN_S, "the open requests to end")
            back = wait_for(lambda: health(stack).status_code == 200, BACK_WITHIN_S, "the engine to come back")
            print(f"back {back:.1f} s after the last of {len(clients)} requests had ended")
            wait_for(lambda: load(stack)[0] == PLACES, BACK_WITHIN_S, "the clients to be served again")
        finally:
            end(stack, clients)
        check_endings(clients, killed)
        for client in clients:
            broke_off = client in placed and client.body["stream"]
            assert client.failures[0][1].startswith("data: " if broke_off else "503 "), client.failures[0][1]
        wait_for(lambda: load(stack) == (0, 0), 30, "the clients' last requests to end")


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
        assert our_regions().keys() > before.keys()
        stubs = [psutil.Process(pid) for pid in stack.stub_pids().values()]
        os.kill(stack.stub_pids()["prefill_decode"], signal.SIGKILL)
        started = time.monotonic()
    assert time.monotonic() - started < 15
    assert our_regions().keys() <= before.keys()
    # SIGKILL was sent by now; the kernel may still be taking the process down.
    wait_for(lambda: not any(map(lives, stubs)), 5, "the killed processes to go")
