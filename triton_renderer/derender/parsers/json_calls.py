"""Tool calls as JSON objects: `{"name": "get_weather", "arguments": {"city": "Paris"}}`."""

import json
import re
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Literal

from triton_renderer.derender.parsers.base import ParserState
from triton_renderer.derender.parsers.calls import CallParser, CallState
from triton_renderer.text.states import Count, Flag, Text, Texts

ARGUMENT_KEYS = ("arguments", "parameters")

_WHITESPACE = " \t\n\r"
_MAX_SPACE = 64  # whitespace behind a number or word, after which the value has certainly ended
_KEY_END = re.compile(r'["\\\x00-\x1f]')  # where something may happen within a key or the name
_PLAIN = frozenset("+-.0123456789Eaeflnrstu:")  # what JSON has outside strings besides its marks: numbers, words, colons

CallPhase = Literal[
    "text",  # outside a call
    "behind",  # the last call's object
    "object",  # the opening brace is awaited
    "key",  # a key is awaited, or the closing brace
    "in_key",
    "colon",
    "value",  # a value is awaited
    "name",  # in the string that is the name
    "arguments",  # in the value that is passed on
    "skip",  # in the value of another key
    "after",  # behind a value: a comma or the closing brace is awaited
]


@dataclass
class JsonCallState(CallState):
    """What is known between two pieces of text: of the message, and of the call that is being read."""

    phase: CallPhase = "text"
    string: Texts = field(default_factory=list)  # the key or name that is being read, as written
    key: Text = ""
    name: Text = ""  # the name, until it is out
    has_arguments: Flag = False
    early: Texts = field(default_factory=list)  # arguments that came in front of the name
    depth: Count = 0  # open brackets within the value
    in_string: Flag = False  # … and it is inside a string
    bad_string: Flag = False  # that holds a raw control character, so it is no JSON
    begun: Flag = False  # the value has begun


