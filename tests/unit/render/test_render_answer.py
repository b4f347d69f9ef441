"""The answer of the render routes: plain JSON that goes back to generate unchanged."""

import base64
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.render.helpers import chat, completion_job, image_part, num_tokens, png, text_part, user
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.generate import GenerateRequest
from triton_renderer.protocol.render_answer import sampling_params_to_wire, to_generate_request
from triton_renderer.protocol.sampling import SamplingParams
from triton_renderer.render import Rendered, Renderer
from triton_renderer.wire import decode_item, metadata_of

KEYS = [
    "request_id", "token_ids", "token_offsets", "features", "content_parts", "sampling_params", "model", "reasoning_ended",
    "reasoning_parser_kwargs", "return_token_ids", "output_mode", "stream", "stream_options", "cache_salt", "priority",
    "kv_transfer_params", "ec_transfer_params",
]  # fmt: skip
"""Those of the reference's answer, in its order."""
TWO_PICTURES = user(text_part("A"), image_part(png(96, 64)), text_part("B"), image_part(png(200, 128)), text_part("C"))


def answer(rendered: Rendered) -> dict[str, Any]:
    body = orjson.loads(to_generate_request(rendered.token_ids, rendered.items, rendered.context))
    parse(GenerateRequest, body)
    return body


def chat_answer(renderer: Renderer, *messages: Any, **fields: Any) -> dict[str, Any]:
    return answer(chat(renderer, *(messages or (user("How many?"),)), for_generate=True, **fields))


def test_a_text_chat(renderer: Renderer) -> None:
    body = chat_answer(renderer)
    assert list(body) == KEYS
    assert body["request_id"] == "chatcmpl-1"
    assert all(type(token) is int for token in body["token_ids"])
    assert body["features"] is None
    assert (body["stream"], body["stream_options"], body["output_mode"], body["priority"]) == (False, None, "tokens", 0)
    assert body["reasoning_ended"] is True
    variables = {"add_generation_prompt": True, "continue_final_message": False}
    assert body["reasoning_parser_kwargs"] == {"chat_template_kwargs": variables}


def test_the_requests_own_fields_are_handed_through(renderer: Renderer) -> None:
    fields = {
        "model": "shapes-vl",
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": "salt",
        "priority": -2,
        "kv_transfer_params": {"a": 1},
        "ec_transfer_params": {"b": [2]},
    }
    body = chat_answer(renderer, **fields)
    expected = fields | {"stream_options": {"include_usage": True, "continuous_usage_stats": False}}
    assert {name: body[name] for name in fields} == expected


def test_a_chat_with_pictures(renderer: Renderer) -> None:
    rendered = chat(renderer, TWO_PICTURES, for_generate=True)
    features = answer(rendered)["features"]
    assert list(features) == ["mm_hashes", "mm_placeholders", "kwargs_data", "mm_metadata"]
    assert {name: list(value) for name, value in features.items()} == {name: ["image"] for name in features}
    assert [len(value["image"]) for value in features.values()] == [2, 2, 2, 2]
    spans = [feature.placeholder for feature in rendered.context.features]
    assert features["mm_placeholders"]["image"] == [
        {"offset": spans[0].offset, "length": num_tokens(96, 64), "is_embed": None},
        {"offset": spans[1].offset, "length": num_tokens(200, 128), "is_embed": None},
    ]
    for index in range(2):
        kwargs, metadata = (base64.b64decode(features[name]["image"][index]) for name in ("kwargs_data", "mm_metadata"))
        assert [kwargs, metadata] == rendered.items[2 * index : 2 * index + 2]
        assert decode_item(metadata).keys() == metadata_of(decode_item(kwargs)).keys() == {"image_grid_thw"}


def test_a_chat_with_pictures_is_rendered_the_same_for_a_stream(renderer: Renderer) -> None:
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    whole, body = chat_answer(renderer, TWO_PICTURES), chat_answer(renderer, TWO_PICTURES, **asked)
    assert json.loads(json.dumps(body)) == body
    differing = {name for name in KEYS if body[name] != whole[name]}
    assert differing == {"stream", "stream_options"}
    for span in body["features"]["mm_placeholders"]["image"]:
        assert 0 < span["offset"] < span["offset"] + span["length"] < len(body["token_ids"])


