"""The stateless derender route: checks a generate response and turns it into what the coupled route would have seen."""

import time
from typing import cast, get_args

from triton_renderer.derender.model import OutputModel
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.base import check_model_name
from triton_renderer.protocol.derender import MAX_CHOICES, DerenderChatRequest
from triton_renderer.protocol.generate import GenerateChoice, GenerateLogprobs, GenerateResponse
from triton_renderer.protocol.openai import ChatCompletionRequest
from triton_renderer.protocol.stages import ChunkChoice, DerenderContext, FinishReason, GeneratedChunk
from triton_renderer.text.detokenizer import PROMPT_TAIL

MAX_TOP_LOGPROBS = 21
"""Candidates of one token: the sampled one and the 20 that can be asked for."""

FINISH_REASONS: tuple[str, ...] = get_args(FinishReason)


def check(request: DerenderChatRequest, model: OutputModel) -> None:
    """Raises InvalidRequest, or NotFound for another model's name, before anything is decoded."""
    check_model_name(request.model, model.name)
    if request.chat_request is None and (model.reasoning_parser or model.tool_parser):
        raise InvalidRequest(
            "chat_request is required: a reasoning or tool call parser is configured, and it needs to know what was asked for",
            "chat_request",
        )
    if request.prompt_token_ids is not None:
        _check_prompt(request.prompt_token_ids, "prompt_token_ids", model)
    _check_response(request.generate_response, "generate_response", model)


def convert(request: DerenderChatRequest, model: OutputModel) -> tuple[list[int], DerenderContext, GeneratedChunk]:
    """A checked request as its output token ids, its context, and a chunk that is its first and its last.

    Raises InvalidRequest where a choice has another form than a generate route gives it.
    """
    response = request.generate_response
    token_ids = [token_id for choice in response.choices for token_id in choice.token_ids]
    choices = [
        ChunkChoice(
            index=choice.index,
            num_tokens=len(choice.token_ids),
            finish_reason=_finish_reason(choice.finish_reason, position),
            stop_reason=choice.stop_reason,
            logprobs=_logprobs(choice, position),
        )
        for position, choice in enumerate(response.choices)
    ]
    chunk = GeneratedChunk(
        id=response.request_id,
        choices=choices,
        final=True,
        prompt_tokens=_prompt_tokens(request),
        completion_tokens=len(token_ids),
        cached_tokens=_cached_tokens(response),
        prompt_token_ids=response.prompt_token_ids,
        kv_transfer_params=response.kv_transfer_params,
        ec_transfer_params=response.ec_transfer_params,
        prompt_logprobs=response.prompt_logprobs,
    )
    return token_ids, _context(request, model), chunk


def _context(request: DerenderChatRequest, model: OutputModel) -> DerenderContext:
    response = request.generate_response
    prompt = request.prompt_token_ids if request.prompt_token_ids is not None else response.prompt_token_ids
    context = DerenderContext(
        kind="chat",
        id=response.request_id,
        created=int(time.time()),
        model=request.model or model.name,
        stream=False,
        prompt_tail=(prompt or [])[-PROMPT_TAIL:],
        prompt_token_ids=prompt,
        reasoning_open=(
            model.leaves_reasoning_open(prompt)
            if prompt is not None
            else any(model.closes_reasoning_unopened(choice.token_ids) for choice in response.choices)
        ),
        want_logprobs=any(choice.logprobs is not None for choice in response.choices),
    )
    return context if request.chat_request is None else context.model_copy(update=_asked_for(request.chat_request))


def _asked_for(asked: ChatCompletionRequest) -> dict[str, object]:
    return {
        **asked.tool_choice_fields,
        "include_reasoning": asked.include_reasoning,
        "stop": asked.stop,
        "stop_token_ids": asked.stop_token_ids,
        "include_stop_str_in_output": asked.include_stop_str_in_output,
        "min_tokens": asked.min_tokens,
        "skip_special_tokens": asked.skip_special_tokens,
        "spaces_between_special_tokens": asked.spaces_between_special_tokens,
        "top_logprobs": asked.top_logprobs if asked.logprobs else None,
        "return_token_ids": asked.return_token_ids,
    }


def _prompt_tokens(request: DerenderChatRequest) -> int:
    """As the caller says; else as the engine counted; else as many as the caller sent, which may be the prompt's end only."""
    if request.prompt_tokens is not None:
        return request.prompt_tokens
    if request.generate_response.usage is not None:
        return request.generate_response.usage.prompt_tokens
    return len(request.prompt_token_ids or [])


