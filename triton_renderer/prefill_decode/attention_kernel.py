"""Attention of decoding sequences by a kernel that reads the KV cache where it lies.

torch's attention wants a sequence's keys and values side by side, padded to those of the longest, so that they are copied for
each layer. FlashAttention's `flash_attn_with_kvcache` follows the block tables itself. transformers knows where to find it,
installed or on the Hugging Face hub. Which blocks, head sizes and dtypes a build of it takes, and whether it is right, is
not taken on trust: `prove` tries it on the device before the first request comes.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import modeling_flash_attention_utils

from triton_renderer.checkpoint import CheckpointError, first_line
from triton_renderer.prefill_decode.blocks import BLOCK_TOKENS, NULL_BLOCK, blocks_for

_TABLE_NAMES = ("block_table", "page_table")
_TRIAL_WINDOW = 4096
"""A longer window is tried at this length: it is a number to the kernel like any other."""
_TOLERANCES = {torch.bfloat16: 3e-2, torch.float16: 5e-3}
_TOLERANCE = 1e-4


class AttentionKernel:
    """`flash_attn_with_kvcache`, for one token of each sequence."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        """`name`: of the setting, for errors. Raises CheckpointError for a function that takes no block tables."""
        self.name = name
        self._function = function
        parameters = inspect.signature(function).parameters
        tables = [table for table in _TABLE_NAMES if table in parameters]
        if not tables:
            raise CheckpointError(f"ATTENTION_KERNEL={name}: its flash_attn_with_kvcache takes no block tables")
        self._table_name = tables[0]
        self._has_windows, self._has_softcap = "window_size" in parameters, "softcap" in parameters

    @classmethod
    def load(cls, name: str) -> "AttentionKernel":
        """As transformers finds it. Raises CheckpointError where there is none."""
        try:
            function = modeling_flash_attention_utils.lazy_import_flash_attention(name)[0][2]
        except Exception as error:  # whatever an import of compiled code, or a download, raises
            raise CheckpointError(f"ATTENTION_KERNEL={name}: it cannot be loaded: {first_line(error)}") from error
        if function is None:
            raise CheckpointError(f"ATTENTION_KERNEL={name}: it has no flash_attn_with_kvcache, which reads paged caches")
        return cls(name, function)

    def can(self, window: int | None, softcap: float | None) -> bool:
        """It knows windows, and bounds of the scores, where they are asked for."""
        return (window is None or self._has_windows) and (softcap is None or self._has_softcap)

    def attend(
        self,
        queries: Tensor,
        pools: tuple[Tensor, Tensor],
        table: Tensor,
        lengths: Tensor,
        *,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Attention of each sequence's newest token to the sequence: [sequences, heads, size of a value].

        queries: [sequences, heads, size]. pools: keys and values, [KV heads, slots, size]. table: [sequences, blocks] int32.
        lengths: [sequences] int32, with the newest token. scaling: of the scores, by default 1 / sqrt(size).
        """
        keys, values = (pool.view(pool.shape[0], -1, BLOCK_TOKENS, pool.shape[2]).permute(1, 2, 0, 3) for pool in pools)
        options: dict[str, Any] = {self._table_name: table}
        if window is not None:
            options["window_size"] = (window - 1, 0)  # keys to the left of the token's own
        if softcap is not None:
            options["softcap"] = softcap
        out: Tensor = self._function(
            queries.unsqueeze(1), keys, values, cache_seqlens=lengths, softmax_scale=scaling, causal=True, **options
        )
        return out[:, 0]

    @torch.inference_mode()
    def prove(
        self,
        shapes: tuple[tuple[int, int], tuple[int, int]],
        heads: int,
        window: int | None,
        softcap: float | None,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Tries the kernel on sequences of several lengths in scattered blocks, against a plain computation in float32.

        shapes: (KV heads, size) of a token's keys, and of its values. Raises CheckpointError where the kernel refuses, or differs.
        """
        window = None if window is None else min(window, _TRIAL_WINDOW)
        trial = _Trial(shapes, heads, window, dtype, device)
        kind = f"blocks of {BLOCK_TOKENS} tokens, {heads} heads of {shapes[0][1]}, {str(dtype).removeprefix('torch.')}"
        try:
            out = self.attend(
                trial.queries, trial.pools, trial.table, trial.lengths, scaling=None, window=window, softcap=softcap
            ).float()
        except Exception as error:  # each build has its own
            raise CheckpointError(f"ATTENTION_KERNEL={self.name}: it refuses {kind}: {first_line(error)}") from error
        expected = trial.expected(softcap)
        tolerance = _TOLERANCES.get(dtype, _TOLERANCE)
        if out.shape != expected.shape or not torch.allclose(out, expected, rtol=tolerance, atol=tolerance):
            by = f"by up to {float((out - expected).abs().max()):.3g}" if out.shape == expected.shape else "in its shape"
            raise CheckpointError(
                f"ATTENTION_KERNEL={self.name}: with {kind}, window {window}, softcap {softcap} it differs from torch {by}"
            )


class _Trial:
    """Sequences whose keys at the edges of what is to be seen outweigh the others: a kernel off by one shows itself."""

    def __init__(
        self,
        shapes: tuple[tuple[int, int], tuple[int, int]],
        heads: int,
        window: int | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        random = torch.Generator().manual_seed(0)
        self._window = window or 0
        lengths = [1, 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 7 * BLOCK_TOKENS + 5, self._window + 2 * BLOCK_TOKENS + 3]
        # One block more than is needed, since what lies behind the end must not be seen either.
        width = blocks_for(max(lengths) + 1)
        order = 1 + torch.randperm(width * len(lengths), generator=random)
        table = torch.full((len(lengths), width), NULL_BLOCK)
        for row, length in enumerate(lengths[1:], start=1):  # the first one is a row that fills a batch up
            used = blocks_for(length + 1)
            table[row, :used] = order[row * width : row * width + used]
        queries = torch.randn(len(lengths), heads, shapes[0][1], generator=random)
        slots = (width * len(lengths) + 1) * BLOCK_TOKENS
        keys, values = (torch.randn(count, slots, size, generator=random) for count, size in shapes)
        self._slots = (table[:, :, None] * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS)).flatten(1)
        for row, length in enumerate(lengths):
            seen = self._first(length)
            loud = queries[row].view(shapes[0][0], -1, shapes[0][1]).sum(1)
            for position, value in ((length, 9.0), (seen - 1, 9.0), (seen, -9.0), (length - 1, -5.0)):
                if position >= 0:
                    keys[:, self._slots[row, position]] = loud
                    values[:, self._slots[row, position]] = value
        self.queries = queries.to(device, dtype)
        self.pools = keys.to(device, dtype), values.to(device, dtype)
        self.table, self.lengths = table.to(device, torch.int32), torch.tensor(lengths, dtype=torch.int32).to(device)

    def _first(self, length: int) -> int:
        """The first position that the newest token of so many sees."""
        return max(0, length - self._window) if self._window else 0

    def expected(self, softcap: float | None) -> Tensor:
        """[sequences, heads, size of a value] in float32."""
        outs = []
        keys, values = (pool.float() for pool in self.pools)
        for query, slots, length in zip(self.queries.float(), self._slots, self.lengths.tolist(), strict=True):
            seen = slots[self._first(length) : length].to(query.device)
            grouped = query.view(keys.shape[0], -1, query.shape[1])
            scores = grouped @ keys[:, seen].mT / math.sqrt(query.shape[1])
            if softcap is not None:
                scores = softcap * (scores / softcap).tanh()
            outs.append((scores.softmax(-1) @ values[:, seen]).flatten(0, 1))
        return torch.stack(outs)
