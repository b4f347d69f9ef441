"""Server-sent events, in the form that each API's clients expect: what a document looks like, a failure, and the end."""

from typing import Any, Protocol

import orjson

from client.shim.errors import anthropic_error, error_document
from triton_renderer.errors import RendererError


class EventForm(Protocol):
    """One stream's events, as bytes to send."""

    def event(self, document: bytes) -> bytes:
        """One JSON document."""
        ...

    def failure(self, error: RendererError) -> bytes:
        """The event of a request that fails in the middle of its stream."""
        ...

    def end(self) -> bytes:
        """What closes the stream; may be nothing."""
        ...


class DataEvents:
    """OpenAI's chat and completion routes: data without names, closed by `[DONE]`."""

    def event(self, document: bytes) -> bytes:
        return b"data: " + document + b"\n\n"

    def failure(self, error: RendererError) -> bytes:
        return self.event(error_document(error))

    def end(self) -> bytes:
        return self.event(b"[DONE]")


class MessagesEvents:
    """Anthropic's API: events named by their type; the last one says that it is."""

    def event(self, document: bytes) -> bytes:
        return _named(orjson.loads(document)["type"], document)

    def failure(self, error: RendererError) -> bytes:
        return _named("error", anthropic_error(error.status, error.message))

    def end(self) -> bytes:
        return b""


class ResponsesEvents:
    """OpenAI's Responses API: events named by their type and numbered; the last one says that it is."""

    def __init__(self) -> None:
        self._next_number = 0

    def event(self, document: bytes) -> bytes:
        event: dict[str, Any] = orjson.loads(document)
        self._next_number = event["sequence_number"] + 1
        return _named(event["type"], document)

    def failure(self, error: RendererError) -> bytes:
        """In the documented form, and with the `error` that makes clients raise instead of going on."""
        whole: dict[str, Any] = orjson.loads(error_document(error))
        told = {name: whole["error"][name] for name in ("message", "param")}
        number = {"sequence_number": self._next_number, "code": whole["error"]["type"]}
        return _named("error", orjson.dumps({"type": "error"} | number | told | whole))

    def end(self) -> bytes:
        return b""


def _named(name: str, document: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + document + b"\n\n"
