"""Every request counts once, where it ended and how it ended: on the shim's /metrics and on Triton's."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.asking import MODEL, data_url, image_part, noise, user
from tests.e2e.watching import metrics, wait_for
from triton_renderer.launcher.supervisor import Stack, free_ports, serve
from triton_renderer.settings import Settings, load_settings

CHAT = "/v1/chat/completions"
OUTCOMES = ("ok", "client_error", "server_error", "cancelled")
LONG = {"max_tokens": 6000, "ignore_eos": True}


class Counts:
    """How far counters have gone since this was made."""

    def __init__(self, stack: Stack, settings: Settings) -> None:
        self._shim, self._triton = stack.shim_url, f"http://127.0.0.1:{settings.triton_metrics_port}"
        self._before = self._now()

    def _now(self) -> dict[tuple[str, ...], float]:
        return metrics(self._shim) | metrics(self._triton)

    def of(self, name: str, *labels: str) -> float:
        key = (f"triton_renderer_{name}", *labels)
        return self._now().get(key, 0) - self._before.get(key, 0)

    def outcomes(self) -> dict[str, float]:
        """Of requests to the chat route and of calls of ensemble `chat`, which must agree where the call was made."""
        return {outcome: count for outcome in OUTCOMES if (count := self.of("requests_total", outcome, CHAT))}

    def calls(self) -> dict[str, float]:
        return {outcome: count for outcome in OUTCOMES if (count := self.of("model_calls_total", "chat", outcome))}


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load_settings(enable_scale_out=True, **free_ports())


@pytest.fixture(scope="module")
def stack(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A server of its own: another test's counts may still be on their way to Triton."""
    with serve(settings, tmp_path_factory.mktemp("logs")) as stack:
        yield stack


@pytest.fixture(scope="module")
def http(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.shim_url, timeout=60) as client:
        yield client


@pytest.fixture
def counts(stack: Stack, settings: Settings) -> Counts:
    return Counts(stack, settings)


def ask(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post(CHAT, json={"model": MODEL, "messages": user("Hello"), "max_tokens": 2} | fields)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_an_answer_and_a_refusal(http: httpx.Client, counts: Counts, stream: bool) -> None:
    assert ask(http, stream=stream).status_code == 200
    assert counts.outcomes() == counts.calls() == {"ok": 1}
    wait_for(
        lambda: sum(counts.of("choices_finished_total", reason) for reason in ("stop", "length")) == 1, 10, "the engine's count"
    )
    bad = user({"type": "image_url", "image_url": {"url": data_url(b"no picture")}})
    assert ask(http, stream=stream, messages=bad).status_code == 400
    assert counts.outcomes() == counts.calls() == {"ok": 1, "client_error": 1}
    assert ask(http, stream=stream, temperature="hot").status_code == 400
    assert counts.outcomes() == {"ok": 1, "client_error": 2}
    assert counts.calls() == {"ok": 1, "client_error": 1}, "a body that was refused was sent on"


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_client_that_leaves(http: httpx.Client, counts: Counts, stream: bool) -> None:
    body = {"model": MODEL, "messages": user("Hello"), "stream": stream} | LONG
    if stream:
        with http.stream("POST", CHAT, json=body) as response:
            next(response.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            http.post(CHAT, json=body, timeout=httpx.Timeout(10, read=0.5))
    wait_for(lambda: counts.outcomes() == counts.calls() == {"cancelled": 1}, 10, "the shim to count the client that left")
    wait_for(lambda: counts.of("choices_finished_total", "abort") == 1, 10, "the engine to count the request")


def test_an_abort_is_an_answer(http: httpx.Client, counts: Counts) -> None:
    body = {"model": MODEL, "messages": user("Hello"), "stream": True, "request_id": "to be aborted"} | LONG
    with http.stream("POST", CHAT, json=body) as response:
        lines = response.iter_lines()
        next(lines)
        for _ in range(2):  # the second one finds nothing more to do
            assert http.post("/inference/v1/abort_requests", json={"request_ids": ["to be aborted"]}).status_code == 200
        rest = [line for line in lines if line]
    assert sum('"finish_reason":"abort"' in line for line in rest) == 1
    assert counts.outcomes() == counts.calls() == {"ok": 1}
    wait_for(lambda: counts.of("choices_finished_total", "abort") == 1, 10, "the engine to count the request")


def test_a_picture_that_is_known_counts_as_found_in_the_encoder_alone(http: httpx.Client, counts: Counts) -> None:
    for question in ("How many squares?", "Where is the circle?"):
        assert ask(http, messages=user(image_part(noise(4711)), question)).status_code == 200
    found = ("encoder_cache_misses_total", "encoder_cache_hits_total")
    wait_for(lambda: [counts.of(name) for name in found] == [1, 1], 10, "the encoder's counts")
