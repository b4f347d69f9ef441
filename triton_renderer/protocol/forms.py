"""The form of an answer that is translated from the chat route's: what its translator needs to know of the request."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

import orjson
from pydantic import Field

from triton_renderer.protocol.base import Wire

JsonObject = dict[str, Any]


def read_json(text: str) -> Any:
    """JSON that a model wrote and that an answer can hold as a value. Raises ValueError for any other text.

    Halves of surrogate pairs and what nests hundreds of levels deep cannot be handed on, only as text.
    """
    value = orjson.loads(text)
    try:
        orjson.dumps([[[[[[[[value]]]]]]]])  # an answer has it some levels down
    except orjson.JSONEncodeError as error:
        raise ValueError("nested too deeply") from error
    return value


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
