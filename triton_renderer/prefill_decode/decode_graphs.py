"""Steps that only decode, as CUDA graphs: the GPU gets one launch for all kernels of a step.

A small step's kernels take less time than the host takes to start them one by one. A graph is recorded once and replayed with
whatever its input tensors then hold; its shapes stay. So a step is padded to a *bucket*: to a number of sequences, and to a
width of the block tables. A bucket's graph is recorded when the first step of it comes.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from triton_renderer.prefill_decode.blocks import BLOCK_TOKENS, NULL_BLOCK, blocks_for
from triton_renderer.prefill_decode.kv_cache import Chunk, PagedKVCache, StepLayout, alike
from triton_renderer.transfer import copy_to, to_device

log = logging.getLogger(__name__)

Recorder = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Takes what computes a tensor from tensors that stay where they are. Runs it once, so that whatever is made at first use is
there, then records it, and returns what computes the tensor anew from what they hold at that time."""
Compute = Callable[[Tensor, Tensor, StepLayout], Tensor]
"""Logits [tokens, vocabulary] of token ids [1, tokens], positions [..., 1, tokens] and the layout of a step. Nothing of it may
depend on values that the host knows, other than the layout's shapes."""

_SMALL_BATCH = 8
"""Batches up to this size are padded to powers of two, larger ones to multiples of it."""
_MIN_WIDTH = 8
"""Blocks: up to this width all sequences attend in one batch anyway."""


@dataclass(frozen=True)
class _Graph:
    """The recording of one bucket and the tensors that it reads."""

    token_ids: Tensor
    positions: Tensor
    layout: StepLayout
    replay: Callable[[], Tensor]


class DecodeGraphs:
    """The graphs of one model and its cache. For the thread that runs the model, in inference mode."""

    def __init__(self, cache: PagedKVCache, compute: Compute, recorder: Recorder) -> None:
        self._cache, self._compute, self._recorder = cache, compute, recorder
        self._graphs: dict[tuple[int, int], _Graph | None] = {}
        self._needs_alike = True
        self.num_replays = 0

    @property
    def buckets(self) -> list[tuple[int, int]]:
        """Those that have a graph: sequences, and blocks of each."""
        return sorted(key for key, graph in self._graphs.items() if graph is not None)

    def run(self, chunks: Sequence[Chunk], token_ids: npt.NDArray[np.int64], positions: Tensor) -> Tensor | None:
        """Logits [chunks, vocabulary] of a step; None where it has to be computed without a graph.

        chunks: of one token each. token_ids: [chunks]. positions: [..., 1, chunks], on the CPU.
        """
        if self._needs_alike and len(alike(chunks)) != 1:
            return None  # padded to the longest, the short ones would cost more than a graph saves
        bucket = batch, width = _batch(len(chunks)), _width(chunks)
        more = batch - len(chunks)
        # The rows that fill up see their own key alone, so that they are numbers, and write where nobody looks.
        padded = [*chunks, *[Chunk(length=1, context=0, blocks=[NULL_BLOCK])] * more]
        ids = torch.from_numpy(np.pad(token_ids, (0, more))).unsqueeze(0)
        positions = torch.nn.functional.pad(positions, (0, more))
        if bucket not in self._graphs:
            self._graphs[bucket] = self._record(padded, width, ids, positions)
        elif (known := self._graphs[bucket]) is not None:
            known.layout.take_over(StepLayout(padded, self._cache, width=width, device=ids.device))
            copy_to(known.token_ids, ids)
            copy_to(known.positions, positions)
        graph = self._graphs[bucket]
        if graph is None:
            return None
        self.num_replays += 1
        return graph.replay()[: len(chunks)]

    def _record(self, chunks: Sequence[Chunk], width: int, token_ids: Tensor, positions: Tensor) -> _Graph | None:
        """A graph for these and later ones of the bucket, which holds these; None where the model cannot be recorded."""
        started = time.monotonic()
        layout = StepLayout(chunks, self._cache, width=width)
        ids, places = (to_device(tensor, self._cache.device) for tensor in (token_ids, positions))
        self._cache.use(layout)
        try:
            replay = self._recorder(lambda: self._compute(ids, places, layout))
            self._check_null_block()
        except Exception:
            log.warning(
                "no graph of %d sequences of up to %d tokens: such steps go on without",
                *(len(chunks), width * BLOCK_TOKENS),
                exc_info=True,
            )
            return None
        # A kernel that reads each sequence's own blocks, in all layers, pays nothing for the width.
        self._needs_alike = "groups" in vars(layout)
        log.info(
            "graph of %d sequences of up to %d tokens recorded in %.2f s",
            *(len(chunks), width * BLOCK_TOKENS, time.monotonic() - started),
        )
        return _Graph(ids, places, layout, replay)

    def _check_null_block(self) -> None:
        """What rows that fill up leave there is the same each time. Behind a mask it does no harm unless it is no number."""
        pools = [pool for layer in self._cache.layers for pool in (layer.keys, layer.values)]
        if not all(bool(pool[:, NULL_BLOCK * BLOCK_TOKENS].isfinite().all()) for pool in pools):
            self._cache.erase([NULL_BLOCK])
            raise ArithmeticError("the model makes no numbers of the token 0")


class CudaRecorder:
    """A `Recorder` whose graphs share one pool of memory: what one has returned holds until the next one is replayed."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        usual = torch.cuda.current_stream()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(usual)
        with torch.cuda.stream(stream):
            run()
        usual.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads go on with what they do on the GPU; by default that would break the capture, or them.
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                out = run()
        finally:
            torch.cuda.set_stream(usual)  # torch leaves the other one in place where a capture fails at its end

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


def _batch(sequences: int) -> int:
    if sequences <= _SMALL_BATCH:
        return 1 << (sequences - 1).bit_length()
    return -(-sequences // _SMALL_BATCH) * _SMALL_BATCH


def _width(chunks: Sequence[Chunk]) -> int:
    longest = max(blocks_for(chunk.end) for chunk in chunks)
    return max(_MIN_WIDTH, 1 << (longest - 1).bit_length())
