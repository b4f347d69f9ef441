"""A request while it is being generated, and the sequences (choices) that it is made of."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from triton_renderer.errors import RendererError
from triton_renderer.prefill_decode.blocks import BlockHashes
from triton_renderer.prefill_decode.stopping import StopChecker
from triton_renderer.protocol.generate import GenerateTokenLogprob
from triton_renderer.protocol.stages import FeatureForm, FinishReason, GeneratedChunk, RequestContext

_arrivals = itertools.count()


@dataclass(frozen=True)
class Picture:
    """Where a picture's placeholder range is in the prompt, [start, end), and a digest of what the encoder made of it."""

    start: int
    end: int
    digest: bytes


@dataclass(frozen=True)
class MultimodalInputs:
    """The encoder's rows of one prompt, ready for the model's forward pass.

    rows: [1 + deepstack, rows, hidden], of all pictures in the prompt's order, in the model's dtype and on its device.
    places: [rows] int64 ascending, the position in the prompt of the token that takes each row.
    pictures: in the prompt's order.
    form: how the model takes the rows of all items.
    """

    rows: torch.Tensor
    places: npt.NDArray[np.int64]
    pictures: tuple[Picture, ...]
    form: FeatureForm = "list"

    def between(self, start: int, end: int) -> torch.Tensor:
        """The rows of the tokens at [start, end) of the prompt: [1 + deepstack, n, hidden], a view."""
        first, behind = np.searchsorted(self.places, (start, end)).tolist()
        return self.rows[:, first:behind]


@dataclass(frozen=True)
class Prompt:
    """What is prefilled. `position_ids`: [1, tokens], or [3, 1, tokens] with M-RoPE."""

    token_ids: npt.NDArray[np.int64]
    position_ids: torch.Tensor
    next_position: int
    """Position of the first generated token; behind a picture smaller than the number of tokens (M-RoPE)."""
    multimodal: MultimodalInputs | None = None

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """The pictures, in the order of the prompt."""
        return self.multimodal.pictures if self.multimodal else ()

    @property
    def num_tokens(self) -> int:
        """Its length."""
        return len(self.token_ids)


class Sink(Protocol):
    """Takes what a request generates: chunks up to one that is final, or a failure."""

    def send(self, chunk: GeneratedChunk, token_ids: list[int]) -> None:
        """One response; `chunk.final` marks the last."""

    def fail(self, error: RendererError) -> None:
        """The request ends with this error."""

    def is_cancelled(self) -> bool:
        """The client is gone."""


@dataclass(eq=False)
class Sequence:
    """One choice of a request."""

    request: "Request"
    index: int
    stop: StopChecker
    random: torch.Generator | None
    """Drawn from for this choice only, so that a seed gives the same tokens whatever else is in the batch."""
    hashes: BlockHashes
    output_ids: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    """The blocks of the KV cache that it uses, in the order of its tokens."""
    num_computed: int = 0
    """Tokens whose keys and values are in the cache."""
    num_cached: int = 0
    """Tokens of the prompt that were in the cache when it was first scheduled."""
    logprobs: list[GenerateTokenLogprob] = field(default_factory=list)
    """Of the tokens that are not sent yet."""
    placed_s: float | None = None
    """When it first had a place in the batch, on the clock `time.monotonic`, as the other times."""
    newest_token_s: float | None = None
    num_sent: int = 0
    end_is_sent: bool = False
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @property
    def is_finished(self) -> bool:
        """No further token will be generated."""
        return self.finish_reason is not None

    @property
    def num_tokens(self) -> int:
        """Prompt and output together."""
        return self.request.prompt.num_tokens + len(self.output_ids)

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose keys and values are not in the cache. One: the next step decodes it. More: they are to be prefilled."""
        return self.num_tokens - self.num_computed

    def token_ids(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """The tokens at [start, end) of prompt and output together."""
        prompt = self.request.prompt
        behind = prompt.num_tokens
        if start >= behind:
            return np.array(self.output_ids[start - behind : end - behind], np.int64)
        if end <= behind:
            return prompt.token_ids[start:end]
        return np.concatenate([prompt.token_ids[start:], np.array(self.output_ids[: end - behind], np.int64)])

    def positions(self, start: int, end: int) -> torch.Tensor:
        """Positions of the tokens at [start, end), as the model takes them: [1, n], or [3, 1, n] with M-RoPE."""
        prompt = self.request.prompt
        inside = prompt.position_ids[..., start:end]
        if end <= prompt.num_tokens:
            return inside
        shift = prompt.next_position - prompt.num_tokens
        behind = torch.arange(max(start, prompt.num_tokens) + shift, end + shift)
        return torch.cat([inside, behind.expand(*inside.shape[:-1], -1)], dim=-1)


@dataclass(eq=False)
class Request:
    """One client request. `max_tokens` is resolved: at least 1, and prompt + max_tokens fit the context."""

    context: RequestContext
    prompt: Prompt
    max_tokens: int
    sink: Sink
    make_sequence: Callable[["Request", int], Sequence]
    ec_transfer_params: dict[str, object] | None = None
    arrival: int = field(default_factory=lambda: next(_arrivals))
    arrived_s: float = field(default_factory=time.monotonic)
    num_chunks: int = 0
    next_chunk_s: float = 0.0
    """Not before this moment is the next chunk sent, unless it is the last one."""
    sequences: list[Sequence] = field(init=False)

    def __post_init__(self) -> None:
        self.sequences = [self.make_sequence(self, index) for index in range(self.context.sampling_params.n)]

    @property
    def id(self) -> str:
        """The internal id."""
        return self.context.id

    @property
    def is_finished(self) -> bool:
        """Every choice is."""
        return all(sequence.is_finished for sequence in self.sequences)

    @property
    def num_output_tokens(self) -> int:
        """Over all choices."""
        return sum(len(sequence.output_ids) for sequence in self.sequences)

    def answers_to(self, request_id: str) -> bool:
        """`request_id` is the internal id, or the one that the client knows."""
        return request_id in (self.context.id, self.context.external_id)
