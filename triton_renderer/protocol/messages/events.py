"""Chat chunks as the events of a Messages stream, and as the message that they add up to.

message_start, ping
for each block   content_block_start, content_block_delta …, content_block_stop
message_delta, message_stop
"""

import secrets
from collections.abc import Sequence
from typing import Literal

from blake3 import blake3

from triton_renderer.protocol.base import Wire, parse
from triton_renderer.protocol.forms import JsonObject, read_json
from triton_renderer.text.states import Count, Flag, Seed

_UNREADABLE = "arguments"
"""Arguments that are no JSON object stand under this name in a block's `input`, which must be one."""


class _Json(Wire):
    """How far a JSON object has come, text by text: whether the brace that opened it is closed."""

    depth: Count = 0
    in_string: Flag = False
    escaped: Flag = False
    is_complete: Flag = False

    def push(self, text: str) -> None:
        """Goes on by `text`."""
        for character in text:
            if self.escaped:
                self.escaped = False
            elif self.in_string:
                self.escaped, self.in_string = character == "\\", character != '"'
            elif character == '"':
                self.in_string = True
            elif character in "{[":
                self.depth += 1
            elif character in "}]" and self.depth:
                self.depth -= 1
                self.is_complete = not self.depth


class _State(Wire):
    """All that is kept between two chunks: nothing that grows with the output."""

    seed: Seed = ""
    """What signatures are made from, so that a chunk that is sent twice with one state gives the same ones."""
    begun: Flag = False
    block: Literal["thinking", "text", "tool_use"] | None = None
    """The block that is open."""
    index: Count = 0
    """Its number, or that of the next one."""
    call_index: Count | None = None
    call: _Json | None = None
    """The arguments of the last call."""
    usage: dict[str, Count] = {}
    ended: Flag = False


