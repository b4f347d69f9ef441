"""What all parsers have in common.

A parser is a state machine over text. It takes the text in any cutting and gives the same events, up to the cutting of
their texts; it holds back only what may yet turn out to be markup; and its state is small, plain JSON. No output makes it
raise: what is no markup is text.

`state` and `restore`, here and in the detokenizer, the logprobs decoder and the stop matcher, are for a derender route that
streams: it keeps nothing between two chunks of an answer, so that the caller carries the state along.
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from blake3 import blake3
from pydantic import ConfigDict, Field, TypeAdapter

from triton_renderer.derender.parsers.events import Content, Event, Reasoning, ToolCallArguments, ToolCallStart, merged
from triton_renderer.text.states import Count, Text

LOOK_BACK = 2**14
"""Characters that are held back at most while it is not decided what they are; a call that takes longer is content."""

_SLICE = 1024  # characters looked at in one go: slicing off the front of a longer text would cost its length each time


@dataclass
class ParserState:
    """What a parser knows between two pieces of text.

    Fields have the types of `text/states.py`, which hold for a state that comes back from a client, and defaults. A list
    of texts stands for their concatenation.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    held: Text = ""
    """The end of the text so far that is not decided: the beginning of a marker, say."""


class OutputParser(ABC):
    """Base of the reasoning and the tool call parsers.

    A subclass says what its state is and takes one step at a time: `_step` takes the front of the text, at least one
    character of it unless the state changes, and returns the rest. It decides nothing by where the text ends: what may go
    on is put in `held` and comes back in front of the next piece. With `_final` there is none, so nothing may be held.
    """

    markers: ClassVar[tuple[str, ...]]
    """The markup of the format. A tokenizer may have it as special tokens: they are kept in the text."""

    new_state: ClassVar[type[ParserState]]
    """Makes the state of the beginning; a dataclass whose fields all have defaults."""

    _states: ClassVar[TypeAdapter[Any]]
    _initial: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        if "new_state" in vars(cls):
            cls._states, cls._initial = TypeAdapter(cls.new_state), vars(cls.new_state())

    def __init__(self) -> None:
        self._state = self.new_state()
        self._events: list[Event] = []
        self._final = False

    def push(self, text: str) -> list[Event]:
        """The events that `text` decides."""
        self._events = []
        for start in range(0, len(text), _SLICE):
            self._run(text[start : start + _SLICE])
        return merged(self._events)

    def finish(self) -> list[Event]:
        """The rest: the output has ended, and what was held back is decided."""
        self._events, self._final = [], True
        self._run("")
        return merged(self._events)

    def state(self) -> dict[str, Any]:
        """The state as plain JSON, for `restore`; what is as at the beginning is left out."""
        return {
            name: ["".join(value)] if isinstance(value, list) else value
            for name, value in vars(self._state).items()
            if value != self._initial[name]
        }

    def restore(self, state: Any) -> Self:
        """Goes on from a `state` of a parser with the same options; returns itself.

        A client has carried the state: raises pydantic's ValidationError where it is none by its types and ranges
        (`text/states.py` has them). What passes must not make `push` or `finish` raise.
        """
        self._state = self._states.validate_python(state)
        return self

    def _run(self, text: str) -> None:
        text, self._state.held = self._state.held + text, ""
        while text or (self._final and (text := self._end())):
            text = self._step(text)

    @abstractmethod
    def _step(self, text: str) -> str:
        """Takes the front of `text`, which is not empty; returns the rest."""

    def _end(self) -> str:
        """Decides what the end of the output leaves open; returns text that is to be looked at once more."""
        return ""

    def _emit_content(self, text: str) -> None:
        if text:
            self._events.append(Content(text))


class ReasoningParser(OutputParser):
    """Divides an output into Reasoning and Content."""

    def __init__(self, is_open: bool, implicit_ends: Sequence[str] = ()) -> None:
        """`is_open`: the prompt has opened the reasoning. `implicit_ends`: markers that end it as well, and are content."""
        super().__init__()
        self._implicit_ends = tuple(implicit_ends)

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """The reasoning is open now."""

    @property
    def is_over(self) -> bool:
        """No reasoning can come any more, whatever the output says."""
        return False

    @classmethod
    def closes_unopened(cls, text: str) -> bool:
        """An output ends a reasoning that it has not begun: so its prompt, which is not known, has opened it."""
        return False

    def _emit_reasoning(self, text: str) -> None:
        if text:
            self._events.append(Reasoning(text))


@dataclass
class ToolParserState(ParserState):
    """What every tool call parser knows."""

    calls: Count = 0
    """Calls that have begun."""
    seed: Annotated[Text, Field(max_length=64)] = ""
    """What the calls' ids are made from: random, and the same for all of a message, so that a piece that is read twice from
    the same state gives its calls the same ids."""


class ToolParser(OutputParser):
    """Finds the tool calls in an output's content: yields Content and the events of calls."""

    call_markers: ClassVar[tuple[str, ...]] = ()
    """The markers that open a call, also within reasoning: only such as do not occur in ordinary text."""

    frames_content: ClassVar[bool] = False
    """Content has markup around it too, so that even an output in which no calls may be made has to be read."""

    _state: ToolParserState

    def __init__(
        self, new_id: Callable[[], str] | None = None, parameter_types: Mapping[str, Mapping[str, list[str]]] | None = None
    ) -> None:
        """`new_id` makes the id of a call, `call_id` unless given.

        `parameter_types`: for each tool the JSON types of its parameters, for formats that do not write them.
        """
        super().__init__()
        self._new_id = new_id
        self._parameter_types = parameter_types or {}
        self._state.seed = secrets.token_hex(8)

    @staticmethod
    def call_id(digest: bytes) -> str:
        """The id of a call; `digest`, 16 bytes, is another one for each call."""
        return f"chatcmpl-tool-{digest[:8].hex()}"

    def _emit_call(self, name: str) -> None:
        state = self._state
        digest = blake3(f"{state.seed} {state.calls}".encode()).digest(16)
        self._events.append(ToolCallStart(state.calls, self._new_id() if self._new_id else self.call_id(digest), name))
        state.calls += 1

    def _emit_arguments(self, text: str) -> None:
        """More arguments of the newest call."""
        if text:
            self._events.append(ToolCallArguments(max(self._state.calls - 1, 0), text))
