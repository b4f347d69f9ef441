"""Sampling parameters of a request: its own value, else the model's generation_config.json, else the field's default."""

from typing import Any

from pydantic import ValidationError
from transformers import GenerationConfig
from transformers.utils import cached_file

from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.base import misfit
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest
from triton_renderer.protocol.sampling import SamplingParams
from triton_renderer.settings import SettingsError

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for the completion route; `max_tokens: null` means it as well, as in the reference."""

_WITH_DEFAULTS = (
    "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p",
)  # fmt: skip
_AS_GIVEN = (
    "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "prompt_logprobs", "allowed_token_ids",
    "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "thinking_token_budget",
)  # fmt: skip


def load_sampling_defaults(model: str) -> dict[str, Any]:
    """What the model's generation_config.json sets, by the names of SamplingParams; empty where it has none.

    `do_sample: false` without a temperature asks for the most likely tokens, that is temperature 0.
    Raises SettingsError where the file cannot be used.
    """
    if cached_file(model, "generation_config.json", _raise_exceptions_for_missing_entries=False) is None:
        return {}
    try:
        config = GenerationConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise SettingsError(f"MODEL={model}: its generation_config.json cannot be used: {error}") from error
    found = {name: getattr(config, name, None) for name in _WITH_DEFAULTS}
    defaults = {name: value for name, value in found.items() if value is not None}
    if config.do_sample is False and "temperature" not in defaults:
        defaults["temperature"] = 0.0
    if config.max_new_tokens is not None:
        defaults["max_tokens"] = config.max_new_tokens
    return defaults


def resolve_sampling(
    request: ChatCompletionRequest | CompletionRequest,
    defaults: dict[str, Any],
    structured_outputs: dict[str, Any] | None,
    *,
    num_prompt_tokens: int,
    max_model_len: int,
    vocab_size: int,
    keep_special_tokens: bool,
    for_generate: bool,
) -> SamplingParams:
    """The parameters, all of them written out; `max_tokens` is at most what fits behind the prompt.

    `keep_special_tokens`: a parser reads the output, and its marks may be special tokens. `for_generate`: they leave for the
    generate route, whose server is asked for the logprobs of a prompt that is to be echoed.
    Raises InvalidRequest for values out of range, and for token ids that the model does not have.
    """
    values: dict[str, Any] = {name: _given(request, name, defaults) for name in _WITH_DEFAULTS}
    values = {name: value for name, value in values.items() if value is not None}
    values |= {name: getattr(request, name) for name in _AS_GIVEN}
    values |= {
        "n": 1 if request.n is None else request.n,
        "max_tokens": min(_wanted_tokens(request, defaults, max_model_len), max_model_len - num_prompt_tokens),
        "logprobs": _logprobs(request),
        "bad_words": request.bad_words or None,
        "logit_bias": _logit_bias(request.logit_bias),
        "structured_outputs": structured_outputs,
    }
    if keep_special_tokens:
        values["skip_special_tokens"] = False
    if for_generate and request.echo and request.prompt_logprobs is None:
        values["prompt_logprobs"] = request.logprobs if isinstance(request, CompletionRequest) else request.top_logprobs
    if request.seed == -1:  # a way to say that there is none
        values["seed"] = None
    try:
        params = SamplingParams.model_validate(values)
    except ValidationError as error:
        raise misfit(error) from error
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        _check_token_ids(getattr(params, name), name, vocab_size)
    return params.model_copy(update={"top_p": 1.0, "top_k": 0, "min_p": 0.0}) if params.is_greedy else params


def _given(request: ChatCompletionRequest | CompletionRequest, name: str, defaults: dict[str, Any]) -> Any:
    value = getattr(request, name)
    return defaults.get(name) if value is None else value


def _wanted_tokens(request: ChatCompletionRequest | CompletionRequest, defaults: dict[str, Any], max_model_len: int) -> int:
    """`max_tokens` as the client or the model wants it, whatever the prompt leaves."""
    if isinstance(request, CompletionRequest):
        name, wanted = "max_tokens", DEFAULT_COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    elif request.max_completion_tokens is not None:
        name, wanted = "max_completion_tokens", request.max_completion_tokens
    elif request.max_tokens is not None:
        name, wanted = "max_tokens", request.max_tokens
    else:
        return int(defaults.get("max_tokens", max_model_len))
    if wanted < 1:
        raise InvalidRequest(f"{name}: must be at least 1, not {wanted}", name)
    if wanted > max_model_len:
        raise InvalidRequest(f"{name}: {wanted} is more than the context length of {max_model_len} tokens", name)
    return wanted


def _logprobs(request: ChatCompletionRequest | CompletionRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        return request.logprobs
    return (request.top_logprobs or 0) if request.logprobs else None


def _logit_bias(bias: dict[str, float] | None) -> dict[int, float] | None:
    if bias is None:
        return None
    for token_id in bias:
        if not (token_id.isascii() and token_id.isdigit() and len(token_id) < 19):
            raise InvalidRequest(f"logit_bias: {token_id[:32]!r} is not a token id", "logit_bias")
    return {int(token_id): value for token_id, value in bias.items()}


def _check_token_ids(token_ids: Any, name: str, vocab_size: int) -> None:
    for token_id in token_ids or ():
        if token_id >= vocab_size:
            raise InvalidRequest(f"{name}: the model has no token {token_id}, only 0 to {vocab_size - 1}", name)
