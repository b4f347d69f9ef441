"""What all parsers have in common.

A parser is a state machine over text. It takes the text in any cutting and gives the same events, up to the cutting of
their texts; it holds back only what may yet turn out to be markup; and its state is plain JSON. No output makes it raise:
what is no markup is text.

`state` and its counterpart, here and in the detokenizer, the logprobs decoder and the stop matcher, are for a derender
route that streams: it keeps nothing between two chunks of an answer, so that the caller carries the state along.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from triton_renderer.derender.parsers.events import Event


class OutputParser(ABC):
    """Base of the reasoning and the tool call parsers."""

    markers: ClassVar[tuple[str, ...]]
    """The markup of the format. A tokenizer may have it as special tokens: they are kept in the text."""

    @abstractmethod
    def push(self, text: str) -> list[Event]:
        """The events that `text` decides."""

    @abstractmethod
    def finish(self) -> list[Event]:
        """The rest: the output has ended, and what was held back is decided."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The state as plain JSON, for `restore`."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> Self:
        """Goes on from a `state` of a parser with the same options; returns itself."""


class ReasoningParser(OutputParser):
    """Divides an output into Reasoning and Content."""

    opening: ClassVar[str]
    closing: ClassVar[str]
    """The markers of the reasoning itself."""

    def __init__(self, is_open: bool, implicit_ends: Sequence[str] = ()) -> None:
        """`is_open`: the prompt has opened the reasoning. `implicit_ends`: markers that end it as well, and are content."""
        self.is_open = is_open
        """The reasoning is open now."""
        self._implicit_ends = tuple(implicit_ends)


class ToolParser(OutputParser):
    """Finds the tool calls in an output's content: yields Content and the events of calls."""

    call_markers: ClassVar[tuple[str, ...]]
    """The markers that open a call."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        """`new_id` makes the id of a call."""
        self._new_id = new_id
