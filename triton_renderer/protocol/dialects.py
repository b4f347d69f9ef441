"""The APIs that are translated to the chat route and back: one place for whoever serves them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.forms import AnswerForm, MessagesForm, ResponsesForm, Translator
from triton_renderer.protocol.messages import to_chat as messages_to_chat
from triton_renderer.protocol.messages.events import MessageEvents
from triton_renderer.protocol.messages.request import CountTokensRequest, MessagesRequest
from triton_renderer.protocol.openai import ChatCompletionRequest
from triton_renderer.protocol.places import Places, within
from triton_renderer.protocol.responses import to_chat as responses_to_chat
from triton_renderer.protocol.responses.events import ResponseEvents
from triton_renderer.protocol.responses.form import responses_form
from triton_renderer.protocol.responses.request import ResponsesRequest
from triton_renderer.protocol.sampling import SamplingParams

DialectRequest = ResponsesRequest | CountTokensRequest

FormOf = Callable[[SamplingParams | None], AnswerForm]

REQUESTS: dict[str, type[DialectRequest]] = {
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
    "count_tokens": CountTokensRequest,
}
"""The request of each kind of render job that is translated."""


@dataclass(frozen=True)
class Translated:
    """A request as the chat request that asks for the same, and the way back."""

    chat: ChatCompletionRequest
    places: Places
    """Where the chat request's parts came from."""
    form: FormOf
    """The answer's form, given what the request was resolved to, where that is known."""


def translated(request: DialectRequest, *, merge_systems: bool = False) -> Translated:
    """`merge_systems`: the chat template takes a system message at the start only.

    Raises InvalidRequest, in terms of `request`, where there is no such chat request.
    """
    if isinstance(request, ResponsesRequest):
        body, places = responses_to_chat.chat_request(request)
        return Translated(_chat(body, places), places, partial(responses_form, request))
    body, places = messages_to_chat.chat_request(request, merge_systems=merge_systems)
    return Translated(_chat(body, places), places, lambda sampling: MessagesForm())


def translated_within(request: DialectRequest, field: str) -> Translated:
    """`translated` where the request is the field `field` of another document: errors say so."""
    try:
        return translated(request)
    except InvalidRequest as error:
        raise within(error, field) from error


def translator(form: AnswerForm) -> Translator:
    """A new translator for one answer of this form."""
    return ResponseEvents(form) if isinstance(form, ResponsesForm) else MessageEvents()


def _chat(body: dict[str, Any], places: Places) -> ChatCompletionRequest:
    try:
        return parse(ChatCompletionRequest, body)
    except InvalidRequest as error:
        raise places.restored(error) from error
