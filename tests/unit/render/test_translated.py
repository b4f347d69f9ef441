"""Responses and Messages requests are rendered as the chat requests that ask for the same."""

from typing import Any

import numpy as np
import orjson
import pytest

from triton_renderer.errors import InvalidRequest, NoHistory, NotFound
from triton_renderer.protocol.forms import MessagesForm, ResponsesForm
from triton_renderer.protocol.render_answer import to_generate_request
from triton_renderer.protocol.stages import RenderJob
from triton_renderer.render import Rendered, Renderer
from triton_renderer.render.template import ChatTemplate

from .helpers import data_url, png

TOOL = {"name": "look", "description": "looks", "parameters": {"type": "object", "properties": {}}}
URL = data_url(png())
PICTURE: dict[str, dict[str, Any]] = {
    "chat": {"type": "image_url", "image_url": {"url": URL}},
    "responses": {"type": "input_image", "image_url": URL},
    "messages": {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": URL.partition(",")[2]},
    },
}


def render(renderer: Renderer, kind: Any, body: dict[str, Any], for_generate: bool = False) -> Rendered:
    return renderer.render(RenderJob(kind=kind, id="i", external_id="x", body=body, for_generate=for_generate))


def same(renderer: Renderer, **bodies: dict[str, Any]) -> None:
    """All bodies, by their kinds, are rendered alike."""
    first, *others = (render(renderer, kind, body) for kind, body in bodies.items())
    for other in others:
        assert np.array_equal(first.token_ids, other.token_ids)
        assert first.items == other.items
        assert first.context.sampling_params == other.context.sampling_params


def test_a_conversation_with_tools_and_a_picture_is_the_same_in_all_three(renderer: Renderer) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    same(
        renderer,
        chat={
            "messages": [
                {"role": "system", "content": "be kind"},
                {"role": "user", "content": [{"type": "text", "text": "see"}, PICTURE["chat"]]},
                {"role": "assistant", "content": "I look", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "a", "content": "a circle"},
            ],
            "tools": [{"type": "function", "function": TOOL}],
            "max_tokens": 20,
            "temperature": 0.5,
            "stop": ["x"],
        },
        responses={
            "instructions": "be kind",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "see"}, PICTURE["responses"]]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
                {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"at": 1}'},
                {"type": "function_call_output", "call_id": "a", "output": "a circle"},
            ],
            "tools": [{"type": "function", **TOOL}],
            "max_output_tokens": 20,
            "temperature": 0.5,
            "stop": "x",
        },
        messages={
            "model": "shapes-vl",
            "system": "be kind",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "see"}, PICTURE["messages"]]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "I look"},
                        {"type": "tool_use", "id": "a", "name": "look", "input": {"at": 1}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "a circle"}]},
            ],
            "tools": [
                {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]},
            ],
            "max_tokens": 20,
            "temperature": 0.5,
            "stop_sequences": ["x"],
        },
    )


def test_thinking_is_switched_on_and_off_alike(renderer: Renderer) -> None:
    hello = [{"role": "user", "content": "hello"}]
    on = {"chat_template_kwargs": {"enable_thinking": True}}
    same(
        renderer,
        chat={"messages": hello} | on,
        responses={"input": "hello", "reasoning": {"effort": "high"}},
    )
    budget = {"type": "enabled", "budget_tokens": 1024}
    thinking = render(
        renderer, "count_tokens", {"model": "shapes-vl", "messages": hello, "thinking": budget}, for_generate=True
    )
    assert np.array_equal(thinking.token_ids, render(renderer, "chat", {"messages": hello} | on).token_ids)


def test_an_unfinished_turn_is_continued_in_responses_and_closed_in_messages(renderer: Renderer) -> None:
    turns = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "one, two"}]
    continued = {"add_generation_prompt": False, "continue_final_message": True}
    same(
        renderer,
        chat={"messages": turns, "max_tokens": 9} | continued,
        responses={"input": [turns[0], turns[1] | {"status": "in_progress"}], "max_output_tokens": 9},
    )
    same(
        renderer,
        chat={"messages": turns, "max_tokens": 9},
        messages={"model": "shapes-vl", "messages": turns, "max_tokens": 9},
        responses={"input": turns, "max_output_tokens": 9},
    )


