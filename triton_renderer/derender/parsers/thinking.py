"""Reasoning between two markers, in front of the answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from triton_renderer.derender.parsers.base import LOOK_BACK, ParserState, ReasoningParser
from triton_renderer.text.states import Count, Texts
from triton_renderer.text.stop import beginning_at_end, first_of


@dataclass
class ThinkingState(ParserState):
    """What is known between two pieces of text."""

    phase: Literal["start", "reasoning", "content"] = "start"
    space: Texts = field(default_factory=list)  # in front of what is held back at the start
    space_length: Count = 0


class ThinkingParser(ReasoningParser):
    """Reasoning comes first or not at all.

    It is open from the start where the prompt opened it; else it opens at the model's own marker, if nothing but whitespace
    comes before. Later markers are text, for models quote them. A second opening marker within the reasoning, and a closing
    one with which the output begins, are dropped. Whitespace is kept as it is, as in the reference.
    """

    openings: ClassVar[tuple[str, ...]]
    """The markers that open the reasoning."""
    closings: ClassVar[tuple[str, ...]]
    """The markers that end it."""

    new_state: ClassVar[type[ParserState]] = ThinkingState
    _state: ThinkingState

    def __init__(self, is_open: bool, implicit_ends: Sequence[str] = ()) -> None:
        super().__init__(is_open, implicit_ends)
        if is_open:
            self._state.phase = "reasoning"

    @property
    def is_open(self) -> bool:
        return self._state.phase == "reasoning"

    @property
    def is_over(self) -> bool:
        return self._state.phase == "content"

    @classmethod
    def closes_unopened(cls, text: str) -> bool:
        found = first_of(text, cls.openings + cls.closings)
        return found is not None and found[1] in cls.closings

    def _step(self, text: str) -> str:
        match self._state.phase:
            case "start":
                return self._start(text)
            case "reasoning":
                return self._reasoning(text)
        self._emit_content(text)
        return ""

    def _end(self) -> str:
        """Whitespace is all that the output was."""
        return self._no_reasoning() if self._state.phase == "start" else ""

    def _start(self, text: str) -> str:
        """Decides whether the output begins with reasoning."""
        visible = text.lstrip()
        state = self._state
        if len(visible) < len(text):
            state.space.append(text[: len(text) - len(visible)])
            state.space_length += len(text) - len(visible)
        if state.space_length > LOOK_BACK:
            return self._no_reasoning() + visible
        if not visible:
            return ""
        markers = self.openings + self.closings
        for marker in markers:
            if visible.startswith(marker):
                state.phase, state.space = "reasoning" if marker in self.openings else "content", []
                return visible[len(marker) :]
        if not self._final and any(marker.startswith(visible) for marker in markers):
            state.held = visible
            return ""
        return self._no_reasoning() + visible

    def _no_reasoning(self) -> str:
        """The output does not begin with reasoning; returns the whitespace that it begins with."""
        space, self._state.space, self._state.phase = "".join(self._state.space), [], "content"
        return space

    def _reasoning(self, text: str) -> str:
        """Passes reasoning on up to the next marker."""
        markers = self.openings + self.closings + self._implicit_ends
        found = first_of(text, markers)
        if found is None:
            end = len(text) - (0 if self._final else beginning_at_end(text, markers))
            self._emit_reasoning(text[:end])
            self._state.held = text[end:]
            return ""
        position, marker = found
        self._emit_reasoning(text[:position])
        if marker not in self.openings:
            self._state.phase = "content"
        return text[position:] if marker in self._implicit_ends else text[position + len(marker) :]
