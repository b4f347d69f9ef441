"""Generate responses are a client's word: their sizes and ids are checked before anything is decoded."""

from typing import cast, get_args

from triton_renderer.derender.model import OutputModel
from triton_renderer.errors import BadBody, InvalidRequest
from triton_renderer.protocol.derender import MAX_CHOICES
from triton_renderer.protocol.generate import GenerateChoice, GenerateLogprobs, GenerateResponse
from triton_renderer.protocol.stages import FinishReason

MAX_TOP_LOGPROBS = 21
"""Candidates of one token: the sampled one and the 20 that can be asked for."""

FINISH_REASONS: tuple[str, ...] = get_args(FinishReason)


def check_prompt(token_ids: list[int], where: str, model: OutputModel) -> None:
    """Raises InvalidRequest for a prompt that the model cannot have had. `where` is its place in the body."""
    if len(token_ids) > model.max_model_len:
        raise InvalidRequest(f"{where}: {len(token_ids)} tokens exceed the model's context of {model.max_model_len}", where)
    _check_ids(token_ids, where, model)


def check_response(response: GenerateResponse, where: str, model: OutputModel) -> None:
    """The same for a whole response: it has choices, and each has tokens."""
    check_mode(response, where)
    if not 1 <= len(response.choices) <= MAX_CHOICES:
        raise InvalidRequest(
            f"{where}.choices: {len(response.choices)} choices, there must be 1 to {MAX_CHOICES}", f"{where}.choices"
        )
    indices = [choice.index for choice in response.choices]
    if len(set(indices)) < len(indices):
        raise InvalidRequest(f"{where}.choices: two choices have the same index", f"{where}.choices")
    if response.prompt_token_ids is not None:
        check_prompt(response.prompt_token_ids, f"{where}.prompt_token_ids", model)
    if len(response.prompt_logprobs or []) > model.max_model_len:
        raise InvalidRequest(
            f"{where}.prompt_logprobs: more entries than the model's context of {model.max_model_len} tokens",
            f"{where}.prompt_logprobs",
        )
    for position, choice in enumerate(response.choices):
        here = f"{where}.choices.{position}"
        if not choice.token_ids:
            raise InvalidRequest(f"{here}.token_ids: there are none", f"{here}.token_ids")
        check_choice(choice, here, model)


def check_mode(response: GenerateResponse, where: str) -> None:
    """Raises BadBody for a response that is text already."""
    if response.output_mode == "text":
        raise BadBody(
            f"{where}.output_mode: a response of mode text is derendered already; mode tokens is needed", f"{where}.output_mode"
        )


def check_choice(choice: GenerateChoice, where: str, model: OutputModel, tokens_before: int = 0) -> None:
    """Raises InvalidRequest for a choice, or the newest part of one behind `tokens_before`, that cannot be the model's."""
    if len(choice.token_ids) + tokens_before > model.max_model_len:
        behind = f" behind {tokens_before}" if tokens_before else ""
        raise InvalidRequest(
            f"{where}.token_ids: {len(choice.token_ids)} tokens{behind} exceed the model's context of {model.max_model_len}",
            f"{where}.token_ids",
        )
    _check_ids(choice.token_ids, f"{where}.token_ids", model)
    finish_reason_of(choice, where)
    logprobs = logprobs_of(choice, where)
    if logprobs is None:
        return
    entries = logprobs.content or []
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


def finish_reason_of(choice: GenerateChoice, where: str) -> FinishReason | None:
    """Why the choice ended. Raises InvalidRequest for a reason that no engine gives."""
    if choice.finish_reason is None or choice.finish_reason in FINISH_REASONS:
        return cast("FinishReason | None", choice.finish_reason)
    raise InvalidRequest(
        f"{where}.finish_reason: {choice.finish_reason!r} is none of {', '.join(FINISH_REASONS)}", f"{where}.finish_reason"
    )


def logprobs_of(choice: GenerateChoice, where: str) -> GenerateLogprobs | None:
    """The choice's logprobs, None without content. Raises InvalidRequest where they are of text already."""
    if choice.logprobs is None or choice.logprobs.content is None:
        return None
    if isinstance(choice.logprobs, GenerateLogprobs):
        return choice.logprobs
    raise InvalidRequest(f"{where}.logprobs: logprobs of token ids are needed, not of text", f"{where}.logprobs")


def _check_ids(token_ids: list[int], where: str, model: OutputModel) -> None:
    if max(token_ids, default=0) < model.vocab_size:
        return
    position, token_id = next(pair for pair in enumerate(token_ids) if pair[1] >= model.vocab_size)
    raise InvalidRequest(
        f"{where}.{position}: {token_id} is not one of the {model.vocab_size} token ids", f"{where}.{position}"
    )
