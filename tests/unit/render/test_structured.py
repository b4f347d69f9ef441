"""What constrains the output's form."""

import json
from typing import Any

import pytest

from tests.unit.render.helpers import chat, completion_job, image_part, user
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.openai import ChatCompletionRequest
from triton_renderer.render import Renderer
from triton_renderer.render.tool_grammar import keeps_special_tokens, tool_grammar
from triton_renderer.settings import load_settings

QUESTION = user("How many circles?")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def constraint(renderer: Renderer, **fields: Any) -> dict[str, Any] | None:
    return chat(renderer, QUESTION, for_generate=True, **fields).context.sampling_params.structured_outputs


def tool(name: str, **further: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **further}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, {"json": SCHEMA}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"], "regex": None}}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"regex": "a+"}, "response_format": {"type": "text"}}, {"regex": "a+"}),
        (
            {
                "structured_outputs": {"json_object": True, "whitespace_pattern": " "},
                "response_format": {"type": "json_object"},
            },
            {"json_object": True, "whitespace_pattern": " "},
        ),
    ],
)
def test_constraints_are_passed_on(renderer: Renderer, fields: dict[str, Any], expected: dict[str, Any] | None) -> None:
    assert constraint(renderer, **fields) == expected
    completion = renderer.render(completion_job("x", for_generate=True, **fields))
    assert completion.context.sampling_params.structured_outputs == expected


def test_a_structural_tag_is_passed_on_as_text(renderer: Renderer) -> None:
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    found = constraint(renderer, response_format=tag)
    assert found is not None
    assert json.loads(found["structural_tag"]) == tag


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
        ({"response_format": {"type": "wobble"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"wobble": 1}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
    ],
)
def test_constraints_of_another_form_are_refused(renderer: Renderer, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        constraint(renderer, **fields)
    assert caught.value.param == param


FORCED = {"tools": [tool("a")], "tool_choice": "required"}
NAMED = FORCED | {"tool_choice": {"type": "function", "function": {"name": "a"}}}


@pytest.mark.parametrize(
    "fields",
    [
        FORCED,
        NAMED,
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"structured_outputs": {"regex": "a"}},
        {"bad_words": ["a"]},
        {"prompt_logprobs": 0},
    ],
)
def test_the_coupled_routes_ask_their_engine_for_the_same_as_any_other(renderer: Renderer, fields: dict[str, Any]) -> None:
    coupled, rendered = (chat(renderer, QUESTION, for_generate=generate, **fields).context for generate in (False, True))
    assert coupled.sampling_params == rendered.sampling_params


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        (FORCED, "tools"),
        (FORCED | {"structured_outputs": {"regex": "a"}}, "tools"),
        ({}, None),
    ],
)
def test_what_the_client_calls_its_constraint_goes_along(renderer: Renderer, fields: dict[str, Any], param: str | None) -> None:
    assert chat(renderer, QUESTION, **fields).context.constraint_param == param


def test_calls_in_a_format_that_cannot_be_forced_are_refused_before_a_picture_is_read() -> None:
    renderer = Renderer.load(load_settings(tool_call_parser="pythonic"))
    forced = {"tools": [tool("not-for-python")], "tool_choice": "required"}
    with pytest.raises(InvalidRequest, match=r"^tool_choice: .* is not supported by this server yet$"):
        chat(renderer, user(image_part(b"no picture")), **forced)
    assert chat(renderer, QUESTION, for_generate=True, **forced).token_ids.size


def test_echo_with_logprobs_is_refused_by_the_coupled_routes(renderer: Renderer) -> None:
    for render in (
        lambda generate: chat(renderer, QUESTION, for_generate=generate, echo=True, logprobs=True),
        lambda generate: renderer.render(completion_job("x", for_generate=generate, echo=True, logprobs=0)),
    ):
        with pytest.raises(InvalidRequest, match=r"^echo: .* is not supported by this server yet$"):
            render(False)
        assert render(True).token_ids.size


@pytest.mark.parametrize("fields", [{"response_format": {"type": "text"}}, {"bad_words": []}, {"echo": True}])
def test_asking_for_what_is_anyway_is_fine(renderer: Renderer, fields: dict[str, Any]) -> None:
    assert chat(renderer, QUESTION, **fields).token_ids.size


def tags(renderer: Renderer, **fields: Any) -> dict[str, Any]:
    found = constraint(renderer, **fields)
    assert found is not None
    document = json.loads(found["structural_tag"])
    assert document["type"] == "structural_tag"
    return dict(document["format"])


