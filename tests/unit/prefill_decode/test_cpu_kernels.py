"""The compiled kernels compute what torch's operations do, and let nothing that went wrong look right."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F

from triton_renderer.prefill_decode import cpu_kernels
from triton_renderer.prefill_decode.blocks import BLOCK_TOKENS, blocks_for
from triton_renderer.prefill_decode.fused_layers import _Norm, _rotate

Array = npt.NDArray[np.float32]
NEAR = {"rtol": 2e-6, "atol": 2e-6}


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


class Paged:
    """Sequences of given lengths in pools, their blocks in a random order; every slot that is none of theirs holds NaN."""

    def __init__(self, lengths: list[int], num_kv: int, size: int, value_size: int) -> None:
        self.lengths = np.array(lengths)
        width = max(map(blocks_for, lengths))
        order = iter(np.random.default_rng(1).permutation(len(lengths) * width))
        self.table = np.array([[next(order) for _ in range(width)] for _ in lengths])
        slots = len(lengths) * width * BLOCK_TOKENS
        self.keys, self.values = (np.full((num_kv, slots, wide), np.nan, np.float32) for wide in (size, value_size))
        self.plain = []
        for number, (length, blocks) in enumerate(zip(lengths, self.table, strict=True)):
            places = [blocks[at // BLOCK_TOKENS] * BLOCK_TOKENS + at % BLOCK_TOKENS for at in range(length)]
            keys, values = random(num_kv, length, size, seed=number), random(num_kv, length, value_size, seed=-number - 1 + 99)
            self.keys[:, places], self.values[:, places] = keys, values
            self.plain.append((torch.from_numpy(keys), torch.from_numpy(values)))

    def attend(self, queries: Array, scale: float, window: int = 0) -> Array:
        out = np.full((*queries.shape[:2], self.values.shape[2]), np.nan, np.float32)
        cpu_kernels.attend_decodes(queries, self.keys, self.values, self.table, self.lengths, np.float32(scale), window, out)
        return out


@pytest.mark.parametrize("window", [0, 1, 5, 16, 40])
@pytest.mark.parametrize(
    ("heads", "num_kv", "size", "value_size"), [(4, 2, 48, 48), (9, 3, 64, 64), (2, 2, 20, 12), (8, 1, 7, 128)]
)
def test_attention_is_torchs(heads: int, num_kv: int, size: int, value_size: int, window: int) -> None:
    paged = Paged([1, 2, 15, 16, 17, 33, 100], num_kv, size, value_size)
    queries = random(len(paged.lengths), heads, size)
    out = paged.attend(queries, 0.3, window)
    for row, (keys, values), got in zip(queries, paged.plain, out, strict=True):
        seen = slice(-window, None) if window else slice(None)
        query = torch.from_numpy(row)[None, :, None]
        expected = F.scaled_dot_product_attention(query, keys[None, :, seen], values[None, :, seen], scale=0.3, enable_gqa=True)
        np.testing.assert_allclose(got, expected[0, :, 0].numpy(), **NEAR)


def test_attention_takes_queries_as_they_lie() -> None:
    paged = Paged([20, 40], 2, 16, 16)
    lying_otherwise = random(4, 2, 16).transpose(1, 0, 2)
    assert not lying_otherwise.flags.c_contiguous
    np.testing.assert_array_equal(paged.attend(lying_otherwise, 1.0), paged.attend(lying_otherwise.copy(), 1.0))


def test_a_sequence_gets_the_same_in_every_batch() -> None:
    together = Paged([50, 7, 130], 2, 16, 16)
    queries = random(3, 4, 16)
    out = together.attend(queries, 0.25)
    for index in range(3):
        alone = np.full_like(out[index : index + 1], np.nan)
        table, lengths = together.table[index : index + 1], together.lengths[index : index + 1]
        cpu_kernels.attend_decodes(
            queries[index : index + 1], together.keys, together.values, table, lengths, np.float32(0.25), 0, alone
        )
        np.testing.assert_array_equal(alone[0], out[index])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_what_is_not_finite_stays_so_and_with_its_own_sequence(bad: float, where: str) -> None:
    paged = Paged([30, 30], 1, 16, 16)
    queries = np.abs(random(2, 1, 16))
    slot = paged.table[0, 0] * BLOCK_TOKENS + 3
    if where == "query":
        queries[0, 0, 5] = bad
    else:
        # Of a key, minus infinity alone would hide it, as a mask does.
        pool = paged.keys if where == "key" else paged.values
        pool[0, slot, 5] = abs(bad)
    out = paged.attend(queries, 0.25)
    assert not np.isfinite(out[0]).all()
    assert np.isfinite(out[1]).all()


def test_large_scores_do_not_overflow() -> None:
    paged = Paged([40], 1, 16, 16)
    paged.keys *= 1000
    out = paged.attend(random(1, 1, 16) * 1000, 1.0)
    assert np.isfinite(out).all()


def test_exponential_is_within_a_few_units_in_the_last_place() -> None:
    x = np.linspace(-87, 88, 400_001, dtype=np.float32)
    out = x.copy()
    cpu_kernels._exp(out, np.empty(len(x), np.int32))
    exact = np.exp(x.astype(np.float64))
    assert np.abs(out / exact - 1).max() < 3 * np.finfo(np.float32).eps


def test_exponential_of_what_is_far_below_is_next_to_nothing_and_nan_stays() -> None:
    x = np.array([-1e30, -np.inf, np.nan], np.float32)
    cpu_kernels._exp(x, np.empty(3, np.int32))
    assert x[:2].max() < 1e-37
    assert np.isnan(x[2])


@pytest.mark.parametrize("shape", [(1, 192), (7, 576), (3, 5)])
def test_norm_is_the_fused_layers_own(shape: tuple[int, int]) -> None:
    norm = _Norm(torch.from_numpy(random(shape[1], seed=2)), 1e-6)
    x = torch.from_numpy(random(*shape))
    np.testing.assert_allclose(norm.compiled(x, cpu_kernels).numpy(), norm(x).numpy(), rtol=2e-6)


@pytest.mark.parametrize("with_norm", [True, False])
def test_rotation_is_the_fused_layers_own_and_stores_keys_and_values(with_norm: bool) -> None:
    tokens, num_queries, num_kv, size, slots = 5, 4, 2, 12, np.array([9, 3, 40, 0, 17])
    heads = random(tokens, num_queries + 2 * num_kv, size)
    angles = random(tokens, size, seed=3)
    cosines, sines = np.cos(angles), np.sin(angles)
    norms = random(num_queries + num_kv, size, seed=4) if with_norm else np.empty((0, 0), np.float32)
    keys, values = (np.full((num_kv, 48, size), np.nan, np.float32) for _ in range(2))
    before = torch.from_numpy(heads.copy())
    cpu_kernels.rotate_and_store(heads, cosines, sines, norms, np.float32(1e-6), slots, keys, values)

    rotated = before[:, : num_queries + num_kv].unsqueeze(0)
    if with_norm:
        rotated = _Norm(torch.from_numpy(norms), 1e-6)(rotated)
    expected = _rotate(rotated, torch.from_numpy(cosines)[None], torch.from_numpy(sines)[None])[0].numpy()
    np.testing.assert_allclose(heads[:, : num_queries + num_kv], expected, **NEAR)
    np.testing.assert_array_equal(keys[:, slots], heads[:, num_queries:-num_kv].transpose(1, 0, 2))
    np.testing.assert_array_equal(values[:, slots], before[:, -num_kv:].numpy().transpose(1, 0, 2))
    untouched = np.setdiff1d(np.arange(48), slots)
    assert np.isnan(keys[:, untouched]).all()
    assert np.isnan(values[:, untouched]).all()


def test_gate_is_torchs() -> None:
    gate_up = random(6, 74) * 20
    out = np.empty((6, 37), np.float32)
    cpu_kernels.silu_gate(gate_up, out)
    gate, up = torch.from_numpy(gate_up).chunk(2, dim=-1)
    np.testing.assert_allclose(out, (F.silu(gate) * up).numpy(), rtol=2e-6, atol=1e-6)
