"""What the derender routes take."""

from typing import Annotated, Literal

from pydantic import Field

from triton_renderer.protocol.base import TokenId, Wire
from triton_renderer.protocol.generate import GenerateResponse
from triton_renderer.protocol.openai import ChatCompletionRequest

MAX_CHOICES = 128


class DerenderChatRequest(Wire):
    """POST /v1/chat/completions/derender, one-shot: a whole GenerateResponse becomes a chat completion."""

    stream: Literal[False] | None = False
    model: str | None = None
    generate_response: GenerateResponse
    prompt_tokens: Annotated[int, Field(ge=0)] | None = None
    prompt_token_ids: list[TokenId] | None = None
    chat_request: ChatCompletionRequest | None = None
