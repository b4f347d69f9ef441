"""One choice of an answer, from its tokens to what the client sees of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from triton_renderer.derender.model import OutputModel
from triton_renderer.derender.parsers.base import ReasoningParser, ToolParser
from triton_renderer.derender.parsers.events import Event, Reasoning, merged
from triton_renderer.derender.parsers.message import MessageParser
from triton_renderer.protocol.generate import GenerateLogprobs
from triton_renderer.protocol.openai import ChatLogprobs, CompletionLogprobs
from triton_renderer.protocol.stages import DerenderContext
from triton_renderer.text.detokenizer import Detokenizer
from triton_renderer.text.logprobs import LogprobsDecoder
from triton_renderer.text.stop import StopMatcher


@dataclass
class Piece:
    """What some tokens add to a choice."""

    events: list[Event]
    token_ids: list[int]
    logprobs: ChatLogprobs | CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Choice:
    """Follows one choice token by token, so that the cutting into chunks changes nothing.

    Tokens become text, the text ends in front of a stop string (in reasoning and tool calls as well: the engine looks for
    it in the plain text), and what is left goes through the parsers. The text of the token that ended the output never
    appears.
    """

    def __init__(self, model: OutputModel, context: DerenderContext) -> None:
        self._context = context
        reasoning_parser, tool_parser = parsers_for(model, context)
        self._ending_ids = model.eos_token_ids.union(context.stop_token_ids)
        self._detokenizer = Detokenizer(
            model.tokenizer,
            context.prompt_tail,
            context.skip_special_tokens,
            context.spaces_between_special_tokens,
            keep=model.marker_ids((reasoning_parser, tool_parser)),
        )
        self._stop = StopMatcher(context.stop, context.include_stop_str_in_output)
        self._stopped_by: str | None = None
        self._parser = MessageParser(
            reasoning_parser(context.reasoning_open, tool_parser.call_markers if tool_parser else ())
            if reasoning_parser
            else None,
            tool_parser(parameter_types=context.parameter_types) if tool_parser else None,
            context.parallel_tool_calls,
        )
        self._hides_tokens = reasoning_parser is not None and not context.include_reasoning
        self._logprobs = LogprobsDecoder(model.tokenizer, context.prompt_tail, len(context.echo))
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
        ends_by_token = (
            finish_reason == "stop"
            and not isinstance(stop_reason, str)
            and bool(token_ids)
            and (token_ids[-1] == stop_reason or token_ids[-1] in self._ending_ids)
        )
        events: list[Event] = []
        for position, token_id in enumerate(token_ids):
            is_last = position == len(token_ids) - 1
            self.num_tokens += 1
            if is_last and ends_by_token:
                break
            was_in_reasoning = self._parser.in_reasoning
            engine_stopped = is_last and finish_reason == "stop" and isinstance(stop_reason, str)
            events += self._text(self._detokenizer.push([token_id]), self._is_armed or engine_stopped)
            self.num_reasoning_tokens += was_in_reasoning and self._parser.in_reasoning
        piece = Piece(self._shown(events), list(token_ids), self._decoded(logprobs))
        if finish_reason is not None:
            piece.events = merged(piece.events + self.close().events)
            piece.finish_reason, piece.stop_reason = self._reasons(finish_reason, stop_reason)
        if self._hides_tokens:
            piece.token_ids, piece.logprobs = [], None
        return piece

    def close(self) -> Piece:
        """Ends a choice, also one of which nobody says why it ended: gives what is held back."""
        events = self._text(self._detokenizer.finish(), self._is_armed)
        if self._stopped_by is None:
            events += self._parse(self._stop.flush())
        self.is_finished = True
        return Piece(self._shown(events + self._parser.finish()), [])

    @property
    def _is_armed(self) -> bool:
        return self.num_tokens > self._context.min_tokens

    def _text(self, text: str, armed: bool) -> list[Event]:
        if not text or self._stopped_by is not None:
            return []
        text, self._stopped_by = self._stop.push(text, armed)
        return self._parse(text)

    def _shown(self, events: list[Event]) -> list[Event]:
        return merged(event for event in events if self._context.include_reasoning or not isinstance(event, Reasoning))

    def _parse(self, text: str) -> list[Event]:
        return self._parser.push(text) if text else []

    def _decoded(self, logprobs: GenerateLogprobs | None) -> ChatLogprobs | CompletionLogprobs | None:
        if logprobs is None or not self._context.want_logprobs:
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


def parsers_for(model: OutputModel, context: DerenderContext) -> tuple[type[ReasoningParser] | None, type[ToolParser] | None]:
    """The parsers that read this answer: none for a completion, and no calls are looked for where none may be made."""
    if context.kind == "completion":
        return None, None
    return model.reasoning_parser, model.tool_parser if context.tool_choice != "none" else None
