"""Tool calls of Qwen3-Coder and its kin.

<tool_call>
<function=get_weather>
<parameter=city>
Paris
</parameter>
</function>
</tool_call>
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from triton_renderer.derender.parsers.as_json import as_json
from triton_renderer.derender.parsers.base import ParserState
from triton_renderer.derender.parsers.calls import CallParser, CallState
from triton_renderer.text.states import Flag, Text, Texts
from triton_renderer.text.stop import beginning_at_end, first_of

OPENING, CLOSING = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"

_VALUE_ENDS = tuple(space + end for space in ("\n", "") for end in (PARAMETER_END, PARAMETER, FUNCTION_END, CLOSING))
_IN_CALL = (PARAMETER, FUNCTION_END, CLOSING, OPENING, FUNCTION)
_BRACKET_END = re.compile(r"[<>\n]")
_MAX_KEY = 1024


@dataclass
class Qwen3CoderState(CallState):
    """What is known between two pieces of text."""

    phase: Literal[
        "text",
        "opened",  # behind <tool_call>: <function= is awaited
        "name",
        "between",  # behind the function's name or a parameter
        "key",
        "newline",  # in front of the value
        "string",  # in a value that is passed on as it comes
        "value",  # in a value that has to be converted
        "behind",  # behind </function>
    ] = "text"
    name: Text = ""
    key: Text = ""
    text: Texts = field(default_factory=list)  # the name or value that is being read
    has_parameters: Flag = False


class Qwen3CoderTools(CallParser):
    """Calls in the manner of XML, converted to JSON by the tools' own schemas.

    A value becomes what its parameter's types allow, in the reference's order: null, integer, number, boolean, object or
    array, string; without a schema it is a string. One line break on either side of it is markup. A value that may only
    be a string is passed on as it comes; of the others one is held back until its end.
    """

    markers: ClassVar[tuple[str, ...]] = (OPENING, CLOSING)
    call_markers: ClassVar[tuple[str, ...]] = (OPENING,)

    new_state: ClassVar[type[ParserState]] = Qwen3CoderState
    _state: Qwen3CoderState

    def _call_step(self, text: str) -> str:
        match self._state.phase:
            case "text":
                return self._text(text)
            case "opened":
                return self._opened(text)
            case "name":
                return self._name(text)
            case "between":
                return self._between(text)
            case "key":
                return self._key(text)
            case "newline":
                return self._newline(text)
            case "behind":
                return self._behind(text)
        return self._value(text)

    def _text(self, text: str) -> str:
        """Content up to the next call; some models leave `<tool_call>` out."""
        found = first_of(text, (OPENING, FUNCTION))
        if found is None:
            end = len(text) - (0 if self._final else beginning_at_end(text, (OPENING, FUNCTION)))
            self._emit_content(text[:end])
            return self._hold(text[end:])
        position, opening = found
        self._emit_content(text[:position])
        self._reset(phase="opened" if opening == OPENING else "name")
        return self._take(text[position:], len(opening))

    def _opened(self, text: str) -> str:
        if text[0].isspace():
            return self._take(text, 1)
        if self._may_begin(text, (FUNCTION,)):
            return self._hold(text)
        if not text.startswith(FUNCTION):
            return self._as_content(text)
        self._state.phase = "name"
        return self._take(text, len(FUNCTION))

    def _name(self, text: str) -> str:
        """The function's name, up to the angle bracket."""
        end = _BRACKET_END.search(text)
        position = end.start() if end else len(text)
        self._state.text.append(text[:position])
        text = self._take(text, position)
        if not text:
            return ""
        name = "".join(self._state.text).strip()
        if text[0] != ">" or not name or self._is_too_long:
            return self._as_content(text)
        self._start_call(name)
        self._state.phase, self._state.name, self._state.text = "between", name, []
        return text[1:]

    def _between(self, text: str) -> str:
        """What comes next in the call; text that has no place here is dropped, up to markup."""
        found = first_of(text, _IN_CALL)
        if found is None:
            return "" if self._final else self._hold(text[len(text) - beginning_at_end(text, _IN_CALL) :])
        position, marker = found
        text = text[position:]
        if marker == PARAMETER:
            self._state.phase = "key"
            return text[len(marker) :]
        self._emit_arguments("}" if self._state.has_parameters else "{}")
        self._reset(phase="behind" if marker in (FUNCTION_END, CLOSING) else "text")
        return text[len(marker) :] if marker == FUNCTION_END else text

    def _key(self, text: str) -> str:
        """The parameter's name, up to the angle bracket; a line break or another one says that it is none."""
        state = self._state
        end = _BRACKET_END.search(text)
        position = end.start() if end else len(text)
        state.key += text[:position]
        if end is None and len(state.key) <= _MAX_KEY:
            return ""
        if end is None or end[0] != ">" or len(state.key) > _MAX_KEY:
            state.phase, state.key = "between", ""
            return text[position:]
        state.key = state.key.strip()
        self._emit_arguments(f"{', ' if state.has_parameters else '{'}{as_json(state.key)}: ")
        state.has_parameters, state.phase = True, "newline"
        return text[position + 1 :]

    def _newline(self, text: str) -> str:
        """The value begins, and is a string that is passed on or one of another type."""
        if self._types == ["string"]:
            self._state.phase = "string"
            self._emit_arguments('"')
        else:
            self._state.phase = "value"
        return text.removeprefix("\n")

    def _value(self, text: str) -> str:
        """A value up to its end, of which the last line break is not part."""
        found = first_of(text, _VALUE_ENDS)
        if found is None:
            end = len(text) - beginning_at_end(text, _VALUE_ENDS)
            self._add(text[:end])
            return "" if self._final else self._hold(text[end:])
        position, ending = found
        self._add(text[:position])
        state = self._state
        self._emit_arguments('"' if state.phase == "string" else converted("".join(state.text), self._types))
        state.phase, state.text, state.key = "between", [], ""
        text = text[position + len(ending) :]
        marker = ending.lstrip("\n")
        return text if marker == PARAMETER_END else marker + text

    def _behind(self, text: str) -> str:
        rest = text.lstrip()
        if self._may_begin(rest, (CLOSING,)):
            return self._hold(rest)
        if rest:
            self._reset()
        return "" if self._final and CLOSING.startswith(rest) else rest.removeprefix(CLOSING)

    def _add(self, text: str) -> None:
        """More of the value."""
        if self._state.phase == "string":
            self._emit_arguments(as_json(text)[1:-1])
        else:
            self._state.text.append(text)

    @property
    def _types(self) -> Sequence[str]:
        return self._parameter_types.get(self._state.name, {}).get(self._state.key, ["string"])

    def _opening_length(self, raw: str) -> int:
        return len(OPENING) if raw.startswith(OPENING) else len(FUNCTION)


def converted(text: str, types: Sequence[str]) -> str:
    """`text` as JSON of the first of `types` that it fits, in the reference's order; as a string where it fits none."""
    for type_ in _ORDER:
        if type_ in types:
            try:
                return as_json(_READERS[type_](text))
            except (ValueError, OverflowError, RecursionError):
                continue
    if "string" not in types:
        try:
            return as_json(_from_json(text))  # a type that JSON does not have
        except (ValueError, RecursionError):
            pass
    return as_json(text)


def _null(text: str) -> None:
    if text.lower() != "null":
        raise ValueError(text)


def _number(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() else number


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "1", "false", "0"):
        raise ValueError(text)
    return word in ("true", "1")


def _from_json(text: str) -> Any:
    return json.loads(text)


_ORDER = ("null", "integer", "number", "boolean", "object", "array")
_READERS: dict[str, Callable[[str], Any]] = {
    "null": _null,
    "integer": int,
    "number": _number,
    "boolean": _boolean,
    "object": _from_json,
    "array": _from_json,
}
