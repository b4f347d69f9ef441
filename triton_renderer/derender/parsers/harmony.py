"""Harmony, in which gpt-oss writes everything: messages, each with a header that says what it is.

<|channel|>analysis<|message|>The user asks …<|end|>
<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>
<|start|>assistant<|channel|>final<|message|>It is sunny.<|return|>

OpenAI publishes a parser of it, which takes tokens and keeps all of them and all messages: it cannot go on from a small state
that somebody carries along, so it is what the tests compare with, and not what runs here.
"""

import re
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Literal

from triton_renderer.derender.parsers.base import OutputParser, ParserState
from triton_renderer.text.states import Texts
from triton_renderer.text.stop import beginning_at_end, first_of

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL)

_HEADER_STARTS = ("to=", CHANNEL, CONSTRAIN, MESSAGE, START)
_HEADER_ENDS = (MESSAGE, START, END, RETURN, CALL)
_BODY_ENDS = (END, RETURN, CALL, START, CHANNEL, MESSAGE)
_CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_BUILT_IN = ("python", "browser", "container")  # tools of the server, which are no functions of the client
_MAX_HEADER = 1024
_MAX_SPACE = 64  # whitespace in front of a header

Kind = Literal["reasoning", "content", "call", "ignored"]


@dataclass
class HarmonyState(ParserState):
    """What is known between two pieces of text."""

    phase: Literal[
        "start",  # a header is awaited; anything else is a message without one
        "header",
        "body",
    ] = "start"
    header: Texts = field(default_factory=list)
    kind: Kind = "ignored"  # of the message whose body is being read


class HarmonyParser(OutputParser):
    """Finds the messages; what is done with them is the subclass's.

    The prompt ends with `<|start|>assistant`, so an output begins with the rest of a header; one that does not is content.
    A header that the output's end cuts off is dropped.
    """

    _state: HarmonyState

    @abstractmethod
    def _begin(self, kind: Kind, name: str, header: str) -> None:
        """A message begins, with this header; `name` is that of the function in a call."""

    @abstractmethod
    def _body(self, text: str) -> None:
        """More of the message."""

    @abstractmethod
    def _finish_message(self) -> None:
        """The message has ended."""

    def _step(self, text: str) -> str:
        match self._state.phase:
            case "start":
                return self._start(text)
            case "header":
                return self._header(text)
        return self._in_body(text)

    def _end(self) -> str:
        if self._state.phase == "body":
            self._state.phase = "start"
            self._finish_message()
        return ""

    def _start(self, text: str) -> str:
        header = text.lstrip()
        space = len(text) - len(header)
        if space < _MAX_SPACE:
            if any(start.startswith(header[: len(start)]) and len(header) < len(start) for start in _HEADER_STARTS):
                if not self._final:
                    self._state.held = text
                    return ""
                if header.startswith("<|"):
                    return ""
            if header.startswith(_HEADER_STARTS):
                self._state.phase, self._state.header = "header", []
                return header
        self._open(f"assistant{CHANNEL}final")
        return text

    def _header(self, text: str) -> str:
        found = first_of(text, _HEADER_ENDS)
        position = found[0] if found else len(text) - (0 if self._final else beginning_at_end(text, _HEADER_ENDS))
        self._state.header.append(text[:position])
        header, text = "".join(self._state.header), text[position:]
        if len(header) > _MAX_HEADER:  # it is none
            self._open(f"assistant{CHANNEL}final")
            self._body(header[:_MAX_HEADER])
            return header[_MAX_HEADER:] + text
        self._state.header = [header]
        if found is None:
            self._state.held = text
            return ""
        self._state.header = []
        text = text[len(found[1]) :]
        if found[1] == MESSAGE:
            self._open(header)
        elif found[1] != START:  # the message ends before it has begun
            self._state.phase = "start"
        return text

    def _open(self, header: str) -> None:
        self._state.phase, self._state.header = "body", []
        self._state.kind, name = _meaning(header)
        self._begin(self._state.kind, name, header)

    def _in_body(self, text: str) -> str:
        found = first_of(text, _BODY_ENDS)
        if found is None:
            end = len(text) - beginning_at_end(text, _BODY_ENDS)
            if self._final and len(text) - end == 1:  # a single bracket is rather the text's own
                end = len(text)
            self._body(text[:end])
            self._state.held = "" if self._final else text[end:]
            return ""
        position, marker = found
        self._body(text[:position])
        if marker == MESSAGE:
            return text[position + len(marker) :]
        self._finish_message()
        self._state.phase = "header" if marker in (START, CHANNEL) else "start"
        return text[position:] if marker == CHANNEL else text[position + len(marker) :]


def _meaning(header: str) -> tuple[Kind, str]:
    """What a message with this header is, and the name of the function if it is a call; as the reference sees it."""
    channel, to = _CHANNEL_NAME.search(header), _RECIPIENT.search(header)
    recipient = to[1] if to else ""
    name = recipient.removeprefix("functions.")
    if name and recipient != "assistant" and recipient.partition(".")[0] not in _BUILT_IN:
        return "call", name
    match channel[1] if channel else "":
        case "analysis":
            return "reasoning", ""
        case "final" | "":
            return "content", ""
        case "commentary" if not recipient:
            return "content", ""
    return "ignored", ""
