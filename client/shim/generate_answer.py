"""What ensemble `generate` answers, as documents of POST /inference/v1/generate."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from client.shim.triton import Tensors
from triton_renderer.errors import InvalidRequest, RendererError
from triton_renderer.protocol.base import Usage, parse
from triton_renderer.protocol.generate import GenerateChoice, GenerateRequest, GenerateResponse
from triton_renderer.protocol.stages import GeneratedChunk
from triton_renderer.tensors import CHUNK, OUTPUT_TOKEN_IDS

Stream = AsyncGenerator[Tensors, None]


async def whole_document(stream: Stream, response: GenerateResponse) -> bytes:
    """The answer of a request that does not stream. `response` holds what is known before: its id, the model, …"""
    chunks = _chunks(stream)
    async with aclosing(chunks):
        whole = [chunk async for chunk in chunks]
    if len(whole) != 1:
        raise RendererError(f"model `generate` answered a plain request in {len(whole)} parts")
    chunk, choices = whole[0]
    fields = chunk.model_dump(
        include={"prompt_logprobs", "prompt_token_ids", "mm_placeholders", "kv_transfer_params", "ec_transfer_params"}
    )
    answer = GenerateResponse.model_validate(
        response.model_dump() | fields | {"choices": choices, "usage": _usage(chunk.prompt_tokens, chunk.completion_tokens)}
    )
    return answer.model_dump_json(exclude=_unused(answer)).encode()


async def event_documents(stream: Stream, request: GenerateRequest, response: GenerateResponse) -> AsyncGenerator[bytes, None]:
    """The chunks of a stream: one choice each, as deltas, and where it was asked for a last one with the usage alone."""
    options = request.stream_options
    running_usage = bool(options and options.include_usage and options.continuous_usage_stats)
    generated: dict[int, int] = {}
    newest = GeneratedChunk(id="")
    chunks = _chunks(stream)
    async with aclosing(chunks):
        async for newest, choices in chunks:
            for choice in choices:
                generated[choice.index] = generated.get(choice.index, 0) + len(choice.token_ids)
                event = response.model_copy(update={"choices": [choice]})
                if running_usage:
                    event.usage = _usage(newest.prompt_tokens, generated[choice.index])
                # What belongs to the whole request goes with its first choice in this chunk.
                if choice is choices[0]:
                    event.prompt_token_ids = newest.prompt_token_ids
                    event.mm_placeholders = newest.mm_placeholders
                    event.kv_transfer_params = newest.kv_transfer_params
                    event.ec_transfer_params = newest.ec_transfer_params
                yield event.model_dump_json(exclude=_absent_from_events(event)).encode()
    if options and options.include_usage:
        closing = response.model_copy(update={"usage": _usage(newest.prompt_tokens, newest.completion_tokens)})
        yield closing.model_dump_json(include={"request_id", "output_mode", "choices", "usage"}, exclude_none=True).encode()


async def _chunks(stream: Stream) -> AsyncGenerator[tuple[GeneratedChunk, list[GenerateChoice]], None]:
    """Each chunk, its choices put together with their tokens. RendererError where one is lost, swapped or of another form."""
    number, final = 0, False
    async with aclosing(stream):
        async for tensors in stream:
            try:
                chunk = parse(GeneratedChunk, tensors[CHUNK.name][0])
            except InvalidRequest as error:
                raise RendererError(f"model `generate` answered with a chunk of another form: {error.message}") from error
            if chunk.number != number or final:
                raise RendererError(f"model `generate` answered with chunk {chunk.number} in the place of chunk {number}")
            number, final = number + 1, chunk.final
            yield chunk, _choices(chunk, tensors[OUTPUT_TOKEN_IDS.name].tolist())
    if not final:
        raise RendererError("model `generate` ended without its last chunk")


def _choices(chunk: GeneratedChunk, token_ids: list[int]) -> list[GenerateChoice]:
    if sum(choice.num_tokens for choice in chunk.choices) != len(token_ids):
        raise RendererError(f"model `generate` answered with {len(token_ids)} tokens, its chunk tells of another number")
    choices, start = [], 0
    for choice in chunk.choices:
        end = start + choice.num_tokens
        choices.append(
            GenerateChoice(
                index=choice.index,
                token_ids=token_ids[start:end],
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                logprobs=choice.logprobs,
                text=choice.text,
            )
        )
        start = end
    return choices


def _usage(prompt_tokens: int, completion_tokens: int) -> Usage:
    return Usage(
        prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, total_tokens=prompt_tokens + completion_tokens
    )


def _unused(response: GenerateResponse) -> dict[str, Any]:
    """`text` is a field of text mode alone."""
    return {} if response.output_mode == "text" else {"choices": {"__all__": {"text"}}}


def _absent_from_events(event: GenerateResponse) -> dict[str, Any]:
    """Events carry neither the model nor the time, and what belongs to the request only where there is something."""
    once = ("prompt_token_ids", "mm_placeholders", "kv_transfer_params", "ec_transfer_params")
    absent = {"model", "created", "prompt_logprobs", *(name for name in once if getattr(event, name) is None)}
    return _unused(event) | dict.fromkeys(absent, True)
