"""The KV cache of the decode batch.

One buffer a layer, [rows, KV heads, columns, head size]. Sequences are aligned at their right end: row i holds its tokens
in columns [end - length_i, end), so that a decode step writes one column for all rows and reads plain views. Attention is
masked to each row's own columns by a [rows, end] mask, from which transformers builds the mask of any layer type.
"""

from typing import Any

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

MIN_COLUMNS = 128


class BatchKVCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """Keys and values of the sequences that decode together, in the order of `join`."""

    def __init__(self, num_layers: int) -> None:
        self._shared = _Shared()
        super().__init__(layers=[_Layer(self._shared) for _ in range(num_layers)])

    @property
    def num_rows(self) -> int:
        """Sequences in the batch."""
        return len(self._shared.lengths)

    @property
    def lengths(self) -> list[int]:
        """Cached tokens of each row."""
        return self._shared.lengths

    def join(self, prefilled: DynamicCache) -> None:
        """Adds a row: a copy of a prefilled sequence's keys and values ([1, KV heads, length, head size] a layer)."""
        shared = self._shared
        length = prefilled.get_seq_length()
        end = max(shared.end, length)
        if end > shared.end and shared.lengths:
            self._shift(end - shared.end)
        self._reserve(shared.num_rows + 1, end + 1)
        for layer, source in zip(self.layers, prefilled.layers, strict=True):
            layer.store(shared.num_rows, end - length, source.keys, source.values)
        shared.end = end
        shared.lengths.append(length)

    def leave(self, row: int) -> None:
        """Removes a row; the last one takes its place."""
        shared = self._shared
        last = shared.num_rows - 1
        for layer in self.layers:
            if row != last:
                layer.move_row(last, row, shared.end)
            layer.clear_row(last, shared.end)
        shared.lengths[row] = shared.lengths[last]
        shared.lengths.pop()
        if not shared.lengths:
            shared.end = 0
        elif (spare := shared.end - max(shared.lengths)) > MIN_COLUMNS:
            self._shift(-spare)

    def prepare_step(self) -> torch.Tensor:
        """Makes room for one more token a row; returns the mask [rows, end + 1], 1 where a row has a token."""
        shared = self._shared
        self._reserve(shared.num_rows, shared.end + 1)
        columns = torch.arange(shared.end + 1)
        starts = torch.tensor([shared.end - length for length in shared.lengths])
        return (columns >= starts.unsqueeze(1)).long()

    def advance(self) -> None:
        """After the forward pass of a step: every row is one token longer."""
        self._shared.end += 1
        self._shared.lengths = [length + 1 for length in self._shared.lengths]

    def clear(self) -> None:
        """Removes every row and frees the buffers."""
        self._shared.lengths, self._shared.end = [], 0
        for layer in self.layers:
            layer.keys = layer.values = None

    def check_integrity(self) -> None:
        """Raises RuntimeError where the books do not balance; called when the engine is idle and in tests."""
        shared = self._shared
        if shared.lengths and not 0 < max(shared.lengths) <= shared.end:
            raise RuntimeError(f"a row of {max(shared.lengths)} tokens does not fit {shared.end} columns")
        if not shared.lengths and shared.end:
            raise RuntimeError(f"no rows, but {shared.end} columns are in use")

    def _shift(self, columns: int) -> None:
        """Moves all rows to the right (to the left where negative)."""
        shared = self._shared
        self._reserve(shared.num_rows, shared.end + max(columns, 0) + 1)
        for layer in self.layers:
            layer.shift(columns, shared.num_rows, shared.end)
        shared.end += columns

    def _reserve(self, rows: int, columns: int) -> None:
        for layer in self.layers:
            layer.reserve(rows, columns)


class _Shared:
    """What all layers have in common: how many columns are in use, and the rows' lengths."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.end = 0

    @property
    def num_rows(self) -> int:
        return len(self.lengths)


class _Layer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped
    """One layer's buffers. Also serves sliding-window layers: all columns are kept, their mask is narrower."""

    is_sliding = False

    def __init__(self, shared: _Shared) -> None:
        super().__init__()
        self.keys: Any = None
        self.values: Any = None
        self._shared = shared

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise RuntimeError("the batch cache is filled by join, before the first step")

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the step's column; returns views of all rows' columns up to and with it."""
        rows, end = self._shared.num_rows, self._shared.end
        self.keys[:rows, :, end] = key_states[:, :, 0]
        self.values[:rows, :, end] = value_states[:, :, 0]
        return self.keys[:rows, :, : end + 1], self.values[:rows, :, : end + 1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._shared.end + query_length, 0

    def get_seq_length(self) -> int:
        return self._shared.end

    def get_max_length(self) -> int:
        return -1

    def store(self, row: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Copies [1, heads, length, size] into `row` from column `start`."""
        if self.keys is None:
            rows, columns = row + 1, start + keys.shape[2] + 1
            self.keys, self.values = _empty(keys, rows, columns), _empty(values, rows, columns)
        self.keys[row, :, start : start + keys.shape[2]] = keys[0]
        self.values[row, :, start : start + values.shape[2]] = values[0]

    def move_row(self, source: int, target: int, end: int) -> None:
        self.keys[target, :, :end] = self.keys[source, :, :end]
        self.values[target, :, :end] = self.values[source, :, :end]

    def clear_row(self, row: int, end: int) -> None:
        """A sequence that went wrong may leave NaN behind, which the next one's mask would not keep out: 0 · NaN is NaN."""
        self.keys[row, :, :end] = 0
        self.values[row, :, :end] = 0

    def shift(self, columns: int, rows: int, end: int) -> None:
        for buffer in (self.keys, self.values):
            source = buffer[:rows, :, max(-columns, 0) : end].clone()
            start = max(columns, 0)
            buffer[:rows, :, start : start + source.shape[2]] = source

    def reserve(self, rows: int, columns: int) -> None:
        """Grows the buffers, to double at least, so that growing costs little on average."""
        if self.keys is None or (rows <= self.keys.shape[0] and columns <= self.keys.shape[2]):
            return
        rows = self.keys.shape[0] if rows <= self.keys.shape[0] else max(rows, 2 * self.keys.shape[0])
        columns = self.keys.shape[2] if columns <= self.keys.shape[2] else max(columns, 2 * self.keys.shape[2])
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = _empty(old, rows, columns)
            new[: old.shape[0], :, : old.shape[2]] = old
            setattr(self, name, new)


def _empty(like: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    # Zeros, not uninitialised memory: a masked column still meets the softmax's weight of zero, and 0 · NaN is NaN.
    return like.new_zeros(rows, like.shape[1], max(columns, MIN_COLUMNS), like.shape[3])
