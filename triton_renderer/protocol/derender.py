"""What the derender routes take: each route a whole answer, or with `stream` one chunk of an answer at a time."""

from typing import Any, Literal, Self

from pydantic import model_validator

from triton_renderer.protocol.base import TokenCount, TokenId, Wire
from triton_renderer.protocol.generate import GenerateChoice, GenerateResponse
from triton_renderer.protocol.messages.request import MessagesRequest
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest
from triton_renderer.protocol.responses.request import ResponsesRequest
from triton_renderer.protocol.sampling import SamplingParams

MAX_CHOICES = 128
MAX_RESPONSES = 16_384
"""Prompts of one completion request; the reference's limit."""


class ResponseChunk(GenerateResponse):
    """One chunk of a generate stream: at most one choice, or usage alone."""

    choices: list[GenerateChoice]


class DerenderChatRequest(Wire):
    """POST /v1/chat/completions/derender, one-shot: a whole generate response becomes a chat completion."""

    stream: Literal[False] | None = False
    model: str | None = None
    generate_response: GenerateResponse
    prompt_tokens: TokenCount | None = None
    prompt_token_ids: list[TokenId] | None = None
    chat_request: ChatCompletionRequest | None = None


class DerenderCompletionRequest(Wire):
    """POST /v1/completions/derender, one-shot: the responses to all prompts of a request become one completion."""

    stream: Literal[False] | None = False
    model: str | None = None
    generate_responses: list[GenerateResponse]
    prompt_tokens: list[TokenCount] | None = None
    prompt_token_ids: list[list[TokenId] | None] | None = None
    completion_request: CompletionRequest | None = None

    @model_validator(mode="after")
    def _one_entry_a_prompt(self) -> Self:
        expected = len(self.generate_responses)
        for name in ("prompt_tokens", "prompt_token_ids"):
            entries = getattr(self, name)
            if entries is not None and len(entries) != expected:
                raise ValueError(f"{name} has {len(entries)} entries and generate_responses {expected}; they must be equal")
        return self


class DerenderResponsesRequest(Wire):
    """POST /v1/responses/derender, one-shot: a whole generate response, of one choice, becomes a Response.

    `sampling_params`: those of the rendered request, so that the Response says what was used; else it says what was asked for.
    """

    stream: Literal[False] | None = False
    model: str | None = None
    generate_response: GenerateResponse
    prompt_tokens: TokenCount | None = None
    prompt_token_ids: list[TokenId] | None = None
    responses_request: ResponsesRequest
    sampling_params: SamplingParams | None = None


class DerenderMessagesRequest(Wire):
    """POST /v1/messages/derender, one-shot: a whole generate response, of one choice, becomes a message."""

    stream: Literal[False] | None = False
    model: str | None = None
    generate_response: GenerateResponse
    prompt_tokens: TokenCount | None = None
    prompt_token_ids: list[TokenId] | None = None
    messages_request: MessagesRequest


class StreamCall(Wire):
    """One call of a streaming derender route, but for what was asked for and for the state: both are read on their own.

    `prompt_token_ids` are needed with the first call only.
    """

    stream: Literal[True]
    model: str | None = None
    generate_chunk: ResponseChunk
    prompt_tokens: TokenCount | None = None
    prompt_token_ids: list[TokenId] | None = None


class DerenderChatStreamRequest(StreamCall):
    """POST /v1/chat/completions/derender with `stream`: one chunk of one choice."""

    stream_state: dict[str, Any] | None = None
    """What the call before answered, unchanged; null or absent with the first call of each choice."""
    chat_request: ChatCompletionRequest | None = None


class DerenderCompletionStreamRequest(StreamCall):
    """POST /v1/completions/derender with `stream`: one chunk of one choice."""

    stream_state: dict[str, Any] | None = None
    """What the call before answered, unchanged; null or absent with the first call of each choice."""
    completion_request: CompletionRequest | None = None


class DerenderResponsesStreamRequest(StreamCall):
    """POST /v1/responses/derender with `stream`: one chunk, whose events are the answer."""

    stream_state: dict[str, Any] | None = None
    """What the call before answered, unchanged; null or absent with the first call."""
    responses_request: ResponsesRequest
    sampling_params: SamplingParams | None = None


class DerenderMessagesStreamRequest(StreamCall):
    """POST /v1/messages/derender with `stream`: one chunk, whose events are the answer."""

    stream_state: dict[str, Any] | None = None
    """What the call before answered, unchanged; null or absent with the first call."""
    messages_request: MessagesRequest
