"""Tool calls of DeepSeek V3 and R1.

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
```json
{"city": "Paris"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from triton_renderer.derender.parsers.base import ParserState
from triton_renderer.derender.parsers.calls import CallParser, CallState
from triton_renderer.text.states import Flag, Texts
from triton_renderer.text.stop import beginning_at_end, first_of

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
FENCE = "```json"

_MARKERS = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END)
_ENDINGS = tuple(fence + marker for fence in ("\n```\n", "\n```", "```\n", "```", "") for marker in _MARKERS)
"""What ends the arguments. A fence alone does not: what a model writes may hold one."""


@dataclass
class DeepSeekV3State(CallState):
    """What is known between two pieces of text."""

    phase: Literal[
        "text",
        "type",  # behind the marker of a call: the separator is awaited
        "name",
        "fence",  # behind the name: the fence, or the arguments without one
        "space",  # in front of the arguments
        "arguments",
    ] = "text"
    name: Texts = field(default_factory=list)
    has_arguments: Flag = False


class DeepSeekV3Tools(CallParser):
    """Calls between special tokens. The arguments are passed on as they come; a call without any has `{}`.

    The markers of the section around the calls are dropped, with or without a call in it.
    """

    markers: ClassVar[tuple[str, ...]] = (*_MARKERS, SEPARATOR)
    call_markers: ClassVar[tuple[str, ...]] = (CALLS_BEGIN, CALL_BEGIN)

    new_state: ClassVar[type[ParserState]] = DeepSeekV3State
    _state: DeepSeekV3State

    def _call_step(self, text: str) -> str:
        match self._state.phase:
            case "text":
                return self._text(text)
            case "type":
                return self._type(text)
            case "name":
                return self._name(text)
            case "fence" | "space":
                return self._fence(text)
        return self._arguments(text)

    def _text(self, text: str) -> str:
        found = first_of(text, _MARKERS)
        if found is None:
            return self._up_to(text, _MARKERS, self._emit_content)
        position, marker = found
        self._emit_content(text[:position])
        text = text[position:]
        if marker != CALL_BEGIN:
            return text[len(marker) :]
        self._reset(phase="type")
        return self._take(text, len(CALL_BEGIN))

    def _type(self, text: str) -> str:
        """The type of the call, which is always «function»."""
        found = first_of(text, (SEPARATOR, "\n", *_MARKERS))
        if found is None:
            return self._up_to(text, (SEPARATOR, *_MARKERS), lambda front: self._take(front, len(front)))
        position, end = found
        text = self._take(text, position)
        if end != SEPARATOR:
            return self._as_content(text)
        self._state.phase = "name"
        return self._take(text, len(SEPARATOR))

    def _name(self, text: str) -> str:
        """The name goes to the end of its line, or of the call."""
        ends = ("\n", CALL_END, SEPARATOR, CALLS_BEGIN, CALLS_END, CALL_BEGIN)
        found = first_of(text, ends)
        position = found[0] if found else len(text) - (0 if self._final else beginning_at_end(text, ends))
        self._state.name.append(text[:position])
        text = self._take(text, position)
        if found is None:
            return self._hold(text)
        name = "".join(self._state.name).strip()
        if not name or found[1] not in ("\n", CALL_END) or self._is_too_long:
            return self._as_content(text)
        self._start_call(name)
        self._state.phase, self._state.name = "fence", []
        return text

    def _fence(self, text: str) -> str:
        rest = text.lstrip()
        if self._state.phase == "fence" and self._may_begin(rest, (FENCE,)):
            return self._hold(rest)
        if self._state.phase == "fence" and rest.startswith(FENCE):
            self._state.phase = "space"
            return rest[len(FENCE) :]
        if rest:
            self._state.phase = "arguments"
        return rest

    def _arguments(self, text: str) -> str:
        found = first_of(text, _ENDINGS)
        if found is None:
            tail = beginning_at_end(text, _ENDINGS)
            if self._final and tail == 1:  # a single character is rather the arguments' own
                tail = 0
            self._pass_on(text[: len(text) - tail])
            return "" if self._final else self._hold(text[len(text) - tail :])
        position, ending = found
        self._pass_on(text[:position])
        if not self._state.has_arguments:
            self._emit_arguments("{}")
        self._reset()
        behind = text[position + len(ending) :]
        return CALL_BEGIN + behind if ending.endswith(CALL_BEGIN) else behind

    def _pass_on(self, text: str) -> None:
        self._state.has_arguments |= bool(text)
        self._emit_arguments(text)

    def _up_to(self, text: str, ends: tuple[str, ...], take: Callable[[str], object]) -> str:
        """Takes text in which none of `ends` is, but for what may begin one."""
        end = len(text) - (0 if self._final else beginning_at_end(text, ends))
        take(text[:end])
        return self._hold(text[end:])

    def _opening_length(self, raw: str) -> int:
        return len(CALL_BEGIN)
