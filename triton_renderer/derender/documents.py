"""The JSON documents of the OpenAI chat and completion routes, with the reference's extensions.

A whole answer has every field, null where there is nothing to say; a chunk of a stream has only those that the reference
writes. Both are made from the same pieces.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from triton_renderer.derender.choice import Piece
from triton_renderer.derender.parsers.events import Content, Event, Reasoning, ToolCallArguments, ToolCallStart
from triton_renderer.errors import BadBody
from triton_renderer.protocol.openai import ChatLogprobs, CompletionLogprobs
from triton_renderer.protocol.stages import DerenderContext

JsonObject = dict[str, Any]


def dumped(document: JsonObject) -> bytes:
    """`document` as JSON. Raises BadBody where a part that the client sent, and that is handed on, nests too deeply for it."""
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError as error:
        if "Recursion" not in str(error):
            raise
        raise BadBody("the body is nested too deeply") from error


@dataclass
class Call:
    """A tool call, or the part of one that a chunk brings: then `id` and `name` only with its first part."""

    id: str | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list)


@dataclass
class Texts:
    """The texts of some events, in order of appearance each."""

    reasoning: str
    content: str
    calls: dict[int, Call]

    @classmethod
    def of(cls, events: Sequence[Event]) -> "Texts":
        """`events` sorted by what they belong to."""
        calls: dict[int, Call] = {}
        for event in events:
            if isinstance(event, ToolCallStart):
                calls[event.index] = Call(event.id, event.name)
            elif isinstance(event, ToolCallArguments):
                calls.setdefault(event.index, Call()).arguments.append(event.text)
        return cls(
            reasoning="".join(event.text for event in events if isinstance(event, Reasoning)),
            content="".join(event.text for event in events if isinstance(event, Content)),
            calls=calls,
        )


@dataclass(frozen=True)
class Usage:
    """Token counts. `reasoning_tokens` is None where no reasoning parser counts them."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None = None
    cached_tokens: int = 0

    def whole(self) -> JsonObject:
        """With every field."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens} if self.cached_tokens else None,
            "completion_tokens_details": (
                None if self.reasoning_tokens is None else {"reasoning_tokens": self.reasoning_tokens}
            ),
        }

    def brief(self) -> JsonObject:
        """Without the fields that say nothing, for a stream."""
        return {name: value for name, value in self.whole().items() if value is not None}


@dataclass(frozen=True)
class Extras:
    """What a whole answer hands on besides its choices."""

    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[Any] | None = None
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None


class ChatDocuments:
    """`chat.completion` and `chat.completion.chunk`."""

    def __init__(self, context: DerenderContext, has_parsers: bool) -> None:
        self._context = context
        self._has_parsers = has_parsers

    def opening(self, index: int, usage: Usage | None, prompt_token_ids: list[int] | None) -> list[JsonObject]:
        """The chunk that comes first of each choice, with the role; and the echo, if there is one."""
        choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        first = self._chunk([choice], usage) | {"prompt_token_ids": prompt_token_ids, "prompt_text": None}
        if not self._context.echo:
            return [first]
        return [first, self._chunk([choice | {"delta": {"content": self._context.echo}}], usage)]

    def delta(self, index: int, piece: Piece, usage: Usage | None) -> JsonObject | None:
        """The chunk with what `piece` brings; None where that is nothing."""
        texts = Texts.of(piece.events)
        delta: JsonObject = {}
        if texts.reasoning:
            delta["reasoning"] = texts.reasoning
        if texts.content or not self._has_parsers:
            delta["content"] = texts.content
        if texts.calls:
            delta["tool_calls"] = [_call_delta(number, call) for number, call in texts.calls.items()]
        token_ids = piece.token_ids if self._context.return_token_ids else None
        if not (any(delta.values()) or piece.logprobs or token_ids or piece.finish_reason):
            return None
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": piece.logprobs and piece.logprobs.model_dump(),
            "finish_reason": piece.finish_reason,
            "token_ids": token_ids,
        }
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
        return self._chunk([choice], usage)

    def usage(self, usage: Usage) -> JsonObject:
        """The last chunk of a stream, where it is asked for."""
        return self._chunk([], usage)

    def whole(self, choices: Mapping[int, list[Piece]], usage: Usage, extras: Extras) -> JsonObject:
        """The answer that is no stream."""
        return {
            "id": self._context.id,
            "object": "chat.completion",
            "created": self._context.created,
            "model": self._context.model,
            "choices": [self._choice(index, pieces) for index, pieces in sorted(choices.items())],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage.whole(),
            "prompt_logprobs": extras.prompt_logprobs,
            "prompt_token_ids": extras.prompt_token_ids,
            "prompt_text": None,
            "kv_transfer_params": extras.kv_transfer_params,
            "ec_transfer_params": extras.ec_transfer_params,
            "metrics": None,
        }

    def _choice(self, index: int, pieces: list[Piece]) -> JsonObject:
        texts = Texts.of([event for piece in pieces for event in piece.events])
        message: JsonObject = {
            "role": "assistant",
            "content": self._content(texts.content),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": texts.reasoning or None,
        }
        if texts.calls:
            message["tool_calls"] = [_call(call) for call in texts.calls.values()]
        entries = [piece.logprobs for piece in pieces if isinstance(piece.logprobs, ChatLogprobs)]
        logprobs = ChatLogprobs(content=[entry for part in entries for entry in part.content or []]).model_dump()
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs if entries else None,
            "finish_reason": pieces[-1].finish_reason,
            "stop_reason": pieces[-1].stop_reason,
            "token_ids": _token_ids(pieces) if self._context.return_token_ids else None,
            "routed_experts": None,
        }

    def _content(self, content: str) -> str | None:
        """Null where a parser found none, but for a forced call: there it is empty."""
        content = self._context.echo + content
        return None if not content and self._has_parsers and self._context.tool_choice not in ("required", "named") else content

    def _chunk(self, choices: list[JsonObject], usage: Usage | None) -> JsonObject:
        return _chunk(self._context, "chat.completion.chunk", choices, usage)


class CompletionDocuments:
    """`text_completion`, whole and in chunks."""

    def __init__(self, context: DerenderContext) -> None:
        self._context = context

    def opening(self, index: int, usage: Usage | None, prompt_token_ids: list[int] | None) -> list[JsonObject]:
        """Nothing but the echo and the prompt's tokens, where they are asked for."""
        if not self._context.echo and prompt_token_ids is None:
            return []
        return [self._chunk([self._stream_choice(index, self._context.echo) | {"prompt_token_ids": prompt_token_ids}], usage)]

    def delta(self, index: int, piece: Piece, usage: Usage | None) -> JsonObject | None:
        """The chunk with what `piece` brings; None where that is nothing."""
        text = Texts.of(piece.events).content
        token_ids = piece.token_ids if self._context.return_token_ids else None
        if not (text or piece.logprobs or token_ids or piece.finish_reason):
            return None
        choice = self._stream_choice(index, text) | {
            "logprobs": piece.logprobs and piece.logprobs.model_dump(),
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
            "token_ids": token_ids,
        }
        return self._chunk([choice], usage)

    def usage(self, usage: Usage) -> JsonObject:
        """The last chunk of a stream, where it is asked for."""
        return self._chunk([], usage)

    def whole(self, choices: Mapping[int, list[Piece]], usage: Usage, extras: Extras) -> JsonObject:
        """The answer that is no stream."""
        return {
            "id": self._context.id,
            "object": "text_completion",
            "created": self._context.created,
            "model": self._context.model,
            "choices": [self._choice(index, pieces, extras) for index, pieces in sorted(choices.items())],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage.whole(),
            "kv_transfer_params": extras.kv_transfer_params,
            "ec_transfer_params": extras.ec_transfer_params,
            "metrics": None,
        }

    def _choice(self, index: int, pieces: list[Piece], extras: Extras) -> JsonObject:
        parts = [piece.logprobs for piece in pieces if isinstance(piece.logprobs, CompletionLogprobs)]
        logprobs = CompletionLogprobs(
            text_offset=[offset for part in parts for offset in part.text_offset],
            token_logprobs=[logprob for part in parts for logprob in part.token_logprobs],
            tokens=[token for part in parts for token in part.tokens],
            top_logprobs=[candidates for part in parts for candidates in part.top_logprobs],
        ).model_dump()
        return {
            "index": index,
            "text": self._context.echo + Texts.of([event for piece in pieces for event in piece.events]).content,
            "logprobs": logprobs if parts else None,
            "finish_reason": pieces[-1].finish_reason,
            "stop_reason": pieces[-1].stop_reason,
            "token_ids": _token_ids(pieces) if self._context.return_token_ids else None,
            "routed_experts": None,
            "prompt_logprobs": extras.prompt_logprobs,
            "prompt_token_ids": extras.prompt_token_ids,
        }

    def _stream_choice(self, index: int, text: str) -> JsonObject:
        return {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": None,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }

    def _chunk(self, choices: list[JsonObject], usage: Usage | None) -> JsonObject:
        return _chunk(self._context, "text_completion", choices, usage)


Documents = ChatDocuments | CompletionDocuments


def _chunk(context: DerenderContext, kind: str, choices: list[JsonObject], usage: Usage | None) -> JsonObject:
    chunk: JsonObject = {
        "id": context.id,
        "object": kind,
        "created": context.created,
        "model": context.model,
        "choices": choices,
    }
    return chunk if usage is None else chunk | {"usage": usage.brief()}


def _call(call: Call) -> JsonObject:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "".join(call.arguments)}}


def _call_delta(index: int, call: Call) -> JsonObject:
    if call.id is None:
        return {"index": index, "function": {"arguments": "".join(call.arguments)}}
    return {"index": index} | _call(call)


def _token_ids(pieces: list[Piece]) -> list[int]:
    return [token_id for piece in pieces for token_id in piece.token_ids]
