"""A language model whose next token is a function of what it has seen, and a sink that notes everything."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from triton_renderer.errors import RendererError
from triton_renderer.prefill_decode import sequence
from triton_renderer.prefill_decode.blocks import BLOCK_TOKENS, BlockHashes, BlockPool
from triton_renderer.prefill_decode.scheduler import Scheduler, Work
from triton_renderer.prefill_decode.sequence import MultimodalInputs, Picture, Prompt, PromptLogprobs, Request
from triton_renderer.prefill_decode.shaping import Shaping
from triton_renderer.protocol.sampling import SamplingParams
from triton_renderer.protocol.stages import GeneratedChunk, RequestContext

VOCAB_SIZE = 50
EOS = 49


class CountingRunner:
    """After token t comes t + 1 (modulo 40): the output is known from the prompt's last token.

    `fail_prefill` and `fail_decode` are exceptions to raise for a step that prefills, or decodes; `step_s` is the time that
    a step takes. Checks what the scheduler promises of a step.
    """

    def __init__(self) -> None:
        self.fail_prefill: Exception | None = None
        self.fail_decode: Exception | None = None
        self.nan_for: int | None = None
        """After this token the model's output is not finite."""
        self.step_s = 0.0
        self.batch_sizes: list[int] = []
        self.steps: list[list[int]] = []
        """The number of tokens of each work of each step."""
        self.erased: list[int] = []
        self._slots: dict[tuple[int, int], int] = {}

    def forward(self, works: Sequence[Work], wanted: Sequence[int]) -> torch.Tensor:
        time.sleep(self.step_s)
        lengths = [work.length for work in works]
        assert lengths == sorted(lengths, key=lambda length: length > 1), "works of one token do not come first"
        is_prefill = [work.end <= work.sequence.request.prompt.num_tokens for work in works]
        for fault, is_it in ((self.fail_prefill, any(is_prefill)), (self.fail_decode, not all(is_prefill))):
            if fault and is_it:
                raise fault
        used: list[int] = []
        for work in works:
            num_blocks = -(-work.end // BLOCK_TOKENS)
            assert 0 < work.length <= work.sequence.num_uncomputed
            assert len(work.sequence.blocks) >= num_blocks, "a sequence has too few blocks"
            used += work.sequence.blocks[work.start // BLOCK_TOKENS : num_blocks]
            self._remember(work)
        assert len(used) == len(set(used)), "two sequences write to one block"
        self.steps.append(lengths)
        self.batch_sizes.append(is_prefill.count(False))
        tokens = np.concatenate([work.sequence.token_ids(work.start, work.end) for work in works])
        return self._logits(tokens[list(wanted)].tolist())

    def _remember(self, work: Work) -> None:
        """Stores the work's tokens in its slots, and looks whether those before it are still there."""
        places = [(work.sequence.blocks[i // BLOCK_TOKENS], i % BLOCK_TOKENS) for i in range(work.end)]
        tokens = work.sequence.token_ids(0, work.end).tolist()
        self._slots |= dict(zip(places[work.start :], tokens[work.start :], strict=True))
        assert [self._slots.get(place) for place in places] == tokens, "the cache does not hold the sequence"

    def take_thread(self) -> None:
        """Nothing here computes with more than one."""

    def erase(self, blocks: Sequence[int]) -> None:
        self.erased += blocks

    def _logits(self, token_ids: list[int]) -> torch.Tensor:
        logits = torch.zeros(len(token_ids), VOCAB_SIZE)
        for row, token_id in enumerate(token_ids):
            logits[row, (token_id + 1) % 40] = float("nan") if token_id == self.nan_for else 10.0
        return logits


def make_scheduler(num_blocks: int = 200, **options: Any) -> Scheduler:
    limits = {"max_running": 4, "max_waiting": 100, "max_step_tokens": 64}
    return Scheduler(BlockPool(num_blocks), **(limits | options))


class NotingSink:
    """Notes chunks and how often the request ended."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.chunks: list[GeneratedChunk] = []
        self.error: RendererError | None = None
        self.num_ends = 0
        self.cancelled = False
        self._ended = threading.Event()

    def send(self, chunk: GeneratedChunk, token_ids: list[int]) -> None:
        self.token_ids += token_ids
        self.chunks.append(chunk)
        if chunk.final:
            self._end()

    def fail(self, error: RendererError) -> None:
        self.error = error
        self._end()

    def is_cancelled(self) -> bool:
        return self.cancelled

    def _end(self) -> None:
        self.num_ends += 1
        self._ended.set()

    def wait(self, timeout_s: float = 10.0) -> "NotingSink":
        assert self._ended.wait(timeout_s), "the request did not end"
        return self

    @property
    def finish_reasons(self) -> list[str | None]:
        return [choice.finish_reason for chunk in self.chunks for choice in chunk.choices if choice.finish_reason]


class TokenLimit:
    """Stands in for StopChecker: EOS and a limit, no text."""

    ending_ids = frozenset({EOS})

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0

    def push(self, token_id: int) -> tuple[str | None, None]:
        self.count += 1
        if token_id == EOS:
            return "stop", None
        return ("length", None) if self.count >= self.limit else (None, None)

    def finish(self) -> None:
        pass


def make_request(  # noqa: PLR0917  # a test names those it cares about
    sink: NotingSink,
    prompt: list[int] | None = None,
    max_tokens: int = 5,
    stream: bool = True,
    request_id: str = "r",
    external_id: str | None = None,
    priority: int = 0,
    cache_salt: str | None = None,
    pictures: Sequence[tuple[int, int, bytes]] = (),
    bad_tokens: Sequence[Sequence[int]] = (),
    **sampling: object,
) -> Request:
    token_ids: npt.NDArray[np.int64] = np.array(prompt or [1, 2, 3], np.int64)
    params = SamplingParams.model_validate({"temperature": 0, "max_tokens": max_tokens} | sampling)
    context = RequestContext(
        id=request_id, external_id=external_id, stream=stream, sampling_params=params, priority=priority, cache_salt=cache_salt
    )
    hashed = [(start, end, digest) for start, end, digest in pictures]

    def make_sequence(request: Request, index: int) -> sequence.Sequence:
        generator = torch.Generator().manual_seed((params.seed or 0) + index)
        stop: Any = TokenLimit(max_tokens)
        shaping = Shaping(params, token_ids, stop.ending_ids, bad_tokens, VOCAB_SIZE)
        return sequence.Sequence(request, index, stop, generator, BlockHashes(cache_salt, hashed), shaping)

    places = np.concatenate([np.arange(start, end) for start, end, _ in pictures] or [np.empty(0, np.int64)])
    multimodal = MultimodalInputs(torch.zeros(1, len(places), 2), places, tuple(Picture(*picture) for picture in pictures))
    positions = torch.arange(len(token_ids))[None]
    inputs = Prompt(token_ids, positions, len(token_ids), multimodal if pictures else None)
    logprobs = None if params.prompt_logprobs is None else PromptLogprobs(len(token_ids), params.prompt_logprobs, _as_text)
    return Request(context, inputs, max_tokens, sink, make_sequence, prompt_logprobs=logprobs)


def _as_text(token_ids: list[int]) -> list[str]:
    return list(map(str, token_ids))
