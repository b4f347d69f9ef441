"""Tool calls of Mistral's models, in the forms of their tokenizers' versions.

[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]      up to version 10
[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Paris"}            version 11
[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]…                 from version 13 on
[TOOL_CALLS]get_weather{"city": "Paris"}                                    where [ARGS] is no token
"""

import re
import string
from dataclasses import dataclass
from typing import ClassVar, Literal

from triton_renderer.derender.parsers.base import ParserState
from triton_renderer.derender.parsers.json_calls import ARGUMENT_KEYS, JsonCallParser, JsonCallState
from triton_renderer.text.states import Flag
from triton_renderer.text.stop import beginning_at_end

OPENING = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGS = "[ARGS]"

_NAME_END = re.compile(r"[\s{\[]")
_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_END = re.compile(r"[^A-Za-z0-9]")


@dataclass
class MistralState(JsonCallState):
    """What is known between two pieces of text."""

    place: Literal[
        "content",
        "form",  # behind [TOOL_CALLS]: a list, an object or a name is awaited
        "name",
        "behind_name",
        "id",
        "list",  # between the objects of a list
    ] = "content"
    bare: Flag = False  # the arguments stand behind the name, in no object


class MistralTools(JsonCallParser):
    """Calls behind `[TOOL_CALLS]`, as a list of JSON objects, as one, or as a name with the arguments behind it.

    An id that the model writes is dropped. Mistral's templates take ids of nine letters and digits only.
    """

    markers: ClassVar[tuple[str, ...]] = (OPENING, CALL_ID, ARGS)
    call_markers: ClassVar[tuple[str, ...]] = (OPENING,)
    ends: ClassVar[tuple[str, ...]] = (OPENING,)

    new_state: ClassVar[type[ParserState]] = MistralState
    _state: MistralState

    @staticmethod
    def call_id(digest: bytes) -> str:
        number, characters = int.from_bytes(digest, "big"), []
        for _ in range(9):
            number, position = divmod(number, len(_ID_CHARACTERS))
            characters.append(_ID_CHARACTERS[position])
        return "".join(characters)

    def _outside(self, text: str) -> str:
        match self._state.place:
            case "content":
                return self._text(text)
            case "form":
                return self._form(text)
            case "name":
                return self._call_name(text)
            case "behind_name":
                return self._behind_name(text)
            case "id":
                return self._call_id(text)
        return self._list(text)

    def _text(self, text: str) -> str:
        """Content up to the next `[TOOL_CALLS]`."""
        position = text.find(OPENING)
        if position < 0:
            end = len(text) - (0 if self._final else beginning_at_end(text, (OPENING,)))
            self._emit_content(text[:end])
            return self._hold(text[end:])
        self._emit_content(text[:position])
        self._reset(place="form")
        return self._take(text[position:], len(OPENING))

    def _form(self, text: str) -> str:
        """The first character behind the marker tells in which form the calls are written."""
        if self._may_begin(text, (OPENING,)):
            return self._hold(text)
        if text.startswith(OPENING):  # said twice
            return self._take(text, len(OPENING))
        match text[0]:
            case "{":
                self._state.phase, self._state.place = "object", "content"
            case "[":
                self._state.place = "list"
                return self._take(text, 1)
            case character if not character.isspace():
                self._state.place, self._state.string = "name", []
            case _:
                return self._take(text, 1)
        return text

    def _call_name(self, text: str) -> str:
        found = _NAME_END.search(text)
        end = found.start() if found else len(text)
        self._state.string.append(text[:end])
        if found:
            self._state.name, self._state.place = "".join(self._state.string), "behind_name"
        return self._take(text, end)

    def _behind_name(self, text: str) -> str:
        """Arguments, or a marker in front of them: with that it is certain that this is a call."""
        if text[0].isspace():
            return self._take(text, 1)
        if self._may_begin(text, (ARGS, CALL_ID)):
            return self._hold(text)
        if text.startswith(CALL_ID):
            self._state.place = "id"
            return self._take(text, len(CALL_ID))
        if not text.startswith((ARGS, "{")):
            return self._as_content(text)
        self._state.phase, self._state.key, self._state.bare = "value", ARGUMENT_KEYS[0], True
        return self._begin_call(self._take(text, len(ARGS) if text.startswith(ARGS) else 0))

    def _call_id(self, text: str) -> str:
        found = _ID_END.search(text)
        if found:
            self._state.place = "behind_name"
        return self._take(text, found.start() if found else len(text))

    def _list(self, text: str) -> str:
        """Between the objects of a list."""
        state = self._state
        if state.raw:  # nothing but the bracket has come
            if text[0].isspace():
                return self._take(text, 1)
            if text[0] != "{":
                return self._as_content(text)
            state.phase = "object"
            return text
        rest = text.lstrip(" \t\r\n,")
        if not rest:
            return ""
        if rest[0] == "{":
            state.phase = "object"
            return rest
        self._reset()
        return rest.removeprefix("]")

    def _end_value(self, text: str) -> str:
        return self._closed(text) if self._state.bare else super()._end_value(text)

    def _closed(self, text: str) -> str:
        self._reset(place="list" if self._state.place == "list" else "content")
        return text

    def _opening_length(self, raw: str) -> int:
        return len(OPENING) if raw.startswith(OPENING) else 1