def _cached_tokens(response: GenerateResponse) -> int:
    details = response.usage.prompt_tokens_details if response.usage is not None else None
    cached = (details or {}).get("cached_tokens")
    return cached if isinstance(cached, int) else 0


def _finish_reason(reason: str | None, position: int) -> FinishReason | None:
    if reason is None or reason in FINISH_REASONS:
        return cast("FinishReason | None", reason)
    where = f"generate_response.choices.{position}.finish_reason"
    raise InvalidRequest(f"{where}: {reason!r} is none of {', '.join(FINISH_REASONS)}", where)


def _logprobs(choice: GenerateChoice, position: int) -> GenerateLogprobs | None:
    if choice.logprobs is None or isinstance(choice.logprobs, GenerateLogprobs):
        return choice.logprobs
    where = f"generate_response.choices.{position}.logprobs"
    raise InvalidRequest(f"{where}: logprobs of token ids are needed, not of text", where)


def _check_prompt(token_ids: list[int], where: str, model: OutputModel) -> None:
    if len(token_ids) > model.max_model_len:
        raise InvalidRequest(f"{where}: {len(token_ids)} tokens exceed the model's context of {model.max_model_len}", where)
    _check_ids(token_ids, where, model)


def _check_response(response: GenerateResponse, where: str, model: OutputModel) -> None:
    if response.output_mode == "text":
        raise InvalidRequest(
            f"{where}.output_mode: a response of mode text is derendered already; mode tokens is needed", f"{where}.output_mode"
        )
    if not 1 <= len(response.choices) <= MAX_CHOICES:
        raise InvalidRequest(
            f"{where}.choices: {len(response.choices)} choices, there must be 1 to {MAX_CHOICES}", f"{where}.choices"
        )
    indices = [choice.index for choice in response.choices]
    if len(set(indices)) < len(indices):
        raise InvalidRequest(f"{where}.choices: two choices have the same index", f"{where}.choices")
    if response.prompt_token_ids is not None:
        _check_prompt(response.prompt_token_ids, f"{where}.prompt_token_ids", model)
    if len(response.prompt_logprobs or []) > model.max_model_len:
        raise InvalidRequest(
            f"{where}.prompt_logprobs: more entries than the model's context of {model.max_model_len} tokens",
            f"{where}.prompt_logprobs",
        )
    for position, choice in enumerate(response.choices):
        _check_choice(choice, f"{where}.choices.{position}", model)


def _check_choice(choice: GenerateChoice, where: str, model: OutputModel) -> None:
    if not choice.token_ids:
        raise InvalidRequest(f"{where}.token_ids: there are none", f"{where}.token_ids")
    if len(choice.token_ids) > model.max_model_len:
        raise InvalidRequest(
            f"{where}.token_ids: {len(choice.token_ids)} tokens exceed the model's context of {model.max_model_len}",
            f"{where}.token_ids",
        )
    _check_ids(choice.token_ids, f"{where}.token_ids", model)
    if not isinstance(choice.logprobs, GenerateLogprobs):
        return
    entries = choice.logprobs.content or []
    if len(entries) != len(choice.token_ids):
        raise InvalidRequest(
            f"{where}.logprobs: {len(entries)} entries for {len(choice.token_ids)} tokens", f"{where}.logprobs"
        )
    for number, entry in enumerate(entries):
        here = f"{where}.logprobs.content.{number}"
        if len(entry.top_logprobs) > MAX_TOP_LOGPROBS:
            raise InvalidRequest(
                f"{here}.top_logprobs: {len(entry.top_logprobs)} candidates, at most {MAX_TOP_LOGPROBS} can be",
                f"{here}.top_logprobs",
            )
        _check_ids([entry.token_id, *(candidate.token_id for candidate in entry.top_logprobs)], here, model)


def _check_ids(token_ids: list[int], where: str, model: OutputModel) -> None:
    if max(token_ids, default=0) < model.vocab_size:
        return
    position, token_id = next(pair for pair in enumerate(token_ids) if pair[1] >= model.vocab_size)
    raise InvalidRequest(
        f"{where}.{position}: {token_id} is not one of the {model.vocab_size} token ids", f"{where}.{position}"
    )
