"""Qwen3-Coder's calls, converted by the tools' schemas."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.derender.parsing import numbered_ids, parse
from triton_renderer.derender.parsers.qwen3_coder import Qwen3CoderTools, converted

TYPES = {"f": {"n": ["integer"], "o": ["object"], "s": ["string"]}}


def tools() -> Qwen3CoderTools:
    return Qwen3CoderTools(numbered_ids(), TYPES)


def found(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls, the same for the whole text and for single characters."""
    result = parse(tools(), text)
    assert parse(tools(), *text) == result
    return result.content, result.calls


def call(*parameters: tuple[str, str], name: str = "f") -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        ([], "{}"),
        ([("s", "Paris")], '{"s": "Paris"}'),
        ([("s", '"x"\n\ny\\')], '{"s": "\\"x\\"\\n\\ny\\\\"}'),
        ([("s", "")], '{"s": ""}'),
        ([("s", "12"), ("n", "12"), ("o", '{"a":[1]}')], '{"s": "12", "n": 12, "o": {"a": [1]}}'),
        ([("n", "twelve")], '{"n": "twelve"}'),
        ([("unknown", "12")], '{"unknown": "12"}'),
        ([("s", "<b> & </i> <parameter")], '{"s": "<b> & </i> <parameter"}'),
        ([("s", "\n\nx\n\n")], '{"s": "\\n\\nx\\n\\n"}'),
    ],
)
def test_arguments_become_json_of_the_parameters_types(parameters, arguments):
    assert found(call(*parameters)) == ("", [("f", arguments)])
    json.loads(arguments)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"a {call(('n', '1'))}\n{call(name='g')} b", "a \n b", [("f", '{"n": 1}'), ("g", "{}")]),
        ("a <function=f>\n<parameter=s>x</parameter>\n</function> b", "a b", [("f", '{"s": "x"}')]),
        ("<tool_call><function=f><parameter=s>x</tool_call>b", "b", [("f", '{"s": "x"}')]),
        ("<function=f><parameter=s>x<parameter=n>2</function>", "", [("f", '{"s": "x", "n": 2}')]),
        ("<function=f>oops<parameter=s\n>x</function>", "", [("f", "{}")]),
        ("<function=f></function><function=g></function></tool_call>", "", [("f", "{}"), ("g", "{}")]),
        (f"<tool_call><function=f>{call(name='g')}", "", [("f", "{}"), ("g", "{}")]),
        ("<function=f></function></tool_c", "", [("f", "{}")]),
        (f"<function=f><parameter={'k' * 2000}>x</function>", "", [("f", "{}")]),
    ],
)
def test_calls_are_found_though_markers_are_missing(text, content, calls):
    assert found(text) == (content, calls)


def test_a_call_cut_by_length_has_what_came():
    assert found(call(("s", "Paris"))[: len("<tool_call>\n<function=f>\n<parameter=s>\nPar")]) == ("", [("f", '{"s": "Par')])
    assert found("<function=f><parameter=s>Par</para") == ("", [("f", '{"s": "Par')])
    assert found("<function=f><parameter=n>12") == ("", [("f", '{"n": ')])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>oops</tool_call>",
        "<function=",
        "<function=>",
        "<function=f",
        "<function=f\n>",
        "<function=<",
        "<tool",
    ],
)
def test_what_is_no_call_is_content_and_harms_no_good_one(text):
    assert found(text) == (text, [])
    assert found(f"{text}\n{call(name='g')}") == (f"{text}\n", [("g", "{}")])


def test_a_string_is_passed_on_while_it_comes_and_another_value_when_it_has_ended():
    parser = tools()
    assert parser.push("<tool_call>\n<function=f>\n<parameter=s>\n")[-1].text == '{"s": "'
    assert [[event.text for event in parser.push(text)] for text in ("Par", "is\n", "\n", "x")] == [
        ["Par"],
        ["is"],
        ["\\n"],
        ["\\nx"],
    ]
    parser.push("</parameter>\n<parameter=n>")
    assert [parser.push(text) for text in ("1", "2")] == [[], []]
    assert [event.text for event in parser.push("</parameter>")] == ["12"]


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("null", ["null", "string"], None),
        ("NULL", ["null"], None),
        ("nil", ["null", "string"], "nil"),
        ("12", ["integer", "string"], 12),
        ("1.5", ["integer"], 1.5),
        ("1.5", ["integer", "string"], "1.5"),
        ("1.5", ["number"], 1.5),
        ("2.0", ["number"], 2),
        ("inf", ["number"], "inf"),
        ("nan", ["number"], "nan"),
        ("1e999", ["number"], "1e999"),
        ("True", ["boolean"], True),
        ("0", ["boolean"], False),
        ("yes", ["boolean"], "yes"),
        ('{"a": 1}', ["object"], {"a": 1}),
        ("[1, 2]", ["array"], [1, 2]),
        ("[1e999]", ["array"], "[1e999]"),
        ("[NaN]", ["array"], "[NaN]"),
        ("{'a': 1}", ["object"], "{'a': 1}"),
        ("{'a': 1}", ["object", "string"], "{'a': 1}"),
        ("[1]", ["date"], [1]),
        ("x", ["date"], "x"),
        ("12", ["string"], "12"),
        ("9" * 5000, ["integer"], "9" * 5000),
        ("[" * 100_000, ["array"], "[" * 100_000),
        ("1_000", ["integer"], 1000),
    ],
)
def test_a_value_is_of_the_first_type_that_it_fits(text: str, types: list[str], value: Any):
    assert json.loads(converted(text, types)) == value
    assert type(json.loads(converted(text, types))) is type(value)


@settings(max_examples=200, deadline=None)
@given(st.text(), st.lists(st.sampled_from(["null", "integer", "number", "boolean", "object", "array", "string", "date"])))
def test_whatever_the_value_and_the_types_it_becomes_json(text, types):
    json.loads(converted(text, types), parse_constant=pytest.fail)
