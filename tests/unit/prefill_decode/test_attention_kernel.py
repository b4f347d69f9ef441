"""Decoding by a kernel with FlashAttention's interface. Whether one that is built for a GPU is right, its own trial shows there."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    modeling_flash_attention_utils,
)

from tests.unit.prefill_decode.flash_attention import flash_attn_with_kvcache
from tests.unit.prefill_decode.recording import record
from triton_renderer.checkpoint import CheckpointError
from triton_renderer.prefill_decode.attention_kernel import AttentionKernel
from triton_renderer.prefill_decode.blocks import BLOCK_TOKENS, blocks_for
from triton_renderer.prefill_decode.kv_cache import Chunk, Reach
from triton_renderer.prefill_decode.model_runner import ModelRunner
from triton_renderer.settings import load_settings

WINDOW = 24
TOLERANCE = 1e-4
NUM_BLOCKS = 128
SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 4096, "pad_token_id": 0,
}  # fmt: skip
MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
MODELS: dict[str, tuple[Callable[[], Any], int]] = {
    "Llama": (lambda: LlamaForCausalLM(LlamaConfig(**SIZES)), 2),
    "a window in every layer": (lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW)), 2),
    "with and without a window": (lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, **MIXED)), 2),
    "bounded scores": (lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, **MIXED, attn_logit_softcapping=0.5)), 2),
    "sinks": (lambda: GptOssForCausalLM(GptOssConfig(**SIZES, **MIXED, num_local_experts=2, num_experts_per_tok=1)), 0),
}
"""The models, and how many of their two layers the kernel can do."""


class Counting:
    """The stand-in, which counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    @property
    def kernel(self) -> AttentionKernel:
        @functools.wraps(flash_attn_with_kvcache)
        def function(*args: Any, **kwargs: Any) -> Tensor:
            self.calls += 1
            return flash_attn_with_kvcache(*args, **kwargs)

        return AttentionKernel("test", function)


@pytest.fixture(autouse=True)
def as_the_engine_does() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


