"""A server whose role is render: two stages, their routes, and a clear word where one of the others is asked for."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from triton_renderer.errors import StageUnavailable

from .conftest import Running, Start
from .fakes import FakeStages, until

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "one two three"}]}
ABSENT = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/inference/v1/generate",
    "/inference/v1/abort_requests",
]
PRESENT = [
    f"{route}/{half}" for route in (CHAT, "/v1/completions", "/v1/responses", "/v1/messages") for half in ("render", "derender")
]


class RenderStages(FakeStages):
    """A Triton that has two stages only: whatever is asked of another one is noted, and fails."""

    def __init__(self) -> None:
        super().__init__()
        self.dead = {stage: StageUnavailable(f"`{stage}` is not there") for stage in ("encode", "prefill_decode", "chat")}


@pytest.fixture
async def rendering(start: Start) -> AsyncIterator[Running]:
    async with start(role="render", enable_scale_out=None, stages=RenderStages()) as running:
        yield running


async def test_it_renders_and_derenders_without_being_told_to(rendering: Running) -> None:
    rendered = await rendering.http.post(f"{CHAT}/render", json=HELLO)
    assert rendered.status_code == 200
    assert bytes(rendered.json()["token_ids"]) == b"one two three"
    assert (await rendering.http.post("/v1/completions/render", json={"prompt": "a"})).status_code == 200
    generated = {"request_id": "r", "choices": [{"index": 0, "token_ids": [104, 105], "finish_reason": "stop"}]}
    derendered = await rendering.http.post(f"{CHAT}/derender", json={"generate_response": generated, "chat_request": HELLO})
    assert derendered.json()["said"] == ["hi"]


async def test_health_looks_at_its_two_stages_only(rendering: Running) -> None:
    assert (await rendering.http.get("/health")).status_code == 200
    assert set(rendering.stages.probes) == {"render", "derender"}
    assert rendering.count("stage_up", stage="render") == rendering.count("stage_up", stage="derender") == 1
    assert "encode" not in (await rendering.http.get("/metrics")).text
    rendering.stages.reload_repairs = False
    rendering.stages.dead["derender"] = StageUnavailable("gone")
    await until(lambda: rendering.shim.monitor.state("derender") == "down")
    unhealthy = await rendering.http.get("/health")
    assert unhealthy.status_code == 503
    assert "stage `derender`" in unhealthy.json()["error"]["message"]
    assert (await rendering.http.post(f"{CHAT}/render", json=HELLO)).status_code == 200


@pytest.mark.parametrize("path", ABSENT)
async def test_a_route_of_other_stages_is_not_found_and_says_why(rendering: Running, path: str) -> None:
    response = await rendering.http.post(path, json=HELLO)
    error = response.json()["error"]
    assert response.status_code == 404
    assert path in error["message"]
    assert "ROLE=render" in error["message"]
    assert rendering.stages.calls == []


async def test_its_openapi_document_shows_the_routes_that_it_has(rendering: Running) -> None:
    paths = (await rendering.http.get("/openapi.json")).json()["paths"].keys()
    assert {*PRESENT, "/health", "/v1/models", "/version", "/metrics"} <= paths
    assert not paths & set(ABSENT)


async def test_models_and_version_are_told_as_ever(rendering: Running) -> None:
    (card,) = (await rendering.http.get("/v1/models")).json()["data"]
    assert (card["id"], card["max_model_len"]) == ("served", 512)
    assert (await rendering.http.get("/version")).status_code == 200


async def test_a_client_that_leaves_costs_no_call_of_a_stage_that_is_not_there(rendering: Running) -> None:
    rendering.stages.pause_after = 0
    connection = rendering.connect(f"{CHAT}/render", HELLO)
    await rendering.stages.paused.wait()
    connection.leave()
    await connection.end()
    assert rendering.stages.aborts == []


async def test_the_request_size_is_limited(start: Start) -> None:
    async with start(role="render", enable_scale_out=None, max_request_bytes=1024, stages=RenderStages()) as running:
        large = {"messages": [{"role": "user", "content": "x" * 2000}]}
        response = await running.http.post(f"{CHAT}/render", json=large)
        assert response.status_code == 413
        assert "1024 bytes" in response.json()["error"]["message"]
        assert running.stages.calls == []


async def test_the_key_is_asked_for_before_a_missing_route_is_told_apart(start: Start) -> None:
    async with start(role="render", enable_scale_out=None, api_key="secret", stages=RenderStages()) as running:
        assert (await running.http.post(CHAT, json=HELLO)).status_code == 401
