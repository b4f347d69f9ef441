"""A language model whose next token is a function of what it has seen, and a sink that notes everything."""

import threading
import time

import numpy as np
import numpy.typing as npt
import torch

from triton_renderer.errors import RendererError
from triton_renderer.prefill_decode.sequence import Prompt, Request, Sequence
from triton_renderer.protocol.sampling import SamplingParams
from triton_renderer.protocol.stages import GeneratedChunk, RequestContext

VOCAB_SIZE = 50
EOS = 49


class CountingRunner:
    """After token t comes t + 1 (modulo 40): the output is known from the prompt's last token.

    `fail_prefill` and `fail_decode` are exceptions to raise; `step_s` is the time that a step takes.
    """

    def __init__(self) -> None:
        self.cache = RowCounter()
        self.fail_prefill: Exception | None = None
        self.fail_decode: Exception | None = None
        self.nan_for: int | None = None
        """After this token the model's output is not finite."""
        self.step_s = 0.0
        self.batch_sizes: list[int] = []

    def prefill(self, prompt: Prompt) -> tuple[torch.Tensor, int]:
        if self.fail_prefill:
            raise self.fail_prefill
        return self._logits([int(prompt.token_ids[-1])]), len(prompt.token_ids)

    def decode(self, token_ids: list[int], positions: list[int]) -> torch.Tensor:
        time.sleep(self.step_s)
        if self.fail_decode:
            error, self.fail_decode = self.fail_decode, None
            raise error
        assert len(token_ids) == self.cache.num_rows
        self.batch_sizes.append(len(token_ids))
        return self._logits(token_ids)

    def _logits(self, token_ids: list[int]) -> torch.Tensor:
        logits = torch.zeros(len(token_ids), VOCAB_SIZE)
        for row, token_id in enumerate(token_ids):
            logits[row, (token_id + 1) % 40] = float("nan") if token_id == self.nan_for else 10.0
        return logits


class RowCounter:
    """The part of the KV cache that the engine keeps in step."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.fail_join: Exception | None = None
        self.fail_leave: Exception | None = None

    def join(self, prefilled: int) -> None:
        if self.fail_join:
            raise self.fail_join
        self.num_rows += 1

    def leave(self, row: int) -> None:
        if self.fail_leave:
            raise self.fail_leave
        assert 0 <= row < self.num_rows
        self.num_rows -= 1

    def clear(self) -> None:
        self.num_rows = 0

    def check_integrity(self) -> None:
        assert self.num_rows == 0, "rows are left behind although the engine is idle"


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

    def wait(self) -> "NotingSink":
        assert self._ended.wait(10), "the request did not end"
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


def make_request(  # noqa: PLR0917  # a test names those it cares about
    sink: NotingSink,
    prompt: list[int] | None = None,
    max_tokens: int = 5,
    stream: bool = True,
    request_id: str = "r",
    external_id: str | None = None,
    priority: int = 0,
    **sampling: object,
) -> Request:
    token_ids: npt.NDArray[np.int64] = np.array(prompt or [1, 2, 3], np.int64)
    params = SamplingParams.model_validate({"temperature": 0, "max_tokens": max_tokens} | sampling)
    context = RequestContext(id=request_id, external_id=external_id, stream=stream, sampling_params=params, priority=priority)

    def make_sequence(request: Request, index: int) -> Sequence:
        generator = torch.Generator().manual_seed((params.seed or 0) + index)
        return Sequence(request, index, TokenLimit(max_tokens), generator)  # type: ignore[arg-type]

    return Request(
        context, Prompt(token_ids, torch.arange(len(token_ids))[None], len(token_ids)), max_tokens, sink, make_sequence
    )
