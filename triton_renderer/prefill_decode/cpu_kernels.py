"""Loops of a decode step that torch has no operation for, compiled by Numba for the processor it runs on.

A step of a few tokens is short: most of its time went into starting small operations and into copying keys and values together
for an attention that wants them side by side. These four kernels take the place of some twenty operations a layer, and read the
KV cache where it lies. All are for float32 on a CPU; each token's result depends on its own row alone, so that it is the same
in every batch. They run in one thread and let go of Python's lock. NaN and infinity come out as they do of torch's operations,
which is how a sequence that went wrong is found: of the fast-math rules only those are used that keep them.
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from triton_renderer.prefill_decode.blocks import BLOCK_TOKENS

log = logging.getLogger(__name__)

_MATH = {"contract", "reassoc", "nsz", "arcp"}
"""Fused multiply-add, and sums in any order, which is what vector instructions need."""
_EXP_LEAST, _EXP_MOST = np.float32(-87.0), np.float32(88.0)
"""Beyond these e^x is taken to be at them: their powers of two are normal numbers."""
_LOG2_E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_EXP = tuple(
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)


def _kernel(signature: str | None = None) -> Callable[[Callable[..., None]], Any]:
    """Compiles for arguments of that signature (without one, for those that it is first called with), once a machine where there is a folder to keep the result in."""

    def compile_it(function: Callable[..., None]) -> Any:
        try:
            return njit(signature, fastmath=_MATH, nogil=True, cache=True)(function)
        except RuntimeError as error:  # Numba's answer where neither the package's folder nor the user's can be written
            log.info("the CPU kernels are compiled at each start: %s", error)
            return njit(signature, fastmath=_MATH, nogil=True)(function)

    return compile_it


@_kernel()
def _exp(x, powers):  # type: ignore[no-untyped-def]
    """Replaces each of x [n] float32 by e^x, to two units in the last place. powers: [n] int32, overwritten.

    e^x = 2^k · e^r with k = round(x / ln 2); the polynomial for e^r is that of Cephes' `expf` (S. L. Moshier).
    """
    for i in range(len(x)):
        value = x[i]
        # Comparisons, not min and max: NaN has to come through.
        if value < _EXP_LEAST:  # noqa: PLR1730
            value = _EXP_LEAST
        if value > _EXP_MOST:  # noqa: PLR1730
            value = _EXP_MOST
        k = np.floor(value * _LOG2_E + np.float32(0.5))
        r = value - k * _LN2_HIGH - k * _LN2_LOW
        p = _EXP[0] * r + _EXP[1]
        p = p * r + _EXP[2]
        p = p * r + _EXP[3]
        p = p * r + _EXP[4]
        p = p * r + _EXP[5]
        x[i] = p * r * r + r + np.float32(1.0)
        powers[i] = (np.int32(k) + np.int32(127)) << np.int32(23)
    scales = powers.view(np.float32)
    for i in range(len(x)):
        x[i] *= scales[i]


@_kernel()
def _softmax(x, powers):  # type: ignore[no-untyped-def]
    """Of x [n] float32, in place. powers: [n] int32, overwritten."""
    highest = x[0]
    for i in range(1, len(x)):
        if x[i] > highest:  # noqa: PLR1730  # NaN does not count; its sum becomes NaN below
            highest = x[i]
    for i in range(len(x)):
        x[i] -= highest
    _exp(x, powers)
    total = np.float32(0)
    for i in range(len(x)):
        total += x[i]
    inverse = np.float32(1) / total
    for i in range(len(x)):
        x[i] *= inverse


@_kernel()
def _score(query, keys, scores):  # type: ignore[no-untyped-def]
    """scores [n] = keys [n, size] · query [size]. Four keys at once, so that the sums do not wait for each other."""
    count = len(keys)
    fours = count - count % 4
    for i in range(0, fours, 4):
        key_0, key_1, key_2, key_3 = keys[i], keys[i + 1], keys[i + 2], keys[i + 3]
        sum_0, sum_1, sum_2, sum_3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for d in range(len(query)):
            x = query[d]
            sum_0 += x * key_0[d]
            sum_1 += x * key_1[d]
            sum_2 += x * key_2[d]
            sum_3 += x * key_3[d]
        scores[i], scores[i + 1], scores[i + 2], scores[i + 3] = sum_0, sum_1, sum_2, sum_3
    for i in range(fours, count):
        key = keys[i]
        total = np.float32(0)
        for d in range(len(query)):
            total += query[d] * key[d]
        scores[i] = total


@_kernel()
def _add_weighted(weights, values, out):  # type: ignore[no-untyped-def]
    """out [size] += weights [n] · values [n, size]. Four values at once: `out` is read and written a quarter as often."""
    count = len(weights)
    fours = count - count % 4
    for i in range(0, fours, 4):
        weight_0, weight_1, weight_2, weight_3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        value_0, value_1, value_2, value_3 = values[i], values[i + 1], values[i + 2], values[i + 3]
        for d in range(len(out)):
            out[d] += weight_0 * value_0[d] + weight_1 * value_1[d] + weight_2 * value_2[d] + weight_3 * value_3[d]
    for i in range(fours, count):
        value = values[i]
        for d in range(len(out)):
            out[d] += weights[i] * value[d]


@_kernel("void(float32[:,:,:], float32[:,:,::1], float32[:,:,::1], int64[:,::1], int64[::1], float32, int64, float32[:,:,::1])")
def attend_decodes(queries, keys, values, table, lengths, scale, window, out):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Attention of one token of each sequence to the sequence's keys and values.

    queries: [sequences, heads, size]. keys, values: the pools [KV heads, slots, size]. table: [sequences, blocks], each
    sequence's blocks in its order. lengths: [sequences], tokens to be seen, the newest one included. scale: of the scores.
    window: how many of the last tokens are seen; 0 for all. out: [sequences, heads, size of a value], written.
    """
    num_kv, _, size = keys.shape
    group = queries.shape[1] // num_kv
    rows = np.empty((group, size), np.float32)
    scores = np.empty((group, table.shape[1] * BLOCK_TOKENS), np.float32)
    powers = np.empty(scores.shape[1], np.int32)
    for sequence in range(queries.shape[0]):
        behind = lengths[sequence]
        first = max(0, behind - window) if window else 0
        blocks = range(first // BLOCK_TOKENS, (behind - 1) // BLOCK_TOKENS + 1)
        for kv in range(num_kv):
            for g in range(group):
                for d in range(size):
                    rows[g, d] = queries[sequence, kv * group + g, d] * scale
            for block in blocks:
                start, end = max(first, block * BLOCK_TOKENS), min(behind, (block + 1) * BLOCK_TOKENS)
                slot = table[sequence, block] * BLOCK_TOKENS - block * BLOCK_TOKENS
                for g in range(group):
                    _score(rows[g], keys[kv, slot + start : slot + end], scores[g, start - first : end - first])
            for g in range(group):
                _softmax(scores[g, : behind - first], powers[: behind - first])
                out[sequence, kv * group + g] = np.float32(0)
            for block in blocks:
                start, end = max(first, block * BLOCK_TOKENS), min(behind, (block + 1) * BLOCK_TOKENS)
                slot = table[sequence, block] * BLOCK_TOKENS - block * BLOCK_TOKENS
                for g in range(group):
                    weights = scores[g, start - first : end - first]
                    _add_weighted(weights, values[kv, slot + start : slot + end], out[sequence, kv * group + g])


@_kernel("void(float32[:,::1], float32[::1], float32, float32[:,::1])")
def normalize(x, weight, eps, out):  # type: ignore[no-untyped-def]
    """out = x / sqrt(mean(x²) + eps) · weight, of each row; x, out: [tokens, size]."""
    size = x.shape[1]
    for token in range(x.shape[0]):
        row, to = x[token], out[token]
        total = np.float32(0)
        for d in range(size):
            total += row[d] * row[d]
        inverse = np.float32(1) / np.sqrt(total / np.float32(size) + eps)
        for d in range(size):
            to[d] = row[d] * inverse * weight[d]


@_kernel(
    "void(float32[:,:,::1], float32[:,::1], float32[:,::1], float32[:,::1], float32, int64[::1],"
    " float32[:,:,::1], float32[:,:,::1])"
)
def rotate_and_store(heads, cosines, sines, norms, eps, slots, keys, values):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Norm and rotary embedding of queries and keys, in place; keys and values also go to their slots.

    heads: [tokens, query heads + 2 · KV heads, size], queries, keys and values in this order. cosines, sines: [tokens, size].
    norms: [query heads + KV heads, size], the weights of each head's norm, or [0, size] for none. slots: [tokens].
    keys, values: the pools [KV heads, slots, size].
    """
    num_kv = keys.shape[0]
    num_rotated = heads.shape[1] - num_kv
    num_queries = num_rotated - num_kv
    size = heads.shape[2]
    half = size // 2
    for token in range(heads.shape[0]):
        slot = slots[token]
        cosine, sine = cosines[token], sines[token]
        for head in range(num_rotated):
            row = heads[token, head]
            if norms.shape[0]:
                weight = norms[head]
                total = np.float32(0)
                for d in range(size):
                    total += row[d] * row[d]
                inverse = np.float32(1) / np.sqrt(total / np.float32(size) + eps)
                for d in range(size):
                    row[d] = row[d] * inverse * weight[d]
            for d in range(half):
                low, high = row[d], row[half + d]
                row[d] = low * cosine[d] - high * sine[d]
                row[half + d] = high * cosine[half + d] + low * sine[half + d]
            if head >= num_queries:
                keys[head - num_queries, slot] = row
        for head in range(num_kv):
            values[head, slot] = heads[token, num_rotated + head]


@_kernel("void(float32[:,::1], float32[:,::1])")
def silu_gate(gate_up, out):  # type: ignore[no-untyped-def]
    """out = gate · sigmoid(gate) · up. gate_up: [tokens, 2 · size], the gates first; out: [tokens, size]."""
    size = out.shape[1]
    powers = np.empty(size, np.int32)
    for token in range(out.shape[0]):
        gate, up, to = gate_up[token, :size], gate_up[token, size:], out[token]
        for d in range(size):
            to[d] = -gate[d]
        _exp(to, powers)
        for d in range(size):
            to[d] = gate[d] / (np.float32(1) + to[d]) * up[d]
