"""What a parser finds in a model's output, piece by piece."""

from dataclasses import dataclass


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