def make_model(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    model = make().eval().requires_grad_(False)
    if not isinstance(model, GptOssForCausalLM):  # torch's product of its experts knows no float64
        model = model.double()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.mul_(6)  # as they are initialised, every key gets the same attention
    return model


def make_runner(make: Callable[[], Any], kernel: AttentionKernel | None) -> ModelRunner:
    runner = ModelRunner(make_model(make), kernel)
    runner.allocate_cache(NUM_BLOCKS)
    return runner


def compute(runner: ModelRunner, chunks: list[Chunk], seed: int) -> Tensor:
    """Logits of a step of random tokens."""
    count = sum(chunk.length for chunk in chunks)
    ids = torch.from_numpy(np.random.default_rng(seed).integers(1, 60, (1, count)))
    positions = torch.cat([torch.arange(chunk.context, chunk.end) for chunk in chunks]).unsqueeze(0)
    return runner._logits(ids, positions, runner.cache.step(chunks))


def tables(lengths: list[int]) -> list[list[int]]:
    """Scattered blocks for sequences that grow by up to a block."""
    free = np.random.default_rng(1).permutation(np.arange(1, NUM_BLOCKS)).tolist()
    return [[free.pop() for _ in range(blocks_for(length) + 1)] for length in lengths]


@pytest.mark.parametrize("name", MODELS)
def test_steps_are_those_of_torch_in_every_layer_that_the_kernel_can_do(name: str) -> None:
    make, layers = MODELS[name]
    counting = Counting()
    runners = [make_runner(make, counting.kernel), make_runner(make, None)]
    lengths = [1, 15, WINDOW, 40, 200]
    blocks = tables(lengths)
    for index, (length, table) in enumerate(zip(lengths, blocks, strict=True)):
        for runner in runners:
            compute(runner, [Chunk(length, 0, table)], index)
    counting.calls = 0
    for step in range(12):
        chunks = [Chunk(1, length + step, table) for length, table in zip(lengths, blocks, strict=True)]
        if step == 5:
            chunks.append(Chunk(30, 0, list(range(NUM_BLOCKS - 2, NUM_BLOCKS))))  # a prompt beside them
        got, expected = (compute(runner, chunks, 100 + step) for runner in runners)
        torch.testing.assert_close(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert counting.calls == 12 * layers


def test_a_layer_that_sees_back_to_a_border_stays_with_torch() -> None:
    counting = Counting()
    runners = [make_runner(MODELS["Llama"][0], counting.kernel), make_runner(MODELS["Llama"][0], None)]
    counting.calls = 0
    (blocks,) = tables([50])
    for runner in runners:
        runner.cache.reaches = [Reach(chunk=32), Reach()]
        compute(runner, [Chunk(50, 0, blocks)], 0)
    got, expected = (compute(runner, [Chunk(1, 50, blocks)], 1) for runner in runners)
    torch.testing.assert_close(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert counting.calls == 1


@pytest.mark.parametrize("name", MODELS)
def test_kernel_in_a_recording_reads_the_tables_of_each_step(name: str) -> None:
    make, layers = MODELS[name]
    runners = [make_runner(make, Counting().kernel), make_runner(make, None)]
    runners[0].use_graphs(record)
    graphs = runners[0].graphs
    assert graphs is not None
    lengths = [3, 20, 61]
    blocks = tables(lengths)
    for index, (length, table) in enumerate(zip(lengths, blocks, strict=True)):
        for runner in runners:
            compute(runner, [Chunk(length, 0, table)], index)
    order = list(range(3))
    for step in range(10):
        order = order[1:] + order[:1]
        chunks = [Chunk(1, lengths[index] + step, blocks[index]) for index in order]
        ids = np.arange(3) + step
        positions = torch.tensor([[chunk.context for chunk in chunks]])
        got = graphs.run(chunks, ids, positions)
        assert got is not None
        layout = runners[1].cache.step(chunks)
        expected = runners[1]._logits(torch.from_numpy(ids).unsqueeze(0), positions, layout)
        torch.testing.assert_close(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert graphs.buckets == [(4, 8)]
    # A kernel in all layers does not pay for the width, so that a batch may be of any lengths.
    unequal = [Chunk(1, 5, [1]), Chunk(1, 20 * BLOCK_TOKENS, list(range(2, 23)))]
    mixed = graphs.run(unequal, np.array([1, 2]), torch.tensor([[5, 20 * BLOCK_TOKENS]]))
    assert (mixed is not None) == (layers == 2)


def wrong(**changed: Any) -> Callable[..., Tensor]:
    """A kernel that takes some of its arguments otherwise: each a function of what was given."""

    @functools.wraps(flash_attn_with_kvcache)
    def function(*args: Any, **kwargs: Any) -> Tensor:
        return flash_attn_with_kvcache(*args, **(kwargs | {name: change(kwargs.get(name)) for name, change in changed.items()}))

    return function


def prove(function: Callable[..., Tensor], window: int | None = None, softcap: float | None = None, **options: Any) -> None:
    given: dict[str, Any] = {"shapes": ((2, 16), (2, 16)), "heads": 4, "dtype": torch.float32, "device": torch.device("cpu")}
    given |= options
    AttentionKernel("test", function).prove(given.pop("shapes"), given.pop("heads"), window, softcap, **given)


@pytest.mark.parametrize("window", [None, 1, 16, 100, 5000])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_right_kernel_passes_its_trial(window: int | None, softcap: float | None, dtype: torch.dtype) -> None:
    prove(flash_attn_with_kvcache, window, softcap, dtype=dtype)


@pytest.mark.parametrize("shapes", [((1, 64), (1, 64)), ((4, 16), (4, 16)), ((2, 24), (2, 16))])
def test_trial_has_the_shapes_of_the_layer(shapes: Any) -> None:
    prove(flash_attn_with_kvcache, shapes=shapes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("changed", "window", "softcap"),
    [
        ({"cache_seqlens": lambda lengths: lengths + 1}, None, None),
        ({"cache_seqlens": lambda lengths: (lengths - 1).clamp(1)}, None, None),
        ({"block_table": lambda table: table.flip(1)}, None, None),
        ({"block_table": lambda table: table.roll(1, 0)}, None, None),
        ({"window_size": lambda window: (window[0] + 1, 0)}, 100, None),
        ({"window_size": lambda window: (window[0] - 1, 0)}, 100, None),
        ({"window_size": lambda window: (-1, -1)}, 16, None),
        ({"window_size": lambda window: (window[0] + 1, 0)}, 4000, None),
        ({"softcap": lambda softcap: 0.0}, None, 2.0),
        ({"softmax_scale": lambda scale: 1.0}, None, None),
    ],
    ids=[
        "a key more",
        "a key less",
        "blocks",
        "sequences",
        "wide",
        "narrow",
        "no window",
        "wide by one of many",
        "no bound",
        "scale",
    ],
)
def test_a_wrong_kernel_does_not(changed: Any, window: int | None, softcap: float | None, dtype: torch.dtype) -> None:
    with pytest.raises(
        CheckpointError, match=r"^ATTENTION_KERNEL=test: with blocks of 16 tokens, 4 heads of 16, .* differs from"
    ):
        prove(wrong(**changed), window, softcap, dtype=dtype)


def test_one_that_refuses_is_named_with_its_reason() -> None:
    def function(*args: Any, block_table: Any = None, **kwargs: Any) -> Tensor:
        raise RuntimeError("Paged KV cache block size must be divisible by 256\nmore of it")

    refused = r"^ATTENTION_KERNEL=test: it refuses blocks of 16 tokens, .* float32: Paged KV cache .* by 256$"
    with pytest.raises(CheckpointError, match=refused):
        prove(function)


def test_one_with_another_shape_of_output_is_refused() -> None:
    def function(*args: Any, block_table: Any, **kwargs: Any) -> Tensor:
        return flash_attn_with_kvcache(*args, block_table=block_table, **kwargs).transpose(1, 2)

    with pytest.raises(CheckpointError, match="differs from torch in its shape"):
        prove(function)


def test_the_table_goes_by_the_name_that_the_kernel_has_for_it() -> None:
    def function(*args: Any, page_table: Any = None, window_size: Any = (-1, -1), **kwargs: Any) -> Tensor:
        return flash_attn_with_kvcache(*args, block_table=page_table, window_size=window_size, **kwargs)

    prove(function, 16)
    with pytest.raises(CheckpointError, match="takes no block tables"):
        AttentionKernel("test", lambda q, k_cache, v_cache: q)


def test_what_a_kernel_does_not_know_it_is_not_asked_for() -> None:
    def function(q: Any, k_cache: Any, v_cache: Any, cache_seqlens: Any, block_table: Any, **kwargs: Any) -> Tensor:
        raise AssertionError

    kernel = AttentionKernel("test", function)
    assert kernel.can(None, None)
    assert not kernel.can(16, None)
    assert not kernel.can(None, 2.0)


def give(function: Callable[..., Any] | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes transformers find `function`; returns the names that it is asked for."""
    names: list[str] = []

    def find(name: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        names.append(name)
        return (None, None, function, None, None), (None, None)

    monkeypatch.setattr(modeling_flash_attention_utils, "lazy_import_flash_attention", find)
    return names


def test_the_setting_names_what_transformers_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    names = give(flash_attn_with_kvcache, monkeypatch)
    runner = ModelRunner.load(load_settings(attention_kernel="flash_attention_3", dtype="float32"))
    runner.allocate_cache(8)
    assert names == ["flash_attention_3"]
    assert runner.cache.attention_kernel is not None
    assert runner.cache.attention_kernel.name == "flash_attention_3"


def test_without_the_setting_none_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    names = give(flash_attn_with_kvcache, monkeypatch)
    runner = ModelRunner.load(load_settings(dtype="float32"))
    runner.allocate_cache(8)
    assert names == []
    assert runner.cache.attention_kernel is None


def test_one_that_fails_its_trial_keeps_the_stage_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    give(wrong(softmax_scale=lambda scale: 2.0), monkeypatch)
    with pytest.raises(CheckpointError, match=r"^ATTENTION_KERNEL=mine: .* differs from torch"):
        ModelRunner.load(load_settings(attention_kernel="mine", dtype="float32"))


def test_one_that_is_not_there_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError("No module named 'flash_attn_interface'\nand more")

    monkeypatch.setattr(modeling_flash_attention_utils, "lazy_import_flash_attention", missing)
    with pytest.raises(CheckpointError, match=r"^ATTENTION_KERNEL=mine: it cannot be loaded: No module named '\w+'$"):
        AttentionKernel.load("mine")
    give(None, monkeypatch)
    with pytest.raises(CheckpointError, match="no flash_attn_with_kvcache"):
        AttentionKernel.load("flash_attention_4")
