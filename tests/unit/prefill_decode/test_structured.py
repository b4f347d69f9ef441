"""Structured outputs, from the request to the last token, with the bundled model."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.prefill_decode.fakes import NotingSink
from triton_renderer.errors import InvalidRequest, RendererError
from triton_renderer.prefill_decode import PrefillDecode
from triton_renderer.prefill_decode.structured import Grammars, packed
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.stages import EncodedItems, RequestContext
from triton_renderer.settings import load_settings

COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
}


@pytest.fixture(scope="module")
def stage() -> Iterator[PrefillDecode]:
    torch.set_num_threads(1)
    stage = PrefillDecode.load(load_settings(max_model_len=512, dtype="float32"))
    yield stage
    stage.close()


def start(stage: PrefillDecode, prompt: list[int] | None = None, stream: bool = True, **sampling: Any) -> NotingSink:
    sink = NotingSink()
    params = {"temperature": 1, "seed": 3, "max_tokens": 150} | sampling
    reasoning_ended = params.pop("reasoning_ended", False)
    context = {"id": str(id(sink)), "sampling_params": params, "stream": stream, "reasoning_ended": reasoning_ended}
    nothing = torch.empty(0, dtype=torch.uint8)
    token_ids = np.array(prompt or closed(stage), np.int64)
    stage.submit(token_ids, nothing, EncodedItems(), parse(RequestContext, context), sink)
    return sink


def ids(stage: PrefillDecode, text: str) -> list[int]:
    return list(stage._tokenizer.encode(text, add_special_tokens=False))


def closed(stage: PrefillDecode) -> list[int]:
    """A prompt behind which no reasoning comes."""
    return ids(stage, "<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")


def text(stage: PrefillDecode, sink: NotingSink) -> str:
    assert sink.wait().error is None
    return str(stage._tokenizer.decode(sink.token_ids, skip_special_tokens=True))


def is_json(schema: Any) -> Any:
    return lambda answer: jsonschema_rs.is_valid(schema, json.loads(answer))


EXPRESSION = 'root ::= term ("+" term)?\nterm ::= "a" | "b"'
CONSTRAINTS: list[tuple[dict[str, Any], Any]] = [
    ({"json": COLOUR}, is_json(COLOUR)),
    ({"json": json.dumps(COLOUR), "disable_any_whitespace": True}, is_json(COLOUR)),
    ({"regex": r"[a-c]{2,4}-\d"}, re.compile(r"[a-c]{2,4}-\d").fullmatch),
    ({"choice": ["yes", 'n"o\n', "maybe é"]}, ["yes", 'n"o\n', "maybe é"].__contains__),
    ({"grammar": EXPRESSION}, re.compile(r"[ab](\+[ab])?").fullmatch),
    ({"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": "<tool_call>x"}}}, "<tool_call>x".__eq__),
]  # fmt: skip


@pytest.mark.parametrize(
    ("constraint", "fits"), CONSTRAINTS, ids=lambda value: "".join(value)[:12] if isinstance(value, dict) else ""
)
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_output_is_of_the_form_that_was_asked_for(
    stage: PrefillDecode, constraint: dict[str, Any], fits: Any, temperature: float
) -> None:
    sink = start(stage, structured_outputs=constraint, temperature=temperature, skip_special_tokens=False)
    answer = text(stage, sink)
    assert sink.finish_reasons == ["stop"]
    assert fits(answer), answer


def test_json_object_begins_as_an_object(stage: PrefillDecode) -> None:
    assert text(stage, start(stage, structured_outputs={"json_object": True}, max_tokens=20)).startswith("{")


def test_constrained_and_free_rows_of_a_batch_leave_each_other_alone(stage: PrefillDecode) -> None:
    free = [{"seed": 5, "max_tokens": 30}, {"temperature": 0, "max_tokens": 30}, {"top_k": 5, "seed": 9, "logprobs": 2}]
    alone = [start(stage, **sampling).wait().token_ids for sampling in free]
    sinks = [start(stage, **sampling) for sampling in free]
    constrained = [start(stage, structured_outputs=constraint, n=2, stream=False) for constraint, _ in CONSTRAINTS[:5]]
    assert [sink.wait().token_ids for sink in sinks] == alone
    for sink, (_, fits) in zip(constrained, CONSTRAINTS, strict=False):
        (chunk,) = sink.wait().chunks
        first = chunk.choices[0].num_tokens
        for part in (sink.token_ids[:first], sink.token_ids[first:]):
            assert fits(stage._tokenizer.decode(part, skip_special_tokens=True))


def test_seeded_output_is_the_same_when_the_grammar_is_known_already(stage: PrefillDecode) -> None:
    asked = {"structured_outputs": {"regex": "[a-z ]{30}"}, "seed": 8}
    assert start(stage, **asked).wait().token_ids == start(stage, **asked).wait().token_ids


LEAVES = st.sampled_from(
    [
        {"type": "integer", "minimum": 0, "maximum": 99},
        {"type": "boolean"},
        {"enum": ["red", "blue", None, 3]},
        {"type": "string", "maxLength": 5},
        {"type": ["boolean", "null"]},
        {"const": "x"},
    ]
)


def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner,
        st.builds(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 2}, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"type": "object", "properties": {"a": a, "b": b}, "required": ["a"]}, inner, inner),
    )


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=around(around(LEAVES)), seed=st.integers(0, 2**31))
def test_output_of_any_schema_parses_and_validates(stage: PrefillDecode, schema: dict[str, Any], seed: int) -> None:
    constraint = {"json": schema, "disable_any_whitespace": True}
    sink = start(stage, structured_outputs=constraint, seed=seed, max_tokens=400)
    answer = text(stage, sink)
    assert sink.finish_reasons == ["stop"], answer
    assert jsonschema_rs.is_valid(schema, json.loads(answer)), answer


def test_reasoning_is_free_until_it_ends(stage: PrefillDecode) -> None:
    """The model is made to think of a few tokens, by its bias, and the constraint holds behind its end mark."""
    end = ids(stage, "</think>")[0]
    opened = ids(stage, "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n<think>\n")
    sampling = {"structured_outputs": {"choice": ["yes", "no"]}, "temperature": 2, "logit_bias": {str(end): 5}}
    lengths = []
    for seed in range(5):
        sink = start(stage, opened, seed=seed, **sampling)
        assert sink.wait().error is None
        lengths.append(sink.token_ids.index(end))
        assert stage._tokenizer.decode(sink.token_ids[lengths[-1] + 1 :], skip_special_tokens=True) in ("yes", "no")
    assert max(lengths) > 0


def test_model_may_open_its_reasoning_itself_where_the_prompt_says_nothing_of_it(stage: PrefillDecode) -> None:
    begin, end = ids(stage, "<think>")[0], ids(stage, "</think>")[0]
    plain = ids(stage, "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n")
    asked = {"structured_outputs": {"choice": ["yes", "no"]}}
    thinking = start(stage, plain, logit_bias={str(begin): 100, str(end): 100}, repetition_penalty=2, **asked).wait()
    assert thinking.token_ids[:2] == [begin, end]
    assert text(stage, start(stage, plain, logit_bias={str(begin): -100}, **asked)) in ("yes", "no")
    told = start(stage, plain, logit_bias={str(begin): 100}, reasoning_ended=True, **asked)
    assert text(stage, told) in ("yes", "no")


def test_grammar_that_has_ended_ends_the_output_whatever_else_was_asked(stage: PrefillDecode) -> None:
    asked = {"structured_outputs": {"choice": ["yes"]}}
    for more in ({"min_tokens": 50}, {"ignore_eos": True}, {"min_tokens": 50, "ignore_eos": True}):
        sink = start(stage, **asked, **more)
        assert text(stage, sink) == "yes"
        assert sink.finish_reasons == ["stop"]


def test_min_tokens_keeps_a_grammar_from_its_end_as_long_as_it_can_go_on(stage: PrefillDecode) -> None:
    sink = start(stage, structured_outputs={"regex": "a*"}, min_tokens=12, max_tokens=14)
    assert len(sink.wait().token_ids) >= 12
    assert set(text(stage, sink)) == {"a"}


def test_grammar_goes_together_with_bias_allowed_tokens_and_stop_strings(stage: PrefillDecode) -> None:
    one = ids(stage, "1")[0]
    eos = sorted(stage._eos_token_ids)
    digits = {"structured_outputs": {"regex": r"\d{6}"}}
    assert text(stage, start(stage, **digits, logit_bias={str(one): 100})) == "111111"
    assert text(stage, start(stage, **digits, allowed_token_ids=[one, *eos])) == "111111"
    stopped = start(stage, **digits, logit_bias={str(one): 100}, stop=["11"]).wait()
    assert len(stopped.token_ids) == 2
    nothing_left = start(stage, **digits, allowed_token_ids=ids(stage, "a")).wait()
    assert isinstance(nothing_left.error, InvalidRequest)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"regex": "a", "choice": ["a"]}, ""),
    ({"wobble": 1}, ""),
    ({"regex": "("}, ".regex"),
    ({"regex": "a\0"}, ".regex"),
    ({"regex": 5}, ".regex"),
    ({"choice": []}, ".choice"),
    ({"choice": "abc"}, ".choice"),
    ({"grammar": "root ::= other"}, ".grammar"),
    ({"grammar": ""}, ".grammar"),
    ({"json": "{"}, ".json"),
    ({"json": []}, ".json"),
    ({"json": {"type": "wobble"}}, ".json"),
    ({"json": {"type": "integer", "multipleOf": 3}}, ".json"),
    ({"json": {"properties": {"a": {"$ref": "http://example.com/schema"}}}}, ".json"),
    ({"json": {"description": "x" * 300_000}}, ".json"),
    ({"json_object": False}, ".json_object"),
    ({"structural_tag": "{}"}, ".structural_tag"),
    ({"structural_tag": {"structures": [{}], "triggers": []}}, ".structural_tag"),
    ({"json": {}, "whitespace_pattern": " "}, ".whitespace_pattern"),
]


@pytest.mark.parametrize(("constraint", "param"), REFUSED, ids=lambda value: str(value)[:30])
def test_what_is_no_constraint_is_refused_by_name(stage: PrefillDecode, constraint: dict[str, Any], param: str) -> None:
    try:
        error: RendererError | None = start(stage, structured_outputs=constraint).wait().error
    except InvalidRequest as raised:
        error = raised
    assert isinstance(error, InvalidRequest)
    assert error.param == f"sampling_params.structured_outputs{param}"
    assert "/project" not in error.message


def test_with_harmony_only_a_tag_that_says_how_the_channels_go_is_a_constraint(
    stage: PrefillDecode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_reasoning_parser", "openai_gptoss")
    with pytest.raises(InvalidRequest, match="only a structural tag") as caught:
        start(stage, structured_outputs={"regex": "a"})
    assert caught.value.param == "sampling_params.structured_outputs"
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "<|channel|>final<|message|>x"}}
    assert text(stage, start(stage, structured_outputs={"structural_tag": tag})) == "<|channel|>final<|message|>x"


def test_schema_of_thousands_of_levels_is_refused_before_it_is_compiled(stage: PrefillDecode) -> None:
    deep: Any = {}
    for _ in range(500):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InvalidRequest, match="64 levels"):
        start(stage, structured_outputs={"json": deep})


def test_property_that_is_called_like_a_keyword_is_no_keyword(stage: PrefillDecode) -> None:
    schema = {"type": "object", "properties": {"not": {"type": "boolean"}}, "required": ["not"]}
    assert is_json(schema)(text(stage, start(stage, structured_outputs={"json": schema, "disable_any_whitespace": True})))


def test_grammar_that_takes_too_long_is_refused_and_the_others_go_on(stage: PrefillDecode) -> None:
    patient, stage._grammars._timeout_s = stage._grammars._timeout_s, 0.05
    slow = {"regex": "|".join("ab" * count for count in range(1, 150))}
    try:
        free, refused = start(stage, max_tokens=5), start(stage, structured_outputs=slow)
        assert free.wait().error is None
        assert isinstance(refused.wait().error, InvalidRequest)
        assert "to compile" in str(refused.error)
    finally:
        stage._grammars._timeout_s = patient


def test_abort_while_the_grammar_is_being_compiled_is_not_lost(stage: PrefillDecode) -> None:
    sink = start(stage, structured_outputs={"regex": "|".join("ba" * count for count in range(1, 60))})
    stage.abort([str(id(sink))])
    assert sink.wait().finish_reasons == ["abort"]


def test_compiled_grammars_are_kept_within_their_memory(stage: PrefillDecode) -> None:
    grammars = Grammars(stage._tokenizer, vocab_size=stage._runner.vocab_size, eos_token_ids=[1], max_bytes=1)
    for regex in ("a", "b"):
        results: list[Any] = []
        grammars.compile({"regex": regex}, True, "here", results.append)
        while not results:
            torch.empty(0)
    assert [spec[1] for spec, _ in grammars._compiled] == ["b"]


@given(st.sets(st.integers(0, 99), min_size=1))
def test_packed_bits_are_the_tokens(token_ids: set[int]) -> None:
    words = packed(sorted(token_ids), 4).tolist()
    assert {bit for bit in range(128) if (words[bit // 32] >> (bit % 32)) & 1} == token_ids
