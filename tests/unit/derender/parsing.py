"""Running parsers over texts, and texts that look like model output."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
from hypothesis import strategies as st

from triton_renderer.derender.parsers.events import Content, Event, Reasoning, ToolCallArguments, ToolCallStart
from triton_renderer.derender.parsers.message import MessageState


@dataclass
class Found:
    """What a parser found, put together."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Name and arguments of each call."""
    ids: list[str] = field(default_factory=list)


class Parser(Protocol):
    def push(self, text: str) -> list[Event]: ...
    def finish(self) -> list[Event]: ...
    def state(self) -> Any: ...


def collect(events: Sequence[Event]) -> Found:
    found = Found()
    for event in events:
        match event:
            case Reasoning(text):
                assert text
                found.reasoning += text
            case Content(text):
                assert text
                found.content += text
            case ToolCallStart(index, call_id, name):
                assert index == len(found.calls)
                found.calls.append((name, ""))
                found.ids.append(call_id)
            case ToolCallArguments(index, text):
                assert index == len(found.calls) - 1
                assert text
                name, arguments = found.calls[index]
                found.calls[index] = (name, arguments + text)
    return found


def parse(parser: Parser, *texts: str) -> Found:
    """What is found in texts that come one after another."""
    return collect([event for text in texts for event in parser.push(text)] + parser.finish())


def parse_in_parts(make: Callable[[], Parser], text: str, cuts: Sequence[int]) -> Found:
    """The same over a cutting of the text, with a new parser for each part that goes on from the last one's state."""
    parser = make()
    events = []
    for start, end in itertools.pairwise(cuts):
        events += parser.push(text[start:end])
        parser = make().restore(_carried(parser.state()))
    return collect(events + parser.finish())


def _carried(state: Any) -> Any:
    """The state as it comes back from a client."""
    carried = orjson.loads(orjson.dumps(state))
    return MessageState(**carried) if isinstance(state, MessageState) else carried


def numbered_ids() -> Callable[[], str]:
    """Makes call_0, call_1, …"""
    counter = itertools.count()
    return lambda: f"call_{next(counter)}"


def call(name: str = "f", arguments: str = "{}") -> str:
    """A tool call as the template asks for it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


OUTPUTS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *("<think>", "</think>", "<tool_call>", "</tool_call>", "\n</tool_call>", "<tool", "</", "<", "think>"),
                *('{"name": "f", "arguments": ', '{"arguments": {"a": 1}, "name": "g"}', '"name": "h"', '{"name": 1}'),
                *('{"a": "}"}', '{"a": [1, {"b": "\\""}]}', "[{", "]}", "{", "}", '"', "\\", ",", ":", "null", "12 ", "-"),
                *("\n", " ", "\n\n", "text", "é🙂", '"</tool_call>"', '"a\n', '{"name": "f"}', "\x00"),
                call("f", '{"a": "{b} </tool_call> c"}'),
                call("g"),
            ]
        ),
        st.text(max_size=3),
    ),
    max_size=12,
).map("".join)
