"""Requests that end before their time: the work behind them ends as well, and nothing is left over."""

import asyncio
import gc
import logging
import weakref
from typing import Any

import pytest

from client.shim.open_requests import OpenRequest
from client.shim.triton import STAGES_OF, DeadStage
from triton_renderer.errors import StageUnavailable

from .conftest import Running, Start
from .fakes import Connection, until

CHAT = "/v1/chat/completions"
BODY = {
    "messages": [{"role": "user", "content": "one two three four"}],
    "prompt": ["one two", "three four"],
    "token_ids": [1, 2, 3],
    "sampling_params": {},
    "generate_response": {"choices": []},
}
WHOLE_PIPELINE = [CHAT, "/v1/completions", "/inference/v1/generate"]
ONE_STAGE = ["/v1/chat/completions/render", "/v1/completions/render", "/v1/chat/completions/derender"]


async def paused(running: Running, path: str, *, after: int, **changes: Any) -> Connection:
    """A request in whose middle a stage is working."""
    running.stages.pause_after = after
    connection = running.connect(path, BODY | changes)
    await running.stages.paused.wait()
    return connection


def ids_of_calls(running: Running) -> list[str]:
    return [document["id"] for _, document in running.stages.calls]


@pytest.mark.parametrize("path", WHOLE_PIPELINE)
@pytest.mark.parametrize(("stream", "after"), [(True, 1), (True, 0), (False, 0)])
async def test_a_client_that_leaves_ends_the_call_and_aborts_the_request(
    running: Running, path: str, stream: bool, after: int
) -> None:
    connection = await paused(running, path, after=after, stream=stream)
    assert running.count("open_requests") == 1
    connection.leave()
    await connection.end()
    await until(lambda: running.stages.aborts)
    assert sorted(running.stages.given_up) == sorted(ids_of_calls(running))
    (abort,) = running.stages.aborts
    assert sorted(abort["request_ids"]) == sorted(ids_of_calls(running))
    assert abort["remember"] is True
    assert running.count("open_requests") == 0
    assert running.count("requests_total", route=path, outcome="cancelled") == 1
    model = "generate" if "generate" in path else "chat"
    assert running.count("model_calls_total", model=model, outcome="cancelled") == len(ids_of_calls(running))


@pytest.mark.parametrize("path", ONE_STAGE)
async def test_a_client_that_leaves_a_single_stage_needs_no_abort(running: Running, path: str) -> None:
    connection = await paused(running, path, after=0)
    connection.leave()
    await connection.end()
    assert running.stages.aborts == []
    assert running.count("requests_total", route=path, outcome="cancelled") == 1


