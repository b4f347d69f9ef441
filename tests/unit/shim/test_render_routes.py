"""The render routes: stage render alone, its outputs as GenerateRequests."""

import base64

import orjson
import pytest

from client.shim.body import MAX_ID_LENGTH
from tests.golden.videos import video
from tests.unit.render.helpers import chat, image_part, png, settings, user
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.generate import GenerateRequest
from triton_renderer.protocol.render_answer import to_generate_request
from triton_renderer.protocol.stages import RequestContext
from triton_renderer.render import Renderer
from triton_renderer.tensors import split

from .conftest import Running


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64," + base64.b64encode(data).decode()


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


async def test_the_answer_to_a_request_with_the_longest_id_is_accepted_by_generate(running: Running) -> None:
    headers = {"x-request-id": "x" * MAX_ID_LENGTH}
    rendered = await running.http.post("/v1/completions/render", json={"prompt": ["a", "b"]}, headers=headers)
    for document in rendered.json():
        answer = await running.http.post("/inference/v1/generate", json=document)
        assert answer.status_code == 200, answer.text


async def test_what_goes_through_a_render_answer_reaches_encode_as_render_made_it(running: Running) -> None:
    renderer = Renderer.load(settings(max_model_len=4000))
    film = {"type": "video_url", "video_url": {"url": data_url(video("small.avi"), "video/mp4")}}
    content = [image_part(png(96, 64)), film, image_part(png(200, 128)), {"type": "text", "text": "hi"}, film]
    rendered = chat(renderer, user(*content), for_generate=True, temperature=0.5, stop=["x"], cache_salt="s", priority=-1)
    assert [feature.modality for feature in rendered.context.features] == ["image", "video", "image", "video"]
    answer = to_generate_request(rendered.token_ids, rendered.items, rendered.context)
    features = orjson.loads(answer)["features"]
    assert len(features) == 4
    for lists in features.values():
        assert {kind: len(items) for kind, items in lists.items()} == {"image": 2, "video": 2}
    response = await running.http.post("/inference/v1/generate", content=answer, headers={"content-type": "application/json"})
    assert response.status_code == 200, response.text
    ((_, document),), (inputs,) = running.stages.calls, running.stages.inputs
    assert inputs["token_ids"].tolist() == rendered.token_ids.tolist()
    assert split(inputs["mm_data"], inputs["mm_offsets"]) == [bytes(item) for item in rendered.items]
    context = RequestContext.model_validate(document)
    for name in ("features", "cache_salt", "priority"):
        assert getattr(context, name) == getattr(rendered.context, name), name
    assert context.reasoning_ended is True
    sampling = context.sampling_params
    assert sampling.model_copy(update={"bad_words": sampling.bad_words or None}) == rendered.context.sampling_params


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
