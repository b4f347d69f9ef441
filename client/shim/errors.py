"""How errors leave the shim: one body for all of them, on every route and inside a stream; Anthropic's on its own routes."""

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from triton_renderer.errors import Cancelled, InvalidRequest, QueueFull, RendererError, StageUnavailable
from triton_renderer.protocol.base import ErrorInfo, ErrorResponse

RETRY_AFTER_S = 1

LONGEST_TEXT = 2000
"""Characters of a message or a path: both can repeat what the client sent, however long that was."""

ANTHROPIC_PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}

_FAILURE = "renderer.failure"


class Unauthorized(InvalidRequest):
    """The request carries no API key, or a wrong one."""

    status = 401
    type = "AuthenticationError"


class BodyTimeout(InvalidRequest):
    """The body did not come in time; a connection that sends nothing must not be held for ever."""

    status = 408
    type = HTTPStatus.REQUEST_TIMEOUT.phrase


def error_document(error: RendererError) -> bytes:
    """`{"error": {...}}` as a body, or as an event of a stream."""
    param = error.param and error.param[:LONGEST_TEXT]
    info = ErrorInfo(message=error.message[:LONGEST_TEXT], type=error.type, param=param, code=error.status)
    return ErrorResponse(error=info).model_dump_json().encode()


def anthropic_error(status: int, message: str) -> bytes:
    """The same in the form of Anthropic's API, with its names for the types."""
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message[:LONGEST_TEXT]}})


def error_response(error: RendererError, scope: Scope) -> Response:
    """The answer to a request that failed before anything was sent."""
    headers = {}
    if isinstance(error, QueueFull | StageUnavailable):
        headers["retry-after"] = str(RETRY_AFTER_S)
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    is_anthropic = scope["path"] in ANTHROPIC_PATHS
    body = anthropic_error(error.status, error.message) if is_anthropic else error_document(error)
    return Response(body, error.status, headers, "application/json")


def note_failure(scope: Scope, error: RendererError) -> None:
    """Remembers why a request failed, for the log and the counters: the status of a broken stream was 200 long ago."""
    scope[_FAILURE] = error


def failure_of(scope: Scope) -> RendererError | None:
    """What `note_failure` remembered."""
    failure: RendererError | None = scope.get(_FAILURE)
    return failure


async def on_renderer_error(request: Request, error: RendererError) -> Response:
    """Exception handler of RendererError."""
    note_failure(request.scope, error)
    return error_response(error, request.scope)


async def on_disconnect(request: Request, error: ClientDisconnect) -> Response:
    """Exception handler of ClientDisconnect: the client left while it was still sending."""
    return await on_renderer_error(request, Cancelled("the client left before its request was complete"))


async def on_http_exception(request: Request, error: HTTPException) -> Response:
    """Exception handler of what the framework raises itself: no such route, wrong method."""
    note_failure(request.scope, InvalidRequest(error.detail))
    if request.scope["path"] in ANTHROPIC_PATHS:
        return Response(anthropic_error(error.status_code, error.detail), error.status_code, error.headers, "application/json")
    info = ErrorInfo(message=error.detail, type=HTTPStatus(error.status_code).phrase, code=error.status_code)
    body = ErrorResponse(error=info).model_dump_json()
    return Response(body, error.status_code, error.headers, "application/json")


EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    RendererError: on_renderer_error,
    HTTPException: on_http_exception,
    ClientDisconnect: on_disconnect,
}
