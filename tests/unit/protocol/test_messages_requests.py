"""A Messages request becomes the chat request that asks for the same."""

from typing import Any

import pytest

from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.dialects import Translated, translated
from triton_renderer.protocol.messages.request import CountTokensRequest, MessagesRequest

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TOOL = {"name": "look", "description": "looks", "input_schema": {"type": "object", "properties": {}}}
HELLO = [{"role": "user", "content": "hello"}]
ACCOUNTING = "x-anthropic-billing-header: 8f3"


def asked(messages: Any = HELLO, merge_systems: bool = False, **fields: Any) -> Translated:
    body = {"model": "m", "max_tokens": 2000, "messages": messages} | fields
    return translated(parse(MessagesRequest, body), merge_systems=merge_systems)


def messages(given: Any, **fields: Any) -> list[dict[str, Any]]:
    return [message.model_dump(exclude_unset=True) for message in asked(given, **fields).chat.messages]


def chat(**fields: Any) -> dict[str, Any]:
    return asked(**fields).chat.model_dump(exclude_unset=True, exclude={"messages", "model", "max_tokens"})


def text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_texts_and_pictures_keep_their_order() -> None:
    link = {"type": "image", "source": {"type": "url", "url": "https://host/a.png"}}
    content = [text("before"), IMAGE, text("between"), link]
    shown_link = {"type": "image_url", "image_url": {"url": "https://host/a.png"}}
    assert messages([{"role": "user", "content": content}]) == [
        {"role": "user", "content": [text("before"), SHOWN, text("between"), shown_link]}
    ]


def test_a_single_text_needs_no_list_and_empty_ones_are_left_out() -> None:
    assert messages([{"role": "user", "content": [text(""), text("x")]}]) == [{"role": "user", "content": "x"}]
    assert messages([{"role": "user", "content": [text("")]}, *HELLO]) == HELLO


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("be kind", "be kind"),
        ([text("be "), text("kind")], "be kind"),
        ([text(ACCOUNTING), text("be kind")], "be kind"),
        ([text(ACCOUNTING)], None),
        ("", None),
        (None, None),
    ],
)
def test_the_system_prompt_comes_first_without_the_clients_accounting(system: Any, expected: str | None) -> None:
    first = [{"role": "system", "content": expected}] if expected else []
    assert messages(HELLO, system=system) == first + HELLO


def test_systems_in_the_middle_stay_there_or_become_one() -> None:
    given = [*HELLO, {"role": "system", "content": [text("now"), text(ACCOUNTING)]}, *HELLO]
    assert messages(given, system="first") == [
        {"role": "system", "content": "first"},
        *HELLO,
        {"role": "system", "content": "now"},
        *HELLO,
    ]
    assert messages(given, system="first ", merge_systems=True) == [
        {"role": "system", "content": "first now"},
        *HELLO,
        *HELLO,
    ]


def test_a_turn_of_the_assistant_is_one_message() -> None:
    content = [
        {"type": "thinking", "thinking": "hm ", "signature": "s"},
        {"type": "redacted_thinking", "data": "secret"},
        {"type": "thinking", "thinking": "ah", "signature": "s"},
        text("I look"),
        {"type": "tool_use", "id": "a", "name": "look", "input": {"at": "ä"}},
        {"type": "tool_use", "id": "b", "name": "look", "input": {}},
    ]
    (message,) = messages([{"role": "assistant", "content": content}])
    assert message == {
        "role": "assistant",
        "reasoning": "hm ah",
        "content": "I look",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": "\\u00e4"}'}},
            {"id": "b", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        ],
    }


def test_results_of_tools_come_first_and_their_pictures_right_behind() -> None:
    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": [text("one"), IMAGE, text("two")]},
        {"type": "tool_result", "tool_use_id": "b", "content": "three", "is_error": True},
        {"type": "tool_result", "tool_use_id": "c"},
    ]
    assert messages([{"role": "user", "content": [text("go on"), *results]}]) == [
        {"role": "tool", "tool_call_id": "a", "content": "one\ntwo"},
        {"role": "user", "content": [SHOWN]},
        {"role": "tool", "tool_call_id": "b", "content": "three"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "user", "content": "go on"},
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.5, "top_p": 0.2, "top_k": 3}, {"temperature": 0.5, "top_p": 0.2, "top_k": 3}),
        ({"stop_sequences": ["x"]}, {"stop": ["x"]}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
        ({"stream": None}, {"stream": False}),
        ({"metadata": {"user_id": "u"}, "unknown": 1}, {}),
        ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
        ({"thinking": {"type": "adaptive"}}, {}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 1024},
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "chat_template_kwargs": {"enable_thinking": False}},
            {"chat_template_kwargs": {"enable_thinking": False}, "thinking_token_budget": 1024},
        ),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "max"}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "json_schema", "schema": {"type": "object"}},
                }
            },
        ),
        ({"mm_payload": "none", "cache_salt": "s"}, {"mm_payload": "none", "cache_salt": "s"}),
    ],
    ids=str,
)
def test_fields(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chat(**fields) == expected


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_tools_and_their_choice(choice: dict[str, str], expected: Any, alone: bool) -> None:
    made = chat(tools=[TOOL], tool_choice=choice | ({"disable_parallel_tool_use": True} if alone else {}))
    function = {"name": "look", "description": "looks", "parameters": TOOL["input_schema"]}
    assert made == {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": expected,
        "parallel_tool_calls": not alone,
    }


def test_a_schema_without_a_type_is_an_objects() -> None:
    made = chat(tools=[{"name": "look", "input_schema": {"properties": {}}, "strict": True}])
    assert made["tools"][0]["function"] == {
        "name": "look",
        "description": None,
        "parameters": {"properties": {}, "type": "object"},
        "strict": True,
    }


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "assistant", "content": [IMAGE]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0.source"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64"}}]}]},
            "messages.0.content.0.source",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "x"}]}]}]},
            "messages.0.content.0.content.0.type",
        ),
        ({"system": [IMAGE]}, "system.0.type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.input_schema"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences.0"),
    ],
    ids=str,
)  # fmt: skip
def test_misfits_are_told_by_the_clients_own_names(given: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked(**given)
    assert caught.value.param == param


@pytest.mark.parametrize(("budget", "fits"), [(1999, True), (2000, False)])
def test_the_answer_needs_room_behind_the_thinking(budget: int, fits: bool) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget}
    if fits:
        asked(thinking=thinking)
        return
    with pytest.raises(InvalidRequest, match="must be less than max_tokens"):
        asked(thinking=thinking)
    asked(thinking=thinking, kv_transfer_params={"do_remote_decode": True})


def test_errors_of_the_chat_request_are_about_the_block_they_came_from() -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "content": [text("x"), IMAGE]}
    places = asked([{"role": "user", "content": [text(""), text("x"), result, IMAGE]}], system="be").places
    assert places.original("messages.0") == "system"
    assert places.original("messages.1") == "messages.0.content.2"
    assert places.original("messages.2.content.0") == "messages.0.content.2.content.1"
    assert places.original("messages.3.content.0") == "messages.0.content.1"
    assert places.original("messages.3.content.1") == "messages.0.content.3"
    assert places.original("stop.0") == "stop_sequences.0"


def test_counting_needs_no_answer_and_no_pixels() -> None:
    request = translated(parse(CountTokensRequest, {"model": "m", "messages": HELLO, "tools": [TOOL]})).chat
    assert request.max_tokens is None
    assert not request.wants_mm_payload
    assert request.tools
