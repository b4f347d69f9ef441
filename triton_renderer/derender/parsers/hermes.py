"""Tool calls of Hermes, Qwen2.5, Qwen3 and their kin.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Self

from triton_renderer.derender.parsers.base import ToolParser
from triton_renderer.derender.parsers.events import Content, Event, ToolCallArguments, ToolCallStart, merged
from triton_renderer.text.stop import beginning_at_end

OPENING = "<tool_call>"
CLOSING = "</tool_call>"
ARGUMENT_KEYS = ("arguments", "parameters")

_WHITESPACE = " \t\n\r"
_KEY_END = re.compile(r'["\\\x00-\x1f]')  # where something may happen within a key or the name
_STRING_END = re.compile(r'["\\<\x00-\x1f]')  # … within a string of a value
_VALUE_MARK = re.compile(r'["{}\[\],<\s]')  # … within a value, outside a string
_PLAIN = frozenset("+-.0123456789Eaeflnrstu:")  # what else JSON has outside strings: numbers, words, colons
_SLICE = 1024  # characters looked at in one go: slicing off the front of a longer text would cost its length each time

Phase = Literal[
    "text",  # outside a call
    "object",  # behind <tool_call>: the opening brace is awaited
    "key",  # a key is awaited, or the closing brace
    "in_key",
    "colon",
    "value",  # a value is awaited
    "name",  # in the string that is the name
    "arguments",  # in the value that is passed on
    "skip",  # in the value of another key
    "after",  # behind a value: a comma or the closing brace is awaited
    "done",  # behind the object: </tool_call> is awaited
]


@dataclass
class _State:
    phase: Phase = "text"
    held: str = ""  # not yet decided: the beginning of a marker, a backslash, a space behind a number
    calls: int = 0  # calls that have begun
    raw: list[str] = field(default_factory=list)  # the call so far, until its name is known: it may yet be content
    string: list[str] = field(default_factory=list)  # the key or name that is being read, as written
    key: str = ""
    named: bool = False  # the name is out
    has_arguments: bool = False
    early: list[str] = field(default_factory=list)  # arguments that came in front of the name
    depth: int = 0  # open brackets within the value
    in_string: bool = False  # … and it is inside a string
    bad_string: bool = False  # that holds a raw control character, so it is no JSON
    begun: bool = False  # the value has begun


class HermesTools(ToolParser):
    """Tool calls in text.

    Up to the call's name the JSON must be right; where it is not, the call is content, exactly as written, and the search
    goes on behind its `<tool_call>`. As soon as the name is known the call has begun, and the value of "arguments" is
    passed on as it comes, valid or not. It ends with its last bracket, or with a marker outside a string; inside a
    string a marker is text, unless the string cannot be JSON: a line break is in it, or follows the marker.
    A call without arguments has `{}`. What is left behind the object up to `</tool_call>` is dropped.
    """

    markers: ClassVar[tuple[str, ...]] = (OPENING, CLOSING)
    call_markers: ClassVar[tuple[str, ...]] = (OPENING,)

    def __init__(self, new_id: Callable[[], str]) -> None:
        super().__init__(new_id)
        self._state = _State()
        self._events: list[Event] = []
        self._final = False

    def push(self, text: str) -> list[Event]:
        self._events = []
        for start in range(0, len(text), _SLICE):
            self._run(text[start : start + _SLICE])
        return merged(self._events)

    def finish(self) -> list[Event]:
        self._events, self._final = [], True
        self._run("")
        return merged(self._events)

    def state(self) -> dict[str, Any]:
        return asdict(self._state)

    def restore(self, state: dict[str, Any]) -> Self:
        self._state = _State(**state)
        return self

    def _run(self, text: str) -> None:
        text, self._state.held = self._state.held + text, ""
        while text or (self._final and self._is_undecided()):
            text = self._step(text) if text else self._as_content("")

    def _is_undecided(self) -> bool:
        return self._state.phase != "text" and not self._state.named

    def _step(self, text: str) -> str:
        """Takes the front of `text`, at least one character; returns the rest."""
        state = self._state
        match state.phase:
            case "text":
                return self._text(text)
            case "in_key" | "name":
                return self._string(text)
            case "arguments" | "skip":
                return self._value(text)
        character = text[0]
        if character in _WHITESPACE:
            return self._take(text, 1)
        if character == "<" and state.named:
            return self._marker(text)
        match state.phase, character:
            case "object", "{":
                state.phase = "key"
            case "key", '"':
                state.phase, state.string = "in_key", []
            case "colon", ":":
                state.phase = "value"
            case "value", _:
                return self._begin_value(text)
            case "after", ",":
                state.phase = "key"
            case (("key" | "after"), "}"):
                if not state.named:
                    return self._as_content(text)
                self._complete()
                state.phase = "done"
            case ("done", "}") | ("after" | "done", "]") if state.named:
                pass
            case _:
                return self._break(text)
        return self._take(text, 1)

    def _text(self, text: str) -> str:
        """Content up to the next `<tool_call>`."""
        position = text.find(OPENING)
        if position < 0:
            end = len(text) - (0 if self._final else beginning_at_end(text, (OPENING,)))
            self._emit_content(text[:end])
            self._state.held = text[end:]
            return ""
        self._emit_content(text[:position])
        self._state = _State(phase="object", calls=self._state.calls, raw=[OPENING])
        return text[position + len(OPENING) :]

    def _string(self, text: str) -> str:
        """A key, or the name: up to the closing quote."""
        state = self._state
        found = _KEY_END.search(text)
        end = found.start() if found else len(text)
        state.string.append(text[:end])
        text = self._take(text, end)
        if not text:
            return ""
        character = text[0]
        if character == "\\":
            if len(text) == 1 and not self._final:
                state.held = text
                return ""
            state.string.append(text[:2])
            return self._take(text, 2)
        if character != '"':
            return self._break(text)
        value = _unquoted("".join(state.string))
        if value is None or (state.phase == "name" and not value):
            return self._break(text)
        text = self._take(text, 1)
        if state.phase == "in_key":
            state.key, state.phase = value, "colon"
        else:
            self._begin_call(value)
        return text

    def _begin_value(self, text: str) -> str:
        """The first character of a value decides nothing but what is done with it."""
        state = self._state
        state.depth, state.in_string, state.bad_string, state.begun = 0, False, False, False
        if state.key == "name" and not state.named:
            if text[0] != '"':
                return self._break(text)
            state.phase, state.string = "name", []
            return self._take(text, 1)
        if state.key in ARGUMENT_KEYS and not state.has_arguments:
            state.phase, state.has_arguments = "arguments", True
        else:
            state.phase = "skip"
        return text

    def _begin_call(self, name: str) -> None:
        state = self._state
        self._events.append(ToolCallStart(state.calls, self._new_id(), name))
        state.named, state.phase = True, "after"
        state.calls += 1
        self._emit_arguments("".join(state.early))
        state.raw, state.early = [], []

    def _value(self, text: str) -> str:
        """A value up to its end, with its brackets and strings followed."""
        state = self._state
        is_lenient = state.phase == "arguments" and state.named
        found = (_STRING_END if state.in_string else _VALUE_MARK).search(text)
        end = found.start() if found else len(text)
        if not state.in_string and not is_lenient and not _PLAIN.issuperset(text[:end]):
            return self._break(text)
        if end:
            state.begun = True
            return self._pass_on(text, end)
        character = text[0]
        if state.in_string:
            return self._in_string(text, is_lenient)
        if character == "<":
            return self._marker(text, is_lenient) if state.named else self._break(text)
        if character.isspace():
            return self._space(text, is_lenient)
        if state.depth == 0 and character in ",}":
            state.phase = "after"
            return text if state.begun or is_lenient else self._break(text)
        state.begun = True
        if character == '"':
            state.in_string, state.bad_string = True, False
        elif character in "{[":
            state.depth += 1
        elif character in "}]" and state.depth > 0:
            state.depth -= 1
            if state.depth == 0:
                text = self._pass_on(text, 1)
                state.phase = "after"
                return text
        elif character == "]" and not is_lenient:
            return self._break(text)
        return self._pass_on(text, 1)

    def _in_string(self, text: str, is_lenient: bool) -> str:
        """What may happen within a string of a value."""
        state = self._state
        character = text[0]
        if character == '"':
            state.in_string = False
            text = self._pass_on(text, 1)
            if state.depth == 0:
                state.phase = "after"
            return text
        if character == "\\":
            if len(text) == 1 and not self._final:
                state.held = text
                return ""
            return self._pass_on(text, 2)
        if character == "<":
            return self._marker_in_string(text) if is_lenient else self._pass_on(text, 1)
        if not is_lenient:
            return self._break(text)
        state.bad_string = True
        return self._pass_on(text, 1)

    def _space(self, text: str, is_lenient: bool) -> str:
        """Whitespace within a value belongs to it; whitespace behind a number or word only if the value goes on."""
        state = self._state
        rest = text.lstrip()
        length = len(text) - len(rest)
        if state.depth > 0:
            return self._pass_on(text, length)
        if not rest and not self._final:
            state.held = text
            return ""
        if not rest:
            return self._take(text, length)
        if rest[0] in ",}" or not is_lenient:
            state.phase = "after"
            return self._take(text, length)
        if rest[0] != "<":
            return self._pass_on(text, length)
        if self._is_undecided_marker(rest, (CLOSING, OPENING)):
            state.held = text
            return ""
        if rest.startswith((CLOSING, OPENING)):
            return rest
        return self._pass_on(text, length)

    def _marker(self, text: str, is_lenient: bool = False) -> str:
        """A `<` in a call that has begun, outside a string: a marker ends the call."""
        if self._is_undecided_marker(text, (CLOSING, OPENING)):
            self._state.held = text
            return ""
        if text.startswith((CLOSING, OPENING)):
            return self._end_call(text)
        if self._final and CLOSING.startswith(text):  # the output was cut within the marker
            return self._end_call(CLOSING)
        if not is_lenient:
            return self._break(text)
        self._state.begun = True
        return self._pass_on(text, 1)

    def _marker_in_string(self, text: str) -> str:
        """A `<` in a string of the arguments: a marker ends the call only where the string cannot be JSON."""
        bad = self._state.bad_string
        markers = (CLOSING, OPENING) if bad else (CLOSING,)
        if self._is_undecided_marker(text, markers):
            self._state.held = text
            return ""
        if text.startswith(markers):
            following = text[len(CLOSING) :][:1]
            if not bad and not following and not self._final:
                self._state.held = text
                return ""
            if bad or following < " ":  # a control character, or the end of the output
                return self._end_call(text)
        return self._pass_on(text, 1)

    def _is_undecided_marker(self, text: str, markers: tuple[str, ...]) -> bool:
        return not self._final and any(len(text) < len(marker) and marker.startswith(text) for marker in markers)

    def _end_call(self, text: str) -> str:
        """The marker at the front of `text` ends the call; an opening one begins the next."""
        self._complete()
        self._state = _State(calls=self._state.calls)
        return text.removeprefix(CLOSING)

    def _complete(self) -> None:
        if not self._state.has_arguments:
            self._emit_arguments("{}")
            self._state.has_arguments = True

    def _break(self, text: str) -> str:
        """`text` does not fit: a call without a name is content, another one ends here."""
        if not self._state.named:
            return self._as_content(text)
        self._state = _State(calls=self._state.calls)
        return text

    def _as_content(self, text: str) -> str:
        """The call was none: its marker is content, and what follows is looked at once more."""
        raw = "".join(self._state.raw)
        self._state = _State(calls=self._state.calls)
        self._emit_content(OPENING)
        return raw[len(OPENING) :] + text

    def _take(self, text: str, length: int) -> str:
        """Takes characters that are not passed on."""
        if not self._state.named:
            self._state.raw.append(text[:length])
        return text[length:]

    def _pass_on(self, text: str, length: int) -> str:
        """Takes characters of a value."""
        if self._state.phase == "arguments":
            if self._state.named:
                self._emit_arguments(text[:length])
            else:
                self._state.early.append(text[:length])
        return self._take(text, length)

    def _emit_content(self, text: str) -> None:
        if text:
            self._events.append(Content(text))

    def _emit_arguments(self, text: str) -> None:
        if text:
            self._events.append(ToolCallArguments(self._state.calls - 1, text))


def _unquoted(text: str) -> str | None:
    """The string that is written between quotes in JSON; None where it is none."""
    try:
        value: str = json.loads(f'"{text}"')
    except json.JSONDecodeError:
        return None
    return value
