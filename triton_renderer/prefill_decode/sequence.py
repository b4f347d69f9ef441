"""A request while it is being generated, and the sequences (choices) that it is made of."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from triton_renderer.errors import RendererError
from triton_renderer.prefill_decode.stopping import StopChecker
from triton_renderer.protocol.generate import GenerateTokenLogprob
from triton_renderer.protocol.stages import FeatureForm, FinishReason, GeneratedChunk, RequestContext

_arrivals = itertools.count()


@dataclass(frozen=True)
class MultimodalInputs:
    """The encoder's rows of one prompt, ready for the model's forward pass.

    features: for each item [1 + deepstack, rows, hidden], in the model's dtype and on its device.
    grids: for each item its metadata as int64 tensors of shape [1, n] ({"image_grid_thw": [[1, 6, 6]]}).
    form: how the model takes the rows of all items.
    """

    features: list[torch.Tensor]
    grids: list[dict[str, torch.Tensor]]
    form: FeatureForm = "list"


@dataclass(frozen=True)
class Prompt:
    """What is prefilled. `position_ids`: [1, tokens], or [3, 1, tokens] with M-RoPE."""

    token_ids: npt.NDArray[np.int64]
    position_ids: torch.Tensor
    next_position: int
    """Position of the first generated token; behind a picture smaller than the number of tokens (M-RoPE)."""
    multimodal: MultimodalInputs | None = None


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
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[GenerateTokenLogprob] = field(default_factory=list)
    """Of the tokens that are not sent yet."""
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
        return len(self.request.prompt.token_ids) + len(self.output_ids)

    @property
    def position(self) -> int:
        """Position of the newest output token, which the next decode step feeds to the model."""
        return self.request.prompt.next_position + len(self.output_ids) - 1


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
    num_chunks: int = 0
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
