"""What the forms of tool calls let through is what the parsers read as calls, with arguments that fit the tools' schemas."""

import json
import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema_rs
import pytest
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.derender.formats import WRITTEN
from tests.unit.derender.parsing import Found, numbered_ids, parse
from triton_renderer.derender.parsers import tool_parser
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol import base
from triton_renderer.protocol.json_schema import parameter_types
from triton_renderer.protocol.openai import ChatCompletionRequest
from triton_renderer.render.call_forms import FORMS
from triton_renderer.render.checks import check_coupled
from triton_renderer.render.tool_grammar import tool_grammar
from triton_renderer.text.formats import TOOL_FORMATS

SCHEMAS: dict[str, dict[str, Any]] = {
    "f": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "g.h": {"type": "object", "properties": {}, "additionalProperties": False},
    "pick": {
        "type": "object",
        "properties": {
            "unit": {"enum": ["°C", "°F"]},
            "exact": {"type": "boolean"},
            "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 31}, "maxItems": 3},
            "place": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"]},
            "size": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
        },
        "required": ["unit", "size"],
        "additionalProperties": False,
    },
    "maybe": {
        "type": "object",
        "properties": {"x": {"type": "boolean"}, "y": {"$ref": "#/$defs/level"}, "z": {"type": "null"}},
        "additionalProperties": False,
        "$defs": {"level": {"enum": [1, 2, 3]}},
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}} for name, schema in SCHEMAS.items()
]
CALLS: list[tuple[str, dict[str, Any]]] = [("f", {"a": "{x} y", "n": 1}), ("g.h", {})]
PREFIXES = {"openai": "<|channel|>analysis<|message|>I call f.<|end|><|start|>assistant"}
"""What comes in front of a call where the format itself has a place for it."""


def constraint(tool_format: str, tools: Any = None, **fields: Any) -> str | None:
    request = {"messages": [{"role": "user", "content": "x"}], "tools": tools or TOOLS} | fields
    found = tool_grammar(base.parse(ChatCompletionRequest, request), tool_format)
    return None if found is None else str(found["structural_tag"])


TOKENS = [*(chr(code) for code in range(32, 127)), "\n", "é", "°", "▁", "｜", "🙂"]
EOS = len(TOKENS)
COMPILER = xgrammar.GrammarCompiler(
    xgrammar.TokenizerInfo([*map(str.encode, TOKENS), b"</s>"], xgrammar.VocabType.RAW, stop_token_ids=[EOS])
)


@cache
def compiled(tag: str) -> xgrammar.CompiledGrammar:
    return COMPILER.compile_structural_tag(tag)


def matches(tag: str, output: str) -> bool:
    """`output` is one that the grammar lets through as a whole."""
    matcher = xgrammar.GrammarMatcher(compiled(tag))
    return matcher.accept_string(output) and matcher.accept_token(EOS)


def read(tool_format: str, output: str) -> Found:
    types = {name: parameter_types(schema) for name, schema in SCHEMAS.items()}
    return parse(tool_parser(tool_format)(numbered_ids(), parameter_types=types), output)


NAMED = {"type": "function", "function": {"name": "f"}}
FORCED: list[dict[str, Any]] = [
    {"tool_choice": "required"},
    {"tool_choice": "required", "parallel_tool_calls": False},
    {"tool_choice": NAMED},
]


def test_there_is_a_form_for_every_format() -> None:
    assert FORMS.keys() == TOOL_FORMATS.keys()


def written(tool_format: str, calls: Any) -> str:
    """As the model's template has it, but for the end of the last message, which is a token of its own."""
    text = WRITTEN[tool_format](calls)
    if tool_format == "openai":
        return text.removesuffix("<|call|>")
    return text.removeprefix("<|python_start|>").removesuffix("<|python_end|>").replace("'", '"')


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
@pytest.mark.parametrize("fields", FORCED, ids=["required", "single", "named"])
def test_a_call_as_the_model_writes_it_is_let_through(tool_format: str, fields: dict[str, Any]) -> None:
    tag = constraint(tool_format, **fields)
    assert tag is not None
    assert matches(tag, written(tool_format, CALLS[:1]))
    assert matches(tag, PREFIXES.get(tool_format, "") + written(tool_format, CALLS[:1]))
    assert not matches(tag, "It is sunny.")
    assert not matches(tag, written(tool_format, CALLS[:1])[:-3])
    assert not matches(tag, written(tool_format, [("unknown", {"a": "b"})]))
    assert not matches(tag, written(tool_format, [("f", {"n": 1})])), "what is required is missing"
    assert not matches(tag, written(tool_format, [("f", {"a": "b", "n": "one"})])), "a text for a number"


