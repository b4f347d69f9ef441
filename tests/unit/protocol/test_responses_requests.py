"""A Responses request becomes the chat request that asks for the same."""

import json
from typing import Any

import pytest

from triton_renderer.errors import InvalidRequest, NoHistory
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.dialects import Translated, translated
from triton_renderer.protocol.forms import ResponsesForm
from triton_renderer.protocol.responses.request import ResponsesRequest
from triton_renderer.protocol.sampling import SamplingParams

TOOL = {"type": "function", "name": "look", "description": "looks", "parameters": {"type": "object"}, "strict": True}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}


def asked(given: Any = "hello", **fields: Any) -> Translated:
    return translated(parse(ResponsesRequest, {"input": given} | fields))


def messages(given: Any, **fields: Any) -> list[dict[str, Any]]:
    return [message.model_dump(exclude_unset=True) for message in asked(given, **fields).chat.messages]


def chat(**fields: Any) -> dict[str, Any]:
    return asked(**fields).chat.model_dump(exclude_unset=True, exclude={"messages"})


def refused(given: Any = "hello", **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        asked(given, **fields)
    return caught.value


def test_a_text_is_the_users() -> None:
    assert messages("hello", instructions="be kind") == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hello"},
    ]


def test_parts_are_handed_on_in_their_order() -> None:
    parts = [{"type": "input_text", "text": "before"}, IMAGE, {"type": "input_text", "text": "behind"}]
    assert messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": parts}]


@pytest.mark.parametrize("role", ["user", "system", "developer"])
@pytest.mark.parametrize("kind", [{}, {"type": "message"}])
def test_a_message_may_leave_its_type_out(role: str, kind: dict[str, str]) -> None:
    assert messages([kind | {"role": role, "content": "x"}]) == [{"role": role, "content": "x"}]


def test_what_the_model_said_in_one_go_is_one_message() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]}
    calls = [{"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"} for name in "ab"]
    outputs = [{"type": "function_call_output", "call_id": name, "output": f"saw {name}"} for name in "ab"]
    made = [{"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}} for name in "ab"]
    assert messages([{"role": "user", "content": "look"}, reasoning, said, *calls, *outputs]) == [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": said["content"], "reasoning": "hm", "tool_calls": made},
        {"role": "tool", "tool_call_id": "a", "content": "saw a"},
        {"role": "tool", "tool_call_id": "b", "content": "saw b"},
    ]


def test_a_second_text_of_the_model_is_another_message() -> None:
    said = [{"role": "assistant", "content": text} for text in ("one", "two")]
    assert messages(said) == said


def test_a_summary_stands_for_reasoning_that_is_not_there() -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "in short"}]}
    assert messages([item]) == [{"role": "assistant", "reasoning": "in short"}]


def test_pictures_of_a_tool_are_handed_on() -> None:
    item = {"type": "function_call_output", "call_id": "a", "output": [IMAGE]}
    assert messages([item]) == [{"role": "tool", "tool_call_id": "a", "content": [IMAGE]}]


@pytest.mark.parametrize("status", [None, "completed", "in_progress", "incomplete"])
@pytest.mark.parametrize(
    "item",
    [
        {"type": "message", "role": "assistant", "content": "half"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "half"}]},
    ],
    ids=["message", "reasoning"],
)
def test_an_unfinished_last_item_is_continued(item: dict[str, Any], status: str | None) -> None:
    request = asked([{"role": "user", "content": "x"}, item | ({"status": status} if status else {})]).chat
    is_unfinished = status in ("in_progress", "incomplete")
    assert request.continue_final_message is is_unfinished
    assert request.add_generation_prompt is not is_unfinished


def test_an_unfinished_item_in_the_middle_is_not() -> None:
    half = {"type": "message", "role": "assistant", "content": "half", "status": "in_progress"}
    assert not asked([half, {"role": "user", "content": "x"}]).chat.continue_final_message