async def test_a_client_that_leaves_is_a_499_in_the_log(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    connection = await paused(running, CHAT, after=1, stream=True)
    with caplog.at_level(logging.INFO, "client.shim"):
        connection.leave()
        await connection.end()
    assert any(f"POST {CHAT} 499" in record.getMessage() for record in caplog.records)


async def test_a_client_that_leaves_while_it_still_sends_is_a_499(running: Running) -> None:
    connection = Connection(running.app, CHAT, BODY)
    connection._incoming.get_nowait()
    connection._incoming.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
    connection.leave()
    await connection.end()
    assert connection.status == 499
    assert running.stages.calls == []


async def test_a_client_that_leaves_after_its_answer_aborts_nothing(running: Running) -> None:
    connection = running.connect(CHAT, BODY | {"stream": True})
    await connection.end()
    connection.leave()
    assert connection.events[-1] == "[DONE]"
    assert running.stages.aborts == []


async def test_others_go_on_when_one_client_leaves(running: Running) -> None:
    leaving = await paused(running, CHAT, after=2, stream=True)
    staying = running.connect(CHAT, BODY | {"stream": True})
    await staying.until(lambda c: len(c.events) == 2)
    leaving.leave()
    await leaving.end()
    running.stages.go_on.set()
    await staying.end()
    assert [event["choices"][0]["content"] for event in staying.events[:-1]] == ["one", "two", "three", "four", ""]


NEEDS = {
    CHAT: {"render", "encode", "prefill_decode", "derender"},
    "/inference/v1/generate": {"encode", "prefill_decode"},
    "/v1/chat/completions/render": {"render"},
    "/v1/chat/completions/derender": {"derender"},
}


@pytest.mark.parametrize("stage", ["render", "encode", "prefill_decode", "derender"])
@pytest.mark.parametrize("path", list(NEEDS))
async def test_a_stage_that_goes_down_takes_the_requests_along_that_need_it(running: Running, stage: str, path: str) -> None:
    connection = await paused(running, path, after=0)
    running.stages.reload_repairs = False
    running.stages.dead[stage] = StageUnavailable("gone")
    await until(lambda: running.shim.monitor.state(stage) == "down")
    if stage in NEEDS[path]:
        await connection.end()
        assert connection.status == 503
        assert f"stage `{stage}` went down" in connection.body.decode()
    else:
        running.stages.go_on.set()
        await connection.end()
        assert connection.status == 200


async def test_a_stage_that_goes_down_in_the_middle_ends_a_stream_with_an_error_event(running: Running) -> None:
    connection = await paused(running, CHAT, after=2, stream=True)
    running.stages.dead["encode"] = StageUnavailable("gone")
    await connection.end()
    assert connection.status == 200
    *chunks, failure, done = connection.events
    assert done == "[DONE]"
    assert failure["error"]["code"] == 503
    assert len(chunks) == 2
    await until(lambda: running.stages.aborts)
    assert running.stages.aborts[0]["request_ids"] == ids_of_calls(running)


@pytest.mark.parametrize("met_by_the_request", [False, True])
async def test_a_dead_prefill_decode_is_not_asked_to_abort(
    running: Running, caplog: pytest.LogCaptureFixture, met_by_the_request: bool
) -> None:
    death = DeadStage("stage `prefill_decode` is down", "prefill_decode")
    running.stages.reload_repairs = False
    running.stages.abort_failure = death
    if met_by_the_request:
        running.stages.dead["prefill_decode"] = death
        running.stages.fail_after = (2, death)
        connection = running.connect(CHAT, BODY | {"stream": True})
    else:
        connection = await paused(running, CHAT, after=2, stream=True)
        running.stages.dead["prefill_decode"] = death
    await connection.end()
    await until(lambda: running.shim.monitor.state("prefill_decode") == "down")
    await running.shim.open_requests.close()
    assert not any("could not be aborted" in record.getMessage() for record in caplog.records)


async def test_while_a_stage_is_down_new_requests_get_503_and_those_that_do_without_it_go_on(running: Running) -> None:
    running.stages.reload_repairs = False
    running.stages.dead["encode"] = StageUnavailable("gone")
    await until(lambda: running.shim.monitor.state("encode") == "down")
    response = await running.http.post(CHAT, json=BODY)
    assert response.status_code == 503
    assert "stage `encode` is down" in response.json()["error"]["message"]
    assert response.headers["retry-after"] == "1"
    assert (await running.http.post("/v1/chat/completions/render", json=BODY)).status_code == 200


async def test_after_the_repair_requests_work_again(running: Running) -> None:
    running.stages.dead["encode"] = StageUnavailable("gone")
    await until(lambda: running.stages.reloads == ["encode"])
    await until(lambda: running.shim.monitor.state("encode") == "up")
    assert (await running.http.post(CHAT, json=BODY)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_takes_too_long_is_503_and_aborted(start: Start, stream: bool) -> None:
    async with start(request_timeout_s=0.05) as running:
        connection = await paused(running, CHAT, after=0, stream=stream)
        await connection.end()
        assert connection.status == 503
        assert "took longer than 0.05 s" in connection.body.decode()
        await until(lambda: running.stages.aborts)


async def test_shutdown_ends_open_requests_with_an_error_and_waits_for_their_aborts(start: Start) -> None:
    async with start() as running:
        connection = await paused(running, CHAT, after=1, stream=True)
        running.shim.open_requests.interrupt_all("the server is shutting down")
        await connection.end()
        *_, failure, done = connection.events
        assert failure["error"]["message"] == "the server is shutting down"
        assert done == "[DONE]"
    assert running.stages.aborts[0]["request_ids"] == ids_of_calls(running)
    assert running.stages.closed


async def test_a_task_that_is_cut_off_aborts_its_request_and_stays_cancelled(running: Running) -> None:
    connection = await paused(running, CHAT, after=1, stream=True)
    connection.task.cancel()
    await asyncio.wait([connection.task])
    assert connection.task.cancelled()
    await until(lambda: running.stages.aborts)


async def test_an_abort_that_fails_is_logged(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    connection = await paused(running, CHAT, after=1, stream=True)
    running.stages.abort_failure = StageUnavailable("busy")
    with caplog.at_level(logging.WARNING, "client.shim"):
        connection.leave()
        await connection.end()
        await until(lambda: caplog.records)
    assert "could not be aborted: busy" in caplog.records[0].getMessage()


async def test_the_clients_id_cannot_pass_for_a_line_of_the_log(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    connection = await paused(running, CHAT, after=1, stream=True, request_id="x\nERROR forged")
    running.stages.abort_failure = StageUnavailable("busy")
    with caplog.at_level(logging.WARNING, "client.shim"):
        connection.leave()
        await connection.end()
        await until(lambda: caplog.records)
    assert r"'chatcmpl-x\nERROR forged' could not be aborted" in caplog.records[0].getMessage()


@pytest.mark.parametrize("path", WHOLE_PIPELINE + ONE_STAGE)
async def test_more_requests_than_can_run_and_wait_are_refused_until_one_ends(start: Start, path: str) -> None:
    async with start(max_running_requests=1, max_waiting_requests=2) as running:
        opened = [await paused(running, CHAT, after=0, stream=True) for _ in range(3)]
        await until(lambda: running.count("open_requests") == 3)
        refused = await running.http.post(path, json=BODY)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["message"] == "3 requests are open, this server takes 3"
        assert len(running.stages.calls) == 3
        opened[0].leave()
        await opened[0].end()
        running.stages.pause_after = None
        assert (await running.http.post(path, json=BODY)).status_code == 200
        running.stages.go_on.set()
        for connection in opened[1:]:
            await connection.end()
            assert connection.complete


async def test_nothing_is_left_behind(start: Start) -> None:
    before = asyncio.all_tasks()
    async with start() as running:
        for path in WHOLE_PIPELINE:
            running.stages.paused.clear()
            connection = await paused(running, path, after=1, stream=True)
            connection.leave()
            await connection.end()
        running.stages.pause_after = None
        await running.http.post(CHAT, json=BODY)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError("an event that nobody sets was set")


def a_request() -> OpenRequest:
    return OpenRequest(["i"], "external", "client", STAGES_OF["chat"])


async def test_a_request_that_is_over_is_held_by_nobody(running: Running) -> None:
    request = a_request()
    async with running.shim.opened(request, never):
        pass
    held = weakref.ref(request)
    del request
    gc.collect()
    assert held() is None


async def test_an_interruption_leaves_no_cancellation_behind(running: Running) -> None:
    request = a_request()

    async def serve() -> None:
        async with running.shim.opened(request, never):
            request.interrupt(StageUnavailable("gone"))
            request.interrupt(StageUnavailable("a later reason"))
            await asyncio.sleep(10)

    with pytest.raises(StageUnavailable, match="gone"):
        await serve()
    task = asyncio.current_task()
    assert task
    assert task.cancelling() == 0


async def test_a_cancellation_from_outside_is_stronger_than_an_interruption(running: Running) -> None:
    request = a_request()

    async def serve() -> None:
        async with running.shim.opened(request, never):
            await asyncio.sleep(10)

    task = asyncio.create_task(serve())
    await until(lambda: running.count("open_requests") == 1)
    request.interrupt(StageUnavailable("gone"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
