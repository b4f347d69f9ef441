"""POST /v1/messages, its render route and its token count: what a client sends."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from triton_renderer.protocol.base import TEXT_OR_LIST, NullableBool, Wire
from triton_renderer.protocol.sampling import MAX_STOP_STRINGS

MIN_THINKING_BUDGET = 1024

Text = Annotated[str, Tag("Text")]


class TextBlock(Wire):
    """A text."""

    type: Literal["text"]
    text: str


class ImageSource(Wire):
    """Where a picture's bytes are: in `data`, or at `url`. The declared media type has no effect."""

    type: Literal["base64", "url"]
    media_type: str = "image/jpeg"
    data: str | None = None
    url: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        name = "data" if self.type == "base64" else "url"
        if getattr(self, name) is None:
            raise ValueError(f"a source of type {self.type} needs {name}")
        return self


class ImageBlock(Wire):
    """A picture."""

    type: Literal["image"]
    source: ImageSource


class ThinkingBlock(Wire):
    """What the model thought."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(Wire):
    """What a model thought and nobody can read: it is accepted, and left out of the prompt."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(Wire):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any] = {}


class _OtherBlock(Wire):
    """A block of another type, or none that belongs here."""

    type: str

    @field_validator("type")
    @classmethod
    def _unknown(cls, value: str) -> str:
        raise ValueError(f"a block of type {value!r} is not supported here")


def _block_tag(*known: str) -> Discriminator:
    def tag(block: Any) -> str:
        kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
        return kind.title() if isinstance(kind, str) and kind in known else "Other"

    return Discriminator(tag)


ResultBlock = Annotated[
    Annotated[TextBlock, Tag("Text")]
    | Annotated[ImageBlock, Tag("Image")]
    | Annotated[SkipJsonSchema[_OtherBlock], Tag("Other")],
    _block_tag("text", "image"),
]


class ToolResultBlock(Wire):
    """What a tool answered."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[Text | Annotated[list[ResultBlock], Tag("List")], TEXT_OR_LIST] | None = None
    is_error: bool | None = None


UserBlock = Annotated[
    Annotated[TextBlock, Tag("Text")]
    | Annotated[ImageBlock, Tag("Image")]
    | Annotated[ToolResultBlock, Tag("Tool_Result")]
    | Annotated[SkipJsonSchema[_OtherBlock], Tag("Other")],
    _block_tag("text", "image", "tool_result"),
]
AssistantBlock = Annotated[
    Annotated[TextBlock, Tag("Text")]
    | Annotated[ThinkingBlock, Tag("Thinking")]
    | Annotated[RedactedThinkingBlock, Tag("Redacted_Thinking")]
    | Annotated[ToolUseBlock, Tag("Tool_Use")]
    | Annotated[SkipJsonSchema[_OtherBlock], Tag("Other")],
    _block_tag("text", "thinking", "redacted_thinking", "tool_use"),
]
SystemBlock = Annotated[
    Annotated[TextBlock, Tag("Text")] | Annotated[SkipJsonSchema[_OtherBlock], Tag("Other")], _block_tag("text")
]
SystemContent = Annotated[Text | Annotated[list[SystemBlock], Tag("List")], TEXT_OR_LIST]


class UserMessage(Wire):
    """A turn of the user, with the results of the tools that the assistant called."""

    role: Literal["user"]
    content: Annotated[Text | Annotated[list[UserBlock], Tag("List")], TEXT_OR_LIST]


class AssistantMessage(Wire):
    """A turn of the assistant."""

    role: Literal["assistant"]
    content: Annotated[Text | Annotated[list[AssistantBlock], Tag("List")], TEXT_OR_LIST]


class SystemMessage(Wire):
    """Instructions in the middle of a conversation."""

    role: Literal["system"]
    content: SystemContent


class _OtherMessage(Wire):
    """A message of nobody that is known."""

    role: str

    @field_validator("role")
    @classmethod
    def _unknown(cls, value: str) -> str:
        raise ValueError(f"{value!r} is not one of user, assistant, system")


def _message_tag(message: Any) -> str:
    role = message.get("role") if isinstance(message, dict) else getattr(message, "role", None)
    return role.title() if isinstance(role, str) and role in ("user", "assistant", "system") else "Other"


Message = Annotated[
    Annotated[UserMessage, Tag("User")]
    | Annotated[AssistantMessage, Tag("Assistant")]
    | Annotated[SystemMessage, Tag("System")]
    | Annotated[SkipJsonSchema[_OtherMessage], Tag("Other")],
    Discriminator(_message_tag),
]


class MessagesTool(Wire):
    """A function that the model may call. Tools that Anthropic's servers run have no schema, and are not known here."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class MessagesToolChoice(Wire):
    """Whether tools are called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.type == "tool" and not self.name:
            raise ValueError("a tool_choice of type tool needs the tool's name")
        return self


class Thinking(Wire):
    """Whether the model thinks before it answers. `budget_tokens`, for `enabled` only, is for whoever generates to keep."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=MIN_THINKING_BUDGET, validate_default=True)

    @field_validator("budget_tokens")
    @classmethod
    def _budgeted(cls, value: int | None, info: ValidationInfo) -> int | None:
        if info.data.get("type") == "enabled" and value is None:
            raise ValueError("thinking of type enabled needs a budget")
        return value


class OutputFormat(Wire):
    """The schema that the answer's text is to follow."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["json_schema"] = "json_schema"
    json_schema: dict[str, Any] | None = Field(None, alias="schema")


class OutputConfig(Wire):
    """Effort and form of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(Wire):
    """POST /v1/messages/count_tokens: what of a Messages request shapes its prompt."""

    model: str = Field(min_length=1)
    messages: list[Message]
    system: SystemContent | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest):
    """A Messages request."""

    max_tokens: int = Field(ge=1)
    stream: NullableBool = False
    stop_sequences: list[Annotated[str, Field(min_length=1)]] | None = Field(None, max_length=MAX_STOP_STRINGS)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None
    mm_payload: Literal["tensors", "none"] | None = None
    return_mm_kwargs: bool | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _room_behind_thinking(self) -> Self:
        # A prefill server is sent one token's worth of a request whose budget its decode server will spend.
        if (self.kv_transfer_params or {}).get("do_remote_decode"):
            return self
        budget = self.thinking.budget_tokens if self.thinking is not None else None
        if budget is not None and budget >= self.max_tokens:
            raise ValueError(f"thinking.budget_tokens ({budget}) must be less than max_tokens ({self.max_tokens})")
        return self
