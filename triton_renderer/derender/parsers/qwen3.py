"""Reasoning of Qwen3 and its kin: `<think>…</think>` in front of the answer."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from triton_renderer.derender.parsers.base import ReasoningParser
from triton_renderer.derender.parsers.events import Content, Event, Reasoning
from triton_renderer.text.reasoning import MARKS
from triton_renderer.text.stop import beginning_at_end, first_of

OPENING, CLOSING = MARKS["qwen3"]

Phase = Literal["start", "reasoning", "content"]


class Qwen3Reasoning(ReasoningParser):
    """Reasoning comes first or not at all.

    It is open from the start where the prompt opened it; else it opens at the model's own `<think>`, if nothing but
    whitespace comes before. Later markers are text, for models quote them. A second `<think>` within the reasoning, and a
    `</think>` with which the output begins, are dropped. Whitespace is kept as it is, as in the reference.
    """

    markers: ClassVar[tuple[str, ...]] = (OPENING, CLOSING)
    opening: ClassVar[str] = OPENING
    closing: ClassVar[str] = CLOSING

    def __init__(self, is_open: bool, implicit_ends: Sequence[str] = ()) -> None:
        super().__init__(is_open, implicit_ends)
        self._phase: Phase = "reasoning" if is_open else "start"
        self._held = ""
        self._space: list[str] = []  # in front of what is held back at the start

    def push(self, text: str) -> list[Event]:
        return self._run(self._held + text, final=False)

    def finish(self) -> list[Event]:
        return self._run(self._held, final=True)

    def state(self) -> dict[str, Any]:
        return {"phase": self._phase, "held": self._held, "space": "".join(self._space)}

    def restore(self, state: dict[str, Any]) -> Self:
        self._phase, self._held, self._space = state["phase"], state["held"], [state["space"]]
        self.is_open = self._phase == "reasoning"
        return self

    def _run(self, text: str, final: bool) -> list[Event]:
        events: list[Event] = []
        self._held = ""
        if self._phase == "start":
            text = self._start(text, final)
        if self._phase == "reasoning":
            text = self._reasoning(text, final, events)
        if self._phase == "content" and text:
            events.append(Content(text))
        self.is_open = self._phase == "reasoning"
        return events

    def _start(self, text: str, final: bool) -> str:
        """Decides whether the output begins with reasoning; returns the text behind the marker."""
        visible = text.lstrip()
        self._space.append(text[: len(text) - len(visible)])
        for marker in (OPENING, CLOSING):
            if visible.startswith(marker):
                self._phase = "reasoning" if marker == OPENING else "content"
                return visible[len(marker) :]
        if not final and any(marker.startswith(visible) for marker in (OPENING, CLOSING)):
            self._held = visible
            return ""
        self._phase = "content"
        return "".join(self._space) + visible

    def _reasoning(self, text: str, final: bool, events: list[Event]) -> str:
        """Passes reasoning on up to its end; returns the text behind it."""
        markers = (CLOSING, OPENING, *self._implicit_ends)
        while found := first_of(text, markers):
            position, marker = found
            if position:
                events.append(Reasoning(text[:position]))
            text = text[position:] if marker in self._implicit_ends else text[position + len(marker) :]
            if marker != OPENING:
                self._phase = "content"
                return text
        end = len(text) - (0 if final else beginning_at_end(text, markers))
        if end:
            events.append(Reasoning(text[:end]))
        self._held = text[end:]
        return ""