class MessageEvents:
    """The Translator of a MessagesForm."""

    def __init__(self) -> None:
        self._state = _State(seed=secrets.token_hex(8))
        self._events: list[JsonObject] = []

    def push(self, chunk: JsonObject) -> list[JsonObject]:
        """See Translator."""
        self._events = []
        if chunk.get("usage"):
            self._state.usage = _usage(chunk["usage"])
        if not self._state.begun:
            self._begin(chunk)
        for choice in chunk["choices"]:
            self._continue(choice)
        return self._events

    def finish(self) -> list[JsonObject]:
        """See Translator."""
        self._events = []
        if not self._state.ended:
            self._finish(None, None)
        return self._events

    def whole(self, events: Sequence[JsonObject], extras: JsonObject) -> JsonObject:
        """See Translator."""
        handed_on = ("kv_transfer_params", "ec_transfer_params")
        return message_of(events) | {name: extras[name] for name in handed_on if extras.get(name) is not None}

    def state(self) -> JsonObject:
        """See Translator."""
        return self._state.model_dump(exclude_defaults=True)

    def restore(self, state: JsonObject) -> None:
        """See Translator."""
        self._state = parse(_State, state)

    def _begin(self, chunk: JsonObject) -> None:
        self._state.begun = True
        message = {
            "id": chunk["id"],
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": chunk["model"],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._state.usage or {"input_tokens": 0, "output_tokens": 0},
        }
        self._events += [{"type": "message_start", "message": message}, {"type": "ping"}]

    def _continue(self, choice: JsonObject) -> None:
        delta = choice.get("delta") or {}
        if reasoning := delta.get("reasoning"):
            self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._grow({"type": "thinking_delta", "thinking": reasoning})
        if content := delta.get("content"):
            self._enter("text", {"type": "text", "text": ""})
            self._grow({"type": "text_delta", "text": content})
        for call in delta.get("tool_calls") or []:
            self._call(call)
        if choice.get("finish_reason") is not None:
            self._finish(choice["finish_reason"], choice.get("stop_reason"))

    def _call(self, call: JsonObject) -> None:
        function = call.get("function") or {}
        if self._state.block != "tool_use" or self._state.call_index != call["index"]:
            self._close()
            opened: JsonObject = {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": {}}
            self._enter("tool_use", opened)
            self._state.call_index, self._state.call = call["index"], _Json()
        if (arguments := function.get("arguments")) and self._state.call is not None:
            self._state.call.push(arguments)
            self._grow({"type": "input_json_delta", "partial_json": arguments})

    def _enter(self, kind: Literal["thinking", "text", "tool_use"], block: JsonObject) -> None:
        if self._state.block == kind:
            return
        self._close()
        self._state.block = kind
        self._events.append({"type": "content_block_start", "index": self._state.index, "content_block": block})

    def _grow(self, delta: JsonObject) -> None:
        self._events.append({"type": "content_block_delta", "index": self._state.index, "delta": delta})

    def _close(self) -> None:
        if self._state.block is None:
            return
        if self._state.block == "thinking":
            # Clients hand it back with the block; here it means nothing.
            signature = blake3(f"{self._state.seed} {self._state.index}".encode()).hexdigest(16)
            self._grow({"type": "signature_delta", "signature": signature})
        self._events.append({"type": "content_block_stop", "index": self._state.index})
        self._state.block = None
        self._state.index += 1

    def _finish(self, finish_reason: str | None, stop_reason: int | str | None) -> None:
        self._close()
        self._state.ended = True
        reason, sequence = self._stop_reason(finish_reason, stop_reason)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = self._state.usage or {"output_tokens": 0}
        self._events += [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]

    def _stop_reason(self, finish_reason: str | None, stop_reason: int | str | None) -> tuple[str | None, str | None]:
        """A stop string that cut a call short is told as such: the call must not be made."""
        if finish_reason == "length":
            return "max_tokens", None
        if finish_reason not in ("stop", "tool_calls"):
            return None, None
        called = self._state.call is not None
        if isinstance(stop_reason, str) and not (self._state.call is not None and self._state.call.is_complete):
            return "stop_sequence", stop_reason
        return ("tool_use" if called else "end_turn"), None


def message_of(events: Sequence[JsonObject]) -> JsonObject:
    """The message that events add up to, as clients add them up; one without content has an empty text, which they expect."""
    message: JsonObject = {}
    blocks: list[JsonObject] = []
    texts: list[list[str]] = []
    for event in events:
        match event:
            case {"type": "message_start", "message": start}:
                message = dict(start)
            case {"type": "content_block_start", "content_block": block}:
                blocks.append(dict(block))
                texts.append([])
            case {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": signature}}:
                blocks[-1]["signature"] = signature
            case {"type": "content_block_delta", "delta": delta}:
                texts[-1].append(delta[_TEXT_OF[delta["type"]]])
            case {"type": "message_delta", "delta": delta, "usage": usage}:
                message |= delta | {"usage": usage}
    filled = [_filled(block, "".join(pieces)) for block, pieces in zip(blocks, texts, strict=True)]
    return message | {"content": filled or [{"type": "text", "text": ""}]}


_TEXT_OF = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def _filled(block: JsonObject, text: str) -> JsonObject:
    if block["type"] == "tool_use":
        return block | {"input": _input(text)}
    return block | {block["type"]: text}


def _input(arguments: str) -> JsonObject:
    """What a call was given, which must be an object, whatever the model wrote."""
    try:
        parsed = read_json(arguments or "{}")
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {_UNREADABLE: arguments}


def _usage(chat: JsonObject) -> dict[str, int]:
    """Cached tokens are not part of `input_tokens`."""
    cached = (chat.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    usage = {
        "input_tokens": max(0, (chat.get("prompt_tokens") or 0) - cached),
        "output_tokens": chat.get("completion_tokens") or 0,
    }
    return usage | ({"cache_read_input_tokens": cached} if cached else {})
