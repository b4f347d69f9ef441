"""Each model and ensemble called with tritonclient alone: gRPC, HTTP, streams, and what they refuse."""

import json
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.e2e.asking import MODEL, image_part, noise, png, stream, tensor, user
from triton_renderer import tensors as t
from triton_renderer.errors import InvalidRequest, RendererError, from_wire
from triton_renderer.launcher.supervisor import Stack

Grpc = tritonclient.grpc.InferenceServerClient
Http = tritonclient.http.InferenceServerClient
PICTURE = noise(1)


def job(**body: Any) -> bytes:
    body = {
        "model": MODEL,
        "messages": user(image_part(PICTURE), "How many squares?"),
        "temperature": 0,
        "max_tokens": 6,
    } | body
    return json.dumps({"kind": "chat", "id": "direct", "body": body}).encode()


def rendered(grpc: Grpc, **body: Any) -> dict[str, Any]:
    result = grpc.infer("render", [tensor(t.REQUEST, job(**body))], client_timeout=30)
    return {spec.name: result.as_numpy(spec.name) for spec in t.MODELS["render"].outputs}


def test_render_by_grpc_and_http_give_the_same(grpc: Grpc, triton_http: Http) -> None:
    by_grpc = rendered(grpc)
    result = triton_http.infer("render", [tensor(t.REQUEST, job(), tritonclient.http)])
    for name, value in by_grpc.items():
        other = result.as_numpy(name)
        if name == "context":
            mine, theirs = json.loads(value[0]), json.loads(other[0])
            for context in (mine, theirs):
                context["derender"].pop("created")
            assert mine == theirs
        else:
            assert np.array_equal(value, other)


def test_render_takes_pictures_beside_the_request(grpc: Grpc) -> None:
    url = {"type": "image_url", "image_url": {"url": "attached:0"}}
    media, offsets = t.concatenate([png(PICTURE)])
    inputs = [
        tensor(t.REQUEST, job(messages=user(url, "How many squares?"))),
        tensor(t.MEDIA, media),
        tensor(t.MEDIA_OFFSETS, offsets),
    ]
    result = grpc.infer("render", inputs, client_timeout=30)
    inline = rendered(grpc)
    for name in ("token_ids", "mm_data", "mm_offsets"):
        assert np.array_equal(result.as_numpy(name), inline[name])


@pytest.mark.parametrize("over_http", [False, True])
def test_encode_alone(grpc: Grpc, triton_http: Http, over_http: bool) -> None:
    made = rendered(grpc)
    module, client = (tritonclient.http, triton_http) if over_http else (tritonclient.grpc, grpc)
    inputs = [
        tensor(t.MM_DATA, made["mm_data"], module),
        tensor(t.MM_OFFSETS, made["mm_offsets"], module),
        tensor(t.CONTEXT, made["context"][0], module),
    ]
    result = client.infer("encode", inputs)
    layout = json.loads(result.as_numpy("encoded")[0])
    rows = result.as_numpy("embeddings").view(layout["dtype"])
    assert rows.size == (1 + layout["deepstack"]) * layout["items"][0]["rows"] * layout["hidden"]
    assert np.isfinite(rows).all()


