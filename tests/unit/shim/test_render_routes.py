"""The render routes: stage render alone, its outputs as GenerateRequests."""

import base64

import pytest

from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.generate import GenerateRequest

from .conftest import Running


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


async def test_a_conversation_becomes_a_generate_request(running: Running) -> None:
    content = [{"type": "image_url", "image_url": {"url": data_url(b"pixels")}}, {"type": "text", "text": "hi"}]
    body = {"messages": [{"role": "user", "content": content}], "request_id": "mine"}
    response = await running.http.post("/v1/chat/completions/render", json=body)
    assert response.status_code == 200
    document = response.json()
    assert document["request_id"] == "chatcmpl-mine"
    assert document["token_ids"] == list(b"hi")
    features = document["features"]
    assert features["mm_placeholders"]["image"][0]["offset"] == 0
    assert [base64.b64decode(item) for item in features["kwargs_data"]["image"]] == [b"pixels"]
    assert [base64.b64decode(item) for item in features["mm_metadata"]["image"]] == [b"metapixels"]
    ((model, job),) = running.stages.calls
    assert model == "render"
    assert job["for_generate"] is True


async def test_the_answer_is_accepted_by_generate_unchanged(running: Running) -> None:
    content = [{"type": "image_url", "image_url": {"url": data_url(b"pixels")}}, {"type": "text", "text": "hi"}]
    rendered = await running.http.post("/v1/chat/completions/render", json={"messages": [{"role": "user", "content": content}]})
    GenerateRequest.model_validate(rendered.json())
    answer = await running.http.post("/inference/v1/generate", json=rendered.json())
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["token_ids"] == [byte + 1 for byte in b"hi"]


async def test_one_prompt_gives_a_list_of_one_with_the_plain_id(running: Running) -> None:
    response = await running.http.post("/v1/completions/render", json={"prompt": "ab", "request_id": "x"})
    (document,) = response.json()
    assert (document["request_id"], document["token_ids"]) == ("cmpl-x", list(b"ab"))


async def test_several_prompts_give_a_list_in_their_order_with_numbered_ids(running: Running) -> None:
    response = await running.http.post("/v1/completions/render", json={"prompt": ["ab", "c"], "request_id": "x"})
    assert [(document["request_id"], document["token_ids"]) for document in response.json()] == [
        ("cmpl-x-0", list(b"ab")),
        ("cmpl-x-1", list(b"c")),
    ]


@pytest.mark.parametrize("path", ["/v1/chat/completions/render", "/v1/completions/render"])
async def test_an_error_of_render_reaches_the_client_and_nothing_is_aborted(running: Running, path: str) -> None:
    running.stages.fail_after = (0, InvalidRequest("the picture is cut off", "messages.0.content.1"))
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    response = await running.http.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "the picture is cut off",
        "type": "BadRequestError",
        "param": "messages.0.content.1",
        "code": 400,
    }
    assert running.stages.aborts == []


async def test_streaming_makes_no_difference_to_rendering(running: Running) -> None:
    response = await running.http.post("/v1/completions/render", json={"prompt": "a", "stream": True})
    assert response.headers["content-type"] == "application/json"
    assert response.json()[0]["token_ids"] == list(b"a")
