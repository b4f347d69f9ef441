"""What goes wrong with a picture or video, and how the client gets to know which one it was."""

from collections.abc import Iterator
from contextlib import contextmanager

from triton_renderer.errors import InvalidRequest


class BadMedia(Exception):
    """A picture or video cannot be had or read. The message is for the client, and does not say which one."""


@contextmanager
def blamed_on(param: str) -> Iterator[None]:
    """Turns BadMedia into an InvalidRequest that names the part of the request."""
    try:
        yield
    except BadMedia as error:
        raise InvalidRequest(f"{param}: {error}", param) from error
