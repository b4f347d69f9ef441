"""The derender routes hand bodies on as they come; what they mean is for the stage."""

import threading
from typing import Any

import orjson
import pytest

from triton_renderer.errors import BadBody, InvalidRequest, NotFound

from .conftest import Running

CHAT = "/v1/chat/completions/derender"
COMPLETIONS = "/v1/completions/derender"
JSON = {"content-type": "application/json"}
BODY: dict[str, Any] = {
    "generate_response": {"request_id": "r", "choices": [{"index": 0, "token_ids": [104, 105], "finish_reason": "stop"}]}
}


@pytest.mark.parametrize(("path", "operation"), [(CHAT, "derender_chat"), (COMPLETIONS, "derender_completion")])
async def test_the_stages_document_is_the_answer(running: Running, path: str, operation: str) -> None:
    response = await running.http.post(path, json=BODY)
    assert response.status_code == 200
    assert response.json() == {"op": operation, "said": ["hi"]}


@pytest.mark.parametrize("body", [BODY, BODY | {"stream": True, "stream_state": {"a": [1, "}"]}, "chat_request": None}])
async def test_the_stage_gets_the_body_as_it_came(running: Running, body: dict[str, Any]) -> None:
    await running.http.post(CHAT, json=body)
    assert running.stages.calls == [("derender", {"op": "derender_chat", "body": body})]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"1", b'"x"', b'{"a": NaN}', b'{}},"op":"probe","b":{"c":{}', b"[" * 101 + b"]" * 101, b"\xff{}"]
)
async def test_what_is_no_json_object_never_reaches_the_stage(running: Running, body: bytes) -> None:
    response = await running.http.post(CHAT, content=body, headers=JSON)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "Bad Request")
    assert running.stages.calls == []


async def test_a_large_body_is_kept_off_the_event_loop(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_loop: list[bool] = []

    def watched(operation: str, body: bytes) -> bytes:
        on_the_loop.append(threading.current_thread() is threading.main_thread())
        return orjson.dumps({"op": operation, "body": orjson.loads(body)})

    monkeypatch.setattr("client.shim.routes.derender._operation", watched)
    for prompt in ([1], [1] * 300_000):
        await running.http.post(CHAT, content=orjson.dumps(BODY | {"prompt_token_ids": prompt}), headers=JSON)
    assert on_the_loop == [True, False]


@pytest.mark.parametrize(
    ("error", "status", "type_"),
    [
        (InvalidRequest("chat_request is required", "chat_request"), 400, "BadRequestError"),
        (BadBody("stream_state.kind: …", "stream_state.kind"), 400, "Bad Request"),
        (NotFound("The model `x` does not exist.", "model"), 404, "NotFoundError"),
    ],
)
async def test_an_error_of_the_stage_reaches_the_client(
    running: Running, error: InvalidRequest, status: int, type_: str
) -> None:
    running.stages.fail_after = (0, error)
    response = await running.http.post(COMPLETIONS, json=BODY)
    assert response.status_code == status
    assert response.json()["error"] == {"message": error.message, "type": type_, "param": error.param, "code": status}
