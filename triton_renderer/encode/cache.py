"""The encoder cache: outputs of the vision tower, kept by digest within a byte budget."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

import torch

from triton_renderer.protocol.stages import FeatureForm

MAX_ALIASES = 65_536


@dataclass(frozen=True)
class EncoderOutput:
    """What the tower made of one item.

    `features` has shape [1 + deepstack, rows, hidden] in the model's dtype, on the model's device. `metadata` are the
    model inputs that the language model needs besides, as nested lists of integers ({"image_grid_thw": [1, 6, 6]}). `form` is
    the one in which the tower returned the rows.
    """

    digest: str
    features: torch.Tensor
    metadata: dict[str, list[int]] = field(default_factory=dict)
    form: FeatureForm = "list"

    @property
    def rows(self) -> int:
        """Embeddings, that is placeholder tokens, of the item."""
        return self.features.shape[1]

    @property
    def num_bytes(self) -> int:
        """Memory of the features."""
        return self.features.numel() * self.features.element_size()


class EncoderCache:
    """Least recently used outputs go first. Safe to use from several threads.

    The key is the digest that this server computed over an item's content. What a client calls the item (`mm_hash`) is an
    alias and finds an output only while all contents seen under that name were one and the same.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.hits = 0
        self.misses = 0
        self._outputs: OrderedDict[str, EncoderOutput] = OrderedDict()
        self._aliases: OrderedDict[str, str | None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._outputs)

    def get(self, digest: str) -> EncoderOutput | None:
        """The output of the item with this content, counted as hit or miss."""
        with self._lock:
            output = self._outputs.get(digest)
            if output is None:
                self.misses += 1
                return None
            self.hits += 1
            self._outputs.move_to_end(digest)
            return output

    def put(self, output: EncoderOutput) -> None:
        """Keeps `output` as the most recently used. One that exceeds the whole budget is not kept."""
        with self._lock:
            if output.digest in self._outputs or output.num_bytes > self.max_bytes:
                return
            self._outputs[output.digest] = output
            self.num_bytes += output.num_bytes
            while self.num_bytes > self.max_bytes:
                _, evicted = self._outputs.popitem(last=False)
                self.num_bytes -= evicted.num_bytes

    def name(self, alias: str, digest: str) -> None:
        """Notes that a client called this content `alias`. A name seen with two contents names none from then on."""
        with self._lock:
            known = self._aliases.get(alias, digest)
            self._aliases[alias] = digest if known == digest else None
            self._aliases.move_to_end(alias)
            if len(self._aliases) > MAX_ALIASES:
                self._aliases.popitem(last=False)

    def resolve(self, alias: str) -> str | None:
        """The digest of the one content that clients called `alias`; None where there is none, or more than one."""
        with self._lock:
            return self._aliases.get(alias)
