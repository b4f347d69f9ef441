"""Pictures and videos that were rendered before.

The keys are digests that this process computes itself over the bytes, so that nobody can be given another one's
picture. A client's `uuid` is only a name for such a digest; a name that was used for two contents never hits again.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

BUDGET_BYTES = 256 * 2**20
MAX_NAMES = 65536

Modality = Literal["image", "video"]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True)
class RenderedItem:
    """One picture or video, ready to be sent on."""

    modality: Modality
    digest: str
    """Over the picture's pixels or the video's file, the processor's settings and the model: hexadecimal, 256 bits."""
    kwargs: bytes
    """The serialized item, and `metadata` its placeholder metadata, empty where it has none (`wire.py`)."""
    metadata: bytes
    token_ids: npt.NDArray[np.int64]
    """Its placeholder in the prompt."""
    is_embed: list[int] | None
    """As in `PlaceholderRange`."""
    text: str | None = None
    """As in `MediaInput`."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return len(self.kwargs) + len(self.metadata) + self.token_ids.nbytes


class ItemCache:
    """Rendered items within a byte budget, the longest unused leave first. Safe to use from several threads."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._budget = budget_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._items: OrderedDict[str, RenderedItem] = OrderedDict()
        self._digests: _Recent[bytes, str] = _Recent()
        self._names: _Recent[str, str | None] = _Recent()  # None: ambiguous

    def by_source(self, source: bytes) -> RenderedItem | None:
        """The item that was last rendered from the file with this digest."""
        with self._lock:
            return self._get(self._digests.get(source))

    def by_digest(self, digest: str) -> RenderedItem | None:
        """The item with this digest."""
        with self._lock:
            return self._get(digest)

    def by_name(self, name: str) -> RenderedItem | None:
        """The item that a client called `name`, if all that it ever called so was this one."""
        with self._lock:
            return self._get(self._names.get(name))

    def add(self, source: bytes, item: RenderedItem) -> None:
        """Keeps `item`, rendered from the file with digest `source`, unless it alone is over the budget."""
        with self._lock:
            self._digests.put(source, item.digest)
            if item.digest in self._items or item.nbytes > self._budget:
                return
            self._items[item.digest] = item
            self._bytes += item.nbytes
            while self._bytes > self._budget:
                self._bytes -= self._items.popitem(last=False)[1].nbytes

    def name(self, name: str, digest: str) -> None:
        """Notes that a client calls the item with this digest `name`."""
        with self._lock:
            known = self._names.get(name, digest)
            self._names.put(name, digest if known == digest else None)

    @property
    def nbytes(self) -> int:
        """Memory in use by the items."""
        return self._bytes

    def _get(self, digest: str | None) -> RenderedItem | None:
        item = self._items.get(digest) if digest is not None else None
        if item is not None:
            self._items.move_to_end(item.digest)
        return item


class _Recent(Generic[Key, Value]):
    """A map that forgets what was not used for longest."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key, default: Value | None = None) -> Value | None:
        if key not in self._entries:
            return default
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: Key, value: Value) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > MAX_NAMES:
            self._entries.popitem(last=False)
