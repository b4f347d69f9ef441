"""What every request passes on its way in and out: the API key, the log, the counters, the last resort."""

import hmac
import logging
from time import perf_counter
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client.shim.errors import LONGEST_TEXT, Unauthorized, error_response, failure_of, note_failure
from client.shim.metrics import Metrics
from triton_renderer.errors import Cancelled, RendererError

logger = logging.getLogger(__name__)

OPEN_PATH = "/health"
"""The one route that asks for no key, so that an orchestrator can look at it."""


class ApiKey:
    """Refuses requests without the key, in constant time."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == OPEN_PATH or self._is_known(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        error = Unauthorized("a valid API key is needed: send it as `Authorization: Bearer <key>`, or as `x-api-key`")
        note_failure(scope, error)
        await error_response(error, scope)(scope, receive, send)

    def _is_known(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")  # where Anthropic's clients put it
        # Header values are bytes that arrive decoded as Latin-1; back to the bytes, which are UTF-8 for other keys.
        return hmac.compare_digest(key.strip().encode("latin-1"), self._expected)


class Observer:
    """Logs and counts each request, and makes a 500 without internals of an exception that nobody expected."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = perf_counter()
        status = 0

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, observed_send)
        except Exception:
            logger.exception("%s %s failed unexpectedly", scope["method"], scope["path"])
            if status:
                raise
            failure = RendererError("internal server error")
            note_failure(scope, failure)
            await error_response(failure, scope)(scope, receive, observed_send)
        finally:
            self._record(scope, status, perf_counter() - start)

    def _record(self, scope: Scope, sent: int, seconds: float) -> None:
        failure = failure_of(scope)
        status = sent
        if sent < 400:
            status = failure.status if failure else sent or Cancelled.status
        route = getattr(scope.get("route"), "path", "unknown")
        self._metrics.count_request(route, status, seconds)
        level = logging.INFO if status >= 400 and scope["path"] != OPEN_PATH else logging.DEBUG
        # A path and a message can hold what the client sent: quoted, they cannot pass for lines of their own.
        reason = f": {failure.message[:LONGEST_TEXT]!r}" if failure else ""
        logger.log(level, "%s %s %d after %.3f s%s", scope["method"], quote(scope["path"]), status, seconds, reason)
