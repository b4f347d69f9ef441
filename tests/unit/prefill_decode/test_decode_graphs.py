"""Replayed steps give what the same steps give without a recording: CUDA's where there is a GPU, else one of torch's operations."""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from tests.unit.prefill_decode.recording import record
from tests.unit.prefill_decode.test_equals_transformers import TIE, Case, Pipeline
from triton_renderer import checkpoint
from triton_renderer.prefill_decode.blocks import BLOCK_TOKENS, NULL_BLOCK, blocks_for
from triton_renderer.prefill_decode.decode_graphs import CudaRecorder, DecodeGraphs, Recorder
from triton_renderer.prefill_decode.kv_cache import Chunk
from triton_renderer.prefill_decode.model_runner import ModelRunner
from triton_renderer.settings import load_settings

DEVICE = checkpoint.device()
WINDOW = 24
NUM_BLOCKS = 96
SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 4096,
}  # fmt: skip
MODELS: dict[str, Callable[[], Any]] = {
    "the bundled model": lambda: checkpoint.load_part(load_settings(dtype="float32"), "language"),
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "a window in every layer": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW)),
    "layers that are not fused, with and without a window": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SIZES, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"])
    ),
}


@dataclass
class Running:
    """A sequence in the cache."""

    blocks: list[int]
    length: int
    shift: int
    """How far its positions are from the number of its tokens, as pictures make it with M-RoPE."""