@pytest.mark.parametrize("tool_format", [name for name in TOOL_FORMATS if name != "openai"])
def test_several_calls_are_let_through_only_where_there_may_be_several(tool_format: str) -> None:
    one, two = (written(tool_format, calls) for calls in (CALLS[:1], CALLS))
    if tool_format == "hermes":
        two = two.replace("</tool_call>\n", "</tool_call>")
    if tool_format == "qwen3_coder":  # a call without arguments has an empty line
        two = two.replace("<function=g.h>\n", "<function=g.h>\n\n")
    required, single, named = (constraint(tool_format, **fields) for fields in FORCED)
    assert required is not None
    assert single is not None
    assert named is not None
    assert matches(required, two)
    assert not matches(single, two)
    assert not matches(named, two)
    assert matches(named, one)


def test_mistrals_older_form_is_a_list() -> None:
    tag = constraint("mistral", tool_choice="required")
    assert tag is not None
    for output in (
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "b"}}]',
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": "b"}}, {"name": "g.h", "arguments": {}}]',
        '[TOOL_CALLS]f[ARGS]{"a": "b"}[TOOL_CALLS]g.h[ARGS]{}',
    ):
        assert matches(tag, output)
        assert read("mistral", output).calls[0] == ("f", '{"a": "b"}')
    single = constraint("mistral", tool_choice="required", parallel_tool_calls=False)
    assert single is not None
    assert not matches(single, '[TOOL_CALLS][{"name": "f", "arguments": {"a": "b"}}, {"name": "g.h", "arguments": {}}]')


AUTO = [name for name in TOOL_FORMATS if "pythonic" not in name]


@pytest.mark.parametrize("tool_format", AUTO)
def test_where_the_choice_is_the_models_it_may_answer_or_make_a_good_call(tool_format: str) -> None:
    tag = constraint(tool_format, tool_choice="auto")
    assert tag is not None
    answer = "<|channel|>final<|message|>It is sunny." if tool_format == "openai" else "It is sunny."
    assert matches(tag, answer)
    assert matches(tag, PREFIXES.get(tool_format, "") + answer)
    assert matches(tag, written(tool_format, CALLS[:1]))
    assert not matches(tag, written(tool_format, [("f", {"a": "b", "n": "one"})]))


@pytest.mark.parametrize("tool_format", ["pythonic", "llama4_pythonic"])
def test_an_answer_that_may_begin_with_a_bracket_is_left_free(tool_format: str) -> None:
    assert constraint(tool_format, tool_choice="auto") is None


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_arguments_of_a_tool_that_is_not_strict_are_any(tool_format: str) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMAS["f"]}}]
    tag = constraint(tool_format, tools, tool_choice="required")
    assert tag is not None
    output = written(tool_format, [("f", {"other": "x", "n": "one"})])
    assert matches(tag, output)
    assert [name for name, _ in read(tool_format, output).calls] == ["f"]


@pytest.mark.parametrize("name", ["get-weather", "1st", "a b", ""])
def test_a_tool_that_python_cannot_call_is_not_forced_in_its_manner(name: str) -> None:
    tools = [{"type": "function", "function": {"name": name}}, TOOLS[0]]
    tag = constraint("pythonic", tools, tool_choice="required")
    assert tag is not None
    assert matches(tag, '[f(a="b")]')
    named = {"tools": tools, "tool_choice": {"type": "function", "function": {"name": name}}}
    request = base.parse(ChatCompletionRequest, {"messages": [{"role": "user", "content": "x"}]} | named)
    assert tool_grammar(request, "pythonic") is None
    with pytest.raises(InvalidRequest, match=r"^tool_choice: .* is not supported by this server yet$"):
        check_coupled(request, "pythonic")


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_a_tool_that_is_listed_twice_is_one_that_can_be_named(tool_format: str) -> None:
    tag = constraint(tool_format, [TOOLS[0], TOOLS[0]], tool_choice=NAMED)
    assert tag is not None
    assert matches(tag, written(tool_format, CALLS[:1]))


