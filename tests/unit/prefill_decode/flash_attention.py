"""FlashAttention's `flash_attn_with_kvcache` by its documentation, in torch: what an AttentionKernel calls on a GPU."""

import torch
from torch import Tensor


def flash_attn_with_kvcache(  # noqa: PLR0917  # as in the documentation
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: None = None,
    v: None = None,
    rotary_cos: None = None,
    rotary_sin: None = None,
    cache_seqlens: Tensor | None = None,
    cache_batch_idx: None = None,
    cache_leftpad: None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor:
    """q: (batch_size, seqlen, nheads, headdim). k_cache, v_cache: (num_blocks, page_block_size, nheads_k, headdim).

    cache_seqlens: (batch_size,) int32. block_table: (batch_size, max_num_blocks_per_seq) int32. Query i of a sequence sees keys
    from i + seqlen_k - seqlen_q - window_size[0] to i + seqlen_k - seqlen_q + window_size[1], both of them as well; causal: none
    behind i + seqlen_k - seqlen_q. Head h of q goes with head h // (nheads / nheads_k) of k. Returns the shape of q.
    """
    assert cache_seqlens is not None
    assert block_table is not None
    assert (cache_seqlens.dtype, block_table.dtype) == (torch.int32, torch.int32), "int32 is expected"
    assert k_cache.stride(-1) == v_cache.stride(-1) == 1, "the last dimension must be contiguous"
    assert q.dtype == k_cache.dtype == v_cache.dtype, "one dtype is expected"
    assert block_table.stride(-1) == 1, "block_table must have contiguous last dimension"
    batch, queries, heads, size = q.shape
    assert cache_seqlens.shape == (batch,)
    assert block_table.shape[0] == batch
    keys, values = (
        cache[block_table.long()].flatten(1, 2).repeat_interleave(heads // cache.shape[2], 2) for cache in (k_cache, v_cache)
    )
    scores = torch.einsum("bqhd,bkhd->bhqk", q, keys) * (size**-0.5 if softmax_scale is None else softmax_scale)
    if softcap > 0:
        scores = softcap * (scores / softcap).tanh()
    lengths = cache_seqlens.long()[:, None, None]
    places = torch.arange(keys.shape[1], device=q.device)
    own = torch.arange(queries, device=q.device)[:, None] + lengths - queries
    left, right = window_size
    hidden = (places >= lengths) | (causal & (places > own))
    if left >= 0:
        hidden = hidden | (places < own - left)
    if right >= 0:
        hidden = hidden | (places > own + right)
    scores = scores.masked_fill(hidden[:, None], float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), values)
