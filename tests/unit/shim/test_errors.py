"""Every way in which a request is refused: status, type, body; and that nothing of the inside shows."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from client.shim.triton import DeadStage
from triton_renderer.errors import (
    ALL_ERRORS,
    Cancelled,
    InvalidRequest,
    NoHistory,
    NotFound,
    QueueFull,
    RendererError,
    StageUnavailable,
    TooLarge,
)

from .conftest import Running, Start
from .fakes import until

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "one two three"}]}
JSON = {"content-type": "application/json"}

SCALE_OUT = [
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/inference/v1/generate",
    "/inference/v1/abort_requests",
    "/v1/chat/completions/derender",
]
ALL_POSTS = [CHAT, "/v1/completions", *SCALE_OUT]


def events(body: bytes) -> list[Any]:
    parts = [part.removeprefix("data: ") for part in body.decode().split("\n\n") if part]
    return ["[DONE]" if part == "[DONE]" else orjson.loads(part) for part in parts]


@pytest.mark.parametrize("path", ALL_POSTS)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"a": -Infinity}', "not valid JSON"),
        (b'{"a": 1e999}', "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b'{"a": "\\ud800"}', "not valid JSON"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
    ],
)
async def test_a_body_that_is_no_json_object_is_400(running: Running, path: str, body: bytes, said: str) -> None:
    response = await running.http.post(path, content=body, headers=JSON)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (400, 400, "Bad Request")
    assert said in error["message"]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/chat/completions/derender", "/inference/v1/generate"])
@pytest.mark.parametrize("depth", [101, 200, 254, 400])
async def test_a_body_that_is_too_deep_for_the_stages_is_400(running: Running, path: str, depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    body = (
        f'{{"messages": [{{"role": "user", "content": "hi", "extra": {deep}}}], "prompt": "hi", "extra": {deep},'
        f' "token_ids": [1], "sampling_params": {{}}, "ec_transfer_params": {deep},'
        f' "generate_response": {{"choices": []}}}}'
    )
    response = await running.http.post(path, content=body, headers=JSON)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "the body is nested more than 100 levels deep"


async def test_wide_bodies_are_not_deep(running: Running) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "[" * 500}] * 500}]}
    assert (await running.http.post(CHAT, json=body)).status_code == 200


async def test_a_body_that_does_not_come_is_408(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.shim.body.BODY_TIMEOUT_S", 0.05)

    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(5)

    response = await running.http.post(CHAT, content=never(), headers=JSON)
    assert (response.status_code, response.json()["error"]["code"]) == (408, 408)


@pytest.mark.parametrize("path", ALL_POSTS)
@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"])
async def test_another_content_type_is_400(running: Running, path: str, content_type: str) -> None:
    response = await running.http.post(path, content=b"{}", headers={"content-type": content_type})
    assert response.status_code == 400
    assert "application/json" in response.json()["error"]["message"]


async def test_parameters_of_the_content_type_are_fine(running: Running) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert (await running.http.post(CHAT, content=orjson.dumps(HELLO), headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": "hi"}, "messages"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_logprobs": "many"}, "top_logprobs"),
        ({"stream": "perhaps"}, "stream"),
    ],
)
async def test_chat_misfits_are_400_with_their_place(running: Running, changes: dict[str, Any], param: str) -> None:
    response = await running.http.post(CHAT, json=HELLO | changes)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "Bad Request", param)
    assert running.stages.calls == []


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": []}, "messages"),
        ({"n": 0}, "n"),
        ({"stop": ""}, "stop.0"),
        ({"top_logprobs": -2}, "top_logprobs"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
    ],
)
async def test_values_that_the_reference_checks_in_its_handlers_have_the_type_of_those(
    running: Running, changes: dict[str, Any], param: str
) -> None:
    response = await running.http.post(CHAT, json=HELLO | changes)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "BadRequestError", param)
    assert running.stages.calls == []


@pytest.mark.parametrize("prompt", [None, [], [[]], {}, [1, "a"], [-1], 7])
async def test_prompts_of_another_form_are_400(running: Running, prompt: Any) -> None:
    response = await running.http.post("/v1/completions", json={"prompt": prompt})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("prompt")


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/chat/completions/render", "/v1/completions/render"])
async def test_another_model_is_404(running: Running, path: str) -> None:
    response = await running.http.post(path, json=HELLO | {"prompt": "hi", "model": "other"})
    assert response.status_code == 404
    assert response.json()["error"] == {
        "message": "The model `other` does not exist.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("GET", CHAT, 405), ("POST", "/health", 405)])
async def test_unknown_routes_and_methods_have_the_same_error_body(
    running: Running, method: str, path: str, status: int
) -> None:
    response = await running.http.request(method, path)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, status)
    assert set(error) == {"message", "type", "param", "code"}
    assert ("allow" in response.headers) == (status == 405)


@pytest.mark.parametrize("path", SCALE_OUT)
async def test_scale_out_routes_say_how_to_switch_them_on(start: Start, path: str) -> None:
    async with start(enable_scale_out=False) as running:
        response = await running.http.post(path, json={})
        assert response.status_code == 403
        error = response.json()["error"]
        assert error["type"] == "ForbiddenError"
        assert "VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1" in error["message"]
        assert "--enable-scale-out" in error["message"]
        assert (await running.http.post(CHAT, json=HELLO)).status_code == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Bearer", 401),
        ("secrét", 401),
        ("Basic secrét", 401),
        ("Bearer secrét2", 401),
        ("Bearer secrét", 200),
        ("bearer  secrét", 200),
    ],
)
async def test_the_api_key_is_asked_for_on_every_route_but_health(start: Start, header: str | None, status: int) -> None:
    headers = {"authorization": header.encode()} if header else {}
    async with start(api_key="secrét") as running:
        for path in ("/v1/models", "/version", "/metrics", "/openapi.json", "/docs"):
            response = await running.http.get(path, headers=headers)
            assert response.status_code == status
            if status == 401:
                error = response.json()["error"]
                assert (error["type"], error["code"]) == ("AuthenticationError", 401)
                assert response.headers["www-authenticate"] == "Bearer"
        assert (await running.http.get("/health", headers=headers)).status_code == 200
        assert (await running.http.post(CHAT, json=HELLO, headers=headers)).status_code == status
        assert len(running.stages.calls) == (status == 200)


async def test_an_unknown_route_does_not_show_without_the_key(start: Start) -> None:
    async with start(api_key="secret") as running:
        assert (await running.http.get("/nothing")).status_code == 401


async def test_a_body_that_is_announced_too_large_is_413_before_it_is_read(start: Start) -> None:
    async def nothing_is_read() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    async with start(max_request_bytes=1024) as running:
        headers = JSON | {"content-length": "1025"}
        response = await running.http.post(CHAT, content=nothing_is_read(), headers=headers)
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "RequestTooLargeError"


async def test_a_body_that_grows_too_large_is_413(start: Start) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 400
            yield b" " * 400

    async with start(max_request_bytes=1024) as running:
        response = await running.http.post(CHAT, content=endless(), headers=JSON)
    assert response.status_code == 413
    assert sent == 1200


async def test_a_body_of_just_the_limit_is_read(start: Start) -> None:
    body = orjson.dumps(HELLO).ljust(1024)
    async with start(max_request_bytes=1024) as running:
        assert (await running.http.post(CHAT, content=body, headers=JSON)).status_code == 200


async def test_an_overlong_request_id_is_400(running: Running) -> None:
    response = await running.http.post(CHAT, json=HELLO, headers={"x-request-id": "x" * 513})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "X-Request-Id"


STAGE_ERRORS = [
    InvalidRequest("bad picture", "messages.0.content.0"),
    NotFound("no such adapter"),
    NoHistory("nothing is kept", "previous_response_id"),
    TooLarge("too many pixels"),
    QueueFull("1024 requests are waiting"),
    Cancelled("aborted"),
    StageUnavailable("stage `encode` is down"),
    RendererError("the stage failed on this request"),
]


@pytest.mark.parametrize("error", STAGE_ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_document_has_its_real_status(
    running: Running, error: RendererError, stream: bool
) -> None:
    running.stages.fail_after = (0, error)
    response = await running.http.post(CHAT, json=HELLO | {"stream": stream})
    assert response.status_code == error.status
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"] == {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.status,
    }
    assert ("retry-after" in response.headers) == (error.status in (429, 503))


@pytest.mark.parametrize("error", STAGE_ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("path", [CHAT, "/inference/v1/generate"])
async def test_an_error_in_the_middle_is_an_event_and_no_finish(running: Running, error: RendererError, path: str) -> None:
    running.stages.fail_after = (2, error)
    body = HELLO | {"token_ids": [1, 2, 3], "sampling_params": {}, "stream": True}
    response = await running.http.post(path, json=body)
    assert response.status_code == 200
    *chunks, failure, done = events(response.content)
    assert done == "[DONE]"
    assert failure["error"]["code"] == error.status
    assert failure["error"]["message"] == error.message
    assert len(chunks) == 2
    assert all(not chunk["choices"][0].get("finish_reason") for chunk in chunks)


def test_every_class_of_error_is_among_those_tested() -> None:
    tested = {type(error) for error in STAGE_ERRORS}
    assert {cls.__name__ for cls in ALL_ERRORS} - {cls.__name__ for cls in tested} == {"BadBody", "Forbidden"}


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unexpected_exception_is_a_500_without_internals(
    running: Running, caplog: pytest.LogCaptureFixture, after: int, stream: bool
) -> None:
    running.stages.fail_after = (after, ZeroDivisionError("secret of /home/me/model.py"))
    with caplog.at_level(logging.ERROR):
        response = await running.http.post(CHAT, json=HELLO | {"stream": stream})
    assert "secret" not in response.text
    error = events(response.content)[-2]["error"] if response.status_code == 200 else response.json()["error"]
    assert (response.status_code == 200) == (stream and after == 1)
    assert error == {"message": "internal server error", "type": "InternalServerError", "param": None, "code": 500}
    assert any(record.exc_info and "ZeroDivisionError" in str(record.exc_info[0]) for record in caplog.records)


async def test_a_stream_that_ends_without_a_document_is_a_500(running: Running) -> None:
    body = {"messages": [{"role": "user", "content": ""}], "stream": False}
    running.stages.empty_answers = True
    for stream in (False, True):
        response = await running.http.post(CHAT, json=body | {"stream": stream})
        assert response.status_code == 500
        assert "without an answer" in response.json()["error"]["message"]


async def test_a_plain_answer_of_two_documents_is_a_500(running: Running) -> None:
    running.stages.doubled_answers = True
    response = await running.http.post(CHAT, json=HELLO)
    assert response.status_code == 500
    assert "2 documents" in response.json()["error"]["message"]


async def test_the_death_of_a_stage_that_a_request_meets_is_repaired(running: Running) -> None:
    running.stages.fail_after = (0, DeadStage("stage `render` is down", "render"))
    assert (await running.http.post(CHAT, json=HELLO)).status_code == 503
    await until(lambda: running.stages.reloads == ["render"])


async def test_what_a_client_sent_is_not_repeated_without_limit_nor_as_lines_of_the_log(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "client.shim"):
        response = await running.http.post(CHAT, json=HELLO | {"model": "\nforged line" + "x" * 100_000})
        await running.http.get("/no%0Aroute")
    assert response.status_code == 404
    assert len(response.content) < 3000
    assert not any("\n" in record.getMessage() or len(record.getMessage()) > 3000 for record in caplog.records)
    assert len(caplog.records) == 2
