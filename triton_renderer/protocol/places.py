"""A request that is translated: where each part of the result came from, so that errors speak of what the client sent."""

from collections.abc import Mapping

from triton_renderer.errors import InvalidRequest


class Places:
    """Dotted paths of a translated document, and those of the original that they stand for.

    A path below a known one keeps its rest: with {"messages.1": "input.0"}, `messages.1.content.2` was `input.0.content.2`.
    """

    def __init__(self, origins: Mapping[str, str]) -> None:
        self._origins = dict(origins)

    def original(self, path: str) -> str:
        """The original's path; `path` itself where nothing is known of it."""
        parts = path.split(".")
        for length in range(len(parts), 0, -1):
            origin = self._origins.get(".".join(parts[:length]))
            if origin is not None:
                return ".".join([origin, *parts[length:]])
        return path

    def restored(self, error: InvalidRequest) -> InvalidRequest:
        """The same error about the original."""
        if not error.param:
            return error
        return _moved(error, error.param, self.original(error.param))


def within(error: InvalidRequest, field: str) -> InvalidRequest:
    """The same error about a document that has the original as `field`."""
    return _moved(error, error.param, f"{field}.{error.param}") if error.param else type(error)(error.message, field)


def _moved(error: InvalidRequest, old: str | None, new: str) -> InvalidRequest:
    """The error's message begins with its place, where it has one."""
    message = error.message
    if old and message.startswith(old):
        message = new + message.removeprefix(old)
    return type(error)(message, new)
