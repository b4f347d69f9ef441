"""The JSON documents that stages hand to each other, in the control tensors of `tensors.py`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from triton_renderer.protocol.base import Int64, TokenId, Wire
from triton_renderer.protocol.forms import AnswerForm
from triton_renderer.protocol.generate import GenerateLogprobs, PlaceholderRange
from triton_renderer.protocol.sampling import SamplingParams

MAX_METADATA = 64
"""Integers of one field of an item's metadata: grids and sizes, never pixels."""

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]
"""Why an output ended. Our engine says the first three; derender passes the reference's others on as well."""


class RenderJob(Wire):
    """`request` tensor: one prompt to render. `body` is the client's request, for `completion` with a single prompt.

    `responses` and `messages` are translated to `chat`, and their answers back; `count_tokens` is a Messages request that
    ends with its prompt.
    """

    kind: Literal["chat", "completion", "responses", "messages", "count_tokens"]
    id: str
    """Made by the caller, unique: the key of every state kept for this request."""
    external_id: str | None = None
    """The id that answers carry and that the client aborts by; `id` where it is absent."""
    body: dict[str, Any]
    created: int | None = None
    """Unix seconds that the answer carries; now where absent."""
    choice_offset: int = Field(0, ge=0)
    """Added to choice indices: the prompts of one completion request number their choices through."""
    for_generate: bool = False
    """The result leaves as a GenerateRequest: nothing for derender is added."""


class FeatureItem(Wire):
    """One multimodal item. Its kwargs and metadata are slices 2i and 2i+1 of `mm_data`."""

    modality: str
    mm_hash: str
    placeholder: PlaceholderRange


class DerenderContext(Wire):
    """What derender needs to know of a request, handed through with its first chunk."""

    kind: Literal["chat", "completion"]
    form: AnswerForm | None = None
    """The answer's form, where it is not the one of `kind` itself: it is translated from that."""
    id: str
    """The `id` of the answer, as the client sees it."""
    created: int
    model: str
    stream: bool
    include_usage: bool = False
    continuous_usage: bool = False
    choice_offset: int = 0
    prompt_tail: list[TokenId] = []
    """The last prompt tokens, so that the first output token keeps its leading space."""
    echo: str = ""
    """Text put in front of each choice."""
    reasoning_open: bool = False
    """The rendered prompt left a reasoning block open."""
    tool_choice: Literal["none", "auto", "required", "named"] = "none"
    tool_name: str | None = None
    parameter_types: dict[str, dict[str, list[str]]] = {}
    """The JSON types of each tool's parameters, for parsers of formats that do not write them."""
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    stop: list[str] = []
    stop_token_ids: list[TokenId] = []
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    """Stop strings count only behind this many tokens."""
    skip_special_tokens: bool = True
    """The client's own wish: parsers get their markers in any case."""
    spaces_between_special_tokens: bool = True
    want_logprobs: bool = False
    top_logprobs: int | None = None
    """Candidates that chat shows with each token; all that were generated where absent."""
    return_token_ids: bool = False
    prompt_token_ids: list[TokenId] | None = None


class RequestContext(Wire):
    """`context` tensor: what encode and prefill_decode need to know of a request."""

    id: str
    external_id: str | None = None
    model: str | None = None
    stream: bool = False
    sampling_params: SamplingParams = SamplingParams()
    features: list[FeatureItem] = []
    ec_transfer_params: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: Int64 = 0
    return_token_ids: bool = False
    output_mode: Literal["tokens", "text"] = "tokens"
    reasoning_ended: bool = False
    """The client says that no reasoning is to come. Where it does not, the prompt's tokens tell."""
    constraint_param: str | None = None
    """What the client calls `sampling_params.structured_outputs`, for errors."""
    derender: DerenderContext | None = None
    request: dict[str, Any] | None = None
    """From render with `for_generate`: further fields of the GenerateRequest (request_id, token_offsets, …)."""


class AbortOperation(Wire):
    """`context` tensor of prefill_decode with {"op": "abort"}: ends requests, by internal or client id."""

    request_ids: list[str]
    remember: bool = False
    """Also end a request with such an internal id that arrives later: it is still in an earlier stage."""


class EncodedItem(Wire):
    """One item's rows in `embeddings`."""

    modality: str
    mm_hash: str
    digest: str
    """The server's own digest of the item's content, options and model: hexadecimal, the only cache key."""
    rows: int = Field(ge=0)
    placeholder: PlaceholderRange
    metadata: dict[str, Annotated[list[Int64], Field(max_length=MAX_METADATA)]] = {}
    """Model inputs besides the rows: {"image_grid_thw": [1, 6, 6]}."""


FeatureForm = Literal["list", "rows", "items"]
"""How a family's `get_image_features` returns rows: a tensor [rows, hidden] for each item, one for all, or one with an axis of
items in front. Its language model takes them in the same form."""


class EncodedItems(Wire):
    """`encoded` tensor: how to read `embeddings`."""

    dtype: str = "float32"
    hidden: int = Field(0, ge=0)
    deepstack: int = Field(0, ge=0)
    """How many further feature sets each item carries behind its first."""
    form: FeatureForm = "list"
    items: list[EncodedItem] = []
    ec_transfer_params: dict[str, Any] | None = None
    """Where a prefill server finds these rows, for the answer of the request."""


class ChunkChoice(Wire):
    """The newest tokens of one choice: `num_tokens` of `output_token_ids`, in the order of the choices."""

    index: int = Field(ge=0)
    num_tokens: int = Field(ge=0)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: GenerateLogprobs | None = None
    text: str | None = None
    """With output_mode text: the new text."""


class GeneratedChunk(Wire):
    """`chunk` tensor: one response of prefill_decode. Without streaming there is one, with every choice."""

    id: str
    number: int = Field(0, ge=0)
    """0, 1, 2, … within a request: a lost or swapped chunk is noticed."""
    choices: list[ChunkChoice] = []
    final: bool = False
    """The last chunk of the request."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Generated so far, over all choices."""
    cached_tokens: int = 0
    derender: DerenderContext | None = None
    """With chunk 0 of a request that derender continues."""
    prompt_token_ids: list[TokenId] | None = None
    mm_placeholders: dict[str, list[PlaceholderRange]] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    prompt_logprobs: list[Any] | None = None
