"""Requests whose grammar is being compiled: the engine does not know of them yet, and an abort must not be lost."""

import threading
from collections import Counter
from collections.abc import Iterable

from triton_renderer.protocol.stages import RequestContext


class CompilingRequests:
    """Remembers the aborts of requests that the engine will get soon. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()
        self._aborted: set[str] = set()

    def began(self, context: RequestContext) -> None:
        """The request is not the engine's yet."""
        with self._lock:
            self._open.update(_ids(context))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Notes the requests among them that the engine does not know of."""
        with self._lock:
            self._aborted.update(request_id for request_id in request_ids if self._open[request_id])

    def ended(self, context: RequestContext) -> list[str]:
        """The engine has it, or it has failed. Returns by which of its ids the engine is to abort it."""
        ids = _ids(context)
        with self._lock:
            aborted = [request_id for request_id in ids if request_id in self._aborted]
            self._open.subtract(ids)
            for request_id in ids:
                if self._open[request_id] <= 0:
                    del self._open[request_id]
                    self._aborted.discard(request_id)
        return aborted


def _ids(context: RequestContext) -> set[str]:
    return {context.id, context.external_id or context.id}
