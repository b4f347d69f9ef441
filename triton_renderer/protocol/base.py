"""What all documents have in common."""

from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
)
from pydantic_core import CoreSchema, ErrorDetails

from triton_renderer.errors import BadBody, InvalidRequest, NotFound

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

NullableBool = Annotated[bool, BeforeValidator(lambda value: False if value is None else value)]
"""A flag for which null means false."""

Model = TypeVar("Model", bound="Wire")


def _fail_fast(schema: Any) -> None:
    """Sets `fail_fast` for every list and map within a core schema."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "tuple", "dict"):
            schema["fail_fast"] = True
        schema = list(schema.values())
    if isinstance(schema, list | tuple):
        for part in schema:
            _fail_fast(part)


class Wire(BaseModel):
    """A JSON document. Unknown fields are ignored, as in the reference."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Lists and maps are read up to their first misfit: a complaint takes a thousand times the memory of what it is about."""
        schema = handler(source)
        _fail_fast(schema)
        return schema


TOO_MANY_TOKENS = 2**31
TokenCount = Annotated[int, Field(ge=0, lt=TOO_MANY_TOKENS)]
"""Small enough that a sum of them still is a number for JSON."""


class StreamOptions(Wire):
    """What a stream carries besides its tokens."""

    include_usage: NullableBool = False
    continuous_usage_stats: NullableBool = False


class Usage(Wire):
    """Token counts of one request."""

    prompt_tokens: TokenCount = 0
    total_tokens: TokenCount = 0
    completion_tokens: TokenCount | None = 0
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None


class ErrorInfo(Wire):
    """The inner part of every error answer."""

    message: str
    type: str
    param: str | None = None
    code: int


class ErrorResponse(Wire):
    """The body of every error answer."""

    error: ErrorInfo


def parse(model: type[Model], document: Any) -> Model:
    """`document`, JSON bytes or parsed JSON, as `model`.

    Raises BadBody with the first misfit and where it is.
    """
    try:
        return model.model_validate_json(document) if isinstance(document, bytes | str) else model.model_validate(document)
    except ValidationError as error:
        raise misfit(error, BadBody) from error


def check_model_name(name: str | None, served: str) -> None:
    """Raises NotFound where a request names another model than the one that is served; None and "" mean that one."""
    if name and name != served:
        raise NotFound(f"The model `{name}` does not exist.", "model")


_CHECKED_LATER = {
    "n": ("greater_than_equal",),
    "stop": ("string_too_short",),
    "logprobs": ("greater_than_equal",),
    "top_logprobs": ("greater_than_equal",),
    "thinking_token_budget": ("greater_than_equal",),
    "cache_salt": ("string_too_short",),
    "tool_choice": ("literal_error", "model_type"),
    "tool_choice.function": ("missing",),
    "tool_choice.function.name": ("missing",),
    "messages": ("too_short",),
    "prompt": ("too_short", "no_prompt"),
}
"""Places, without numbers, and complaints that the reference has not when it reads the body but when it handles the request."""


def misfit(error: ValidationError, kind: type[InvalidRequest] = InvalidRequest) -> InvalidRequest:
    """A complaint of pydantic as the client should read it; `param` is the dotted path.

    It is one of the first field: of the branches of a union that of the one which fits best.
    """
    complaints = error.errors(include_url=False, include_context=False, include_input=False)
    places = [[str(part) for part in complaint["loc"] if not _is_union_branch(part)] for complaint in complaints]
    field = places[0][:1]
    place, complaint = max(
        (pair for pair in zip(places, complaints, strict=True) if pair[0][:1] == field),
        key=lambda pair: (len(pair[0]), not pair[1]["type"].endswith("_type")),
    )
    if kind is BadBody and complaint["type"] in _CHECKED_LATER.get(".".join(part for part in place if not part.isdigit()), ()):
        kind = InvalidRequest
    where = ".".join(place)
    message = in_words(complaint)
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return kind(f"{where}: {message}{more}" if where else f"{message}{more}", where or None)


def in_words(complaint: ErrorDetails) -> str:
    """What is wrong, as the client should read it: without the names of our classes."""
    if complaint["type"] in ("model_type", "dataclass_type"):
        return "Input should be an object"
    return complaint["msg"].removeprefix("Value error, ")


def _is_union_branch(part: int | str) -> bool:
    """Pydantic names the branch of a union that it tried, `messages.0.content.str`: that is no place in the document."""
    return isinstance(part, str) and (
        "[" in part or part in ("str", "int", "float", "bool", "dict") or part.startswith("constrained-") or part[:1].isupper()
    )


TEXT_OR_LIST = Discriminator(lambda value: "List" if isinstance(value, list) else "Text")
"""For a union of Annotated[str, Tag("Text")] and Annotated[list[...], Tag("List")]: errors are about the one that was meant."""

TokenId = Annotated[int, Field(ge=0, le=INT64_MAX)]
Int64 = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)]
