"""The shim's counters."""

import asyncio
import time

import pytest

from client.shim.metrics import outcome_of
from triton_renderer.errors import InvalidRequest, RendererError

from .conftest import Running, Start

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "one two three"}]}
OUTCOMES = ["ok", "client_error", "server_error", "cancelled"]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "ok"),
        (400, "client_error"),
        (429, "client_error"),
        (499, "cancelled"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_outcomes_follow_the_status(status: int, outcome: str) -> None:
    assert outcome_of(status) == outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(None, "ok"), (InvalidRequest("bad picture"), "client_error"), (RendererError("broken"), "server_error")],
)
@pytest.mark.parametrize(("stream", "after"), [(False, 0), (True, 0), (True, 2)])
async def test_a_request_counts_once_by_route_and_by_model(
    running: Running, error: RendererError | None, outcome: str, after: int, stream: bool
) -> None:
    running.stages.fail_after = (after, error) if error else None
    await running.http.post(CHAT, json=HELLO | {"stream": stream})
    for each in OUTCOMES:
        assert running.count("requests_total", route=CHAT, outcome=each) == (each == outcome)
        assert running.count("model_calls_total", model="chat", outcome=each) == (each == outcome)
    assert running.count("request_duration_seconds_count", route=CHAT) == 1
    assert running.count("model_call_duration_seconds_count", model="chat") == 1


@pytest.mark.parametrize(("stream", "after"), [(False, 0), (True, 1)])
async def test_a_duration_ends_with_the_last_response_and_not_with_the_first(
    running: Running, stream: bool, after: int
) -> None:
    running.stages.pause_after = after
    connection = running.connect(CHAT, HELLO | {"stream": stream})
    await running.stages.paused.wait()
    paused = time.perf_counter()
    await asyncio.sleep(0.05)
    assert running.count("request_duration_seconds_count", route=CHAT) == 0
    waited = time.perf_counter() - paused
    running.stages.go_on.set()
    await connection.end()
    assert running.count("request_duration_seconds_sum", route=CHAT) >= waited
    assert running.count("model_call_duration_seconds_sum", model="chat") >= waited


async def test_a_refused_body_counts_for_the_route_and_for_no_model(running: Running) -> None:
    await running.http.post(CHAT, json={})
    assert running.count("requests_total", route=CHAT, outcome="client_error") == 1
    assert all(running.count("model_calls_total", model="chat", outcome=outcome) == 0 for outcome in OUTCOMES)


async def test_unknown_paths_share_one_label(running: Running) -> None:
    for path in ("/a", "/b"):
        await running.http.get(path)
    assert running.count("requests_total", route="unknown", outcome="client_error") == 2


async def test_the_metrics_route_shows_them_and_where_tritons_are(running: Running) -> None:
    await running.http.post(CHAT, json=HELLO)
    response = await running.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert f'triton_renderer_requests_total{{outcome="ok",route="{CHAT}"}} 1.0' in response.text
    assert 'triton_metrics="http://127.0.0.1:8002/metrics"' in response.text
    assert 'triton_renderer_stage_up{stage="encode"} 1.0' in response.text


async def test_tritons_metrics_are_where_triton_listens(start: Start) -> None:
    async with start(host="0.0.0.0", triton_host="127.0.0.2") as running:
        assert 'triton_metrics="http://127.0.0.2:8002/metrics"' in (await running.http.get("/metrics")).text


async def test_version(running: Running) -> None:
    assert set((await running.http.get("/version")).json()) == {"version"}
