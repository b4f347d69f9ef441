"""Calls in the manner of Python, converted to JSON; with Llama 4's markers around them and without."""

import ast
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.derender.parsing import numbered_ids, parse
from triton_renderer.derender.parsers.llama4_pythonic import Llama4PythonicTools
from triton_renderer.derender.parsers.pythonic import PythonicTools, converted


def found(text: str, tools: type[PythonicTools] = PythonicTools) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls, the same for the whole text and for single characters."""
    result = parse(tools(numbered_ids()), text)
    assert parse(tools(numbered_ids()), *text) == result
    return result.content, result.calls


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("[f()]", "", [("f", "{}")]),
        ('[f(a=1, b="x"), g()]', "", [("f", '{"a": 1, "b": "x"}'), ("g", "{}")]),
        (" \n[ a.b ( c = [1, (2,)] , ) ]\n", " \n\n", []),
        (" \n[ a.b( c = [1, (2,)] , ) ]\n", " \n\n", [("a.b", '{"c": [1, [2]]}')]),
        ("[f(s='it\\'s (a), [b]', t=\"}\")]", "", [("f", '{"s": "it\'s (a), [b]", "t": "}"}')]),
        ("[f(s='''a'b\n''', t='', u=\"\")]", "", [("f", '{"s": "a\'b\\n", "t": "", "u": ""}')]),
        ("[f(from=1, class='x')]", "", [("f", '{"from": 1, "class": "x"}')]),
        ("[f(a=g(1, 2), b=3)]", "", [("f", '{"a": "g(1, 2)", "b": 3}')]),
        ("[f(a=)]", "", [("f", '{"a": ""}')]),
        ("[f()] done", " done", [("f", "{}")]),
        ("[f()]\n[g()]", "\n", [("f", "{}"), ("g", "{}")]),
        ("[f(a=1) oops", " oops", [("f", '{"a": 1}')]),
        ("[f(a=1, 2), g()]", "2), g()]", [("f", '{"a": 1}')]),
        ("[f(), g(1)]", " g(1)]", [("f", "{}")]),
        ("[f(a=1, b='x", "", [("f", '{"a": 1')]),
        ("[f(a=1", "", [("f", "")]),
    ],
)
def test_calls_are_found(text, content, calls):
    expected = (content, calls) if calls else (text, [])
    assert found(text) == expected
    assert found(text, Llama4PythonicTools) == expected


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "[f(1)]",
        "[f(x)]",
        "[link](http://x)",
        "[",
        "[f",
        "[f(",
        "[f(a",
        "[]",
        "[[f()]]",
        "[f.(a=1)]",
        "[1f()]",
        "Hi [f()]",
        "f()",
    ],
)
def test_anything_else_is_content(text):
    assert found(text) == (text, [])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("<|python_start|>[f(a=1)]<|python_end|>", "", [("f", '{"a": 1}')]),
        ("<|python_start|>[f()]", "", [("f", "{}")]),
        ("ok <|python_start|>[f()]<|python_end|> done", "ok  done", [("f", "{}")]),
        ("[f(a='<|python_end|>')]", "", [("f", '{"a": "<|python_end|>"}')]),
        ("<|python_start|>print(1)<|python_end|>", "print(1)", []),
        ("a <|python_s", "a <|python_s", []),
    ],
)
def test_the_markers_of_llama_4_are_dropped(text, content, calls):
    assert found(text, Llama4PythonicTools) == (content, calls)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("None", None),
        ("null", None),
        ("true", True),
        ("False", False),
        ("-1.5", -1.5),
        ("+2", 2),
        ("007", 7),
        ("0", 0),
        ("00", 0),
        ("1.07", 1.07),
        ("(800, 600)", [800, 600]),
        ("{'a', 'b'}", ["a", "b"]),
        ("{'a': {'b': [null, 07]}, 1: 2}", {"a": {"b": [None, 7]}, "1": 2}),
        ("'a' 'b'", "ab"),
        ("f'x'", "x"),
        ("'line\nbreak\ttab'", "line\nbreak\ttab"),
        ("'\\n\\u00e9 \\x41 \\\\'", "\n\u00e9 A \\"),
        ("r'\\d'", "\\d"),
        ('"a\\/b \\\\/"', "a/b \\/"),
        ('"\\ud83d\\ude42 \\u00e9"', "🙂 é"),
        ("'007'", "007"),
        ("'\\d'", "\\d"),
        ("f'{x}'", "f'{x}'"),
        ("x", "x"),
        ("not True", "not True"),
        ("-'a'", "-'a'"),
        ("1 + 1", "1 + 1"),
        ("b'x'", "b'x'"),
        ("...", "..."),
        ("1j", "1j"),
        ("1e999", "1e999"),
        ("{**x}", "{**x}"),
        ("{(1, 2): 3}", "{(1, 2): 3}"),
        ("'", "'"),
        ("", ""),
        ("[" * 1000, "[" * 1000),
        ("-" * 100_000 + "1", "-" * 100_000 + "1"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_literal_becomes_json_and_anything_else_a_string(text, value):
    assert json.loads(converted(text)) == value


def test_half_a_surrogate_pair_stays_escaped():
    assert converted("'\\ud83d'") == '"\\ud83d"'


PYTHON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(PYTHON)
def test_any_value_that_python_writes_is_read(value):
    assert json.loads(converted(repr(value))) == value
    text = f"[f(a={value!r}, b={value!r})]"
    assert ast.parse(text)
    ((_, arguments),) = found(text)[1]
    assert json.loads(arguments) == {"a": value, "b": value}