def test_stages_one_by_one_give_what_the_ensemble_gives(grpc: Grpc) -> None:
    made = rendered(grpc, cache_salt="stages")
    context = tensor(t.CONTEXT, made["context"][0])
    token_ids = tensor(t.TOKEN_IDS, made["token_ids"])
    mm_data, mm_offsets = tensor(t.MM_DATA, made["mm_data"]), tensor(t.MM_OFFSETS, made["mm_offsets"])
    encoded = grpc.infer("encode", [mm_data, mm_offsets, context])
    prefill_inputs = [
        token_ids,
        tensor(t.EMBEDDINGS, encoded.as_numpy("embeddings")),
        tensor(t.ENCODED, encoded.as_numpy("encoded")[0]),
        context,
    ]
    generated = stream(grpc, "prefill_decode", prefill_inputs)
    assert generated.error is None
    (result,) = generated.results
    chunk = tensor(t.CHUNK, result.as_numpy("chunk")[0])
    derendered = grpc.infer("derender", [tensor(t.OUTPUT_TOKEN_IDS, result.as_numpy("output_token_ids")), chunk])
    document = json.loads(derendered.as_numpy("response")[0])

    by_generate = stream(grpc, "generate", [token_ids, mm_data, mm_offsets, context])
    assert np.array_equal(by_generate.results[0].as_numpy("output_token_ids"), result.as_numpy("output_token_ids"))
    # With a salt, so that nothing of the prompt is found in the cache, as nothing was the first time.
    by_chat = stream(grpc, "chat", [tensor(t.REQUEST, job(cache_salt="chat"))])
    whole = json.loads(by_chat.results[0].as_numpy("response")[0])
    assert document["choices"] == whole["choices"]
    assert document["usage"] == whole["usage"]


def test_chat_streams_its_tokens_while_they_are_made(grpc: Grpc) -> None:
    request = job(stream=True, ignore_eos=True, max_tokens=10, return_token_ids=True)
    got = stream(grpc, "chat", [tensor(t.REQUEST, request)])
    assert got.error is None
    documents = [json.loads(document) for result in got.results for document in result.as_numpy("response")]
    # A chunk holds the tokens made since the one before, on a busy machine more than one.
    assert 1 < len(got.results) <= 10
    choices = [choice for document in documents for choice in document["choices"]]
    assert sum(len(choice.get("token_ids") or []) for choice in choices) == 10
    assert documents[-1]["choices"][0]["finish_reason"] == "length"


def test_text_only_requests_pass_through_all_of_it(grpc: Grpc) -> None:
    got = stream(grpc, "chat", [tensor(t.REQUEST, job(messages=user("Hello")))])
    document = json.loads(got.results[0].as_numpy("response")[0])
    assert document["choices"][0]["message"]["content"]


def test_generate_stream_over_plain_http(stack: Stack, grpc: Grpc) -> None:
    made = rendered(grpc, messages=user("Hello"), stream=True, ignore_eos=True)
    body = {"token_ids": made["token_ids"].tolist(), "context": made["context"][0].decode()}
    url = f"{stack.triton_http}/v2/models/prefill_decode/generate_stream"
    with httpx.stream("POST", url, json=body, timeout=30) as response:
        events = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data: ")]
    assert len(events) > 1
    assert sum(np.size(event["output_token_ids"]) for event in events) == 6


def test_chat_generate_stream_takes_an_openai_request(stack: Stack) -> None:
    body = {"request": job(messages=user("Hello"), stream=True).decode()}
    with httpx.stream("POST", f"{stack.triton_http}/v2/models/chat/generate_stream", json=body, timeout=30) as response:
        events = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert response.status_code == 200
    assert len(events) > 1


