"""The stateless derender routes for whole answers: what a generate response says goes the way of the coupled route."""

import logging
import time
from collections.abc import Sequence
from typing import Any

from triton_renderer.derender.asked import asked_of_chat, asked_of_completion
from triton_renderer.derender.checks import check_prompt, check_response, finish_reason_of, logprobs_of
from triton_renderer.derender.documents import JsonObject
from triton_renderer.derender.model import OutputModel
from triton_renderer.derender.translated import answer_for
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.base import TOO_MANY_TOKENS, check_model_name
from triton_renderer.protocol.derender import (
    MAX_RESPONSES,
    DerenderChatRequest,
    DerenderCompletionRequest,
    DerenderMessagesRequest,
    DerenderResponsesRequest,
)
from triton_renderer.protocol.dialects import Translated, translated_within
from triton_renderer.protocol.forms import AnswerForm
from triton_renderer.protocol.generate import GenerateResponse
from triton_renderer.protocol.stages import ChunkChoice, DerenderContext, GeneratedChunk
from triton_renderer.text.detokenizer import PROMPT_TAIL

log = logging.getLogger(__name__)


def derender_responses(request: DerenderResponsesRequest, model: OutputModel) -> JsonObject:
    """One whole response, of one choice, as a Response. Raises InvalidRequest as `derender_chat` does."""
    asked = translated_within(request.responses_request, "responses_request")
    return _derender_translated(request, asked, asked.form(request.sampling_params), model)


def derender_messages(request: DerenderMessagesRequest, model: OutputModel) -> JsonObject:
    """One whole response, of one choice, as a message. Raises InvalidRequest as `derender_chat` does."""
    asked = translated_within(request.messages_request, "messages_request")
    return _derender_translated(request, asked, asked.form(None), model)


def _derender_translated(
    request: DerenderResponsesRequest | DerenderMessagesRequest, asked: Translated, form: AnswerForm, model: OutputModel
) -> JsonObject:
    choices = request.generate_response.choices
    if len(choices) > 1:
        where = "generate_response.choices"
        raise InvalidRequest(f"{where}: {len(choices)} choices, this API knows only one", where)
    chat = DerenderChatRequest.model_construct(
        model=request.model,
        generate_response=request.generate_response,
        prompt_tokens=request.prompt_tokens,
        prompt_token_ids=request.prompt_token_ids,
        chat_request=asked.chat,
    )
    return derender_chat(chat, model, form)


def derender_chat(request: DerenderChatRequest, model: OutputModel, form: AnswerForm | None = None) -> JsonObject:
    """One whole response as a chat completion, or in another form.

    Raises InvalidRequest, or NotFound for another model's name, before anything is decoded.
    """
    check_model_name(request.model, model.name)
    require_chat_request(request.chat_request is not None, model)
    if request.prompt_token_ids is not None:
        check_prompt(request.prompt_token_ids, "prompt_token_ids", model)
    response = request.generate_response
    check_response(response, "generate_response", model)
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
    if request.chat_request is not None:
        context = context.model_copy(update=asked_of_chat(request.chat_request) | {"form": form})
    prompt_tokens = _prompt_tokens(request.prompt_tokens, response, request.prompt_token_ids)
    return _answer(model, context, response, "generate_response", prompt_tokens)


def derender_completion(request: DerenderCompletionRequest, model: OutputModel) -> JsonObject:
    """The responses to all prompts of a request as one completion, whose choices are numbered through.

    Raises InvalidRequest, or NotFound for another model's name, before anything is decoded.
    """
    check_model_name(request.model, model.name)
    responses = request.generate_responses
    if not 1 <= len(responses) <= MAX_RESPONSES:
        raise InvalidRequest(
            f"generate_responses: {len(responses)} responses, there must be 1 to {MAX_RESPONSES}", "generate_responses"
        )
    given: Sequence[list[int] | None] = request.prompt_token_ids or [None] * len(responses)
    counts: Sequence[int | None] = request.prompt_tokens or [None] * len(responses)
    for position, (response, prompt) in enumerate(zip(responses, given, strict=True)):
        if prompt is not None:
            check_prompt(prompt, f"prompt_token_ids.{position}", model)
        check_response(response, f"generate_responses.{position}", model)
    asked = asked_of_completion(request.completion_request) if request.completion_request is not None else {}
    created, answers, offset = int(time.time()), list[JsonObject](), 0
    for position, (response, ids, count) in enumerate(zip(responses, given, counts, strict=True)):
        prompt = ids if ids is not None else response.prompt_token_ids
        context = DerenderContext(
            kind="completion",
            id=responses[0].request_id,
            created=created,
            model=request.model or model.name,
            stream=False,
            choice_offset=offset,
            prompt_tail=(prompt or [])[-PROMPT_TAIL:],
            prompt_token_ids=prompt,
            want_logprobs=any(choice.logprobs is not None for choice in response.choices),
        ).model_copy(update=asked)
        prompt_tokens = _prompt_tokens(count, response, ids)
        answers.append(_answer(model, context, response, f"generate_responses.{position}", prompt_tokens, renumber=True))
        offset += len(response.choices)
    return _merged(answers)


