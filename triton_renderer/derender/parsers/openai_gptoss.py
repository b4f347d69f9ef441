"""Reasoning of gpt-oss: the messages of the channel «analysis»."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from triton_renderer.derender.parsers.base import ParserState, ReasoningParser
from triton_renderer.derender.parsers.harmony import END, MARKERS, MESSAGE, START, HarmonyParser, HarmonyState, Kind
from triton_renderer.derender.parsers.openai import OpenAITools
from triton_renderer.text.states import Flag


@dataclass
class GptOssReasoningState(HarmonyState):
    """What is known between two pieces of text."""

    has_reasoning: Flag = False
    has_content: Flag = False
    joins: Flag = False  # a message of this kind has come before: a line break parts them


class GptOssReasoning(HarmonyParser, ReasoningParser):
    """Tells the messages of the reasoning from the others; several of one kind are joined by line breaks.

    Where the parser `openai` looks for calls behind it, the other messages are passed on with their markup. Without it only
    those for the reader are content, and calls are left out.
    """

    markers: ClassVar[tuple[str, ...]] = MARKERS

    new_state: ClassVar[type[ParserState]] = GptOssReasoningState
    _state: GptOssReasoningState

    def __init__(self, is_open: bool, implicit_ends: Sequence[str] = ()) -> None:
        super().__init__(is_open, implicit_ends)
        self._passes_markup = self._implicit_ends == OpenAITools.call_markers
        if is_open:
            self._state.phase, self._state.kind = "body", "reasoning"

    @property
    def is_open(self) -> bool:
        return self._state.phase == "body" and self._state.kind == "reasoning"

    def _begin(self, kind: Kind, name: str, header: str) -> None:
        state = self._state
        state.joins = (kind == "reasoning" and state.has_reasoning) or (kind == "content" and state.has_content)
        if self._passes_markup and kind != "reasoning":
            self._emit_content(f"{START}{header}{MESSAGE}")

    def _body(self, text: str) -> None:
        state = self._state
        if not text:
            return
        if state.kind == "reasoning":
            self._emit_reasoning(f"\n{text}" if state.joins else text)
            state.has_reasoning, state.joins = True, False
        elif self._passes_markup:
            self._emit_content(text)
        elif state.kind == "content":
            self._emit_content(f"\n{text}" if state.joins else text)
            state.has_content, state.joins = True, False

    def _finish_message(self) -> None:
        if self._passes_markup and self._state.kind != "reasoning":
            self._emit_content(END)
