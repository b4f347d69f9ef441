"""What constrains the output's form: `structured_outputs`, `response_format` and tool calls, as one document."""

import json
from typing import Any

from triton_renderer.errors import BadBody, InvalidRequest
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest
from triton_renderer.render.tool_grammar import tool_grammar

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


def structured_outputs(
    request: ChatCompletionRequest | CompletionRequest, tool_format: str | None = None
) -> dict[str, Any] | None:
    """`sampling_params.structured_outputs`: one constraint and its options; None where the output is free.

    Tool calls that are held to their format take the place of any other constraint, `response_format` that of `structured_outputs`, as in the
    reference. Raises InvalidRequest for a form that is not known, and for more or fewer than one constraint.
    """
    calls = tool_grammar(request, tool_format) if isinstance(request, ChatCompletionRequest) else None
    formatted = _response_format(request.response_format)
    if request.structured_outputs is None:
        return calls or formatted
    given = {name: request.structured_outputs.get(name) for name in (*CONSTRAINTS, *_OPTIONS)}
    given = {name: value for name, value in given.items() if value is not None}
    merged = given | formatted if formatted else given
    for fields in (given, merged):
        constraints = [name for name in CONSTRAINTS if name in fields]
        if len(constraints) != 1:
            raise InvalidRequest(
                f"structured_outputs: exactly one of {', '.join(CONSTRAINTS)} is expected, not {constraints}",
                "structured_outputs",
            )
    return calls or merged


def constraint_param(request: ChatCompletionRequest | CompletionRequest, constraint: dict[str, Any] | None) -> str | None:
    """The field of the request that `constraint`, from `structured_outputs`, comes from; for errors of the later stages."""
    if constraint is None:
        return None
    if request.structured_outputs is not None and constraint.keys() <= request.structured_outputs.keys():
        return "structured_outputs"
    formatted = _response_format(request.response_format)
    return "response_format" if formatted and formatted.items() <= constraint.items() else "tools"


def _response_format(response_format: dict[str, Any] | None) -> dict[str, Any] | None:
    if response_format is None:
        return None
    match response_format:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"json_object": True}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return {"json": schema}
        case {"type": "json_schema"}:
            raise InvalidRequest("response_format.json_schema: an object with a schema is expected", "response_format")
        case {"type": "structural_tag"}:
            return {"structural_tag": json.dumps(response_format)}
    raise BadBody(
        "response_format.type: one of text, json_object, json_schema, structural_tag is expected", "response_format.type"
    )