@pytest.mark.parametrize(
    "fields", [{"mm_payload": "none"}, {"return_mm_kwargs": False}, {"mm_payload": "none", "return_mm_kwargs": True}]
)
def test_tokens_and_hashes_alone_on_request(renderer: Renderer, fields: dict[str, Any]) -> None:
    whole, body = chat_answer(renderer, TWO_PICTURES), chat_answer(renderer, TWO_PICTURES, **fields)
    assert (body["features"]["kwargs_data"], body["features"]["mm_metadata"]) == (None, None)
    assert body["token_ids"] == whole["token_ids"]
    assert body["features"]["mm_hashes"] == whole["features"]["mm_hashes"]


@pytest.mark.parametrize("fields", [{"mm_payload": "tensors"}, {"mm_payload": "tensors", "return_mm_kwargs": False}])
def test_tensors_on_request(renderer: Renderer, fields: dict[str, Any]) -> None:
    assert chat_answer(renderer, TWO_PICTURES, **fields)["features"]["kwargs_data"]["image"][1]


def test_the_pipelines_own_requests_always_have_their_tensors(renderer: Renderer) -> None:
    rendered = chat(renderer, TWO_PICTURES, mm_payload="none")
    assert all(rendered.items)
    assert rendered.context.derender is not None
    assert rendered.context.request is None


def test_a_completion(renderer: Renderer) -> None:
    body = answer(renderer.render(completion_job("The capital", for_generate=True, return_token_offsets=True)))
    assert list(body) == KEYS
    assert body["request_id"] == "cmpl-1"
    assert (body["reasoning_ended"], body["reasoning_parser_kwargs"]) == (None, None)
    assert [[begin, end] for begin, end in body["token_offsets"]][-1][1] == len("The capital")
    assert body["sampling_params"]["max_tokens"] == 16


def test_include_reasoning_false_means_that_nothing_is_waited_for(renderer: Renderer) -> None:
    opened = {"chat_template_kwargs": {"enable_thinking": True}}
    assert chat_answer(renderer, **opened)["reasoning_ended"] is False
    assert chat_answer(renderer, **opened, include_reasoning=False)["reasoning_ended"] is True


def test_ids_without_a_clients_own_are_the_internal_ones(renderer: Renderer) -> None:
    job = completion_job("x", for_generate=True).model_copy(update={"external_id": None})
    assert answer(renderer.render(job))["request_id"] == "internal"


# sampling_params in the reference's form


def test_max_tokens_is_always_written_and_other_defaults_are_not() -> None:
    assert sampling_params_to_wire(SamplingParams(max_tokens=16)) == {
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "temperature": 1.0, "top_p": 1.0,
        "min_p": 0.0, "stop": [], "stop_token_ids": [], "max_tokens": 16, "bad_words": [],
    }  # fmt: skip


def test_greedy_leaves_out_what_then_means_nothing() -> None:
    wire = sampling_params_to_wire(SamplingParams(temperature=0, top_p=0.5, min_p=0.5, max_tokens=1))
    assert "top_p" not in wire
    assert "min_p" not in wire


SAMPLING = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 10**6)},
    optional={
        "n": st.integers(1, 128),
        "temperature": st.sampled_from([0.5, 1.0, 2.0]),
        "top_p": st.sampled_from([0.1, 1.0]),
        "top_k": st.integers(-1, 50),
        "seed": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        "stop": st.lists(st.text(min_size=1, max_size=4), max_size=3),
        "logprobs": st.one_of(st.none(), st.integers(0, 20)),
        "logit_bias": st.one_of(st.none(), st.dictionaries(st.integers(0, 900), st.sampled_from([-1.5, 0.0, 3.0]), max_size=3)),
        "skip_special_tokens": st.booleans(),
        "bad_words": st.one_of(st.none(), st.lists(st.text(min_size=1), min_size=1, max_size=2)),
        "structured_outputs": st.one_of(st.none(), st.just({"json": {"type": "object"}})),
    },
)


@given(SAMPLING)
def test_sampling_parameters_survive_the_wire(values: dict[str, Any]) -> None:
    params = SamplingParams(**values)
    wire = json.loads(json.dumps(sampling_params_to_wire(params)))
    again = SamplingParams.model_validate(wire)
    assert again.model_copy(update={"bad_words": again.bad_words or None}) == params


def test_what_render_resolves_survives_the_wire(renderer: Renderer) -> None:
    for fields in ({}, {"temperature": 0, "top_p": 0.3}, {"temperature": 0.6, "logit_bias": {"5": 3}, "stop": "END"}):
        params = chat(renderer, user("x"), **fields).context.sampling_params
        again = SamplingParams.model_validate(json.loads(json.dumps(sampling_params_to_wire(params))))
        assert again.model_copy(update={"bad_words": again.bad_words or None}) == params
