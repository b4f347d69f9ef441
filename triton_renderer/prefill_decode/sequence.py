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
from triton_renderer.prefill_decode.shaping import Shaping
from triton_renderer.prefill_decode.stopping import StopChecker
from triton_renderer.prefill_decode.structured import Constraint
from triton_renderer.protocol.generate import GenerateLogprob, GenerateTokenLogprob
from triton_renderer.protocol.sampling import SamplingParams
from triton_renderer.protocol.stages import FeatureForm, FinishReason, GeneratedChunk, RequestContext
from triton_renderer.text.logprobs import LOWEST_LOGPROB

_arrivals = itertools.count()


@dataclass(frozen=True)
class Picture:
    """Where a picture's or video's placeholder range is in the prompt, [start, end), and a digest of what the encoder made of it."""

    start: int
    end: int
    digest: bytes


@dataclass(frozen=True)
class MultimodalInputs:
    """The encoder's rows of one prompt, ready for the model's forward pass.

    rows: [1 + deepstack, rows, hidden], of all pictures and videos in the prompt's order, in the model's dtype and on its device.
    places: [rows] int64 ascending, the position in the prompt of the token that takes each row.
    pictures: in the prompt's order, videos among them.
    form: how the model takes the rows of all items.
    of_video: [rows] bool, the rows that belong to a video; None: there is none.
    """

    rows: torch.Tensor
    places: npt.NDArray[np.int64]
    pictures: tuple[Picture, ...]
    form: FeatureForm = "list"
    of_video: torch.Tensor | None = None

    def within(self, start: int, end: int) -> tuple[npt.NDArray[np.int64], torch.Tensor]:
        """Which of the tokens at [start, end) of the prompt take a row, counted from `start`: [n]; and [1 + deepstack, n, hidden]."""
        first, behind = np.searchsorted(self.places, (start, end)).tolist()
        return self.places[first:behind] - start, self.rows[:, first:behind]

    def between(self, start: int, end: int) -> dict[str, torch.Tensor]:
        """By modality, the rows of the tokens at [start, end) of the prompt: [1 + deepstack, n, hidden], n not zero."""
        first, behind = np.searchsorted(self.places, (start, end)).tolist()
        rows = self.rows[:, first:behind]
        if self.of_video is None:
            return {"image": rows} if rows.shape[1] else {}
        of_video = self.of_video[first:behind]
        parts = {"image": rows[:, ~of_video], "video": rows[:, of_video]}
        return {modality: part for modality, part in parts.items() if part.shape[1]}


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


class PromptLogprobs:
    """The logprobs of a prompt's tokens, collected chunk by chunk: of each its own, and the `count` best ones there.

    The first token has none, as nothing comes before it.
    """

    def __init__(self, num_tokens: int, count: int, texts: Callable[[list[int]], list[str]]) -> None:
        """`texts`: those of the candidates of one place after the other, the prompt's token first."""
        self.count = count
        self._num_tokens = num_tokens
        self._texts = texts
        self.entries: list[dict[int, dict[str, object]] | None] = [None]
        """In the reference's form: by token id, for each position the prompt's token first, then the best ones by rank."""

    @property
    def is_complete(self) -> bool:
        """Every token of the prompt has its entry."""
        return len(self.entries) == self._num_tokens

    def wanted(self, start: int, end: int) -> tuple[int, int]:
        """Of the positions [start, end), those whose logits are needed: each tells of the token behind it."""
        return max(start, len(self.entries) - 1), min(end, self._num_tokens - 1)

    def add(self, own: GenerateLogprob, best: list[GenerateLogprob]) -> None:
        """The next position's: the prompt's token, and the best ones."""
        candidates = list({one.token_id: one for one in (own, *best)}.values())
        texts = self._texts([one.token_id for one in candidates])
        self.entries.append(
            {
                # JSON has no infinity.
                one.token_id: {"logprob": max(one.logprob, LOWEST_LOGPROB), "rank": one.rank, "decoded_token": text}
                for one, text in zip(candidates, texts, strict=True)
            }
        )


@dataclass(eq=False)
class Sequence:
    """One choice of a request."""

    request: "Request"
    index: int
    stop: StopChecker
    random: torch.Generator | None
    """Drawn from for this choice only, so that a seed gives the same tokens whatever else is in the batch."""
    hashes: BlockHashes
    shaping: Shaping
    constraint: Constraint | None = None
    """Where the output has to be of a form."""
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

    def __post_init__(self) -> None:
        self.is_shaped = self.constraint is not None or not self.shaping.is_none
        """Its logits are changed before a token is chosen."""

    @property
    def params(self) -> SamplingParams:
        """How its tokens are chosen."""
        return self.request.context.sampling_params

    @property
    def prompt_logprobs(self) -> "PromptLogprobs | None":
        """What this choice has still to find out about the prompt: the first one does it for all."""
        wanted = self.request.prompt_logprobs
        return wanted if wanted is not None and self.index == 0 and not wanted.is_complete else None

    def push(self, token_id: int) -> bool:
        """Notes the token that was chosen. False where the form of its output does not have it."""
        self.output_ids.append(token_id)
        self.shaping.push(token_id)
        if self.constraint is not None and not self.constraint.push(token_id):
            return False
        self.finish_reason, self.stop_reason = self.stop.push(token_id)
        if self.finish_reason is None and self.constraint is not None and self.constraint.is_finished:
            self.finish_reason = "stop"  # nothing can follow, whatever min_tokens and ignore_eos say
            self.stop.finish()
        return True

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
        behind = behind.expand(*inside.shape[:-1], -1)
        return torch.cat([inside, behind], dim=-1) if start < prompt.num_tokens else behind


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
    prompt_logprobs: PromptLogprobs | None = None
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
