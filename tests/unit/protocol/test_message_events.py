"""Chat chunks become the events of a Messages stream."""

import json
from typing import Any, get_args

import orjson
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings

from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.forms import JsonObject
from triton_renderer.protocol.messages.events import MessageEvents, message_of

from .chunks import HEAD, RUNS, SIZES, Run, carried, chunks, events, usage

EVENTS = {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(RawMessageStreamEvent)[0])}


def whole(runs: list[Run], **end: Any) -> JsonObject:
    return message_of(events(MessageEvents(), chunks(runs, **end)))


def said(blocks: list[JsonObject]) -> list[tuple[str, Any]]:
    """The kind and the content of each block."""
    found: list[tuple[str, Any]] = []
    for block in blocks:
        match block:
            case {"type": "thinking", "thinking": text, "signature": str()}:
                found.append(("reasoning", text))
            case {"type": "text", "text": text}:
                found.append(("content", text))
            case {"type": "tool_use", "input": arguments, "name": "f"}:
                found.append(("call", arguments))
            case _:
                raise AssertionError(block)
    return found


def expected(runs: list[Run]) -> list[tuple[str, Any]]:
    return [(run.kind, json.loads(run.text) if run.kind == "call" else run.text) for run in runs]


def without_signatures(stream: list[JsonObject]) -> list[JsonObject]:
    return [event for event in stream if event.get("delta", {}).get("type") != "signature_delta"]


def test_each_kind_of_block_has_its_events() -> None:
    stream = events(MessageEvents(), chunks([Run("reasoning", "abcd"), Run("content", "ab"), Run("call", "{}")]))
    assert [(event["type"], event.get("index"), event.get("delta", {}).get("type")) for event in stream] == [
        ("message_start", None, None),
        ("ping", None, None),
        ("content_block_start", 0, None),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, None),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, None),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_stop", 2, None),
        ("message_delta", None, None),
        ("message_stop", None, None),
    ]


def test_events_are_those_of_the_official_client() -> None:
    runs = [Run("reasoning", "abcd"), Run("content", "ab"), Run("call", "{}"), Run("content", "c")]
    for event in events(MessageEvents(), chunks(runs)):
        if event["type"] != "ping":  # which the client drops
            EVENTS[event["type"]].model_validate(event)


@settings(deadline=None)
@given(RUNS, SIZES)
def test_any_cut_gives_the_same_message(runs: list[Run], size: int) -> None:
    message = whole(runs, size=size)
    assert said(message["content"]) == (expected(runs) or [("content", "")])


@settings(deadline=None)
@given(RUNS, SIZES)
def test_a_state_carried_as_json_changes_nothing(runs: list[Run], size: int) -> None:
    stream = chunks(runs, size)
    assert without_signatures(carried(MessageEvents, stream)) == without_signatures(events(MessageEvents(), stream))


def test_the_state_does_not_grow_with_the_output() -> None:
    def size(length: int) -> int:
        runs = [Run("reasoning", "t" * length), Run("content", "c" * length), Run("call", f'{{"a": "{"x" * length}"}}')]
        translator = MessageEvents()
        events(translator, chunks(runs, size=7, finish=None))
        return len(json.dumps(translator.state()))

    assert size(20_000) <= size(20) + 10


@pytest.mark.parametrize(
    ("runs", "finish", "stop_reason", "told"),
    [
        ([Run("content", "x")], "stop", None, ("end_turn", None)),
        ([Run("content", "x")], "stop", 7, ("end_turn", None)),
        ([Run("content", "x")], "stop", "END", ("stop_sequence", "END")),
        ([Run("content", "x")], "length", None, ("max_tokens", None)),
        ([Run("content", "x")], "abort", None, (None, None)),
        ([Run("call", "{}")], "tool_calls", None, ("tool_use", None)),
        ([Run("call", "{}")], "stop", None, ("tool_use", None)),  # a call that was asked for by its name
        ([Run("call", '{"a": {"b": "}\\""}}')], "tool_calls", "END", ("tool_use", None)),
        ([Run("call", '{"a": {"b": "}')], "tool_calls", "END", ("stop_sequence", "END")),
        ([Run("call", "{}"), Run("call", '{"a"')], "tool_calls", "END", ("stop_sequence", "END")),
        ([Run("call", '{"a"')], "length", None, ("max_tokens", None)),
    ],
)
@pytest.mark.parametrize("size", [1, 100])
def test_why_it_ended(runs: list[Run], finish: str, stop_reason: Any, told: tuple[str | None, str | None], size: int) -> None:
    message = whole(runs, size=size, finish=finish, stop_reason=stop_reason)
    assert (message["stop_reason"], message["stop_sequence"]) == told


@pytest.mark.parametrize(
    ("arguments", "given_to_the_tool"),
    [('{"a": 1}', {"a": 1}), ("", {}), ("{}", {}), ('{"a": ', {"arguments": '{"a": '}), ("[1]", {"arguments": "[1]"})],
)
def test_input_is_always_an_object(arguments: str, given_to_the_tool: JsonObject) -> None:
    (block,) = whole([Run("call", arguments)])["content"]
    assert block["input"] == given_to_the_tool


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', '{"a": NaN}', '{"a": ' + "[" * 300 + "]" * 300 + "}", "[" * 100_000])
def test_input_that_no_answer_can_hold_is_given_as_text(arguments: str) -> None:
    (block,) = whole([Run("call", arguments)])["content"]
    assert block["input"] == {"arguments": arguments}


def test_a_number_that_json_readers_round_is_rounded() -> None:
    (block,) = whole([Run("call", '{"a": 1000000000000000000000000000000}')])["content"]
    assert orjson.loads(orjson.dumps(block["input"])) == {"a": 1e30}


def test_head_and_usage() -> None:
    start, *_, delta, stop = events(MessageEvents(), chunks([Run("content", "abc")]))
    assert start["message"] == {
        "id": HEAD["id"],
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "served",
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 0},
    }
    assert delta["usage"] == {"input_tokens": 11, "output_tokens": 2}
    assert stop == {"type": "message_stop"}


def test_cached_tokens_are_no_input_tokens() -> None:
    chunk = HEAD | {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}], "usage": usage(1, cached=4)}
    message = message_of(MessageEvents().push(chunk))
    assert message["usage"] == {"input_tokens": 7, "output_tokens": 1, "cache_read_input_tokens": 4}


def test_the_whole_answer_hands_on_what_there_is() -> None:
    translator = MessageEvents()
    stream = events(translator, chunks([Run("content", "x")]))
    assert translator.finish() == []
    message = translator.whole(stream, {"kv_transfer_params": {"a": 1}, "ec_transfer_params": None})
    Message.model_validate(message)
    assert message == message_of(stream) | {"kv_transfer_params": {"a": 1}}


def test_an_answer_that_nobody_ends_can_be_finished() -> None:
    translator = MessageEvents()
    stream = events(translator, chunks([Run("content", "x")], finish=None)) + translator.finish()
    assert [event["type"] for event in stream[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    assert message_of(stream)["stop_reason"] is None


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"index": -1}, "index"),
        ({"index": 2**60}, "index"),
        ({"block": "odd"}, "block"),
        ({"begun": 1}, "begun"),
        ({"call": {"depth": "deep"}}, "call.depth"),
        ({"usage": {"input_tokens": -1}}, "usage.input_tokens"),
    ],
)
def test_a_state_that_cannot_be_one_is_refused(state: JsonObject, where: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        MessageEvents().restore(state)
    assert caught.value.param == where
