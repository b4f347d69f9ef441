"""What parsers of tool calls have in common: a call may yet turn out to be content until its name is out."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from triton_renderer.derender.parsers.base import LOOK_BACK, ParserState, ToolParser, ToolParserState
from triton_renderer.text.states import Count, Flag, Texts


@dataclass
class CallState(ToolParserState):
    """What is known between two pieces of text: of the message, and of the call that is being read."""

    raw: Texts = field(default_factory=list)  # the call so far, until its name is out
    raw_length: Count = 0
    named: Flag = False  # the name is out


class CallParser(ToolParser):
    """Keeps the text of a call until its name is out, and gives it back where there is no call in it.

    A call that is none is content, exactly as written, and the search goes on within it; so does one whose name is not out
    after LOOK_BACK characters.
    """

    new_state: ClassVar[type[ParserState]] = CallState
    _state: CallState

    @abstractmethod
    def _call_step(self, text: str) -> str:
        """A step as `_step` takes it."""

    @abstractmethod
    def _opening_length(self, raw: str) -> int:
        """How much of `raw`, which is no call, is content in any case, at least a character; the rest is looked at again."""

    @property
    def _is_too_long(self) -> bool:
        return self._state.raw_length > LOOK_BACK

    def _step(self, text: str) -> str:
        rest = self._call_step(text)
        return self._as_content(rest) if self._is_too_long else rest

    def _end(self) -> str:
        return self._as_content("") if self._state.raw else ""

    def _reset(self, **state: object) -> None:
        """Forgets the call: the state is that of the beginning but for `state`."""
        self._state = type(self._state)(calls=self._state.calls, seed=self._state.seed, **state)  # type: ignore[arg-type]

    def _start_call(self, name: str) -> None:
        """The name is out: what has come of the call belongs to it."""
        self._emit_call(name)
        self._state.named, self._state.raw, self._state.raw_length = True, [], 0

    def _take(self, text: str, length: int) -> str:
        """Takes characters that are not passed on."""
        if not self._state.named:
            self._state.raw.append(text[:length])
            self._state.raw_length += length
        return text[length:]

    def _as_content(self, text: str) -> str:
        """The call in front of `text` is none, or takes too long to become one."""
        raw, held = "".join(self._state.raw), self._state.held
        length = LOOK_BACK if self._is_too_long else self._opening_length(raw)
        self._reset()
        self._emit_content(raw[:length])
        return raw[length:] + held + text

    def _hold(self, text: str) -> str:
        """Keeps `text`, which is not decided, for the next piece."""
        self._state.held = text
        return ""

    def _may_begin(self, text: str, markers: tuple[str, ...]) -> bool:
        """`text` may become one of `markers`."""
        return not self._final and any(len(text) < len(marker) and marker.startswith(text) for marker in markers)
