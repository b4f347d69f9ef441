"""Tool calls of Llama 3.1, 3.2 and 3.3, as JSON objects without any markup of their own.

{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "get_time", "parameters": {}}

`<|python_tag|>` may stand in front.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from triton_renderer.derender.parsers.base import ParserState
from triton_renderer.derender.parsers.json_calls import ARGUMENT_KEYS, JsonCallParser, JsonCallState
from triton_renderer.text.states import Count
from triton_renderer.text.stop import beginning_at_end, first_of

PYTHON_TAG = "<|python_tag|>"

_STRING_MARK = re.compile(r'["\\\x00-\x1f]')  # where something may happen within a string
_OBJECT_MARK = re.compile(r"[^-+.0-9Eaeflnrstu:,\s]")  # … and outside one: numbers, words and whitespace just pass


@dataclass
class Llama3JsonState(JsonCallState):
    """What is known between two pieces of text."""

    foreign_depth: Count = 0  # open brackets of a JSON object that is no call


class Llama3JsonTools(JsonCallParser):
    """Any JSON object in the output that has a name and arguments is a call, as in the reference.

    A JSON object of another form is content, with all that is in it. A semicolon behind a call separates and is dropped,
    and so is a `<|python_tag|>` in front of one.
    """

    markers: ClassVar[tuple[str, ...]] = (PYTHON_TAG,)
    call_markers: ClassVar[tuple[str, ...]] = (PYTHON_TAG,)
    ends: ClassVar[tuple[str, ...]] = (PYTHON_TAG,)
    needs_arguments: ClassVar[bool] = True

    new_state: ClassVar[type[ParserState]] = Llama3JsonState
    _state: Llama3JsonState

    def _outside(self, text: str) -> str:
        if self._state.foreign_depth:
            return self._foreign(text)
        return self._behind(text) if self._state.phase == "behind" else self._text(text)

    def _text(self, text: str) -> str:
        """Content up to the next brace or `<|python_tag|>`."""
        found = first_of(text, ("{", PYTHON_TAG))
        if found is None:
            end = len(text) - (0 if self._final else beginning_at_end(text, (PYTHON_TAG,)))
            self._emit_content(text[:end])
            return self._hold(text[end:])
        position, opening = found
        self._emit_content(text[:position])
        self._reset(phase="key" if opening == "{" else "object")
        return self._take(text[position:], len(opening))

    def _behind(self, text: str) -> str:
        """One semicolon may separate two calls."""
        rest = text.lstrip()
        self._emit_content(text[: len(text) - len(rest)])
        if rest:
            self._reset()
        return rest.removeprefix(";")

    def _foreign(self, text: str) -> str:
        """A JSON object that is no call, up to its last brace or to what is no JSON."""
        state = self._state
        found = (_STRING_MARK if state.in_string else _OBJECT_MARK).search(text)
        end = found.start() if found else len(text)
        if end == len(text):
            self._emit_content(text)
            return ""
        length = 1
        match text[end]:
            case '"':
                state.in_string = not state.in_string
            case "\\" if state.in_string:
                if end + 1 == len(text) and not self._final:
                    self._emit_content(text[:end])
                    return self._hold(text[end:])
                length = 2
            case "{" | "[":
                state.foreign_depth += 1
            case "}" | "]":
                state.foreign_depth -= 1
            case _:
                length = 0
                self._reset()
        self._emit_content(text[: end + length])
        return text[end + length :]

    def _begin_value(self, text: str) -> str:
        if text[0] in "{[" and self._state.key not in ARGUMENT_KEYS and not self._state.named:
            return self._not_a_call(text, open_brackets=1)
        return super()._begin_value(text)

    def _nameless(self, text: str) -> str:
        return self._not_a_call(text, open_brackets=0)

    def _not_a_call(self, text: str, open_brackets: int) -> str:
        """The object in front of `text` is JSON as far as it goes, but of another form."""
        if self._is_too_long:
            return self._as_content(text)
        raw = "".join(self._state.raw)
        self._reset(foreign_depth=open_brackets)
        self._emit_content(raw)
        return text

    def _opening_length(self, raw: str) -> int:
        """Whether a call begins in what is no JSON: only the last brace can tell, the others have something behind them."""
        brace = raw.rfind("{", 1)
        return len(raw) if brace < 0 else brace
