"""The keys and values of all blocks, and the attention that reads them.

One pool a layer for keys and one for values, [KV heads, slots, head size], a slot for each token of each block. A step of
the engine is one flat row of tokens, [1, tokens]: first one token of each decoding sequence, then the chunks of prompts.
transformers' layers compute queries, keys and values of all of them; `PagedKVCache.update` stores the keys and values in
their slots, and `attend`, registered as an attention function of transformers, lets each token see its own sequence, as the
`StepLayout` of the step says.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, Cache, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from triton_renderer.prefill_decode.attention_kernel import AttentionKernel
from triton_renderer.prefill_decode.blocks import BLOCK_TOKENS, NULL_BLOCK, blocks_for
from triton_renderer.transfer import copy_to, to_device

TokenShapes = tuple[tuple[int, int], tuple[int, int]]
"""(heads, size) of a token's keys in a layer, and of its values."""
_SHORT_BLOCKS = 8
"""Sequences up to this length attend in one batch: more batches would cost more than the padding."""


@dataclass(frozen=True)
class Reach:
    """How far a layer's tokens see back: all the way, `window` tokens with their own, or to a multiple of `chunk`."""

    window: int | None = None
    chunk: int | None = None

    def hides(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Where a query must not see a key; both are positions in the sequence, broadcast against each other."""
        hidden = keys > queries
        if self.window is not None:
            hidden = hidden | (keys <= queries - self.window)
        if self.chunk is not None:
            hidden = hidden | (keys // self.chunk != queries // self.chunk)
        return hidden


@dataclass(frozen=True)
class Chunk:
    """A sequence's tokens in a step: `length` of them, after `context` that are in the cache already.

    blocks: the sequence's block table, enough for all of them. pictures: [start, end) in the sequence of each placeholder
    range inside whose tokens see each other both ways; none crosses the chunk's borders.
    """

    length: int
    context: int
    blocks: Sequence[int]
    pictures: Sequence[tuple[int, int]] = ()

    @property
    def end(self) -> int:
        """Tokens of the sequence after this step."""
        return self.context + self.length


class StepLayout:
    """Where each token of a step goes, and what it sees. Chunks of one token come first; they decode as one batch."""

    def __init__(
        self, chunks: Sequence[Chunk], cache: "PagedKVCache", *, width: int = 0, device: torch.device | None = None
    ) -> None:
        """width: where it is given, all decoding sequences are one group, padded to as many blocks, of which none has more.

        device: where the tensors lie, by default the cache's.
        """
        self._cache, self._width, self._device = cache, width, device or cache.device
        self._decodes = [chunk for chunk in chunks if chunk.length == 1]
        self.chunks = chunks[len(self._decodes) :]
        slots = [_slot(chunk.blocks, chunk.context) for chunk in self._decodes]
        for chunk in self.chunks:
            slots += [_slot(chunk.blocks, position) for position in range(chunk.context, chunk.end)]
        self.slots = self._tensor(slots)
        self.chunk_blocks = [self._tensor(chunk.blocks[: blocks_for(chunk.end)]) for chunk in self.chunks]
        self._masks: dict[tuple[int, Reach], Tensor | None] = {}

    @functools.cached_property
    def groups(self) -> "list[_DecodeGroup]":
        """The decoding sequences, for torch's attention."""
        groups = [range(len(self._decodes))] if self._width else alike(self._decodes)
        return [_DecodeGroup(members, self._decodes, self._cache.dtype, self._device, self._width) for members in groups]

    @functools.cached_property
    def paged(self) -> tuple[Tensor, Tensor]:
        """The decoding sequences, for an AttentionKernel: their block tables [sequences, blocks] and lengths, both int32."""
        width = self._width or max(blocks_for(chunk.end) for chunk in self._decodes)
        table = torch.tensor(_table(self._decodes, width), dtype=torch.int32)
        lengths = torch.tensor([chunk.end for chunk in self._decodes], dtype=torch.int32)
        return to_device(table.view(-1, width), self._device), to_device(lengths, self._device)

    @property
    def attention_kernel(self) -> AttentionKernel | None:
        """What decoding sequences attend by, where it can."""
        return self._cache.attention_kernel

    def take_over(self, other: "StepLayout") -> None:
        """Fills the tensors with those of `other`, a layout of as many decoding sequences, padded to the same width.

        What was computed from them follows. For a recording, which reads the same tensors whenever it is replayed.
        """
        copy_to(self.slots, other.slots)
        if "paged" in vars(self):
            for mine, others in zip(self.paged, other.paged, strict=True):
                copy_to(mine, others)
        if "groups" in vars(self):
            for group, others_group in zip(self.groups, other.groups, strict=True):
                group.take_over(others_group)

    @functools.cached_property
    def table(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The decoding sequences, for `cpu_kernels.attend_decodes`: [sequences, blocks] and [sequences]."""
        table = np.full((len(self._decodes), max(blocks_for(chunk.end) for chunk in self._decodes)), NULL_BLOCK)
        for row, chunk in zip(table, self._decodes, strict=True):
            count = blocks_for(chunk.end)
            row[:count] = chunk.blocks[:count]
        return table, np.array([chunk.end for chunk in self._decodes])

    @property
    def kernels(self) -> Any:
        """The module `cpu_kernels` where the cache is one that they work on, else None. A recording has torch's operations only."""
        return None if self._width else self._cache.kernels

    @property
    def num_decodes(self) -> int:
        """Chunks of one token."""
        return len(self._decodes)

    def reach(self, layer: int) -> Reach:
        """How far the layer's tokens see."""
        return self._cache.reaches[layer]

    def chunk_mask(self, number: int, reach: Reach) -> Tensor | None:
        """[length, end] of one prompt chunk, to be added to the scores; None for the plain triangle."""
        key = (number, reach)
        if key not in self._masks:
            self._masks[key] = self._chunk_mask(self.chunks[number], reach)
        return self._masks[key]

    def _chunk_mask(self, chunk: Chunk, reach: Reach) -> Tensor | None:
        if not (chunk.context or chunk.pictures or reach.chunk or (reach.window and reach.window < chunk.end)):
            return None
        # On the device: of a long prompt this is larger than all else that a step brings there.
        keys = torch.arange(chunk.end, device=self._device)
        queries = keys[chunk.context :, None]
        hidden = reach.hides(queries, keys)
        for start, end in chunk.pictures:
            hidden &= ~((queries >= start) & (queries < end) & (keys >= start) & (keys < end))
        return _additive(hidden, self._cache.dtype)

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return to_device(torch.tensor(numbers, dtype=torch.int64), self._device)


class _DecodeGroup:
    """Decoding sequences of about one length, whose tokens attend as one batch, padded to the longest."""

    def __init__(
        self, members: Sequence[int], decodes: Sequence[Chunk], dtype: torch.dtype, device: torch.device, width: int
    ) -> None:
        """members: which of the decodes. dtype: of the scores. width: blocks to pad to, at least."""
        self.size = len(members)
        self.rows = None if self.size == len(decodes) else to_device(torch.tensor(members), device)
        """Which of the step's tokens; None for all that decode."""
        chunks = [decodes[index] for index in members]
        self._contexts = to_device(torch.tensor([[chunk.context] for chunk in chunks]), device)
        self._width = max(width, *(blocks_for(chunk.end) for chunk in chunks))
        self.blocks = to_device(torch.tensor(_table(chunks, self._width)), device)
        self._dtype = dtype
        self._masks: dict[Reach, Tensor] = {}

    def mask(self, reach: Reach) -> Tensor:
        """[1, members, 1, keys], to be added to the scores."""
        if reach not in self._masks:
            self._masks[reach] = self._mask(reach)
        return self._masks[reach]

    def _mask(self, reach: Reach) -> Tensor:
        keys = torch.arange(self._width * BLOCK_TOKENS, device=self._contexts.device)
        return _additive(reach.hides(self._contexts, keys), self._dtype)[None, :, None]

    def take_over(self, other: "_DecodeGroup") -> None:
        """As of StepLayout."""
        copy_to(self._contexts, other._contexts)
        copy_to(self.blocks, other.blocks)
        for reach, mask in self._masks.items():
            copy_to(mask, self._mask(reach))


def alike(decodes: Sequence[Chunk]) -> list[list[int]]:
    """Groups of sequences whose lengths differ by less than a factor of two, or are all short: padding at most doubles them."""
    groups: dict[int, list[int]] = {}
    for index, chunk in enumerate(decodes):
        groups.setdefault(max(blocks_for(chunk.end), _SHORT_BLOCKS).bit_length(), []).append(index)
    return list(groups.values())


def _table(chunks: Sequence[Chunk], width: int) -> list[int]:
    """The block tables one behind the other, each cut or filled up to `width`."""
    table: list[int] = []
    for chunk in chunks:
        blocks = chunk.blocks[:width]
        table += [*blocks, *[NULL_BLOCK] * (width - len(blocks))]
    return table


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))