def test_what_derender_needs_to_know(renderer: Renderer) -> None:
    body = {"input": "hello", "stream": True, "max_output_tokens": 7, "metadata": {"a": "b"}}
    derender = render(renderer, "responses", body).context.derender
    assert derender is not None
    assert isinstance(derender.form, ResponsesForm)
    assert (derender.form.head["max_output_tokens"], derender.form.head["metadata"]) == (7, {"a": "b"})
    assert (derender.kind, derender.stream, derender.continuous_usage, derender.include_usage) == ("chat", True, True, False)
    messages = {"model": "shapes-vl", "max_tokens": 7, "messages": [{"role": "user", "content": "hello"}]}
    derender = render(renderer, "messages", messages).context.derender
    assert derender is not None
    assert derender.form == MessagesForm()
    assert not derender.stream


def test_a_generate_request_of_each(renderer: Renderer) -> None:
    rendered = render(renderer, "responses", {"input": "hello", "model": "shapes-vl", "stream": True}, for_generate=True)
    document = orjson.loads(to_generate_request(rendered.token_ids, rendered.items, rendered.context))
    assert (document["request_id"], document["model"], document["stream"]) == ("x", "shapes-vl", True)
    assert document["stream_options"] is None
    assert document["reasoning_ended"] is None
    assert rendered.context.derender is None
    body = {"model": "shapes-vl", "max_tokens": 7, "messages": [{"role": "user", "content": "hello"}], "stream": True}
    rendered = render(renderer, "messages", body, for_generate=True)
    document = orjson.loads(to_generate_request(rendered.token_ids, rendered.items, rendered.context))
    assert document["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert document["sampling_params"]["max_tokens"] == 7


def test_counting_tokens_takes_a_prompt_alone(renderer: Renderer) -> None:
    body = {"model": "shapes-vl", "messages": [{"role": "user", "content": [PICTURE["messages"]]}]}
    counted = render(renderer, "count_tokens", body, for_generate=True)
    assert np.array_equal(counted.token_ids, render(renderer, "messages", body | {"max_tokens": 5}).token_ids)
    assert not any(counted.items)


@pytest.mark.parametrize(
    ("kind", "body", "param"),
    [
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_text"}, {"type": "x"}]}]}, "input.0.content.1.type"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.image_url"),
        ("responses", {"input": "x", "max_output_tokens": 10**6}, "max_output_tokens"),
        ("responses", {"input": "x", "tool_choice": "required"}, "tool_choice"),
        ("responses", {"input": "x", "chat_template": "{{ messages }}"}, "chat_template"),
        ("responses", {"input": "x", "chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ("responses", {"input": "x" * 10**6}, "input_tokens"),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "?"}}]}]},
            "messages.0.content.0",
        ),
        ("messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 10**6}, "max_tokens"),
        ("messages", {"messages": [{"role": "user", "content": "x"}], "chat_template": "x"}, "chat_template"),
        ("messages", {"messages": [{"role": "user", "content": "x"}], "stop_sequences": ["x"] * 65}, "stop_sequences"),
    ],
    ids=str,
)  # fmt: skip
def test_errors_name_what_the_client_sent(renderer: Renderer, kind: str, body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(renderer, kind, {"model": "shapes-vl", "max_tokens": 5} | body if kind == "messages" else body)
    assert caught.value.param == param


def test_what_a_stateless_server_cannot_do(renderer: Renderer) -> None:
    with pytest.raises(NoHistory):
        render(renderer, "responses", {"input": "x", "previous_response_id": "resp_1"}, for_generate=True)


def test_another_model_is_not_found(renderer: Renderer) -> None:
    with pytest.raises(NotFound):
        render(renderer, "responses", {"input": "x", "model": "other"})


@pytest.mark.parametrize("takes", [True, False])
def test_late_systems_are_merged_where_the_template_refuses_them(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch, takes: bool
) -> None:
    template = renderer._model.template
    assert isinstance(template, ChatTemplate)
    assert template.takes_late_systems
    monkeypatch.setattr(template, "takes_late_systems", takes)
    turns = [{"role": "user", "content": "a"}, {"role": "system", "content": "late"}, {"role": "user", "content": "b"}]
    prompt = render(renderer, "messages", {"model": "shapes-vl", "max_tokens": 5, "messages": turns}).token_ids
    merged = [{"role": "system", "content": "late"}, turns[0], turns[2]]
    expected = render(renderer, "chat", {"messages": turns if takes else merged}).token_ids
    assert np.array_equal(prompt, expected)
