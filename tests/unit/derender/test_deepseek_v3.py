"""DeepSeek's calls, between special tokens."""

import pytest

from tests.unit.derender.formats import DEEPSEEK, SECTION
from tests.unit.derender.parsing import numbered_ids, parse
from triton_renderer.derender.parsers.deepseek_v3 import DeepSeekV3Tools

BEGIN, SEPARATOR, END = DEEPSEEK


def call(name: str = "f", arguments: str = '{"a": 1}') -> str:
    return f"{BEGIN}function{SEPARATOR}{name}\n```json\n{arguments}\n```{END}"


def found(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls, the same for the whole text and for single characters."""
    result = parse(DeepSeekV3Tools(numbered_ids()), text)
    assert parse(DeepSeekV3Tools(numbered_ids()), *text) == result
    return result.content, result.calls


@pytest.mark.parametrize(
    "arguments",
    ['{"a": 1}', "{}", '{\n  "a": [1],\n  "b": "`x`"\n}', '{"a": "```json\\n{}\\n```"}', '{"a": "\n```\n"}', "no JSON", "[1"],
)
def test_arguments_come_as_they_are_written(arguments):
    assert found(f"{SECTION[0]}{call('f', arguments)}{SECTION[1]}") == ("", [("f", arguments)])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"hi {SECTION[0]}{call()}\n{call('g')}{SECTION[1]} bye", "hi \n bye", [("f", '{"a": 1}'), ("g", '{"a": 1}')]),
        (call(), "", [("f", '{"a": 1}')]),
        (f'{BEGIN}function{SEPARATOR}f\n{{"a": 1}}{END}', "", [("f", '{"a": 1}')]),
        (f"{BEGIN}function{SEPARATOR}f\n```json\n```{END}", "", [("f", "{}")]),
        (f"{BEGIN}function{SEPARATOR}f{END}", "", [("f", "{}")]),
        (f"{SECTION[0]}{SECTION[1]}", "", []),
        (f'{BEGIN}function{SEPARATOR}f\n```json\n{{"a": {call("g")}', "", [("f", '{"a": '), ("g", '{"a": 1}')]),
        (call().replace("```<", "```\n<"), "", [("f", '{"a": 1}')]),
    ],
)
def test_calls_are_found(text, content, calls):
    assert found(text) == (content, calls)


@pytest.mark.parametrize("cut", [len(call()) - length for length in range(1, len(f"\n```{END}"))])
def test_a_call_cut_behind_its_arguments_has_all_of_them(cut):
    (name, arguments), *_ = found(call()[:cut])[1]
    assert (name, arguments.rstrip("\n")) == ("f", '{"a": 1}')


def test_a_call_cut_within_its_arguments_has_what_came():
    text = call("f", '{"city": "Par')
    assert found(text[: text.index("Par") + 3]) == ("", [("f", '{"city": "Par')])


@pytest.mark.parametrize(
    "text",
    [
        BEGIN,
        f"{BEGIN}oops\n",
        f"{BEGIN}function{SEPARATOR}",
        f"{BEGIN}function{SEPARATOR}\n",
        f"{BEGIN}function{SEPARATOR}f",
        f"{BEGIN}function{SEPARATOR}f{SEPARATOR}",
        "<｜tool▁",
        f"a{SEPARATOR}b",
    ],
)
def test_what_is_no_call_is_content_and_harms_no_good_one(text):
    assert found(text) == (text, [])
    assert found(f"{text}{call('g')}") == (text, [("g", '{"a": 1}')])
    assert found(f"{call('g')}{text}") == (text, [("g", '{"a": 1}')])
