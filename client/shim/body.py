"""Request bodies: read with a limit, parsed strictly. Work on large ones goes through `concurrency.offload`."""

import asyncio
from typing import Any
from uuid import uuid4

import orjson
from fastapi import Request

from client.shim.errors import BodyTimeout
from triton_renderer.errors import BadBody, InvalidRequest, TooLarge
from triton_renderer.protocol.base import Wire

MAX_ID_LENGTH = 512
BODY_TIMEOUT_S = 60.0
MAX_DEPTH = 100
"""Lists and objects within each other. What the stages put around a body must still fit their parsers' limit of 255."""


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a JSON request.

    Raises BadBody for another content type, TooLarge as soon as more than `limit` bytes are announced or have come, and
    BodyTimeout where it takes longer than BODY_TIMEOUT_S.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise BadBody("Unsupported Media Type: Only 'application/json' is allowed")
    too_large = TooLarge(f"the request body is larger than the {limit} bytes that this server takes")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise too_large
    except TimeoutError as error:
        raise BodyTimeout(f"the request body did not come within {BODY_TIMEOUT_S:g} s") from error
    return bytes(body)


def load_object(body: bytes) -> dict[str, Any]:
    """`body` as a JSON object. Strict: no NaN, no Infinity, valid UTF-8, limited depth; else BadBody."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadBody(f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadBody("the body must be a JSON object")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deeper(document, MAX_DEPTH):
        raise BadBody(f"the body is nested more than {MAX_DEPTH} levels deep")
    return document


def _is_deeper(document: Any, depth: int) -> bool:
    """Something in `document` is inside more than `depth` lists and objects."""
    level = [document]
    for _ in range(depth):
        level = [child for node in level for child in (node.values() if isinstance(node, dict) else node)]
        level = [node for node in level if isinstance(node, dict | list)]
        if not level:
            return False
    return True


def set_fields(body: Wire) -> dict[str, Any]:
    """What a client set of the fields of `body`: unknown ones and defaults are not there. BadBody where nested too deeply."""
    try:
        return body.model_dump(exclude_unset=True)
    except ValueError as error:
        raise BadBody("the body is nested too deeply") from error


def dump(document: Wire, *, exclude_unset: bool = False) -> bytes:
    """A document that carries parts of a client's body on, as JSON. Raises BadBody where those are nested too deeply."""
    try:
        return document.model_dump_json(exclude_unset=exclude_unset).encode()
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
