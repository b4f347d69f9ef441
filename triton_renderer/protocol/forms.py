"""The form of an answer that is translated from the chat route's: what its translator needs to know of the request."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from triton_renderer.protocol.base import Wire

JsonObject = dict[str, Any]


class ResponsesForm(Wire):
    """The answer is a Response. `head` holds the fields that repeat the request."""

    kind: Literal["responses"] = "responses"
    head: JsonObject
    custom_tools: list[str] = []
    """Tools whose calls are `custom_tool_call` items."""


class MessagesForm(Wire):
    """The answer is an Anthropic message."""

    kind: Literal["messages"] = "messages"


AnswerForm = Annotated[ResponsesForm | MessagesForm, Field(discriminator="kind")]


class Translator(Protocol):
    """Turns the chunks of one chat answer into the events of another API.

    A chunk is a `chat.completion.chunk` with at most one choice and with the usage so far; the one with a finish reason is
    the last that matters. Events are JSON objects with a `type`.
    """

    def push(self, chunk: JsonObject) -> list[JsonObject]:
        """The events that a chunk makes ready."""
        ...

    def finish(self) -> list[JsonObject]:
        """The last events of an answer of which nobody says why it ended; none where it has ended."""
        ...

    def whole(self, events: Sequence[JsonObject], extras: JsonObject) -> JsonObject:
        """The answer of a request that does not stream: what all `events` of it add up to.

        `extras`: what the chat completion hands on besides its choices, of which `kv_transfer_params` and
        `ec_transfer_params` are part of the answer.
        """
        ...

    def state(self) -> JsonObject:
        """The state as plain JSON, for `restore`."""
        ...

    def restore(self, state: JsonObject) -> None:
        """Goes on from a `state` of a translator with the same form. Raises InvalidRequest for one that cannot be that."""
        ...
