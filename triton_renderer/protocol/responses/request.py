"""POST /v1/responses and its render route: what a client sends."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from triton_renderer.protocol.base import TEXT_OR_LIST, Int64, NullableBool, Wire
from triton_renderer.protocol.sampling import StopStrings, TokenIdList

Parts = Annotated[Annotated[str, Tag("Text")] | Annotated[list[dict[str, Any]], Tag("List")], TEXT_OR_LIST]
"""A text or content parts: those of the chat route, `input_text`, `output_text`, `refusal` and `input_image`."""

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputMessage(Wire):
    """A turn of the conversation. `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    status: ItemStatus | None = None


class FunctionCall(Wire):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: ItemStatus | None = None


class CustomToolCall(Wire):
    """A call of a custom tool, whose input is free text."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str


class CallOutput(Wire):
    """What a function or a custom tool answered."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str | None = None
    output: Parts


class ReasoningItem(Wire):
    """What the model thought."""

    type: Literal["reasoning"]
    content: list[dict[str, Any]] | None = None
    summary: list[dict[str, Any]] = []
    encrypted_content: str | None = None
    status: ItemStatus | None = None


class _OtherItem(Wire):
    """An item of another type: there is nothing that the prompt could say of it."""

    type: str

    @field_validator("type")
    @classmethod
    def _unknown(cls, value: str) -> str:
        raise ValueError(f"{value!r} is not one of {', '.join(_ITEM_TAGS)}")


_ITEM_TAGS = {
    "message": "Message",
    "function_call": "FunctionCall",
    "custom_tool_call": "CustomToolCall",
    "function_call_output": "CallOutput",
    "custom_tool_call_output": "CallOutput",
    "reasoning": "Reasoning",
}


def _item_tag(item: Any) -> str:
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    if kind is None:
        return "Message"
    return _ITEM_TAGS.get(kind, "Other") if isinstance(kind, str) else "Other"


InputItem = Annotated[
    Annotated[InputMessage, Tag("Message")]
    | Annotated[FunctionCall, Tag("FunctionCall")]
    | Annotated[CustomToolCall, Tag("CustomToolCall")]
    | Annotated[CallOutput, Tag("CallOutput")]
    | Annotated[ReasoningItem, Tag("Reasoning")]
    | Annotated[SkipJsonSchema[_OtherItem], Tag("Other")],
    Discriminator(_item_tag),
]


class ResponsesTool(Wire):
    """A tool. Functions and custom tools are shown to the model; hosted ones (web search, …) are not run here, and not shown."""

    model_config = ConfigDict(extra="allow")

    type: str
    name: str | None = Field(None, validate_default=True)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None

    @field_validator("name")
    @classmethod
    def _named(cls, value: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("type") in ("function", "custom") and not value:
            raise ValueError(f"a tool of type {info.data['type']} needs a name")
        return value

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if self.type == "namespace":
            raise ValueError("namespaces of tools are not supported: list their functions")
        if self.type == "custom" and (self.format or {}).get("type", "text") != "text":
            raise ValueError("only free text is supported as a custom tool's format")
        return self


class ToolChoiceObject(Wire):
    """A tool choice that is not a word: one tool by its name, or `allowed_tools` with a mode."""

    model_config = ConfigDict(extra="allow")

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None


class Reasoning(Wire):
    """How much the model is to think."""

    model_config = ConfigDict(extra="allow")

    effort: str | None = None


class TextConfig(Wire):
    """The form of the answer's text."""

    model_config = ConfigDict(extra="allow")

    format: dict[str, Any] | None = None


class ResponsesRequest(Wire):
    """A Responses request. Nothing is stored: `store` has no effect, and earlier responses cannot be referred to.

    Only the shape is checked here; what values may be is checked for the chat request that it becomes.
    """

    model: str | None = None
    input: Annotated[Annotated[str, Tag("Text")] | Annotated[list[InputItem], Tag("List")], TEXT_OR_LIST]
    instructions: str | None = None
    previous_response_id: str | None = None
    background: NullableBool = False
    prompt: dict[str, Any] | None = None
    store: bool | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    service_tier: str | None = "auto"
    request_id: str | None = Field(None, max_length=256)

    tools: list[ResponsesTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceObject | None = "auto"
    parallel_tool_calls: bool | None = True
    max_tool_calls: int | None = None

    reasoning: Reasoning | None = None
    include_reasoning: bool = True
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    stream: NullableBool = False

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: Int64 | None = None
    stop: StopStrings = []
    stop_token_ids: TokenIdList = []
    include_stop_str_in_output: NullableBool = False
    ignore_eos: NullableBool = False
    skip_special_tokens: bool = True
    structured_outputs: dict[str, Any] | None = None
    top_logprobs: int | None = 0

    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    mm_payload: Literal["tensors", "none"] | None = None
    return_mm_kwargs: bool | None = None
    priority: Int64 = 0
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Logprobs are part of the answer only where `include` names them."""
        return "message.output_text.logprobs" in (self.include or [])

    @property
    def function_tools(self) -> list[ResponsesTool]:
        """The tools that the model is shown."""
        return [tool for tool in self.tools or [] if tool.type in ("function", "custom")]

    @property
    def custom_tools(self) -> list[str]:
        """The names of the custom tools among them."""
        return [tool.name for tool in self.function_tools if tool.type == "custom" and tool.name]
