"""One choice of an answer, from its tokens to what the client sees of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Self

from pydantic import ConfigDict

from triton_renderer.derender.parsers.events import Content, Event, Reasoning, merged
from triton_renderer.derender.parsers.message import MessageState
from triton_renderer.derender.reading import Reading
from triton_renderer.protocol.generate import GenerateLogprobs
from triton_renderer.protocol.openai import ChatLogprobs, CompletionLogprobs
from triton_renderer.text.detokenizer import PROMPT_TAIL, Detokenizer, DetokenizerState
from triton_renderer.text.logprobs import LogprobsDecoder, LogprobsState
from triton_renderer.text.states import Count, Flag, MisfittingState, Text
from triton_renderer.text.stop import StopMatcher


@dataclass
class Piece:
    """What some tokens add to a choice."""

    events: list[Event]
    token_ids: list[int]
    logprobs: ChatLogprobs | CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


def in_order(piece: Piece) -> list[Piece]:
    """The same in pieces with events of one kind each: a document has no order of its own. The last one has the end."""
    groups = [list(group) for _, group in groupby(piece.events, key=_is_of)] or [[]]
    pieces = [Piece(group, []) for group in groups]
    pieces[0].token_ids, pieces[0].logprobs = piece.token_ids, piece.logprobs
    pieces[-1].finish_reason, pieces[-1].stop_reason = piece.finish_reason, piece.stop_reason
    return pieces


def _is_of(event: Event) -> str:
    return "text" if isinstance(event, Content) else "reasoning" if isinstance(event, Reasoning) else "call"


@dataclass(frozen=True)
class Prompt:
    """What the output of a choice goes on from."""

    tail: Sequence[int] = ()
    """The last tokens."""
    reasoning_open: bool = False
    """The prompt left a reasoning block open."""
    echo_length: int = 0
    """Characters that are put in front of the output."""

    @classmethod
    def of(cls, token_ids: Sequence[int], reasoning_open: bool) -> Self:
        """For a prompt of these tokens."""
        return cls(token_ids[-PROMPT_TAIL:], reasoning_open)


@dataclass
class ChoiceState:
    """What a choice knows between two pushes: as much as its look-back needs, however long the output is."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    num_tokens: Count
    num_reasoning_tokens: Count
    is_finished: Flag
    unread: Count | None
    """A token that ends the output, unless more come: then it is read like any other."""
    detokenizer: DetokenizerState
    stop: Text
    """The end of the text, where it may be the beginning of a stop string."""
    stopped_by: Text | None
    parser: MessageState
    logprobs: LogprobsState


