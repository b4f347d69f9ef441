import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.derender.parsing import OUTPUTS, Found, parse, parse_in_parts
from tests.unit.text.tokenizers_for_tests import cuttings
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
    assert parse(Qwen3Reasoning(is_open), text) == Found(reasoning, content)


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
