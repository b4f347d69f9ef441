"""POST /v1/chat/completions/derender, one-shot."""

import threading
from typing import Any

import orjson
import pytest

from triton_renderer.errors import InvalidRequest

from .conftest import Running

PATH = "/v1/chat/completions/derender"
JSON = {"content-type": "application/json"}
BODY: dict[str, Any] = {
    "generate_response": {"request_id": "r", "choices": [{"index": 0, "token_ids": [104, 105], "finish_reason": "stop"}]}
}


async def test_the_stages_document_is_the_answer(running: Running) -> None:
    response = await running.http.post(PATH, json=BODY)
    assert response.status_code == 200
    assert response.json() == {"op": "derender_chat", "said": ["hi"]}


@pytest.mark.parametrize("stream", [False, None])
async def test_not_streaming_may_be_said(running: Running, stream: bool | None) -> None:
    assert (await running.http.post(PATH, json=BODY | {"stream": stream})).status_code == 200


async def test_streaming_is_refused(running: Running) -> None:
    response = await running.http.post(PATH, json=BODY | {"stream": True, "generate_chunk": {}})
    assert response.status_code == 400
    assert "streaming derender is not available" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"generate_response": None}, 400, "generate_response"),
        ({"generate_response": {"choices": [{"index": 0, "token_ids": [-1]}]}}, 400, "generate_response.choices.0.token_ids.0"),
        ({"prompt_tokens": -1}, 400, "prompt_tokens"),
        ({"model": "other"}, 404, "model"),
    ],
)
async def test_misfits(running: Running, changes: dict[str, Any], status: int, param: str) -> None:
    response = await running.http.post(PATH, json=BODY | changes)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


async def test_a_large_body_is_kept_off_the_event_loop(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_loop: list[bool] = []
    dumps = orjson.dumps

    def watched(document: Any) -> bytes:
        on_the_loop.append(threading.current_thread() is threading.main_thread())
        return dumps(document)

    monkeypatch.setattr("client.shim.routes.derender._job", watched)
    for prompt in ([1], [1] * 300_000):
        await running.http.post(PATH, content=dumps(BODY | {"prompt_token_ids": prompt}), headers=JSON)
    assert on_the_loop == [True, False]


async def test_an_error_of_the_stage_reaches_the_client(running: Running) -> None:
    running.stages.fail_after = (0, InvalidRequest("chat_request is required", "chat_request"))
    response = await running.http.post(PATH, json=BODY)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "chat_request"
