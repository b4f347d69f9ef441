"""Tool calls of gpt-oss: the messages to functions."""

from dataclasses import dataclass
from typing import ClassVar

from triton_renderer.derender.parsers.base import ParserState, ToolParser, ToolParserState
from triton_renderer.derender.parsers.harmony import CHANNEL, MARKERS, HarmonyParser, HarmonyState, Kind
from triton_renderer.text.states import Flag


@dataclass
class OpenAIState(HarmonyState, ToolParserState):
    """What is known between two pieces of text."""

    has_content: Flag = False
    joins: Flag = False  # content has come before: a line break parts the messages
    has_arguments: Flag = False


class OpenAITools(HarmonyParser, ToolParser):
    """Calls are the messages to functions; those on the final channel and to nobody are content, joined by line breaks.

    Messages of reasoning and to the server's own tools are left out.
    """

    markers: ClassVar[tuple[str, ...]] = MARKERS
    call_markers: ClassVar[tuple[str, ...]] = (f"{CHANNEL}commentary to=functions.",)
    frames_content: ClassVar[bool] = True

    new_state: ClassVar[type[ParserState]] = OpenAIState
    _state: OpenAIState

    def _begin(self, kind: Kind, name: str, header: str) -> None:
        self._state.joins = kind == "content" and self._state.has_content
        self._state.has_arguments = False
        if kind == "call":
            self._emit_call(name)

    def _body(self, text: str) -> None:
        state = self._state
        if not text:
            return
        if state.kind == "call":
            self._emit_arguments(text)
            state.has_arguments = True
        elif state.kind == "content":
            self._emit_content(f"\n{text}" if state.joins else text)
            state.has_content, state.joins = True, False

    def _finish_message(self) -> None:
        if self._state.kind == "call" and not self._state.has_arguments:
            self._emit_arguments("{}")
