"""Tool calls of Hermes, Qwen2.5, Qwen3 and their kin.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from typing import ClassVar

from triton_renderer.derender.parsers.json_calls import JsonCallParser
from triton_renderer.text.stop import beginning_at_end


class HermesTools(JsonCallParser):
    """Calls between markers. Braces and whitespace behind a call's object, up to its `</tool_call>`, are dropped."""

    opening: ClassVar[str] = "<tool_call>"
    closing: ClassVar[str] = "</tool_call>"
    markers: ClassVar[tuple[str, ...]] = (opening, closing)
    call_markers: ClassVar[tuple[str, ...]] = (opening,)
    ends: ClassVar[tuple[str, ...]] = (closing, opening)

    def _outside(self, text: str) -> str:
        return self._behind(text) if self._state.phase == "behind" else self._text(text)

    def _text(self, text: str) -> str:
        """Content up to the next opening marker."""
        position = text.find(self.opening)
        if position < 0:
            end = len(text) - (0 if self._final else beginning_at_end(text, (self.opening,)))
            self._emit_content(text[:end])
            return self._hold(text[end:])
        self._emit_content(text[:position])
        self._reset(phase="object")
        return self._take(text[position:], len(self.opening))

    def _behind(self, text: str) -> str:
        rest = text.lstrip(" \t\r\n}]")
        if self._may_begin(rest, (self.closing,)):
            return self._hold(rest)
        if rest:
            self._reset()
        return "" if self._final and self.closing.startswith(rest) else rest.removeprefix(self.closing)

    def _ended(self, text: str) -> str:
        self._reset()
        return text.removeprefix(self.closing)

    def _opening_length(self, raw: str) -> int:
        return len(self.opening)
