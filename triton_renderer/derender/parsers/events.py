"""What a parser finds in a model's output, piece by piece."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True)
class Reasoning:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True)
class Content:
    """More of the answer."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A tool call, the `index`-th of the message: its name is known, its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """More of the arguments of call `index`, as the model wrote them."""

    index: int
    text: str


Event = Reasoning | Content | ToolCallStart | ToolCallArguments


def merged(events: Iterable[Event]) -> list[Event]:
    """The same events with the texts of neighbours of one kind joined."""
    events = list(events)
    if len(events) < 2:
        return events
    result: list[Event] = []
    for _, group in groupby(events, key=_kind):
        first, *more = group
        if isinstance(first, ToolCallStart) or not more:
            result += [first, *more]
            continue
        text = "".join(event.text for event in (first, *more) if not isinstance(event, ToolCallStart))
        result.append(ToolCallArguments(first.index, text) if isinstance(first, ToolCallArguments) else type(first)(text))
    return result


def _kind(event: Event) -> tuple[type[Event], int]:
    return type(event), event.index if isinstance(event, ToolCallStart | ToolCallArguments) else 0
