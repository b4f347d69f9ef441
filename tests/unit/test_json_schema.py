"""What a tool's schema says of the types of its parameters."""

from typing import Any

import pytest

from triton_renderer.protocol.json_schema import parameter_types, types_of
from triton_renderer.protocol.openai import ChatCompletionRequest


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, ["string"]),
        ({"type": "int"}, ["integer"]),
        ({"type": " Float "}, ["number"]),
        ({"type": ["integer", "null"]}, ["integer", "null"]),
        ({"enum": [1, "a", None, True, 1.5, [], {}]}, ["array", "boolean", "integer", "null", "number", "object", "string"]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["integer", "null"]),
        ({"type": "object", "allOf": [{"oneOf": [{"type": "array"}]}]}, ["array", "object"]),
        ({}, ["string"]),
        (None, ["string"]),
        ({"type": 1, "enum": 2, "anyOf": 3}, ["string"]),
        ({"type": [1, "boolean"]}, ["boolean"]),
        ({"type": "date"}, ["date"]),
        ({"const": 3}, ["integer"]),
        ({"const": "a"}, ["string"]),
        ({"$ref": "#/$defs/level"}, ["integer"]),
        ({"anyOf": [{"$ref": "#/$defs/a~1b"}, {"type": "null"}]}, ["boolean", "null"]),
        ({"$ref": "#/$defs/again"}, ["string"]),
        ({"$ref": "#/$defs/missing/x"}, ["string"]),
        ({"$ref": "http://example.com/schema"}, ["string"]),
        ({"$ref": 5}, ["string"]),
    ],
)
def test_types_come_from_type_enum_alternatives_and_definitions(schema: Any, types: list[str]) -> None:
    definitions = {"level": {"enum": [1, 2]}, "a/b": {"type": "boolean"}, "again": {"$ref": "#/$defs/again"}}
    root = {"$defs": definitions, "properties": {"x": schema}}
    assert types_of(schema, root) == types
    assert parameter_types(root) == {"x": types}


def test_a_schema_without_an_end_is_looked_into_only_so_deep() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(10_000):
        schema = {"anyOf": [schema]}
    assert types_of(schema) == ["string"]


@pytest.mark.timeout(10)
def test_definitions_that_refer_to_each_other_again_and_again_take_no_time() -> None:
    definitions = {name: {"anyOf": [{"$ref": f"#/$defs/{other}"} for other in "ab"] * 500} for name in "ab"}
    properties = {str(number): {"$ref": "#/$defs/a"} for number in range(1000)}
    assert parameter_types({"$defs": definitions, "properties": properties}) == {name: ["string"] for name in properties}


@pytest.mark.parametrize("schema", [None, {}, {"properties": None}, {"properties": [1]}])
def test_a_tool_without_parameters_has_no_types(schema: Any) -> None:
    assert parameter_types(schema) == {}


def test_a_request_names_the_types_of_all_its_tools() -> None:
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}, "s": {}}}}},
        {"type": "function", "function": {"name": "g"}},
    ]
    request = ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "x"}], "tools": tools})
    assert request.tool_choice_fields["parameter_types"] == {"f": {"n": ["integer"], "s": ["string"]}, "g": {}}
