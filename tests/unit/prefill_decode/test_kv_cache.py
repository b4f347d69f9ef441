"""The batch cache against a plain list of rows that does the same."""

import random

import pytest
import torch
from transformers import DynamicCache

from triton_renderer.prefill_decode.kv_cache import BatchKVCache

LAYERS, HEADS, SIZE = 2, 3, 4


def prefilled(length: int) -> DynamicCache:
    cache = DynamicCache()
    for layer in range(LAYERS):
        cache.update(torch.randn(1, HEADS, length, SIZE), torch.randn(1, HEADS, length, SIZE), layer)
    return cache


class Rows:
    """Each row's keys of each layer, kept apart."""

    def __init__(self) -> None:
        self.rows: list[list[torch.Tensor]] = []

    def join(self, cache: DynamicCache) -> None:
        self.rows.append([layer.keys[0].clone() for layer in cache.layers])

    def leave(self, row: int) -> None:
        self.rows[row] = self.rows[-1]
        self.rows.pop()


def step(cache: BatchKVCache, rows: Rows) -> None:
    mask = cache.prepare_step()
    new = torch.randn(LAYERS, cache.num_rows, HEADS, 1, SIZE)
    for layer in range(LAYERS):
        keys, values = cache.update(new[layer], new[layer] + 1, layer)
        assert keys.shape[0] == values.shape[0] == len(rows.rows)
        for row, kept in enumerate(rows.rows):
            kept[layer] = torch.cat([kept[layer], new[layer][row]], dim=1)
            assert torch.equal(keys[row][:, mask[row].bool()], kept[layer])
    cache.advance()
    assert cache.lengths == [kept[0].shape[1] for kept in rows.rows]
    cache.check_integrity()


@pytest.mark.parametrize("seed", range(8))
def test_random_joins_leaves_and_steps_keep_every_row(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    cache, rows = BatchKVCache(LAYERS), Rows()
    for _ in range(60):
        action = rng.random()
        if action < 0.3 and cache.num_rows < 6:
            new = prefilled(rng.choice([1, 2, 40, 127, 128, 129, 300]))
            cache.join(new)
            rows.join(new)
        elif action < 0.5 and cache.num_rows:
            row = rng.randrange(cache.num_rows)
            cache.leave(row)
            rows.leave(row)
        elif cache.num_rows:
            step(cache, rows)
        cache.check_integrity()
    while cache.num_rows:
        cache.leave(0)
    cache.check_integrity()
    assert cache.prepare_step().shape == (0, 1)


def test_columns_are_given_back_when_the_long_row_leaves() -> None:
    cache, rows = BatchKVCache(LAYERS), Rows()
    for length in (1000, 10):
        new = prefilled(length)
        cache.join(new)
        rows.join(new)
    cache.leave(0)
    rows.leave(0)
    assert cache.prepare_step().shape == (1, 11)
    step(cache, rows)


def test_row_that_went_wrong_leaves_nothing_to_the_next() -> None:
    cache, rows = BatchKVCache(LAYERS), Rows()
    poisoned, good = prefilled(50), prefilled(20)
    for layer in poisoned.layers:
        layer.keys.fill_(float("nan"))
        layer.values.fill_(float("nan"))
    cache.join(good)
    cache.join(poisoned)
    cache.leave(1)
    cache.join(prefilled(5))
    cache.prepare_step()
    for layer in range(LAYERS):
        keys, values = cache.update(torch.zeros(2, HEADS, 1, SIZE), torch.zeros(2, HEADS, 1, SIZE), layer)
        assert bool(keys.isfinite().all())
        assert bool(values.isfinite().all())
    assert rows.rows == []


def test_cleared_cache_starts_again() -> None:
    cache, rows = BatchKVCache(LAYERS), Rows()
    cache.join(prefilled(5))
    cache.clear()
    new = prefilled(3)
    cache.join(new)
    rows.join(new)
    step(cache, rows)
