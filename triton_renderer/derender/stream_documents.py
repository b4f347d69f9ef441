"""The chunks of the streaming derender routes: one a call, with every field, as the reference writes them there."""

from triton_renderer.derender.choice import Piece
from triton_renderer.derender.documents import Call, JsonObject, Texts


def chat_chunk(head: JsonObject, choices: list[JsonObject], usage: JsonObject | None) -> JsonObject:
    """`chat.completion.chunk`. `head` has its id, time and model."""
    return {
        **head,
        "object": "chat.completion.chunk",
        "choices": choices,
        "usage": usage,
        "system_fingerprint": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "metrics": None,
    }


def chat_choice(index: int, piece: Piece, token_ids: list[int] | None, with_role: bool) -> JsonObject:
    """What `piece` adds to a choice of a chat; null where that is nothing."""
    texts = Texts.of(piece.events)
    delta: JsonObject = {
        "role": "assistant" if with_role else None,
        "content": texts.content or None,
        "reasoning": texts.reasoning or None,
    }
    if texts.calls:
        delta["tool_calls"] = [_call(number, call) for number, call in texts.calls.items()]
    return {
        "index": index,
        "delta": delta,
        "logprobs": piece.logprobs and piece.logprobs.model_dump(),
        "finish_reason": piece.finish_reason,
        "stop_reason": piece.stop_reason,
        "token_ids": token_ids,
    }


def completion_chunk(head: JsonObject, choices: list[JsonObject], usage: JsonObject | None) -> JsonObject:
    """`text_completion` as a chunk."""
    return {
        **head,
        "object": "text_completion",
        "choices": choices,
        "usage": usage,
        "system_fingerprint": None,
        "metrics": None,
    }


def completion_choice(index: int, piece: Piece, token_ids: list[int] | None) -> JsonObject:
    """What `piece` adds to a choice of a completion."""
    return {
        "index": index,
        "text": Texts.of(piece.events).content,
        "logprobs": piece.logprobs and piece.logprobs.model_dump(),
        "finish_reason": piece.finish_reason,
        "stop_reason": piece.stop_reason,
        "prompt_token_ids": None,
        "token_ids": token_ids,
    }


def _call(index: int, call: Call) -> JsonObject:
    """A call's id, type and name come with its first part alone."""
    return {
        "id": call.id,
        "type": "function" if call.id is not None else None,
        "index": index,
        "function": {"name": call.name, "arguments": "".join(call.arguments) or None},
    }
