"""The two kinds of answer that stages give: one JSON document, or a stream of server-sent events.

Both are made while the client is watched. Nothing is sent before there is something to send, so that a request that
fails first gets a real status; one that fails in the middle of its stream gets an error event and no invented ending.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from fastapi import Response
from starlette.types import Receive, Scope, Send

from client.shim.context import Shim
from client.shim.errors import note_failure
from client.shim.events import DataEvents, EventForm
from client.shim.open_requests import ClientLeft, OpenRequest
from triton_renderer.errors import RendererError

logger = logging.getLogger(__name__)


class DocumentAnswer(Response):
    """One JSON document, as `produce` makes it."""

    def __init__(self, shim: Shim, request: OpenRequest, produce: Callable[[], Awaitable[bytes]]) -> None:
        super().__init__()
        self._shim = shim
        self._request = request
        self._produce = produce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._shim.opened(self._request, receive):
            document = await self._produce()
        await Response(document, media_type="application/json")(scope, receive, send)


class EventAnswer(Response):
    """`produce`'s JSON documents as server-sent events, as they come, in the form of the route's API."""

    def __init__(
        self,
        shim: Shim,
        request: OpenRequest,
        produce: Callable[[], AsyncGenerator[bytes, None]],
        form: EventForm | None = None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._shim = shim
        self._request = request
        self._produce = produce
        self._form = form or DataEvents()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_event(event: bytes) -> None:
            nonlocal started
            if not started:
                started = True
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": event, "more_body": True})

        try:
            async with self._shim.opened(self._request, receive), aclosing(self._produce()) as documents:
                async for document in documents:
                    await send_event(self._form.event(document))
        except Exception as error:
            if not started:
                raise
            failure = _told_to_the_client(error)
            note_failure(scope, failure)
            if isinstance(failure, ClientLeft):
                return
            await send_event(self._form.failure(failure))
        await send_event(self._form.end())
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _told_to_the_client(error: Exception) -> RendererError:
    """An unexpected exception stays a 500; its text is for the log."""
    if isinstance(error, RendererError):
        return error
    logger.error("a stream failed unexpectedly", exc_info=error)
    return RendererError("internal server error")