class Choice:
    """Follows one choice, and gives the same for every cutting of its tokens into chunks.

    Tokens become text, the text ends in front of a stop string (in reasoning and tool calls as well: the engine looks for
    it in the plain text), and what is left goes through the parsers. The text of the token that ended the output never
    appears.
    """

    def __init__(self, reading: Reading, prompt: Prompt) -> None:
        context, tokenizer = reading.context, reading.model.tokenizer
        self._reading = reading
        self._context = context
        self._detokenizer = Detokenizer(
            tokenizer,
            prompt.tail,
            context.skip_special_tokens,
            context.spaces_between_special_tokens,
            reading.marker_ids,
        )
        self._stop = StopMatcher(context.stop, context.include_stop_str_in_output)
        self._stopped_by: str | None = None
        self._parser = reading.new_parser(prompt.reasoning_open)
        self._logprobs = LogprobsDecoder(tokenizer, prompt.tail, prompt.echo_length)
        self._unread: int | None = None
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        self.is_finished = False

    def push(
        self,
        token_ids: Sequence[int],
        finish_reason: str | None = None,
        stop_reason: int | str | None = None,
        logprobs: GenerateLogprobs | None = None,
    ) -> Piece:
        """What `token_ids` add; with a finish reason they are the last ones."""
        unread = [*token_ids] if self._unread is None else [self._unread, *token_ids]
        num_read = self.num_tokens - (self._unread is not None)
        self.num_tokens += len(token_ids)
        self._unread = None
        if unread and self._may_end_with(unread[-1], finish_reason, stop_reason):
            ending = unread.pop()
            self._unread = ending if finish_reason is None else None
        engine_stopped = finish_reason == "stop" and isinstance(stop_reason, str)
        events: list[Event] = []
        position = 0
        while position < len(unread):
            is_armed = num_read + position >= self._context.min_tokens
            end = len(unread) if is_armed and self._parser.reasoning_is_over else position + 1
            events += self._read(unread[position:end], is_armed or (engine_stopped and end == len(unread)))
            position = end
        piece = Piece(self._shown(events), list(token_ids), self._decoded(token_ids, logprobs))
        if finish_reason is not None:
            piece.events = merged(piece.events + self.close().events)
            piece.finish_reason, piece.stop_reason = self._reasons(finish_reason, stop_reason)
        if self._reading.hides_tokens:
            piece.token_ids, piece.logprobs = [], None
        return piece

    def push_apart(
        self,
        token_ids: Sequence[int],
        finish_reason: str | None = None,
        stop_reason: int | str | None = None,
        logprobs: GenerateLogprobs | None = None,
    ) -> list[Piece]:
        """`push` in pieces with events of one kind each, in their order; a token's logprobs stand beside what it adds."""
        entries = logprobs.content if logprobs is not None else None
        if not token_ids or not entries:
            return in_order(self.push(token_ids, finish_reason, stop_reason, logprobs))
        pieces: list[Piece] = []
        for token_id, entry in zip(token_ids[:-1], entries[:-1], strict=True):
            pieces += in_order(self.push([token_id], logprobs=GenerateLogprobs(content=[entry])))
        last = GenerateLogprobs(content=entries[-1:])
        return pieces + in_order(self.push(token_ids[-1:], finish_reason, stop_reason, last))

    def close(self) -> Piece:
        """Ends a choice, also one of which nobody says why it ended: gives what is held back."""
        is_armed = self.num_tokens > self._context.min_tokens
        events = [] if self._unread is None else self._read([self._unread], is_armed)
        events += self._text(self._detokenizer.finish(), is_armed)
        if self._stopped_by is None:
            events += self._parse(self._stop.flush())
        self._unread = None
        self.is_finished = True
        return Piece(self._shown(events + self._parser.finish()), [])

    def state(self) -> ChoiceState:
        """The state as plain JSON, for `from_state`."""
        return ChoiceState(
            self.num_tokens,
            self.num_reasoning_tokens,
            self.is_finished,
            self._unread,
            self._detokenizer.state(),
            self._stop.state(),
            self._stopped_by,
            self._parser.state(),
            self._logprobs.state(),
        )

    @classmethod
    def from_state(cls, reading: Reading, state: ChoiceState) -> Self:
        """The choice of the same request that had this `state`.

        Raises MisfittingState where a part of it does not belong to what the request asks for.
        """
        context, tokenizer = reading.context, reading.model.tokenizer
        choice = cls(reading, Prompt())
        choice._detokenizer = Detokenizer.from_state(
            tokenizer,
            state.detokenizer,
            context.skip_special_tokens,
            context.spaces_between_special_tokens,
            reading.marker_ids,
        )
        choice._stop = StopMatcher.from_state(state.stop, context.stop, context.include_stop_str_in_output)
        choice._logprobs = LogprobsDecoder.from_state(tokenizer, state.logprobs)
        try:
            choice._parser.restore(state.parser)
        except MisfittingState as error:
            raise error.within("parser") from error
        choice.num_tokens, choice.num_reasoning_tokens = state.num_tokens, state.num_reasoning_tokens
        choice.is_finished, choice._unread, choice._stopped_by = state.is_finished, state.unread, state.stopped_by
        return choice

    def _may_end_with(self, token_id: int, finish_reason: str | None, stop_reason: int | str | None) -> bool:
        """`token_id`, the last one so far, ends the output; without a finish reason it is not known yet."""
        if finish_reason is None:
            return token_id in self._reading.ending_ids
        if finish_reason != "stop" or isinstance(stop_reason, str):
            return False
        return token_id == stop_reason or token_id in self._reading.ending_ids

    def _read(self, token_ids: Sequence[int], is_armed: bool) -> list[Event]:
        """Several tokens only where none of them can be reasoning. Unless `is_armed`, a stop string that ends here is text."""
        was_in_reasoning = self._parser.in_reasoning
        events = self._text(self._detokenizer.push(token_ids), is_armed)
        self.num_reasoning_tokens += was_in_reasoning and self._parser.in_reasoning
        return events

    def _text(self, text: str, is_armed: bool) -> list[Event]:
        if not text or self._stopped_by is not None:
            return []
        text, self._stopped_by = self._stop.push(text, is_armed)
        return self._parse(text)

    def _shown(self, events: list[Event]) -> list[Event]:
        return merged(event for event in events if self._context.include_reasoning or not isinstance(event, Reasoning))

    def _parse(self, text: str) -> list[Event]:
        return self._parser.push(text) if text else []

    def _decoded(self, token_ids: Sequence[int], logprobs: GenerateLogprobs | None) -> ChatLogprobs | CompletionLogprobs | None:
        if not self._context.want_logprobs:
            return None
        if logprobs is None:
            self._logprobs.skip(token_ids)
            return None
        if self._context.kind == "completion":
            return self._logprobs.completion(logprobs)
        return self._logprobs.chat(logprobs, self._context.top_logprobs)

    def _reasons(self, finish_reason: str, stop_reason: int | str | None) -> tuple[str, int | str | None]:
        """As the engine says, but for a stop string that it ran over, and for calls."""
        if self._stopped_by is not None and finish_reason in ("stop", "length"):
            finish_reason, stop_reason = "stop", self._stopped_by
        if finish_reason == "stop" and self._parser.called and self._context.tool_choice != "named":
            finish_reason = "tool_calls"
        return finish_reason, stop_reason