def _slot(blocks: Sequence[int], position: int) -> int:
    return blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS


class PagedKVCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """The pools of all layers. A forward pass goes with the StepLayout that `step` has made for it."""

    def __init__(
        self,
        model: PreTrainedModel,
        shapes: Sequence[TokenShapes],
        num_blocks: int,
        kernel: AttentionKernel | None = None,
    ) -> None:
        """Allocates the pools and makes `model` attend through them.

        shapes: of each layer, see `token_shapes`. num_blocks counts the null block as well. kernel: what decoding sequences
        attend by in layers that it can do; else torch's attention.
        """
        slots = num_blocks * BLOCK_TOKENS
        super().__init__(layers=[_Layer(self, *_pools(layer, slots, model)) for layer in shapes])
        self.device, self.dtype = model.device, model.dtype
        self.reaches = reaches(model.config.get_text_config())
        self.attention_kernel = kernel
        self.slots = torch.empty(0, dtype=torch.int64)
        self.kernels = _kernels(model)
        config = model.config
        model.set_attn_implementation(ATTENTION if config.get_text_config() is config else {"text_config": ATTENTION})

    @staticmethod
    def bytes_per_block(shapes: Sequence[TokenShapes], dtype: torch.dtype) -> int:
        """What one block takes in all layers together."""
        return sum(heads * size for layer in shapes for heads, size in layer) * BLOCK_TOKENS * dtype.itemsize

    def step(self, chunks: Sequence[Chunk]) -> StepLayout:
        """The layout of the next forward pass, to be given to the model as `layout`."""
        layout = StepLayout(chunks, self)
        self.use(layout)
        return layout

    def use(self, layout: StepLayout) -> None:
        """The next forward pass, or the recording of one, goes with `layout`."""
        self.slots = layout.slots

    def erase(self, blocks: Sequence[int]) -> None:
        """Sets blocks to zero: where a sequence went wrong they may hold NaN, which no mask keeps out (0 · NaN is NaN)."""
        for layer in self.layers:
            for pool in (layer.keys, layer.values):
                pool.view(pool.shape[0], -1, BLOCK_TOKENS, pool.shape[2])[:, list(blocks)] = 0


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: StepLayout,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of a step's tokens to their own sequences: query [1, heads, tokens, size] → [1, tokens, heads, size].

    key, value: the layer's pools, from `update`. softcap: bound of the scores (Gemma 2). s_aux: [heads], a score that takes
    its share of the softmax and adds nothing (gpt-oss).
    """
    reach = layout.reach(module.layer_idx)  # type: ignore[arg-type]
    sdpa = functools.partial(_sdpa, scaling=scaling, softcap=softcap, sinks=s_aux)
    count = layout.num_decodes
    parts = []
    paged = layout.attention_kernel
    if count and paged is not None and reach.chunk is None and s_aux is None and paged.can(reach.window, softcap):
        decodes = query[0, :, :count].transpose(0, 1)
        parts.append(paged.attend(decodes, (key, value), *layout.paged, scaling=scaling, window=reach.window, softcap=softcap))
    elif count and layout.kernels and softcap is None and s_aux is None and reach.chunk is None:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        parts.append(_attend_compiled(query[0, :, :count].transpose(0, 1), (key, value), layout, reach.window or 0, scale))
    elif count:
        # A KV head's queries are one more axis of rows: no key or value is repeated for them.
        decodes = query[0, :, :count].transpose(0, 1)
        outs = [_attend_group(decodes, (key, value), group, group.mask(reach), sdpa) for group in layout.groups]
        parts.append(outs[0] if len(outs) == 1 else _in_order(outs, layout.groups))
    at = count
    for number, (chunk, blocks) in enumerate(zip(layout.chunks, layout.chunk_blocks, strict=True)):
        keys, values = (_gather(pool, blocks)[None, :, : chunk.end] for pool in (key, value))
        rows = query[:, :, at : at + chunk.length]
        parts.append(sdpa(rows, keys, values, layout.chunk_mask(number, reach))[0].transpose(0, 1))
        at += chunk.length
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0), None


def _attend_compiled(decodes: Tensor, pools: tuple[Tensor, Tensor], layout: StepLayout, window: int, scale: float) -> Tensor:
    """[tokens, heads, size of a value] of decodes [tokens, heads, size]."""
    out = decodes.new_empty(*decodes.shape[:2], pools[1].shape[2])
    table, lengths = layout.table
    keys, values = (pool.numpy() for pool in pools)
    layout.kernels.attend_decodes(decodes.numpy(), keys, values, table, lengths, np.float32(scale), window, out.numpy())
    return out


def _attend_group(
    decodes: Tensor, pools: tuple[Tensor, Tensor], group: _DecodeGroup, mask: Tensor, sdpa: Callable[..., Tensor]
) -> Tensor:
    """[members, heads, size] of the group's tokens among decodes [tokens, heads, size]."""
    queries = decodes if group.rows is None else decodes.index_select(0, group.rows)
    heads = pools[0].shape[0]
    rows = queries.reshape(group.size, heads, -1, queries.shape[2]).transpose(0, 1)
    keys, values = (_gather(pool, group.blocks).view(heads, group.size, -1, pool.shape[2]) for pool in pools)
    return sdpa(rows, keys, values, mask, group=True).transpose(0, 1).flatten(1, 2)