BAD: dict[str, tuple[str, list[tuple[t.TensorSpec, Any]]]] = {
    "render: not JSON": ("render", [(t.REQUEST, b"{")]),
    "render: not an object": ("render", [(t.REQUEST, b"[]")]),
    "render: no body": ("render", [(t.REQUEST, b'{"kind":"chat","id":"x"}')]),
    "render: no messages": ("render", [(t.REQUEST, b'{"kind":"chat","id":"x","body":{"messages":[]}}')]),
    "render: offsets without media": ("render", [(t.REQUEST, job()), (t.MEDIA_OFFSETS, [0, 5])]),
    "encode: offsets beyond the data": (
        "encode",
        [(t.CONTEXT, b'{"id":"x"}'), (t.MM_DATA, [1, 2]), (t.MM_OFFSETS, [0, 5, 9])],
    ),
    "encode: data for no feature": ("encode", [(t.CONTEXT, b'{"id":"x"}'), (t.MM_DATA, [1, 2]), (t.MM_OFFSETS, [0, 1, 2])]),
    "encode: garbage": (
        "encode",
        [
            (
                t.CONTEXT,
                b'{"id":"x","features":[{"modality":"image","mm_hash":"h","placeholder":{"offset":0,"length":1}}]}',
            ),
            (t.MM_DATA, [1, 2]),
            (t.MM_OFFSETS, [0, 2, 2]),
        ],
    ),
    "derender: not JSON": ("derender", [(t.CHUNK, b"nonsense")]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tensors_are_the_callers_mistake_and_the_stage_goes_on(grpc: Grpc, name: str) -> None:
    model, inputs = BAD[name]
    with pytest.raises(InferenceServerException) as caught:
        grpc.infer(model, [tensor(*pair) for pair in inputs], client_timeout=30)
    assert isinstance(from_wire(caught.value.message()), InvalidRequest), caught.value
    grpc.infer("render", [tensor(t.REQUEST, job())], client_timeout=30)


BAD_PREFILL: dict[str, list[tuple[t.TensorSpec, Any]]] = {
    "no tokens": [(t.TOKEN_IDS, []), (t.CONTEXT, b'{"id":"x"}')],
    "tokens left out": [(t.CONTEXT, b'{"id":"x"}')],
    "token beyond the vocabulary": [(t.TOKEN_IDS, [2**40]), (t.CONTEXT, b'{"id":"x"}')],
    "negative token": [(t.TOKEN_IDS, [-1]), (t.CONTEXT, b'{"id":"x"}')],
    "too long": [(t.TOKEN_IDS, [5] * 100_000), (t.CONTEXT, b'{"id":"x"}')],
    "no id": [(t.TOKEN_IDS, [1]), (t.CONTEXT, b"{}")],
    "embeddings of nothing": [(t.TOKEN_IDS, [1]), (t.EMBEDDINGS, [1] * 8), (t.ENCODED, b"{}"), (t.CONTEXT, b'{"id":"x"}')],
    "rows that are not there": [
        (t.TOKEN_IDS, [1, 2]),
        (
            t.ENCODED,
            b'{"hidden":192,"items":[{"modality":"image","mm_hash":"h","digest":"d","rows":1,"placeholder":{"offset":0,"length":1}}]}',
        ),
        (t.CONTEXT, b'{"id":"x"}'),
    ],
    "stop token beyond the vocabulary": [
        (t.TOKEN_IDS, [1]),
        (t.CONTEXT, b'{"id":"x","sampling_params":{"stop_token_ids":[99999999]}}'),
    ],
}


@pytest.mark.parametrize("name", BAD_PREFILL)
def test_bad_prefill_inputs_end_with_one_error_and_the_engine_goes_on(grpc: Grpc, name: str) -> None:
    got = stream(grpc, "prefill_decode", [tensor(*pair) for pair in BAD_PREFILL[name]])
    assert isinstance(from_wire(str(got.error)), InvalidRequest), got.error
    assert got.num_final == 1
    assert got.results == []
    context = b'{"id":"next","sampling_params":{"max_tokens":2,"ignore_eos":true}}'
    after = stream(grpc, "prefill_decode", [tensor(t.TOKEN_IDS, [1, 2]), tensor(t.CONTEXT, context)])
    assert after.error is None


def test_chunk_of_an_unknown_stream_is_an_error_not_a_guess(grpc: Grpc) -> None:
    chunk = b'{"id":"never seen","number":3,"choices":[{"index":0,"num_tokens":1}]}'
    with pytest.raises(InferenceServerException) as caught:
        grpc.infer("derender", [tensor(t.OUTPUT_TOKEN_IDS, [5]), tensor(t.CHUNK, chunk)], client_timeout=30)
    assert from_wire(caught.value.message()).status == RendererError.status


def test_every_stage_answers_a_probe(grpc: Grpc) -> None:
    probe = b'{"op":"probe"}'
    control = {"render": t.REQUEST, "encode": t.CONTEXT, "derender": t.CHUNK}
    for model, spec in control.items():
        grpc.infer(model, [tensor(spec, probe)], client_timeout=10)
    assert stream(grpc, "prefill_decode", [tensor(t.CONTEXT, probe)]).error is None
