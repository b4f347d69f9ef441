"""What the request that was rendered asked for, as far as it matters to its answer."""

from typing import Any

from triton_renderer.protocol.base import Wire, parse
from triton_renderer.protocol.dialects import translated_within
from triton_renderer.protocol.messages.request import MessagesRequest
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest
from triton_renderer.protocol.responses.request import ResponsesRequest
from triton_renderer.protocol.sampling import SamplingParams
from triton_renderer.protocol.stages import DerenderContext


class _OfChat(Wire):
    chat_request: ChatCompletionRequest | None


class _OfCompletion(Wire):
    completion_request: CompletionRequest | None


class _OfResponses(Wire):
    responses_request: ResponsesRequest
    sampling_params: SamplingParams | None = None


class _OfMessages(Wire):
    messages_request: MessagesRequest


def chat_context(request: Any) -> DerenderContext:
    """The context of an answer to the chat request `request`, parsed JSON or None; of its ids nothing is known.

    Raises BadBody where it is no chat request.
    """
    asked = parse(_OfChat, {"chat_request": request}).chat_request
    return _context("chat", {} if asked is None else asked_of_chat(asked))


def completion_context(request: Any) -> DerenderContext:
    """The same for a completion request."""
    asked = parse(_OfCompletion, {"completion_request": request}).completion_request
    return _context("completion", {} if asked is None else asked_of_completion(asked))


def responses_context(body: Any) -> DerenderContext:
    """The same for the fields `responses_request` and `sampling_params` of `body`."""
    asked = parse(_OfResponses, body)
    chat = translated_within(asked.responses_request, "responses_request")
    return _context("chat", asked_of_chat(chat.chat) | {"form": chat.form(asked.sampling_params)})


def messages_context(body: Any) -> DerenderContext:
    """The same for the field `messages_request` of `body`."""
    chat = translated_within(parse(_OfMessages, body).messages_request, "messages_request")
    return _context("chat", asked_of_chat(chat.chat) | {"form": chat.form(None)})


def asked_of_chat(asked: ChatCompletionRequest) -> dict[str, Any]:
    """Fields of a DerenderContext."""
    return {
        **asked.tool_choice_fields,
        **_text_options(asked),
        "include_reasoning": asked.include_reasoning,
        "top_logprobs": asked.shown_logprobs if asked.logprobs else None,
    }


def asked_of_completion(asked: CompletionRequest) -> dict[str, Any]:
    """Fields of a DerenderContext."""
    return _text_options(asked)


def _text_options(asked: ChatCompletionRequest | CompletionRequest) -> dict[str, Any]:
    return {
        "stop": asked.stop,
        "stop_token_ids": asked.stop_token_ids,
        "include_stop_str_in_output": asked.include_stop_str_in_output,
        "min_tokens": asked.min_tokens,
        "skip_special_tokens": asked.skip_special_tokens,
        "spaces_between_special_tokens": asked.spaces_between_special_tokens,
        "return_token_ids": asked.return_token_ids,
    }


def _context(kind: str, asked: dict[str, Any]) -> DerenderContext:
    return DerenderContext.model_validate(
        {"kind": kind, "id": "", "created": 0, "model": "", "stream": True, "want_logprobs": True, **asked}
    )