def test_a_format_without_a_form_is_not_forced() -> None:
    fields = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "tool_choice": "required"}
    request = base.parse(ChatCompletionRequest, fields)
    assert tool_grammar(request, "my_format") is None
    with pytest.raises(InvalidRequest, match="tool_choice"):
        check_coupled(request, "my_format")


ODD_SCHEMAS: list[dict[str, Any]] = [
    {"properties": []},
    {"properties": {"a": 5}, "required": "a"},
    {"properties": {"a b": {"type": "string"}}, "required": ["a b"]},
    {"properties": {"a": {}}, "required": [{}]},
    {"properties": {"a": {"type": "string"}}, "required": ["missing"]},
    {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}},
    {"patternProperties": {"^a": {"type": "string"}}},
    {"properties": {"a": {"enum": []}, "b": {"enum": 3}, "c": {"const": [1]}, "d": True}},
]


@pytest.mark.parametrize("schema", ODD_SCHEMAS, ids=str)
def test_a_schema_that_pythons_keywords_cannot_say_leaves_the_arguments_free(schema: dict[str, Any]) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}]
    tag = constraint("pythonic", tools, tool_choice="required")
    assert tag is not None
    json.loads(tag)


class Walk:
    """A model without a mind: tokens that the grammar has next, at random, but with a leaning to the end of what is begun."""

    CLOSING = '"]}),<'
    MARK = "<|end|>"
    MAX_LENGTH = 1500

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def output(self, tag: str) -> str | None:
        """An output that the grammar lets through; None where it does not come to an end in time."""
        matcher = xgrammar.GrammarMatcher(compiled(tag))
        bitmask = xgrammar.allocate_token_bitmask(1, EOS + 1)
        written = ""
        while len(written) < self.MAX_LENGTH:
            matcher.fill_next_token_bitmask(bitmask)
            words = bitmask[0].tolist()
            allowed = [token for token in range(EOS + 1) if (words[token // 32] >> (token % 32)) & 1]
            if EOS in allowed and (len(allowed) == 1 or self._random.random() < 0.5):
                return written
            token = self._next([token for token in allowed if token != EOS], written)
            assert matcher.accept_token(token)
            written += TOKENS[token]
        return None

    def _next(self, allowed: list[int], written: str) -> int:
        begun = next((length for length in range(len(self.MARK) - 1, 0, -1) if written.endswith(self.MARK[:length])), 0)
        if begun and TOKENS.index(self.MARK[begun]) in allowed:
            return TOKENS.index(self.MARK[begun])
        closing = [token for token in allowed if TOKENS[token] in self.CLOSING]
        if closing and self._random.random() < 0.3:
            return self._random.choice(closing)
        visible = [token for token in allowed if not TOKENS[token].isspace()]
        return self._random.choice(visible if visible and self._random.random() < 0.7 else allowed)


def outputs(tag: str, seeds: Iterator[int]) -> Iterator[str]:
    return (output for output in (Walk(seed).output(tag) for seed in seeds) if output is not None)


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whatever_the_form_lets_through_is_read_as_calls_that_fit_their_tools(tool_format: str, seed: int) -> None:
    for fields in FORCED:
        tag = constraint(tool_format, **fields)
        assert tag is not None
        output = Walk(seed).output(tag)
        if output is None or (tool_format == "openai" and Walk.MARK in output.rpartition("<|message|>")[2]):
            continue  # a mark of Harmony within a text ends that, wherever it stands
        found = read(tool_format, output)
        assert found.calls, output
        if tool_format not in ("llama3_json", "qwen3_coder", "openai"):  # between and behind their calls there may be text
            assert not found.content.strip(), output
        if tool_format != "llama3_json" and (fields != FORCED[0] or tool_format == "openai"):
            assert len(found.calls) == 1, output
        for name, arguments in found.calls:
            value = json.loads(arguments)
            if tool_format == "qwen3_coder":  # its form has room for white space around a text
                value = {key: text.strip() if isinstance(text, str) else text for key, text in value.items()}
            assert jsonschema_rs.is_valid(SCHEMAS[name], value), (output, arguments)
            assert fields.get("tool_choice") != NAMED or name == "f"


def test_the_walk_comes_to_an_end_mostly() -> None:
    for tool_format in TOOL_FORMATS:
        tag = constraint(tool_format, tool_choice="required")
        assert tag is not None
        ended = list(outputs(tag, iter(range(12))))
        assert len(ended) >= 6, tool_format
        assert len({re.sub(r"\W", "", output) for output in ended}) > 3
