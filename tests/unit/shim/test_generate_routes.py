"""POST /inference/v1/generate and /inference/v1/abort_requests."""

import asyncio
import base64
from typing import Any

import numpy as np
import orjson
import pytest

from client.shim.generate_answer import event_documents, whole_document
from client.shim.triton import Tensors, document_tensor
from triton_renderer.errors import RendererError
from triton_renderer.protocol.generate import GenerateRequest, GenerateResponse
from triton_renderer.protocol.stages import ChunkChoice, GeneratedChunk

from .conftest import Running, Start
from .fakes import until

PROMPT: dict[str, Any] = {"token_ids": [5, 6, 7], "sampling_params": {}}


def encoded(*items: bytes | None) -> list[str | None]:
    return [None if item is None else base64.b64encode(item).decode() for item in items]


def features(**changes: Any) -> dict[str, Any]:
    return {
        "mm_hashes": {"image": ["aa", "bb"]},
        "mm_placeholders": {"image": [{"offset": 0, "length": 1}, {"offset": 2, "length": 1}]},
        "kwargs_data": {"image": encoded(b"first", b"second")},
    } | changes


def placed(*spans: tuple[int, int]) -> dict[str, Any]:
    """Two pictures at these offsets with these lengths."""
    return features(mm_placeholders={"image": [{"offset": offset, "length": length} for offset, length in spans]})


def events(body: bytes) -> list[Any]:
    parts = [part.removeprefix("data: ") for part in body.decode().split("\n\n") if part]
    return ["[DONE]" if part == "[DONE]" else orjson.loads(part) for part in parts]


async def generate(running: Running, **changes: Any) -> Any:
    return await running.http.post("/inference/v1/generate", json=PROMPT | changes)


