"""Request bodies: read with a limit, parsed strictly, kept off the event loop where they are large."""

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

import orjson
from fastapi import Request

from client.shim.errors import BadBody
from triton_renderer.errors import InvalidRequest, TooLarge
from triton_renderer.protocol.base import Model, Wire, parse

OFFLOAD_BYTES = 256 * 1024
"""Work on more bytes than this goes to a thread: it would hold up the streams of others."""

MAX_ID_LENGTH = 512

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a JSON request.

    Raises BadBody for another content type, TooLarge as soon as more than `limit` bytes are announced or have come.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise BadBody("Unsupported Media Type: Only 'application/json' is allowed")
    too_large = TooLarge(f"the request body is larger than the {limit} bytes that this server takes")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise too_large
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise too_large
    return bytes(body)


async def offload(
    num_bytes: int, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """`function(*args)`, in a thread where it works on more than a few bytes."""
    if num_bytes <= OFFLOAD_BYTES:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


def load_object(body: bytes) -> dict[str, Any]:
    """`body` as a JSON object. Strict: no NaN, no Infinity, valid UTF-8, limited depth; else BadBody."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadBody(f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadBody("the body must be a JSON object")
    return document


def parse_as(model: type[Model], document: dict[str, Any]) -> Model:
    """`protocol.base.parse` for what a client sent: a misfit is a BadBody."""
    try:
        return parse(model, document)
    except InvalidRequest as error:
        raise BadBody(error.message, error.param) from error


def dump(document: Wire) -> bytes:
    """A document that carries parts of a client's body on, as JSON. Raises BadBody where those are nested too deeply."""
    try:
        return document.model_dump_json().encode()
    except ValueError as error:
        raise BadBody("the body is nested too deeply") from error


def client_request_id(request: Request, from_body: str | None) -> str:
    """The client's own id of its request: the header X-Request-Id, else the body's `request_id`, else a new one."""
    header = request.headers.get("x-request-id")
    if header and len(header) > MAX_ID_LENGTH:
        raise InvalidRequest(f"X-Request-Id must be at most {MAX_ID_LENGTH} characters long", "X-Request-Id")
    return header or from_body or new_id()


def new_id() -> str:
    """An id that nothing else has."""
    return uuid4().hex
