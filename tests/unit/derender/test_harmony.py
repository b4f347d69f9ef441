"""gpt-oss: the parsers openai_gptoss and openai, together, alone, and against the library that OpenAI publishes."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_harmony import HarmonyEncoding, HarmonyEncodingName, Role, StreamableParser, load_harmony_encoding

from tests.unit.derender.parsing import Found, numbered_ids, parse, parse_in_parts
from tests.unit.text.tokenizers_for_tests import cuttings
from triton_renderer.derender.parsers.message import MessageParser
from triton_renderer.derender.parsers.openai import OpenAITools
from triton_renderer.derender.parsers.openai_gptoss import GptOssReasoning

THOUGHT = "<|channel|>analysis<|message|>{}<|end|>"
CALL = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
FINAL = "<|channel|>final<|message|>{}<|return|>"
NEXT = "<|start|>assistant"


def both(is_open: bool = False) -> MessageParser:
    return MessageParser(GptOssReasoning(is_open, OpenAITools.call_markers), OpenAITools(numbered_ids()))


def found(text: str, is_open: bool = False) -> tuple[str, str, list[tuple[str, str]]]:
    """The same for the whole text and for single characters."""
    result = parse(both(is_open), text)
    assert parse(both(is_open), *text) == result
    return result.reasoning, result.content, result.calls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FINAL.format("Hi"), ("", "Hi", [])),
        (THOUGHT.format("a") + NEXT + FINAL.format("b"), ("a", "b", [])),
        (
            THOUGHT.format("a") + NEXT + THOUGHT.format("b") + NEXT + CALL.format("f", '{"x": 1}'),
            ("a\nb", "", [("f", '{"x": 1}')]),
        ),
        ("<|channel|>commentary<|message|>I look.<|end|>" + NEXT + CALL.format("f", "{}"), ("", "I look.", [("f", "{}")])),
        ("<|channel|>commentary<|message|>a<|end|>" + NEXT + FINAL.format("b"), ("", "a\nb", [])),
        (" to=functions.f<|channel|>commentary json<|message|>{}<|call|>", ("", "", [("f", "{}")])),
        (" to=functions.f<|channel|>analysis code<|message|>x y<|call|>", ("", "", [("f", "x y")])),
        ("<|channel|>commentary to=functions.a.b<|constrain|>json<|message|>{}<|call|>", ("", "", [("a.b", "{}")])),
        ("<|channel|>commentary to=lookup<|message|>{}<|call|>", ("", "", [("lookup", "{}")])),
        ("<|channel|>commentary to=browser.search<|message|>x<|call|>", ("", "", [])),
        ("<|channel|>analysis to=python<|message|>x<|call|>", ("x", "", [])),
        (CALL.format("f", ""), ("", "", [("f", "{}")])),
        (CALL.format("f", '{"a": 1}') + NEXT + CALL.format("g", "{}"), ("", "", [("f", '{"a": 1}'), ("g", "{}")])),
        (f"<|start|>assistant{FINAL.format('Hi')}", ("", "Hi", [])),
        ("<|message|>Hi", ("", "Hi", [])),
        ("Hi <|b|>", ("", "Hi <|b|>", [])),
        (" to be or not", ("", " to be or not", [])),
        ("a<|end|>b", ("", "a\nb", [])),
        (THOUGHT.format("a") + "b", ("a", "b", [])),
        ("<|channel|>final<|message|>a<|channel|>final<|message|>b", ("", "a\nb", [])),
        ("<|channel|>final<|message|>a<|message|>b", ("", "ab", [])),
        ("<|channel|>final<|end|>a", ("", "a", [])),
        ("<|channel|>final<|start|>assistant<|channel|>analysis<|message|>a", ("a", "", [])),
        (f"<|channel|>{'x' * 2000}<|message|>a", ("", f"<|channel|>{'x' * 2000}a", [])),
        (" " * 100 + FINAL.format("a"), ("", f"{' ' * 100}\na", [])),
    ],
)
def test_messages_are_sorted_by_channel_and_recipient(text, expected):
    assert found(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|chan", ("", "", [])),
        ("<|channel|>analysis", ("", "", [])),
        ("<|channel|>final<|message|>a<|en", ("", "a", [])),
        ("<|channel|>final<|message|>a<", ("", "a<", [])),
        ("<|channel|>commentary to=functions.f<|message|>", ("", "", [("f", "{}")])),
        ("<|channel|>commentary to=functions.f<|message|>{", ("", "", [("f", "{")])),
        ("to", ("", "to", [])),
    ],
)
def test_an_output_that_is_cut_leaks_no_markup(text, expected):
    assert found(text) == expected


def test_a_prompt_that_leaves_an_analysis_open_is_gone_on_with():
    assert found(f"a<|end|>{NEXT}{FINAL.format('b')}", is_open=True) == ("a", "b", [])


def test_without_a_tool_parser_calls_are_left_out_and_markup_too():
    text = THOUGHT.format("a") + NEXT + CALL.format("f", "{}") + NEXT + FINAL.format("b")
    assert parse(MessageParser(GptOssReasoning(False), None), text) == Found("a", "b")


def test_without_a_reasoning_parser_the_reasoning_is_left_out():
    text = THOUGHT.format("a") + NEXT + CALL.format("f", "{}") + NEXT + FINAL.format("b")
    assert parse(MessageParser(None, OpenAITools(numbered_ids())), text) == Found("", "b", [("f", "{}")], ["call_0"])


def test_it_tells_whether_the_reasoning_is_open():
    parser, states = both(), []
    for text in ("<|channel|>analysis", "<|message|>", "a", "<|end|>", NEXT, "<|channel|>final<|message|>b"):
        parser.push(text)
        states.append(parser.in_reasoning)
    assert states == [False, True, True, False, False, False]


PIECES = [
    *(
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "assistant",
        "analysis",
        "final",
        " to=functions.f",
        "a",
        " ",
    ),
    *(THOUGHT.format("hm"), CALL.format("f", "{}"), FINAL.format("b"), NEXT, "<|", "text", "🙂"),
]


@settings(max_examples=100, deadline=None)
@given(st.data(), st.lists(st.sampled_from(PIECES), max_size=14).map("".join), st.booleans())
def test_the_cutting_changes_nothing(data, text, is_open):
    whole, parts = parse(both(is_open), text), parse_in_parts(lambda: both(is_open), text, data.draw(cuttings(len(text))))
    assert (parts.reasoning, parts.content, parts.calls) == (whole.reasoning, whole.content, whole.calls)


@cache
def encoding() -> HarmonyEncoding:
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


TEXT = st.text('ab {}":\n🙂é', min_size=1, max_size=12)
MESSAGE = st.one_of(
    TEXT.map(lambda text: ("analysis", None, text)),
    TEXT.map(lambda text: ("commentary", None, text)),
    TEXT.map(lambda text: ("commentary", "functions.f", text)),
    TEXT.map(lambda text: ("final", None, text)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(MESSAGE, min_size=1, max_size=5), st.booleans())
def test_it_reads_what_the_library_reads(messages, recipient_first):
    def written(channel: str, recipient: str | None, text: str) -> str:
        if recipient is None:
            return f"<|channel|>{channel}<|message|>{text}<|end|>"
        if recipient_first:
            return f" to={recipient}<|channel|>{channel} json<|message|>{text}<|call|>"
        return f"<|channel|>{channel} to={recipient} <|constrain|>json<|message|>{text}<|call|>"

    text = NEXT.join(written(*message) for message in messages)
    library = StreamableParser(encoding(), Role.ASSISTANT)
    for token in encoding().encode(text, allowed_special="all"):
        library.process(token)
    library.process_eos()
    read = [(message.channel, message.recipient, message.content[0].text) for message in library.messages]
    assert read == messages
    reasoning = "\n".join(text for channel, _, text in read if channel == "analysis")
    content = "\n".join(text for channel, recipient, text in read if channel != "analysis" and recipient is None)
    calls = [(recipient.removeprefix("functions."), text) for _, recipient, text in read if recipient]
    ours = parse(MessageParser(GptOssReasoning(False), None), text)
    assert (ours.reasoning, ours.content) == (reasoning, content)
    ours = parse(OpenAITools(numbered_ids()), text)
    assert (ours.content, ours.calls) == (content, calls)