async def test_answer_has_every_field_of_the_contract(running: Running) -> None:
    response = await generate(running, request_id="r")
    document = response.json()
    assert isinstance(document.pop("created"), int)
    assert document == {
        "request_id": "generate-tokens-r",
        "model": "served",
        "choices": [{"index": 0, "token_ids": [6, 7, 8], "finish_reason": "stop", "stop_reason": None, "logprobs": None}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "mm_placeholders": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "output_mode": "tokens",
    }


async def test_each_choice_gets_its_own_tokens(running: Running) -> None:
    response = await generate(running, sampling_params={"n": 2})
    assert [choice["token_ids"] for choice in response.json()["choices"]] == [[6, 7, 8], [6, 7, 8]]
    assert response.json()["usage"]["completion_tokens"] == 6


async def test_absent_max_tokens_is_passed_on_as_none(running: Running) -> None:
    await generate(running)
    await generate(running, sampling_params={"max_tokens": 16})
    assert [context["sampling_params"]["max_tokens"] for _, context in running.stages.calls] == [None, 16]


async def test_stream_gives_one_choice_an_event_and_done(running: Running) -> None:
    response = await generate(running, stream=True, request_id="r", sampling_params={"n": 2})
    *chunks, done = events(response.content)
    assert done == "[DONE]"
    assert [(chunk["choices"][0]["index"], chunk["choices"][0]["token_ids"]) for chunk in chunks] == [
        (0, [6]), (1, [6]), (0, [7]), (1, [7]), (0, [8]), (1, [8]),
    ]  # fmt: skip
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"] * 2
    assert set(chunks[0]) == {"request_id", "choices", "usage", "output_mode"}
    assert {chunk["request_id"] for chunk in chunks} == {"generate-tokens-r"}
    assert [chunk["usage"] for chunk in chunks] == [None] * 6


async def test_stream_has_usage_at_its_end_where_asked_for(running: Running) -> None:
    response = await generate(running, stream=True, stream_options={"include_usage": True})
    *chunks, usage, _ = events(response.content)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


async def test_stream_has_running_usage_where_asked_for(running: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = await generate(running, stream=True, stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in events(response.content)[:-1]] == [1, 2, 3, 3]


async def test_prompt_and_placeholders_come_on_request_in_the_first_event_alone(running: Running) -> None:
    response = await generate(running, stream=True, return_token_ids=True, features=features(), sampling_params={"n": 2})
    first, *others = events(response.content)[:-1]
    assert first["prompt_token_ids"] == [5, 6, 7]
    assert [place["offset"] for place in first["mm_placeholders"]["image"]] == [0, 2]
    assert len(others) == 5
    assert not any({"prompt_token_ids", "mm_placeholders", "ec_transfer_params"} & set(chunk) for chunk in others)


async def test_prompt_and_placeholders_come_on_request_in_a_plain_answer(running: Running) -> None:
    document = (await generate(running, return_token_ids=True, features=features())).json()
    assert document.keys() == (await generate(running, features=features())).json().keys()
    assert document["prompt_token_ids"] == [5, 6, 7]
    assert [place["offset"] for place in document["mm_placeholders"]["image"]] == [0, 2]
    assert document["ec_transfer_params"] == {"ec_items": [{"mm_hash": "aa"}, {"mm_hash": "bb"}]}


@pytest.mark.parametrize("stream", [False, True])
async def test_no_pixels_come_back(running: Running, stream: bool) -> None:
    sent = {"kwargs_data": {"image": encoded(b"pixels" * 9, b"others" * 9)}, "mm_metadata": {"image": encoded(b"m1", b"m2")}}
    response = await generate(running, stream=stream, return_token_ids=True, features=features(**sent))
    assert '"mm_placeholders":{' in response.text
    assert not any(item in response.text for items in sent.values() for item in items["image"] if item)


async def test_items_travel_in_the_order_of_the_prompt_as_kwargs_and_metadata(running: Running) -> None:
    mixed = {
        "mm_hashes": {"image": ["aa", "bb"], "audio": ["cc"]},
        "mm_placeholders": {
            "image": [{"offset": 0, "length": 1}, {"offset": 2, "length": 1}],
            "audio": [{"offset": 1, "length": 1}],
        },
        "kwargs_data": {"image": encoded(b"k0", None), "audio": encoded(b"k1")},
        "mm_metadata": {"image": encoded(None, b"m2"), "audio": encoded(b"m1")},
    }
    response = await generate(running, features=mixed, ec_transfer_params={"ec_items": []})
    assert response.status_code == 200
    ((_, context),) = running.stages.calls
    assert [item["mm_hash"] for item in context["features"]] == ["aa", "cc", "bb"]
    inputs = running.stages.inputs[0]
    assert bytes(inputs["mm_data"]) == b"k0" + b"k1" + b"m1" + b"m2"
    assert inputs["mm_offsets"].tolist() == [0, 2, 2, 4, 6, 6, 8]


async def test_a_prompt_of_text_sends_empty_tensors(running: Running) -> None:
    await generate(running)
    inputs = running.stages.inputs[0]
    assert inputs["mm_data"].size == 0
    assert inputs["mm_offsets"].tolist() == [0]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"features": features(kwargs_data={"image": ["!!", None]})}, "features.kwargs_data.image.0"),
        ({"features": features(kwargs_data={"image": [None, "YQ"]})}, "features.kwargs_data.image.1"),
        ({"features": features(kwargs_data={"image": ["YQ==\n", None]})}, "features.kwargs_data.image.0"),
        ({"features": features(kwargs_data={"image": ["ü", None]})}, "features.kwargs_data.image.0"),
        ({"features": features(kwargs_data={"image": ["", None]})}, "features.kwargs_data.image.0"),
        (
            {"features": features(mm_metadata={"image": ["*", None]}), "ec_transfer_params": {"ec_items": []}},
            "features.mm_metadata.image.0",
        ),
        ({"features": features(mm_hashes={"image": ["aa"]})}, "features"),
        ({"features": placed((0, 2), (1, 1))}, "features"),
        ({"features": placed((2, 1), (0, 1))}, "features"),
        ({"features": placed((0, 1), (2, 2))}, None),  # together they do not fit: no single field is wrong
        ({"features": placed((-1, 1), (2, 1))}, "features.mm_placeholders.image.0.offset"),
        ({"features": placed((0, 0), (2, 1))}, "features.mm_placeholders.image.0.length"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids.0"),
        ({"token_ids": [2**63]}, "token_ids.0"),
        ({"token_ids": ["a"]}, "token_ids.0"),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"sampling_params": None}, "sampling_params"),
        ({"sampling_params": {"stop_token_ids": [2**63]}}, "sampling_params.stop_token_ids.0"),
        ({"sampling_params": {"stop_token_ids": [5, -1]}}, "sampling_params.stop_token_ids.1"),
        ({"sampling_params": {"stop_token_ids": [1.5]}}, "sampling_params.stop_token_ids.0"),
        ({"sampling_params": {"allowed_token_ids": [2**63]}}, "sampling_params.allowed_token_ids.0"),
        ({"sampling_params": {"logit_bias": {"x": 1}}}, "sampling_params.logit_bias.x"),
        ({"sampling_params": {"logit_bias": {"-1": 1}}}, "sampling_params.logit_bias.-1"),
        ({"sampling_params": {"logit_bias": {str(2**63): 1}}}, f"sampling_params.logit_bias.{2**63}"),
    ],
)
async def test_misfits_are_400_with_their_place(running: Running, changes: dict[str, Any], param: str | None) -> None:
    response = await generate(running, **changes)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"], error["param"]) == (400, 400, "Bad Request", param)
    assert running.stages.calls == []


async def test_metadata_without_a_place_for_the_embeddings_is_400(running: Running) -> None:
    response = await generate(running, features=features(kwargs_data=None, mm_metadata={"image": encoded(b"m", b"m")}))
    assert response.status_code == 400
    assert "ec_transfer_params" in response.json()["error"]["message"]