@dataclass
class Batch:
    """A model, its cache, and sequences that come, grow and go, in blocks that others have left."""

    runner: ModelRunner
    graphs: DecodeGraphs
    rng: random.Random = field(default_factory=lambda: random.Random(3))
    free: list[int] = field(default_factory=lambda: list(range(1, NUM_BLOCKS)))

    def tensors(self, chunks: Sequence[Chunk], shifts: Sequence[int]) -> tuple[np.ndarray, torch.Tensor]:
        """Random tokens, and the positions."""
        ids = [self.rng.randrange(60) for chunk in chunks for _ in range(chunk.length)]
        places = torch.cat(
            [torch.arange(chunk.context, chunk.end) + shift for chunk, shift in zip(chunks, shifts, strict=True)]
        )
        axes = 3 if self.runner._get_rope_index else 1
        return np.array(ids), places.expand(3, 1, -1) if axes == 3 else places.unsqueeze(0)

    def eager(self, chunks: Sequence[Chunk], ids: np.ndarray, positions: torch.Tensor) -> torch.Tensor:
        token_ids = torch.from_numpy(ids).unsqueeze(0).to(DEVICE)
        return self.runner._logits(token_ids, positions.to(DEVICE), self.runner.cache.step(chunks))

    def come(self, length: int) -> Running:
        """A new one, prefilled."""
        self.rng.shuffle(self.free)
        blocks = [self.free.pop() for _ in range(blocks_for(length))]
        new = Running(blocks, length, self.rng.randrange(20))
        chunks = [Chunk(length, 0, blocks)]
        self.eager(chunks, *self.tensors(chunks, [new.shift]))
        return new

    def go(self, gone: Running) -> None:
        self.free += gone.blocks

    def grow(self, sequences: Sequence[Running]) -> None:
        """A token more of each: replayed, then without; both compute the same logits, and store the same."""
        for sequence in sequences:
            if blocks_for(sequence.length + 1) > len(sequence.blocks):
                sequence.blocks.append(self.free.pop())
        chunks = [Chunk(1, sequence.length, sequence.blocks) for sequence in sequences]
        ids, positions = self.tensors(chunks, [sequence.shift for sequence in sequences])
        places = [c.blocks[c.context // BLOCK_TOKENS] * BLOCK_TOKENS + c.context % BLOCK_TOKENS for c in chunks]
        pools = [pool for layer in self.runner.cache.layers for pool in (layer.keys, layer.values)]
        for pool in pools:
            pool[:, places] = 7.0
        before = [pool.clone() for pool in pools]
        replayed = self.graphs.run(chunks, ids, positions)
        assert replayed is not None
        stored = [pool.clone() for pool in pools]
        for pool, old in zip(pools, before, strict=True):
            pool.copy_(old)
        expected = self.eager(chunks, ids, positions)
        torch.testing.assert_close(replayed, expected, rtol=1e-5, atol=1e-5)
        for pool, one in zip(pools, stored, strict=True):
            torch.testing.assert_close(one[:, BLOCK_TOKENS:], pool[:, BLOCK_TOKENS:], rtol=1e-5, atol=1e-5)
        for sequence in sequences:
            sequence.length += 1


@pytest.fixture(scope="module", params=MODELS)
def runner(request: pytest.FixtureRequest) -> ModelRunner:
    """In float64, so that what padding does to the order of sums is far below what a wrong input would do."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    runner = ModelRunner(MODELS[request.param]().eval().requires_grad_(False).to(DEVICE).double())
    runner.allocate_cache(NUM_BLOCKS)
    return runner


@pytest.fixture(autouse=True)
def as_the_engine_does() -> Iterator[None]:
    with torch.inference_mode():
        yield


def recorder() -> Recorder:
    return CudaRecorder() if DEVICE.type == "cuda" else record


@pytest.fixture
def batch(runner: ModelRunner) -> Batch:
    runner.use_graphs(recorder())
    assert runner.graphs is not None
    return Batch(runner, runner.graphs)


def test_replayed_steps_are_the_steps(batch: Batch) -> None:
    running = [batch.come(length) for length in (1, 15, 16, 40)]
    for step in range(60):
        if step % 7 == 3:
            running.append(batch.come(batch.rng.randrange(1, 60)))
        if step % 9 == 5:
            batch.go(running.pop(batch.rng.randrange(len(running))))
        batch.rng.shuffle(running)
        batch.grow(running[: batch.rng.randrange(1, len(running) + 1)])
    assert {count for count, _ in batch.graphs.buckets} == {1, 2, 4, 8}
    assert batch.graphs.num_replays == 60


def test_long_sequences_have_graphs_of_their_own_width(batch: Batch) -> None:
    long = [batch.come(length) for length in (8 * BLOCK_TOKENS - 2, 9 * BLOCK_TOKENS)]
    for _ in range(4):
        batch.grow(long[:1])
    batch.grow(long[::-1])
    assert batch.graphs.buckets == [(1, 8), (1, 16), (2, 16)]


def test_sequences_of_unequal_length_are_left_alone(batch: Batch) -> None:
    chunks = [Chunk(1, 3, [1]), Chunk(1, 20 * BLOCK_TOKENS, list(range(2, 23)))]
    ids, positions = batch.tensors(chunks, [0, 0])
    assert batch.graphs.run(chunks, ids, positions) is None
    assert batch.graphs.buckets == []


def test_large_batches_are_padded_to_multiples_of_eight(batch: Batch) -> None:
    running = [batch.come(5) for _ in range(19)]
    for count in (9, 16, 17, 19):
        batch.grow(running[:count])
    assert batch.graphs.buckets == [(16, 8), (24, 8)]


def test_bucket_is_recorded_once_and_one_that_cannot_be_is_told_of_once(
    runner: ModelRunner, caplog: pytest.LogCaptureFixture
) -> None:
    tried = 0

    def refuse(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        nonlocal tried
        tried += 1
        raise RuntimeError("operation not permitted when stream is capturing")

    runner.use_graphs(refuse)
    assert runner.graphs is not None
    batch = Batch(runner, runner.graphs)
    chunks = [Chunk(1, 3, [1])]
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert batch.graphs.run(chunks, *batch.tensors(chunks, [0])) is None
    assert tried == 1
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
    assert "no graph of 1 sequences of up to 128 tokens" in caplog.text
    assert "stream is capturing" in caplog.text


def test_numbers_that_are_none_do_not_stay_in_the_null_block(runner: ModelRunner) -> None:
    keys = runner.cache.layers[0].keys

    def broken(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        keys[:, NULL_BLOCK * BLOCK_TOKENS] = float("nan")
        return run

    runner.use_graphs(broken)
    assert runner.graphs is not None
    batch = Batch(runner, runner.graphs)
    chunks = [Chunk(1, 3, [1]), Chunk(1, 3, [2]), Chunk(1, 3, [3])]
    assert batch.graphs.run(chunks, *batch.tensors(chunks, [0, 0, 0])) is None
    assert bool((keys[:, :BLOCK_TOKENS] == 0).all())


class FakeCuda:
    """What CudaRecorder uses of torch.cuda. Like torch's own, a capture that fails leaves its stream in place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
        self.usual, self.side, self.fails = Stream("usual"), Stream("side"), fails
        self.now = self.usual
        self.log: list[str] = []
        for name in ("graph", "stream", "set_stream", "current_stream", "Stream", "CUDAGraph", "graph_pool_handle"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def graph_pool_handle(self) -> str:
        return "pool"

    def current_stream(self) -> "Stream":
        return self.now

    def set_stream(self, stream: "Stream") -> None:
        self.now = stream

    def Stream(self) -> "Stream":  # torch's name
        return self.side

    @contextmanager
    def stream(self, stream: "Stream") -> Iterator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    def CUDAGraph(self) -> "FakeCuda":  # torch's name
        return self

    @contextmanager
    def graph(self, graph: object, *, pool: str, stream: "Stream", capture_error_mode: str) -> Iterator[None]:
        assert (pool, capture_error_mode) == ("pool", "thread_local")
        self.now = stream
        self.log.append("capture")
        yield
        if self.fails:
            raise RuntimeError("capture failed")
        self.now = self.usual

    def replay(self) -> None:
        self.log.append("replay")


@dataclass(eq=False)
class Stream:
    name: str
    waits: list[str] = field(default_factory=list)

    def wait_stream(self, other: "Stream") -> None:
        self.waits.append(other.name)


@pytest.mark.parametrize("fails", [False, True])
def test_capture_comes_after_a_run_beside_it_and_leaves_the_stream_as_it_was(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(monkeypatch, fails)
    out = torch.ones(1)

    def run() -> torch.Tensor:
        cuda.log.append(f"run on {cuda.now.name}")
        return out

    if fails:
        with pytest.raises(RuntimeError, match="capture failed"):
            CudaRecorder()(run)
    else:
        assert CudaRecorder()(run)() is out
    assert cuda.log == ["run on side", "capture", "run on side", *([] if fails else ["replay"])]
    assert cuda.now is cuda.usual
    assert (cuda.side.waits, cuda.usual.waits) == (["usual"], ["side"])


def test_recorder_of_these_tests_refuses_what_a_gpu_refuses_and_keeps_what_the_host_knew() -> None:
    number = torch.tensor([1.0])
    with pytest.raises(RuntimeError, match="capturing"):
        record(lambda: number * float(number))
    host = [2.0]
    replay = record(lambda: number * host[0])
    number.fill_(3.0)
    host[0] = 5.0
    assert replay().tolist() == [6.0]


@pytest.fixture(scope="module")
def pipeline() -> Iterator[Pipeline]:
    torch.set_num_threads(1)
    pipeline = Pipeline()
    yield pipeline
    pipeline.stage.close()


def test_engine_with_graphs_puts_out_what_transformers_does(pipeline: Pipeline) -> None:
    runner = pipeline.stage._runner
    assert (runner.graphs is None) == (DEVICE.type == "cpu"), "only a GPU has graphs, and by default"
    runner.use_graphs(recorder())
    assert runner.graphs is not None
    cases = [pipeline.case(pictures, length) for pictures, length in ((0, 5), (1, 9), (0, 90), (2, 12), (0, 1))]
    sinks = [(case, pipeline.start(case, stream=index % 2 == 0)) for index, case in enumerate(cases)]
    for case, sink in sinks:
        assert sink.wait(60.0).error is None
        assert agrees(case, sink.token_ids)
    assert runner.graphs.num_replays >= 20
    assert runner.graphs.buckets


def agrees(case: Case, token_ids: list[int]) -> bool:
    """The same tokens, up to a tie of the two best logits."""
    for got, wanted, gap in zip(token_ids, case.expected, case.gaps, strict=True):
        if got != wanted:
            return gap < TIE
    return True
