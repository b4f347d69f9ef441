"""The requests that derender is in the middle of."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from triton_renderer.derender.answer import Answer
from triton_renderer.derender.translated import TranslatedAnswer
from triton_renderer.errors import QueueFull

log = logging.getLogger(__name__)

OpenAnswer = Answer | TranslatedAnswer


@dataclass
class _Entry:
    answer: OpenAnswer
    last_used: float


class OpenRequests:
    """A table of answers by request id, bounded in number and in time.

    The chunks of a request may stop coming without a last one, for instance when its stage dies: what has not been used
    for `lifetime_s` seconds is dropped. Not safe for use by several threads.
    """

    def __init__(self, limit: int, lifetime_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._entries: dict[str, _Entry] = {}  # the one used longest ago comes first

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, request_id: str, answer: OpenAnswer) -> None:
        """Raises QueueFull where there is no room."""
        self._drop_expired()
        if len(self._entries) >= self._limit:
            raise QueueFull(f"derender holds {len(self._entries)} open requests, its limit is {self._limit}")
        self._entries[request_id] = _Entry(answer, self._clock())

    def get(self, request_id: str) -> OpenAnswer | None:
        """The answer of an open request; None for one that is not known, or no longer."""
        self._drop_expired()
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return None
        entry.last_used = self._clock()
        self._entries[request_id] = entry
        return entry.answer

    def remove(self, request_id: str) -> None:
        """Forgets a request."""
        self._entries.pop(request_id, None)

    def _drop_expired(self) -> None:
        oldest = self._clock() - self._lifetime_s
        for request_id, entry in list(self._entries.items()):
            if entry.last_used > oldest:
                break
            del self._entries[request_id]
            log.warning("request %s is dropped: no chunk of it has come for %.0f s", request_id, self._lifetime_s)
