import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.derender.parsing import OUTPUTS, Found, call, numbered_ids, parse, parse_in_parts
from tests.unit.text.tokenizers_for_tests import cuttings
from triton_renderer.derender.parsers.hermes import HermesTools
from triton_renderer.derender.parsers.message import MessageParser
from triton_renderer.derender.parsers.qwen3 import Qwen3Reasoning


def message_parser(is_open: bool = False, tools: bool = True, parallel: bool = True, reasoning: bool = True) -> MessageParser:
    return MessageParser(
        Qwen3Reasoning(is_open, HermesTools.call_markers if tools else []) if reasoning else None,
        HermesTools(numbered_ids()) if tools else None,
        parallel,
    )


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        (f"<think>\na\n</think>\n\n{call()}", "\na\n", "", 1),
        (f"<think>\na\n</think>\n\nb\n{call()}\n{call()}\n", "\na\n", "\n\nb\n", 2),
        (f"b\n{call()}\n{call()}\nc\n", "", "b\n\nc\n", 2),
        (f"{call()}\n\n", "", "", 1),
        ("\n\n", "", "\n\n", 0),
        ("<think>a</think>\n\n", "a", "\n\n", 0),
        ("\n\nb\n", "", "\n\nb\n", 0),
        (f"<think>\na\n{call()}", "\na\n", "", 1),
    ],
)
def test_whitespace_that_only_separates_calls_is_left_out(text, reasoning, content, calls):
    for pieces in ([text], list(text)):
        result = parse(message_parser(), *pieces)
        assert (result.reasoning, result.content, len(result.calls)) == (reasoning, content, calls)


def test_calls_are_text_where_none_may_be_made():
    text = f"<think>a{call()}</think>b{call()}"
    assert parse(message_parser(tools=False), text) == Found(f"a{call()}", f"b{call()}")


def test_reasoning_is_text_without_a_reasoning_parser():
    assert parse(message_parser(reasoning=False), f"<think>a</think>{call()}") == Found(
        "", "<think>a</think>", [("f", "{}")], ["call_0"]
    )


def test_only_the_first_call_counts_where_one_is_allowed():
    assert parse(message_parser(parallel=False), f"{call('f')}\n{call('g')}").calls == [("f", "{}")]


def test_no_call_counts_where_none_is_allowed():
    parser = MessageParser(None, HermesTools(numbered_ids()), may_call=False)
    assert parse(parser, f"a{call()}b") == Found(content="ab")
    assert not parser.called


def test_it_knows_whether_a_call_has_begun():
    parser = message_parser()
    states = []
    for text in ("a", "<tool_call>", '{"name": "f"', "}"):
        parser.push(text)
        states.append(parser.called)
    assert states == [False, False, True, True]


@settings(deadline=None)
@given(st.data(), OUTPUTS, st.booleans(), st.booleans(), st.booleans())
def test_the_cutting_changes_nothing(data, text, is_open, tools, parallel):
    cuts = data.draw(cuttings(len(text)))
    parser = message_parser(is_open, tools, parallel)
    whole = parse(parser, text)
    parts = parse_in_parts(lambda: message_parser(is_open, tools, parallel), text, cuts)
    assert (parts.reasoning, parts.content, parts.calls) == (whole.reasoning, whole.content, whole.calls)