class JsonCallParser(CallParser):
    """Reads calls that are JSON objects; a subclass finds where they begin and says what ends them besides.

    Up to the call's name the JSON must be right; where it is not, the call is content, exactly as written, and the search
    goes on within it. As soon as the name is known the call has begun, and the value of "arguments" (or "parameters") is
    passed on as it comes, valid or not. It ends with its last bracket, or with one of `ends` outside a string; inside a
    string such a marker is text, unless the string cannot be JSON: a line break is in it, or follows the marker.
    A call without arguments has `{}`.
    """

    ends: ClassVar[tuple[str, ...]]
    """Markers that end a call which has begun; all begin with the same character."""
    needs_arguments: ClassVar[bool] = False
    """An object with a name is only a call if it has arguments too."""

    new_state: ClassVar[type[ParserState]] = JsonCallState
    _state: JsonCallState

    @abstractmethod
    def _outside(self, text: str) -> str:
        """A step in phase text or behind."""

    def _closed(self, text: str) -> str:
        """The call's object has ended in front of `text`, by its last brace or by what does not fit."""
        self._reset(phase="behind")
        return text

    def _ended(self, text: str) -> str:
        """The call has ended with a marker at the front of `text`."""
        self._reset()
        return text

    def _call_step(self, text: str) -> str:
        state = self._state
        match state.phase:
            case "in_key" | "name":
                return self._string(text)
            case "arguments" | "skip":
                return self._value(text)
            case "object" | "key" | "colon" | "value" | "after":
                return self._between(text)
        return self._outside(text)

    def _between(self, text: str) -> str:
        """One mark of the object, or the space in front of one."""
        state = self._state
        character = text[0]
        if character in _WHITESPACE:
            return self._take(text, 1)
        if state.named and character == self.ends[0][0]:
            if self._may_begin(text, self.ends):
                return self._hold(text)
            if text.startswith(self.ends):
                return self._end_call(text)
            if self._is_cut_marker(text):
                return self._end_call("")
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
                text = self._take(text, 1)
                if not state.named:
                    return self._nameless(text)
                self._complete()
                return self._closed(text)
            case "after", "]" if state.named:
                pass
            case _:
                return self._break(text)
        return self._take(text, 1)

    def _nameless(self, text: str) -> str:
        """The object in front of `text` has ended and is no call."""
        return self._as_content(text)

    def _string(self, text: str) -> str:
        """A key, or the name: up to the closing quote."""
        state = self._state
        found = _KEY_END.search(text)
        end = found.start() if found else len(text)
        state.string.append(text[:end])
        text = self._take(text, end)
        if not text:
            return ""
        if text[0] == "\\":
            if len(text) == 1 and not self._final:
                return self._hold(text)
            state.string.append(text[:2])
            return self._take(text, 2)
        if text[0] != '"':
            return self._break(text)
        value = _unquoted("".join(state.string))
        if value is None or (state.phase == "name" and not value):
            return self._break(text)
        text = self._take(text, 1)
        if state.phase == "in_key":
            state.key, state.phase = value, "colon"
            return text
        state.name, state.phase = value, "after"
        return text if self.needs_arguments and not state.has_arguments else self._begin_call(text)

    def _begin_value(self, text: str) -> str:
        """The first character of a value decides nothing but what is done with it."""
        state = self._state
        state.depth, state.in_string, state.bad_string, state.begun = 0, False, False, False
        if state.key == "name" and not state.name:
            if text[0] != '"':
                return self._break(text)
            state.phase, state.string = "name", []
            return self._take(text, 1)
        if state.key not in ARGUMENT_KEYS or state.has_arguments:
            state.phase = "skip"
            return text
        state.phase, state.has_arguments = "arguments", True
        return self._begin_call(text) if state.name and not state.named else text

    def _begin_call(self, text: str) -> str:
        """The name is known, and enough else: the call is out."""
        state = self._state
        if self._is_too_long:
            return self._as_content(text)
        self._start_call(state.name)
        self._emit_arguments("".join(state.early))
        state.early = []
        return text

    def _value(self, text: str) -> str:
        """A value up to its end, with its brackets and strings followed."""
        state = self._state
        is_lenient = state.phase == "arguments" and state.named
        string_end, value_mark = _patterns(self.ends[0][0])
        found = (string_end if state.in_string else value_mark).search(text)
        end = found.start() if found else len(text)
        if not state.in_string and not is_lenient and not _PLAIN.issuperset(text[:end]):
            return self._break(text)
        if end:
            state.begun = True
            return self._pass_on(text, end)
        character = text[0]
        if state.in_string:
            return self._in_string(text, is_lenient)
        if state.named and character == self.ends[0][0]:
            if self._may_begin(text, self.ends):
                return self._hold(text)
            if text.startswith(self.ends):
                return self._end_call(text)
            if self._is_cut_marker(text):
                return self._end_call("")
        if character.isspace():
            return self._space(text, is_lenient)
        if state.depth == 0 and character in ",}":
            return self._end_value(text) if state.begun or is_lenient else self._break(text)
        state.begun = True
        if character == '"':
            state.in_string, state.bad_string = True, False
        elif character in "{[":
            state.depth += 1
        elif character in "}]" and state.depth > 0:
            state.depth -= 1
            if state.depth == 0:
                return self._end_value(self._pass_on(text, 1))
        elif character not in "," and not is_lenient:
            return self._break(text)
        return self._pass_on(text, 1)

    def _in_string(self, text: str, is_lenient: bool) -> str:
        """What may happen within a string of a value."""
        state = self._state
        character = text[0]
        if character == '"':
            state.in_string = False
            text = self._pass_on(text, 1)
            return self._end_value(text) if state.depth == 0 else text
        if character == "\\":
            if len(text) == 1 and not self._final:
                return self._hold(text)
            return self._pass_on(text, 2)
        if character == self.ends[0][0]:
            return self._marker_in_string(text) if is_lenient else self._pass_on(text, 1)
        if not is_lenient:
            return self._break(text)
        state.bad_string = True
        return self._pass_on(text, 1)

    def _marker_in_string(self, text: str) -> str:
        """A marker may begin in a string of the arguments: it ends the call only where the string cannot be JSON."""
        bad = self._state.bad_string
        markers = self.ends if bad else self.ends[:1]
        if self._may_begin(text, markers):
            return self._hold(text)
        if text.startswith(markers):
            following = text[len(self.ends[0]) :][:1]
            if not bad and not following and not self._final:
                return self._hold(text)
            if bad or following < " ":  # a control character, or the end of the output
                return self._end_call(text)
        return self._pass_on(text, 1)

    def _space(self, text: str, is_lenient: bool) -> str:
        """Whitespace within a value belongs to it; whitespace behind a number or word only if the value goes on."""
        state = self._state
        rest = text.lstrip()
        length = len(text) - len(rest)
        if state.depth > 0:
            return self._pass_on(text, length)
        if length >= _MAX_SPACE:
            return self._end_value(self._take(text, _MAX_SPACE))
        if not rest:
            return self._take(text, length) if self._final else self._hold(text)
        if rest[0] in ",}" or not is_lenient:
            return self._end_value(self._take(text, length))
        if self._may_begin(rest, self.ends):
            return self._hold(text)
        return rest if rest.startswith(self.ends) else self._pass_on(text, length)

    def _end_value(self, text: str) -> str:
        self._state.phase = "after"
        return text

    def _end_call(self, text: str) -> str:
        self._complete()
        return self._ended(text)

    def _complete(self) -> None:
        if not self._state.has_arguments:
            self._emit_arguments("{}")
            self._state.has_arguments = True

    def _break(self, text: str) -> str:
        """`text` does not fit: a call without a name is content, another one ends here."""
        return self._closed(text) if self._state.named else self._as_content(text)

    def _is_cut_marker(self, text: str) -> bool:
        """The output was cut within a marker; a bracket alone is rather an array."""
        return self._final and text != "[" and any(marker.startswith(text) for marker in self.ends)

    def _pass_on(self, text: str, length: int) -> str:
        """Takes characters of a value."""
        if self._state.phase == "arguments":
            if self._state.named:
                self._emit_arguments(text[:length])
            else:
                self._state.early.append(text[:length])
        return self._take(text, length)


@cache
def _patterns(marker_start: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Where something may happen within a string of a value, and within a value outside a string."""
    start = re.escape(marker_start)
    return re.compile(rf'["\\{start}\x00-\x1f]'), re.compile(rf'["{{}}\[\],{start}\s]')


def _unquoted(text: str) -> str | None:
    """The string that is written between quotes in JSON; None where it is none, or cannot be sent as UTF-8."""
    try:
        value: str = json.loads(f'"{text}"')
        value.encode()
    except (json.JSONDecodeError, UnicodeEncodeError):
        return None
    return value