def _in_order(outs: Sequence[Tensor], groups: Sequence[_DecodeGroup]) -> Tensor:
    """The groups' outputs in the order of the step: [tokens, heads, size]."""
    joined = torch.cat(list(outs))
    rows = torch.cat([group.rows for group in groups if group.rows is not None])
    return torch.empty_like(joined).index_copy_(0, rows, joined)


ATTENTION = "triton_renderer_paged"
AttentionInterface.register(ATTENTION, attend)


class _Layer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped
    """One layer's pools."""

    is_sliding = False
    is_compileable = False

    def __init__(self, cache: PagedKVCache, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self._cache, self.keys, self.values = cache, keys, values
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise RuntimeError("the pools are there from the start")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Stores a step's keys and values, [1, heads, tokens, size]. Returns the pools, for `attend`."""
        slots = self._cache.slots
        self.keys.index_copy_(1, slots, key_states[0])
        self.values.index_copy_(1, slots, value_states[0])
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


def _gather(pool: Tensor, blocks: Tensor) -> Tensor:
    """[heads, blocks · BLOCK_TOKENS, size] of the given blocks."""
    heads, _, size = pool.shape
    return pool.view(heads, -1, BLOCK_TOKENS * size).index_select(1, blocks).view(heads, -1, size)


def _sdpa(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    group: bool = False,
) -> Tensor:
    """Attention of query [batch, heads, queries, size] to keys and values [batch, KV heads, keys, size].

    mask: added to the scores; None is the triangle. group: batch is the KV heads, and queries are those of one KV head.
    """
    if softcap is None and sinks is None:
        return F.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
    repeats = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)
    scores = query @ keys.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if mask is None:
        mask = torch.full(scores.shape[-2:], float("-inf"), dtype=scores.dtype, device=scores.device).triu(1)
    scores = scores + mask
    if sinks is not None:
        # Of a query's scores in group form, the heads are [batch, 1, queries].
        column = sinks.view(keys.shape[0], 1, -1, 1) if group else sinks.view(1, -1, 1, 1)
        scores = torch.cat([scores, column.expand(*scores.shape[:-1], 1).to(scores.dtype)], dim=-1)
        return scores.softmax(-1)[..., :-1] @ values
    return scores.softmax(-1) @ values


