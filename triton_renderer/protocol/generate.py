"""Token-in/token-out: POST /inference/v1/generate, and what the render routes answer."""

import itertools
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from triton_renderer.protocol.base import Int64, NullableBool, StreamOptions, TokenId, Usage, Wire
from triton_renderer.protocol.openai import ChatLogprobs
from triton_renderer.protocol.sampling import SamplingParams

MAX_ITEMS = 256
"""Multimodal items of one request."""


class PlaceholderRange(Wire):
    """The tokens of one item: `token_ids[offset : offset + length]`.

    `is_embed` marks those that take an encoder row where not all do: run lengths, starting with a run of "no".
    """

    offset: int = Field(ge=0)
    length: int = Field(gt=0)
    is_embed: list[Annotated[int, Field(ge=0)]] | None = None


Base64 = str
ItemList = Annotated[list[Base64 | None], Field(max_length=MAX_ITEMS)]


class Features(Wire):
    """The multimodal items of a prompt: all fields have the same modalities, and lists of equal length and order."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[PlaceholderRange]]
    kwargs_data: dict[str, ItemList] | None = None
    mm_metadata: dict[str, ItemList] | None = None

    @model_validator(mode="after")
    def _parallel(self) -> Self:
        for name in ("mm_placeholders", "kwargs_data", "mm_metadata"):
            lists = getattr(self, name)
            if lists is None:
                continue
            if lists.keys() != self.mm_hashes.keys():
                raise ValueError(f"mm_hashes and {name} must have the same modalities")
            for modality, hashes in self.mm_hashes.items():
                if len(lists[modality]) != len(hashes):
                    raise ValueError(
                        f"{modality}: mm_hashes has {len(hashes)} items and {name} {len(lists[modality])}; they must be equal"
                    )
        spans = [(span.offset, span.offset + span.length) for ranges in self.mm_placeholders.values() for span in ranges]
        for ranges in self.mm_placeholders.values():
            if any(after.offset < before.offset for before, after in itertools.pairwise(ranges)):
                raise ValueError("mm_placeholders must be sorted by offset")
        spans.sort()
        if any(after[0] < before[1] for before, after in itertools.pairwise(spans)):
            raise ValueError("mm_placeholders must not overlap")
        return self

    @property
    def end(self) -> int:
        """The first position behind the last placeholder."""
        return max((span.offset + span.length for ranges in self.mm_placeholders.values() for span in ranges), default=0)


class ReasoningParserKwargs(Wire):
    """What the prompt was rendered with, for a parser that depends on it."""

    chat_template_kwargs: dict[str, Any] = {}


class GenerateRequest(Wire):
    """One prompt of token ids; also what a render route answers."""

    request_id: str | None = Field(None, max_length=1024)
    token_ids: list[TokenId] = Field(min_length=1)
    token_offsets: list[tuple[int, int]] | None = None
    features: Features | None = None
    content_parts: list[dict[str, Any]] | None = None
    sampling_params: SamplingParams
    model: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: ReasoningParserKwargs | None = None
    return_token_ids: NullableBool = False
    output_mode: Literal["tokens", "text"] = "tokens"
    stream: NullableBool = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    priority: Int64 = 0
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.content_parts and self.features:
            raise ValueError("content_parts and features are mutually exclusive")
        if self.output_mode == "text" and not self.sampling_params.detokenize:
            raise ValueError("output_mode text requires sampling_params.detokenize")
        if self.features is None:
            return self
        if self.features.end > len(self.token_ids):
            raise ValueError(f"mm_placeholders reach to {self.features.end}, behind the {len(self.token_ids)} token_ids")
        if not self.ec_transfer_params:
            data = self.features.kwargs_data or {}
            for modality, items in (self.features.mm_metadata or {}).items():
                for index, metadata in enumerate(items):
                    if metadata is not None and data.get(modality, [None] * len(items))[index] is None:
                        raise ValueError(
                            f"features.mm_metadata.{modality}.{index}: an item with metadata only requires ec_transfer_params"
                        )
        return self


class GenerateLogprob(Wire):
    """One candidate. `rank` is 1 for the most likely token."""

    token_id: TokenId
    logprob: float
    rank: int | None = None


class GenerateTokenLogprob(GenerateLogprob):
    """The sampled token, and `top_logprobs`: itself first, then the best candidates by rank."""

    top_logprobs: list[GenerateLogprob] = []


class GenerateLogprobs(Wire):
    """One entry a generated token."""

    content: list[GenerateTokenLogprob] | None = None


class GenerateChoice(Wire):
    """One output, or with a stream its newest part."""

    index: int = Field(ge=0, lt=2**31)
    token_ids: Annotated[list[TokenId], BeforeValidator(lambda value: [] if value is None else value)] = []
    finish_reason: str | None = None
    stop_reason: Int64 | str | None = None
    logprobs: GenerateLogprobs | ChatLogprobs | None = None
    text: str | None = None


class GenerateResponse(Wire):
    """The answer of /inference/v1/generate, or one chunk of its stream."""

    request_id: str = ""
    model: str | None = None
    created: int | None = None
    choices: list[GenerateChoice] = []
    usage: Usage | None = None
    prompt_logprobs: list[Any] | None = None
    prompt_token_ids: list[TokenId] | None = None
    mm_placeholders: dict[str, list[PlaceholderRange]] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    output_mode: Literal["tokens", "text"] = "tokens"


class AbortRequest(Wire):
    """POST /inference/v1/abort_requests."""

    request_ids: list[str]
