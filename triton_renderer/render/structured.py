"""What constrains the output's form: `structured_outputs`, `response_format` and forced tool calls, as one document."""

import json
from typing import Any

from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest, NamedToolChoice, Tool

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


def structured_outputs(request: ChatCompletionRequest | CompletionRequest) -> dict[str, Any] | None:
    """`sampling_params.structured_outputs`: one constraint and its options; None where the output is free.

    A forced tool call takes the place of any other constraint, `response_format` that of `structured_outputs`, as in the
    reference. Raises InvalidRequest for a form that is not known, and for more or fewer than one constraint.
    """
    forced = _forced_tool_call(request) if isinstance(request, ChatCompletionRequest) else None
    formatted = _response_format(request.response_format)
    if request.structured_outputs is None:
        return forced or formatted
    given = {name: request.structured_outputs.get(name) for name in (*CONSTRAINTS, *_OPTIONS)}
    given = {name: value for name, value in given.items() if value is not None}
    merged = given | formatted if formatted else given
    constraints = [name for name in CONSTRAINTS if name in merged]
    if len(constraints) != 1:
        raise InvalidRequest(
            f"structured_outputs: exactly one of {', '.join(CONSTRAINTS)} is expected, not {constraints}", "structured_outputs"
        )
    return forced or merged


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
    raise InvalidRequest(
        "response_format.type: one of text, json_object, json_schema, structural_tag is expected", "response_format"
    )


def _forced_tool_call(request: ChatCompletionRequest) -> dict[str, Any] | None:
    """A structural tag in xgrammar's form, for tool calls in the hermes format; arguments are free unless strict."""
    choice = request.effective_tool_choice
    if choice in ("none", "auto") or not request.tools:
        return None
    named = isinstance(choice, NamedToolChoice)
    tools = [
        tool for tool in request.tools if not isinstance(choice, NamedToolChoice) or tool.function.name == choice.function.name
    ]
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "tags_with_separator",
            "tags": [_hermes_tag(tool, gap) for tool in tools for gap in ("\n", "")],
            "separator": "",
            "at_least_one": True,
            "stop_after_first": named or request.parallel_tool_calls is False,
        },
    }
    return {"structural_tag": json.dumps(tag)}


def _hermes_tag(tool: Tool, gap: str) -> dict[str, Any]:
    function = tool.function
    strict = (function.model_extra or {}).get("strict") is True
    return {
        "type": "tag",
        "begin": f'<tool_call>{gap}{{"name": {json.dumps(function.name)}, "arguments": ',
        "content": {"type": "json_schema", "json_schema": (function.parameters or True) if strict else True},
        "end": f"}}{gap}</tool_call>",
    }