@torch.inference_mode()
def token_shapes(model: PreTrainedModel) -> list[TokenShapes]:
    """Of each layer: from a forward pass of one token, so for any family, and before the model attends to a PagedKVCache."""
    cache = DynamicCache()
    model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=model.device), past_key_values=cache, use_cache=True)
    return [
        ((layer.keys.shape[1], layer.keys.shape[3]), (layer.values.shape[1], layer.values.shape[3])) for layer in cache.layers
    ]


def _kernels(model: PreTrainedModel) -> Any:
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return None
    from triton_renderer.prefill_decode import cpu_kernels  # noqa: PLC0415  # compiles where it is used

    return cpu_kernels


def _pools(shapes: TokenShapes, slots: int, model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    # Zeros, not uninitialised memory: a hidden slot still meets the softmax's weight of zero, and 0 · NaN is NaN.
    keys, values = (torch.zeros(heads, slots, size, dtype=model.dtype, device=model.device) for heads, size in shapes)
    return keys, values


def reaches(config: PreTrainedConfig) -> list[Reach]:
    """How far each layer sees, from the configuration's `layer_types` and the settings that go with them."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        # Families without layer types use their window, where they have one, in every layer.
        kinds = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    by_kind = {
        "full_attention": Reach(),
        "sliding_attention": Reach(window=window),
        "chunked_attention": Reach(chunk=getattr(config, "attention_chunk_size", None)),
    }
    return [by_kind[kind] for kind in kinds]
