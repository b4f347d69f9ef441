"""The errors of the library, and how each one looks to a client.

    RendererError                 500  anything of ours that went wrong
    ├── InvalidRequest            400  the request does not fit, `param` says where
    │   ├── BadBody               400  … because its body is not of the documented form
    │   ├── NotFound              404  no such model, or no such route on this server
    │   ├── NoHistory             400  the request refers to an earlier answer, and none is kept
    │   ├── Forbidden             403  the route is switched off
    │   └── TooLarge              413  the request is larger than the server takes
    ├── QueueFull                 429  no room to wait in
    ├── Cancelled                 499  the client left or aborted
    └── StageUnavailable          503  a stage is down, or Triton is not reachable

An error crosses Triton as one line of text (`to_wire`), since a Triton error carries a message and a coarse code and an
ensemble puts words of its own in front. `from_wire` finds the class again on the other side; what it does not
recognise is a RendererError, thus a 500: an unexpected exception is never dressed up as the client's mistake.
"""

import re
from typing import ClassVar


class RendererError(Exception):
    """Base of all errors. `message` is for the client: no traceback, no path of this machine."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "InternalServerError"
    triton_code: ClassVar[str] = "INTERNAL"  # name of a constant of pb_utils.TritonError

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(RendererError):
    """The request cannot be served as it is; sending it again changes nothing."""

    status = 400
    type = "BadRequestError"
    triton_code = "INVALID_ARG"


class BadBody(InvalidRequest):
    """The body is not JSON, or not of the documented form. The reference gives these a type of their own."""

    type = "Bad Request"


class NotFound(InvalidRequest):
    """The named model, or the route, is not served here."""

    status = 404
    type = "NotFoundError"
    triton_code = "NOT_FOUND"


class NoHistory(InvalidRequest):
    """The request refers to an earlier answer, or wants its own to be kept; this server keeps none."""

    type = "invalid_request_error"


class Forbidden(InvalidRequest):
    """The route exists but is switched off."""

    status = 403
    type = "ForbiddenError"
    triton_code = "UNSUPPORTED"


class TooLarge(InvalidRequest):
    """The request exceeds a size limit of the server."""

    status = 413
    type = "RequestTooLargeError"


class QueueFull(RendererError):
    """More requests are waiting than the server admits; try again later."""

    status = 429
    type = "RateLimitError"
    triton_code = "UNAVAILABLE"


class Cancelled(RendererError):
    """The client left, or the request was aborted."""

    status = 499
    type = "CancelledError"
    triton_code = "CANCELLED"


class StageUnavailable(RendererError):
    """A stage does not answer, or Triton cannot be reached; the same request may succeed later."""

    status = 503
    type = "ServiceUnavailableError"
    triton_code = "UNAVAILABLE"


ALL_ERRORS: tuple[type[RendererError], ...] = (
    InvalidRequest, BadBody, NotFound, NoHistory, Forbidden, TooLarge, QueueFull, Cancelled, StageUnavailable, RendererError,
)  # fmt: skip
_BY_NAME = {cls.__name__: cls for cls in ALL_ERRORS}
MAX_MESSAGE, MAX_PARAM = 2000, 200
_NOT_IN_PARAM = r"[\[\]\r\n]"
_STAGE_IS_DOWN = (  # Triton's own words, in lower case
    "is not healthy",  # the stub process died
    "is not ready",
    "no available versions",  # between unload and load
    "unavailable",
    "failed to connect",
)
_WIRE = re.compile(rf"\b({'|'.join(_BY_NAME)})(?:\[([^\]\n]*)\])?: (.*)", re.DOTALL)


def to_wire(error: RendererError) -> str:
    """`InvalidRequest[messages.0.content.1]: the picture is cut off`: readable as it is, and parsed by `from_wire`.

    Both parts may quote what a client sent, with any character and of any length; gRPC carries some 16 KB.
    """
    param = re.sub(_NOT_IN_PARAM, "?", error.param or "")[:MAX_PARAM]
    message = error.message if len(error.message) <= MAX_MESSAGE else f"{error.message[:MAX_MESSAGE]}…"
    return f"{type(error).__name__}{f'[{param}]' if param else ''}: {message}"


def from_wire(text: str) -> RendererError:
    """The error that `to_wire` wrote, whatever Triton put in front of it; else Triton's own text, classified."""
    found = _WIRE.search(text)
    if found:
        name, param, message = found.groups()
        return _BY_NAME[name](message, param)
    lowered = text.lower()
    if any(sign in lowered for sign in _STAGE_IS_DOWN):
        return StageUnavailable(text)
    return RendererError(text)