def test_required_tools_are_forced_in_the_parsers_format(renderer: Renderer) -> None:
    found = tags(renderer, tools=[tool("a"), tool("b", strict=True)], tool_choice="required")
    assert [tag["begin"] for tag in found["tags"]] == [
        '<tool_call>\n{"name": "a", "arguments": ',
        '<tool_call>{"name": "a", "arguments": ',
        '<tool_call>\n{"name": "b", "arguments": ',
        '<tool_call>{"name": "b", "arguments": ',
    ]
    assert [tag["end"] for tag in found["tags"][:2]] == ["}\n</tool_call>", "}</tool_call>"]
    assert [tag["content"]["json_schema"] for tag in found["tags"]] == [True, True, SCHEMA, SCHEMA]
    assert (found["at_least_one"], found["stop_after_first"]) == (True, False)


def test_a_named_tool_is_forced_once(renderer: Renderer) -> None:
    choice = {"type": "function", "function": {"name": "b"}}
    found = tags(renderer, tools=[tool("a"), tool("b")], tool_choice=choice)
    assert {tag["begin"].split('"')[3] for tag in found["tags"]} == {"b"}
    assert found["stop_after_first"] is True
    single = tags(renderer, tools=[tool("a")], tool_choice="required", parallel_tool_calls=False)
    assert single["stop_after_first"] is True


def test_a_forced_call_takes_the_place_of_another_constraint(renderer: Renderer) -> None:
    fields = {"tools": [tool("a")], "tool_choice": "required", "structured_outputs": {"regex": "a"}}
    assert "tags" in tags(renderer, **fields)


def test_a_single_call_by_choice_is_held_to_its_format(renderer: Renderer) -> None:
    found = tags(renderer, tools=[tool("a")], parallel_tool_calls=False)
    assert (found["type"], found["at_least_one"], found["stop_after_first"]) == ("triggered_tags", False, True)


def test_an_option_needs_a_constraint_of_its_own(renderer: Renderer) -> None:
    with pytest.raises(InvalidRequest, match="exactly one of"):
        constraint(renderer, structured_outputs={"whitespace_pattern": " "}, response_format={"type": "json_object"})


def test_tools_by_choice_constrain_nothing_unless_one_is_strict(renderer: Renderer) -> None:
    assert constraint(renderer, tools=[tool("a")]) is None
    assert constraint(renderer, tools=[tool("a")], tool_choice="none") is None
    strict = tags(renderer, tools=[tool("a"), tool("b", strict=True)])
    assert (strict["type"], strict["triggers"], strict["at_least_one"]) == ("triggered_tags", ["<tool_call>"], False)
    assert [tag["content"]["json_schema"] for tag in strict["tags"]] == [True, True, SCHEMA, SCHEMA]


def test_a_strict_tool_holds_its_calls_to_the_format_on_the_coupled_route_as_well(renderer: Renderer) -> None:
    coupled = chat(renderer, QUESTION, tools=[tool("a", strict=True)]).context.sampling_params.structured_outputs
    assert coupled is not None
    assert json.loads(coupled["structural_tag"])["format"] == tags(renderer, tools=[tool("a", strict=True)])


def test_names_stand_in_a_tag_as_the_model_writes_them(renderer: Renderer) -> None:
    found = tags(renderer, tools=[tool("grüße")], tool_choice="required")
    assert found["tags"][1]["begin"] == '<tool_call>{"name": "grüße", "arguments": '


def test_llama_calls_are_bare_objects() -> None:
    fields: dict[str, Any] = {"messages": [QUESTION], "tools": [tool("a"), tool("b")]}
    request = parse(ChatCompletionRequest, fields | {"tool_choice": "required"})
    found = json.loads((tool_grammar(request, "llama3_json") or {})["structural_tag"])["format"]
    assert [tag["begin"] for tag in found["tags"]] == ['{"name": "a", "parameters": ', '{"name": "b", "parameters": ']
    assert (found["at_least_one"], found["stop_after_first"]) == (True, False)
    request = parse(ChatCompletionRequest, fields | {"tool_choice": {"type": "function", "function": {"name": "b"}}})
    found = json.loads((tool_grammar(request, "llama3_json") or {})["structural_tag"])["format"]
    assert (found["begin"], found["end"]) == ('{"name": "b", "parameters": ', "}")


@pytest.mark.parametrize(
    ("fields", "tool_format", "reasoning_format", "keeps"),
    [
        ({}, "hermes", None, False),
        ({"tools": [tool("a")]}, "hermes", None, True),
        ({"tools": [tool("a")], "tool_choice": "none"}, "hermes", None, False),
        ({"tools": [tool("a")]}, "llama3_json", None, False),
        ({}, "hermes", "qwen3", True),
        ({}, None, None, False),
    ],
)
def test_special_tokens_are_kept_for_a_parser_that_looks_for_them(
    fields: dict[str, Any], tool_format: str | None, reasoning_format: str | None, keeps: bool
) -> None:
    request = parse(ChatCompletionRequest, {"messages": [QUESTION], **fields})
    assert keeps_special_tokens(request, tool_format, reasoning_format) is keeps
