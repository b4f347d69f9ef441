"""Reasoning between two markers: qwen3, deepseek_r1 and granite."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.derender.parsing import OUTPUTS, Found, parse, parse_in_parts
from tests.unit.text.tokenizers_for_tests import cuttings
from triton_renderer.derender.parsers.base import LOOK_BACK
from triton_renderer.derender.parsers.deepseek_r1 import DeepSeekR1Reasoning
from triton_renderer.derender.parsers.granite import GraniteReasoning
from triton_renderer.derender.parsers.qwen3 import Qwen3Reasoning


@pytest.mark.parametrize(
    ("is_open", "text", "reasoning", "content"),
    [
        (False, "Hello", "", "Hello"),
        (False, "<think>\na\n</think>\n\nb", "\na\n", "\n\nb"),
        (False, "\n <think>a</think>b", "a", "b"),
        (False, "<think>a", "a", ""),
        (False, "<think></think>a", "", "a"),
        (False, "</think>\n\na", "", "\n\na"),
        (False, "The <think> tag and </think>", "", "The <think> tag and </think>"),
        (False, "a</think>b", "", "a</think>b"),
        (False, "<thin", "", "<thin"),
        (False, " \n", "", " \n"),
        (False, "", "", ""),
        (True, "a</think>b", "a", "b"),
        (True, "<think>a</think>b", "a", "b"),
        (True, "a<think>b</think>c</think>d<think>", "ab", "c</think>d<think>"),
        (True, "a</thin", "a</thin", ""),
        (True, "", "", ""),
    ],
)
def test_reasoning_is_told_from_content(is_open, text, reasoning, content):
    for parser in (Qwen3Reasoning, DeepSeekR1Reasoning):
        assert parse(parser(is_open), text) == parse(parser(is_open), *text) == Found(reasoning, content)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("Here is my thought process: a Here is my response: b", " a ", " b"),
        ("Here's my thought process:a\nHere's my response:b", "a\n", "b"),
        ("\nHere is my thought process:a", "a", ""),
        ("Here is my thought", "", "Here is my thought"),
        ("Here is a plan. Here is my response: b", "", "Here is a plan. Here is my response: b"),
        ("Hello", "", "Hello"),
        ("Here is my thought process: Here is the thing. Here is my respite", " Here is the thing. Here is my respite", ""),
    ],
)
def test_granite_says_it_in_words(text, reasoning, content):
    assert parse(GraniteReasoning(False), text) == parse(GraniteReasoning(False), *text) == Found(reasoning, content)


@pytest.mark.parametrize(
    ("parser", "text", "expected"),
    [
        (Qwen3Reasoning, "a</think>b", True),
        (DeepSeekR1Reasoning, "a</think>b<think>", True),
        (Qwen3Reasoning, "<think>a</think>b", False),
        (Qwen3Reasoning, "a", False),
        (GraniteReasoning, "a Here is my response: b", False),
    ],
)
def test_an_output_that_closes_what_it_has_not_opened_tells_of_its_prompt(parser, text, expected):
    assert parser.closes_unopened(text) is expected


def test_reasoning_behind_very_much_space_is_content():
    space = "\n" * LOOK_BACK
    assert parse(Qwen3Reasoning(False), f"{space}<think>a</think>b") == Found("a", "b")
    text = f"{space}\n<think>a</think>b"
    assert parse(Qwen3Reasoning(False), text) == parse(Qwen3Reasoning(False), *text) == Found("", text)


def test_a_tool_call_ends_the_reasoning_and_is_content():
    assert parse(Qwen3Reasoning(True, ["<tool_call>"]), "a\n<tool_call>b</think>") == Found("a\n", "<tool_call>b</think>")
    assert parse(Qwen3Reasoning(True), "a\n<tool_call>b</think>c") == Found("a\n<tool_call>b", "c")


def test_only_what_may_be_a_marker_is_held_back():
    parser = Qwen3Reasoning(True)
    assert [len(parser.push(character)) for character in "a</thx</think>b"] == [1, 0, 0, 0, 0, 1, *[0] * 8, 1]


def test_it_tells_whether_the_reasoning_is_open():
    parser = Qwen3Reasoning(False)
    states = []
    for text in ("\n", "<think>", "a", "</think>", "b"):
        parser.push(text)
        states.append(parser.is_open)
    assert states == [False, True, True, False, False]


@settings(deadline=None)
@given(st.data(), st.booleans(), OUTPUTS)
def test_the_cutting_changes_nothing(data, is_open, text):
    cuts = data.draw(cuttings(len(text)))

    def make() -> Qwen3Reasoning:
        return Qwen3Reasoning(is_open, ["<tool_call>"])

    assert parse_in_parts(make, text, cuts) == parse(make(), text)
