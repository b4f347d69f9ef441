"""One output of a chat model: reasoning, content and tool calls, from its text."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ConfigDict, ValidationError

from triton_renderer.derender.parsers.base import LOOK_BACK, OutputParser, ReasoningParser, ToolParser
from triton_renderer.derender.parsers.events import Content, Event, ToolCallArguments, ToolCallStart, merged
from triton_renderer.text.states import Flag, MisfittingState, Text


@dataclass
class MessageState:
    """What is known between two pieces of text; the parsers check their own parts of it when they are restored."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    reasoning: Any
    """The reasoning parser's state; None without one."""
    tools: Any
    """The tool parser's state; None without one."""
    space: Text
    """Whitespace of which it is not decided whether it separates."""
    separates: Flag
    """Only whitespace has come since the last call, or since the beginning."""
    called: Flag
    """A tool call has begun."""


class MessageParser:
    """Reasoning first, then content with tool calls in it; either parser may be missing.

    Where calls are looked for, whitespace between them, in front of the first and behind the last one only separates and
    is left out; so is all content that is nothing but whitespace, if there are calls (more of it than LOOK_BACK is content in
    any case). Of several calls only the first
    is passed on unless `parallel_tool_calls`, and none where none may be made.
    """

    def __init__(
        self,
        reasoning: ReasoningParser | None,
        tools: ToolParser | None,
        parallel_tool_calls: bool = True,
        may_call: bool = True,
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._max_calls = (2**53 if parallel_tool_calls else 1) if may_call else 0
        self._space: list[str] = []
        self._separates = True
        self._called = False

    @property
    def in_reasoning(self) -> bool:
        """The reasoning is open."""
        return self._reasoning is not None and self._reasoning.is_open

    @property
    def reasoning_is_over(self) -> bool:
        """No reasoning can come any more."""
        return self._reasoning is None or self._reasoning.is_over

    @property
    def called(self) -> bool:
        """A tool call has begun."""
        return self._called

    def push(self, text: str) -> list[Event]:
        """The events that `text` decides."""
        events: list[Event] = [Content(text)] if text else []
        if self._reasoning is not None:
            events = self._reasoning.push(text)
        return merged(self._space_out(self._find_calls(events)))

    def finish(self) -> list[Event]:
        """The rest, now that the output has ended."""
        events = self._find_calls(self._reasoning.finish()) if self._reasoning is not None else []
        if self._tools is not None:
            events += self._tools.finish()
        events = list(self._space_out(events))
        if self._space and not self._called:
            events.append(Content("".join(self._space)))
        self._space = []
        return merged(events)

    def state(self) -> MessageState:
        """The state for `restore`: plain JSON, as small as what is held back."""
        return MessageState(
            self._reasoning and self._reasoning.state(),
            self._tools and self._tools.state(),
            "".join(self._space),
            self._separates,
            self._called,
        )

    def restore(self, state: MessageState) -> Self:
        """Goes on from a `state` of a parser with the same options; returns itself.

        Raises MisfittingState where a part of it is none of that parser's, or belongs to a parser that is not there.
        """
        _restore(self._reasoning, state.reasoning, "reasoning")
        _restore(self._tools, state.tools, "tools")
        self._space = [state.space] if state.space else []
        self._separates, self._called = state.separates, state.called
        return self

    def _find_calls(self, events: Iterable[Event]) -> list[Event]:
        result: list[Event] = []
        for event in events:
            result += self._tools.push(event.text) if self._tools is not None and isinstance(event, Content) else [event]
        return result

    def _space_out(self, events: Iterable[Event]) -> Iterable[Event]:
        """Leaves out separating whitespace, and calls beyond the first where only one is allowed."""
        for event in events:
            if isinstance(event, ToolCallStart | ToolCallArguments):
                self._called |= self._max_calls > 0
                self._separates, self._space = True, []
                if event.index < self._max_calls:
                    yield event
            elif isinstance(event, Content) and self._tools is not None and self._separates:
                self._space = ["".join([*self._space, event.text])]
                if not event.text.isspace() or len(self._space[0]) > LOOK_BACK:
                    yield Content(self._space[0])
                    self._space, self._separates = [], False
            else:
                yield event


def _restore(parser: OutputParser | None, state: Any, part: str) -> None:
    if parser is None:
        if state is not None:
            raise MisfittingState("this request needs no such parser", part)
        return
    try:
        parser.restore(state)
    except ValidationError as error:
        raise MisfittingState.of(error).within(part) from error