def require_chat_request(is_there: bool, model: OutputModel) -> None:
    """Raises InvalidRequest where a parser cannot do without the request."""
    if not is_there and (model.reasoning_parser or model.tool_parser):
        raise InvalidRequest(
            "chat_request is required: a reasoning or tool call parser is configured, and it needs to know what was asked for",
            "chat_request",
        )


def _answer(
    model: OutputModel,
    context: DerenderContext,
    response: GenerateResponse,
    where: str,
    prompt_tokens: int,
    *,
    renumber: bool = False,
) -> JsonObject:
    """A checked response as the answer that the coupled route makes of a request's first and last chunk.

    With `renumber` the choices are numbered in the order in which they stand.
    """
    token_ids = [token_id for choice in response.choices for token_id in choice.token_ids]
    choices = [
        ChunkChoice(
            index=position if renumber else choice.index,
            num_tokens=len(choice.token_ids),
            # As in the reference, a choice that says nothing of it ended by itself.
            finish_reason=(
                finish_reason_of(choice, f"{where}.choices.{position}")
                if "finish_reason" in choice.model_fields_set
                else "stop"
            ),
            stop_reason=choice.stop_reason,
            logprobs=logprobs_of(choice, f"{where}.choices.{position}"),
        )
        for position, choice in enumerate(response.choices)
    ]
    chunk = GeneratedChunk(
        id=response.request_id,
        choices=choices,
        final=True,
        prompt_tokens=prompt_tokens,
        completion_tokens=len(token_ids),
        cached_tokens=cached_tokens(response),
        prompt_token_ids=response.prompt_token_ids,
        kv_transfer_params=response.kv_transfer_params,
        ec_transfer_params=response.ec_transfer_params,
        prompt_logprobs=response.prompt_logprobs,
    )
    (document,) = answer_for(model, context, is_strict=False).documents(token_ids, chunk)
    if context.form is None:  # the choices stay in the order of the response, as in the reference
        numbered = {choice["index"]: choice for choice in document["choices"]}
        document["choices"] = [numbered[context.choice_offset + choice.index] for choice in choices]
    return document


def cached_tokens(response: GenerateResponse) -> int:
    """How much of the prompt the engine took from its cache, as far as it says so."""
    details = response.usage.prompt_tokens_details if response.usage is not None else None
    cached = (details or {}).get("cached_tokens")
    return cached if type(cached) is int and 0 <= cached < TOO_MANY_TOKENS else 0


def _prompt_tokens(said: int | None, response: GenerateResponse, prompt_token_ids: list[int] | None) -> int:
    """As the caller says; else as the engine counted; else as many as the caller sent, which may be the prompt's end only."""
    if said is not None:
        return said
    if response.usage is not None:
        return response.usage.prompt_tokens
    return len(prompt_token_ids or [])


def _merged(answers: list[JsonObject]) -> JsonObject:
    """One completion of those of several prompts. What they hand on is kept where they all say the same."""
    merged = answers[0] | {
        "choices": [choice for answer in answers for choice in answer["choices"]],
        "usage": _sum([answer["usage"] for answer in answers]),
    }
    for name in ("kv_transfer_params", "ec_transfer_params"):
        if any(answer[name] != merged[name] for answer in answers[1:]):
            log.warning("%s differ between the responses to the prompts of %r: they are left out", name, merged["id"])
            merged[name] = None
    return merged


def _sum(usages: list[JsonObject]) -> JsonObject:
    cached = sum((usage["prompt_tokens_details"] or {}).get("cached_tokens", 0) for usage in usages)
    counts: dict[str, Any] = {
        name: sum(usage[name] for usage in usages) for name in ("prompt_tokens", "total_tokens", "completion_tokens")
    }
    return counts | {
        "prompt_tokens_details": {"cached_tokens": cached} if cached else None,
        "completion_tokens_details": None,
    }