def test_fields_that_chat_has_too_are_handed_on_where_they_are_set() -> None:
    fields = {
        "model": "m",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.1,
        "seed": 7,
        "stop": ["x"],
        "stop_token_ids": [1],
        "ignore_eos": True,
        "stream": True,
        "cache_salt": "s",
        "priority": 2,
        "mm_payload": "none",
        "chat_template_kwargs": {"a": 1},
        "include_reasoning": False,
        "parallel_tool_calls": False,
        "logit_bias": {"5": 1.0},
    }
    assert chat(**fields) == fields | {"max_completion_tokens": None, "tool_choice": "none"}
    assert chat() == {"max_completion_tokens": None, "tool_choice": "none"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_output_tokens": 5}, {"max_completion_tokens": 5}),
        ({"reasoning": {"effort": "high", "summary": "auto"}}, {"reasoning_effort": "high"}),
        ({"truncation": "auto"}, {"truncate_prompt_tokens": -1}),
        ({"truncation": "disabled"}, {}),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"top_logprobs": 2}, {}),
        ({"text": {"format": {"type": "text"}}}, {"response_format": {"type": "text"}}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}},
        ),
        ({"store": True, "metadata": {"a": "b"}, "service_tier": "flex", "user": None}, {"user": None}),
        ({"tools": [TOOL], "tool_choice": "required"}, {"tool_choice": "required"}),
        ({"tools": [TOOL], "tool_choice": None}, {"tool_choice": "auto"}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "look"}},
            {"tool_choice": {"type": "function", "function": {"name": "look"}}},
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}},
            {"tool_choice": "required"},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_fields_that_chat_names_otherwise(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    made = chat(**fields)
    made.pop("tools", None)
    assert made == {"max_completion_tokens": None, "tool_choice": "none"} | expected


def test_a_function_is_a_tool_of_chat() -> None:
    (tool,) = chat(tools=[TOOL])["tools"]
    assert tool == {"type": "function", "function": {name: value for name, value in TOOL.items() if name != "type"}}


def test_a_custom_tool_is_a_function_with_one_text_and_its_calls_are_that_functions() -> None:
    request = asked(
        [{"type": "custom_tool_call", "call_id": "a", "name": "run", "input": 'echo "ä"'}],
        tools=[{"type": "custom", "name": "run", "description": "runs"}],
    )
    ((tool,), (message,)) = request.chat.tools or [], request.chat.messages
    assert list((tool.function.parameters or {})["properties"]) == ["input"]
    call = (message.model_extra or {})["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"input": 'echo "ä"'}


def test_hosted_tools_are_not_shown_to_the_model() -> None:
    assert "tools" not in chat(tools=[{"type": "web_search"}])
    assert len(chat(tools=[{"type": "web_search"}, TOOL])["tools"]) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"given": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
        ({"given": [{"type": 7}]}, "input.0.type"),
        ({"given": [{"role": "user", "content": "x"}, {"role": "robot", "content": "x"}]}, "input.1.role"),
        ({"given": [{"role": "user"}]}, "input.0.content"),
        ({"given": [{"role": "user", "content": 5}]}, "input.0.content"),
        ({"given": [{"type": "function_call", "call_id": "a", "name": "f"}]}, "input.0.arguments"),
        ({"given": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "input.0.encrypted_content"),
        ({"given": []}, "input"),
        ({"given": 5}, "input"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_logprobs": -2, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"truncation": "some"}, "truncation"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools.0"),
        ({"tools": [{"type": "custom", "name": "n", "format": {"type": "grammar"}}]}, "tools.0"),
        ({"tool_choice": {"type": "function"}, "tools": [TOOL]}, "tool_choice.name"),
        ({"tool_choice": {"type": "file_search"}, "tools": [TOOL]}, "tool_choice.type"),
        ({"structured_outputs": {"json": {}}, "text": {"format": {"type": "json_object"}}}, "structured_outputs"),
        ({"stop": [""]}, "stop.0"),
    ],
    ids=str,
)
def test_misfits_are_told_by_the_clients_own_names(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert error.message.startswith(param)


def test_what_needs_a_store_is_refused() -> None:
    error = refused(previous_response_id="resp_1")
    assert isinstance(error, NoHistory)
    assert (error.status, error.type, error.param) == (400, "invalid_request_error", "previous_response_id")


def test_errors_of_the_chat_request_are_about_the_item_they_came_from() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": [IMAGE]}
    places = asked([{"role": "user", "content": [IMAGE]}, call, call, output], instructions="be").places
    assert places.original("messages.0") == "instructions"
    assert places.original("messages.1.content.0") == "input.0.content.0"
    assert places.original("messages.2.tool_calls.1") == "input.2"
    assert places.original("messages.3.content.0") == "input.3.output.0"


def test_the_answer_repeats_the_request() -> None:
    fields: dict[str, Any] = {
        "instructions": "be",
        "metadata": {"a": "b"},
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "look"},
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}},
        "truncation": "auto",
        "user": "me",
        "max_tool_calls": 3,
        "parallel_tool_calls": False,
        "service_tier": "flex",
    }
    form = asked(**fields).form(SamplingParams(temperature=0.5, top_p=0.9, max_tokens=8, logprobs=2, presence_penalty=1))
    assert isinstance(form, ResponsesForm)
    assert form.head == fields | {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 8,
        "top_logprobs": 2,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.0,
        "background": False,
        "previous_response_id": None,
        "prompt": None,
    }


def test_without_resolved_sampling_the_answer_says_what_was_asked_for() -> None:
    form = asked(temperature=0.5, max_output_tokens=9, tools=[{"type": "custom", "name": "run"}]).form(None)
    assert isinstance(form, ResponsesForm)
    assert (form.head["temperature"], form.head["top_p"], form.head["max_output_tokens"]) == (0.5, 1.0, 9)
    assert form.custom_tools == ["run"]
    form = asked(presence_penalty=9.0, max_output_tokens=-1).form(None)  # what nobody would have generated with
    assert isinstance(form, ResponsesForm)
    assert (form.head["presence_penalty"], form.head["max_output_tokens"]) == (9.0, -1)