async def test_raw_media_is_refused(running: Running) -> None:
    response = await generate(running, content_parts=[{"type": "image_url", "url": "http://x/"}])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "content_parts"


async def test_more_items_than_the_server_takes_are_400(start: Start) -> None:
    async with start(max_images=1) as running:
        response = await generate(running, features=features())
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "features.mm_hashes.image"


async def test_another_model_is_404(running: Running) -> None:
    response = await generate(running, model="other")
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "The model `other` does not exist."


REQUEST = GenerateRequest(token_ids=[1], sampling_params={}, stream_options={"include_usage": True})
RESPONSE = GenerateResponse(request_id="r")


def chunk(number: int = 0, *, final: bool = True, num_tokens: int = 1, tokens: int = 1) -> Tensors:
    document = GeneratedChunk(id="i", number=number, final=final, choices=[ChunkChoice(index=0, num_tokens=num_tokens)])
    return {"output_token_ids": np.zeros(tokens, np.int64), "chunk": document_tensor(document.model_dump_json().encode())}


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        ([], "without its last chunk"),
        ([chunk(final=False)], "without its last chunk"),
        ([chunk(1)], "chunk 1 in the place of chunk 0"),
        ([chunk(final=False), chunk(2)], "chunk 2 in the place of chunk 1"),
        ([chunk(), chunk(1)], "chunk 1 in the place of chunk 1"),
        ([chunk(num_tokens=2)], "1 tokens"),
        ([chunk() | {"chunk": document_tensor(b"[]")}], "another form"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_broken_stream_of_chunks_is_an_error_and_no_answer(chunks: list[Tensors], said: str, stream: bool) -> None:
    async def tensors() -> Any:
        for each in chunks:
            yield each

    async def answered() -> None:
        if stream:
            async for _ in event_documents(tensors(), REQUEST, RESPONSE):
                pass
        else:
            await whole_document(tensors(), RESPONSE)

    with pytest.raises(RendererError, match=said) as caught:
        await answered()
    assert type(caught.value) is RendererError


async def test_a_plain_request_that_is_answered_in_parts_is_an_error() -> None:
    async def tensors() -> Any:
        yield chunk(final=False)
        yield chunk(1)

    with pytest.raises(RendererError, match="in 2 parts"):
        await whole_document(tensors(), RESPONSE)


async def test_text_mode_carries_text() -> None:
    async def tensors() -> Any:
        choice = ChunkChoice(index=0, num_tokens=1, text="hi", finish_reason="stop")
        document = GeneratedChunk(id="i", final=True, choices=[choice])
        yield {"output_token_ids": np.array([1]), "chunk": document_tensor(document.model_dump_json().encode())}

    document = orjson.loads(await whole_document(tensors(), GenerateResponse(request_id="r", output_mode="text")))
    assert document["choices"][0]["text"] == "hi"


@pytest.mark.parametrize("name", ["mine", "generate-tokens-mine"])
async def test_abort_finds_a_request_by_the_clients_id_and_by_ours(running: Running, name: str) -> None:
    running.stages.pause_after = 1
    connection = running.connect("/inference/v1/generate", PROMPT | {"stream": True, "request_id": "mine"})
    await running.stages.paused.wait()
    response = await running.http.post("/inference/v1/abort_requests", json={"request_ids": [name]})
    assert (response.status_code, response.content) == (200, b"")
    ((_, context),) = running.stages.calls
    assert running.stages.aborts == [
        {"op": "abort", "request_ids": [context["id"]], "remember": True},
        {"op": "abort", "request_ids": [name], "remember": False},
    ]
    running.stages.go_on.set()
    await connection.end()


async def test_abort_of_something_unknown_is_passed_on_and_no_error(running: Running) -> None:
    response = await running.http.post("/inference/v1/abort_requests", json={"request_ids": ["over"]})
    assert response.status_code == 200
    assert running.stages.aborts == [{"op": "abort", "request_ids": ["over"], "remember": False}]


@pytest.mark.parametrize("body", [{}, {"request_ids": None}, {"request_ids": "a"}, {"request_ids": [1]}])
async def test_abort_without_ids_is_400(running: Running, body: dict[str, Any]) -> None:
    response = await running.http.post("/inference/v1/abort_requests", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("request_ids")


async def test_eight_requests_at_once_each_get_their_own_answer(running: Running) -> None:
    responses = await asyncio.gather(*(generate(running, token_ids=[i, i], stream=True) for i in range(8)))
    for i, response in enumerate(responses):
        tokens = [event["choices"][0]["token_ids"][0] for event in events(response.content)[:-1]]
        assert tokens == [i + 1, i + 1]
    await until(lambda: running.count("model_calls_total", model="generate", outcome="ok") == 8)
