"""Requests and answers of the OpenAI chat and completion routes, with the reference's extensions."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from triton_renderer.protocol.base import Int64, NullableBool, StreamOptions, TokenId, Wire
from triton_renderer.protocol.json_schema import parameter_types
from triton_renderer.protocol.sampling import LogprobCount, StopStrings, ThinkingBudget, TokenIdList


class _SamplingFields(Wire):
    """Fields that both routes take and hand on; absent ones come from the model's generation_config."""

    model: str | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    stop: StopStrings = []
    stop_token_ids: TokenIdList = []
    include_stop_str_in_output: NullableBool = False
    ignore_eos: NullableBool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    prompt_logprobs: int | None = None
    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[str] = []
    thinking_token_budget: ThinkingBudget = None
    logit_bias: dict[str, float] | None = None
    structured_outputs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    n: int | None = Field(1, ge=1, le=128)
    stream: NullableBool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    request_id: str | None = Field(None, max_length=256)
    priority: Int64 = 0
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    return_token_ids: NullableBool = False
    return_token_offsets: NullableBool = False
    return_mm_kwargs: bool | None = None
    mm_payload: Literal["tensors", "none"] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    truncation_side: Literal["left", "right"] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    use_beam_search: NullableBool = False

    @property
    def wants_mm_payload(self) -> bool:
        """False where the caller wants only tokens and hashes of the pictures; `mm_payload` goes before the older flag."""
        return self.mm_payload != "none" if self.mm_payload else self.return_mm_kwargs is not False


class ChatMessage(Wire):
    """One message of the conversation. Fields that the template knows and we do not are kept for it."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[dict[str, Any] | str] | dict[str, Any] | None = None


class FunctionDefinition(Wire):
    """A tool that the model may call."""

    model_config = ConfigDict(extra="allow")

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Wire):
    """A tool definition."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class NamedFunction(Wire):
    """The name in a named tool choice."""

    name: str


class NamedToolChoice(Wire):
    """`tool_choice` naming the function to call."""

    type: Literal["function"] = "function"
    function: NamedFunction


class ChatCompletionRequest(_SamplingFields):
    """POST /v1/chat/completions and its render route."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: NullableBool = False
    top_logprobs: LogprobCount | None = 0
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool = True
    echo: NullableBool = False
    add_generation_prompt: bool = True
    continue_final_message: NullableBool = False
    add_special_tokens: NullableBool = False
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None

    @property
    def shown_logprobs(self) -> int | None:
        """How many candidates the answer shows a token; None where it shows all that come."""
        return None if self.top_logprobs == -1 else self.top_logprobs

    @property
    def effective_tool_choice(self) -> Literal["none", "auto", "required"] | NamedToolChoice:
        """OpenAI's rule: auto where tools are given, none where not."""
        return self.tool_choice or ("auto" if self.tools else "none")

    @property
    def tool_choice_fields(self) -> dict[str, Any]:
        """The fields of a DerenderContext that say which tools may be called."""
        choice = self.effective_tool_choice
        named = choice if isinstance(choice, NamedToolChoice) else None
        return {
            "tool_choice": "named" if named else choice,
            "tool_name": named.function.name if named else None,
            "parameter_types": {tool.function.name: parameter_types(tool.function.parameters) for tool in self.tools or ()},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
        }


Prompt = str | Annotated[list[TokenId], Field(min_length=1)]


class CompletionRequest(_SamplingFields):
    """POST /v1/completions and its render route."""

    prompt: (
        Prompt
        | Annotated[list[str], Field(min_length=1)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1)]
    )
    n: int = Field(1, ge=1, le=128)
    max_tokens: int | None = 16
    logprobs: LogprobCount | None = None
    echo: NullableBool = False
    suffix: str | None = None
    add_special_tokens: bool = True

    @field_validator("prompt", mode="before")
    @classmethod
    def _given(cls, value: Any) -> Any:
        if value is None:
            raise PydanticCustomError("no_prompt", "a prompt is expected")
        return value

    @property
    def prompts(self) -> list[str | list[int]]:
        """One entry a prompt, in the four forms that OpenAI allows."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


class TopLogprob(Wire):
    """One candidate token."""

    token: str
    logprob: float = -9999.0
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob):
    """The sampled token and the best candidates beside it."""

    top_logprobs: list[TopLogprob] = []


class ChatLogprobs(Wire):
    """Logprobs in the shape of the chat route: one entry a token."""

    content: list[TokenLogprob] | None = None


class CompletionLogprobs(Wire):
    """Logprobs in the shape of the completion route. `text_offset` counts characters."""

    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


class ModelCard(Wire):
    """One entry of GET /v1/models."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "triton-renderer"
    root: str
    parent: str | None = None
    max_model_len: int | None = None


class ModelList(Wire):
    """GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
