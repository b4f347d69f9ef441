"""Chat chunks become the events of a Responses stream."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from openai.types.responses import Response, ResponseStreamEvent

from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.dialects import translated
from triton_renderer.protocol.forms import JsonObject, ResponsesForm
from triton_renderer.protocol.responses.events import ResponseEvents
from triton_renderer.protocol.responses.request import ResponsesRequest

from .chunks import HEAD, RUNS, SIZES, Run, carried, chunks, events, usage

EVENTS = {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])}
CUSTOM = Run("call", '{"input": "ls -l"}', "run")


def form() -> ResponsesForm:
    tools = [{"type": "function", "name": "f", "parameters": {}, "strict": False}, {"type": "custom", "name": "run"}]
    made = translated(parse(ResponsesRequest, {"input": "x", "tools": tools, "metadata": {"a": "b"}})).form(None)
    assert isinstance(made, ResponsesForm)
    return made


def new() -> ResponseEvents:
    return ResponseEvents(form())


def said(items: list[JsonObject]) -> list[tuple[str, str]]:
    """The kind and the text of each item."""
    found = []
    for item in items:
        match item:
            case {"type": "reasoning" | "message" as kind, "content": [{"text": text}]}:
                found.append(("content" if kind == "message" else kind, text))
            case {"type": "function_call", "arguments": text, "name": "f"}:
                found.append(("call", text))
            case _:
                raise AssertionError(item)
    return found


def kinds(stream: list[JsonObject]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in stream]


def test_each_kind_of_item_has_its_events() -> None:
    runs = [Run("reasoning", "abcd"), Run("content", "ab"), Run("call", "{}"), CUSTOM]
    assert kinds(events(new(), chunks(runs))) == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        *("output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"),
        "completed",
    ]


def test_events_are_those_of_the_official_client() -> None:
    runs = [Run("reasoning", "abcd"), Run("content", "ab"), Run("call", "{}"), CUSTOM, Run("content", "c")]
    for event in events(new(), chunks(runs)):
        EVENTS[event["type"]].model_validate(event)


@settings(deadline=None)
@given(RUNS, SIZES)
def test_any_cut_gives_the_same_output_and_the_deltas_add_up_to_it(runs: list[Run], size: int) -> None:
    stream = events(new(), chunks(runs, size))
    response = stream[-1]["response"]
    assert said(response["output"]) == [(run.kind, run.text) for run in runs]
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    done = [event["item"] for event in stream if event["type"] == "response.output_item.done"]
    assert done == response["output"]
    for index, item in enumerate(done):
        own = [event for event in stream if event.get("output_index") == index]
        assert {event.get("item_id") or event["item"]["id"] for event in own} == {item["id"]}
        deltas = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        assert (deltas,) == tuple(text for _, text in said([item]))


@settings(deadline=None)
@given(RUNS, SIZES)
def test_a_state_carried_as_json_changes_nothing(runs: list[Run], size: int) -> None:
    stream = chunks(runs, size)
    assert nameless(carried(new, stream)) == nameless(events(new(), stream))


def nameless(stream: list[JsonObject]) -> list[JsonObject]:
    """The events with their random ids numbered."""
    ids: dict[str, int] = {}
    text = json.dumps(stream)
    for event in stream:
        if event["type"] == "response.output_item.added":
            ids.setdefault(event["item"]["id"], len(ids))
    for id, number in ids.items():
        text = text.replace(id, f"item-{number}")
    result: list[JsonObject] = json.loads(text)
    return result


@pytest.mark.parametrize(
    ("finish", "status", "item_status", "reason"),
    [
        ("stop", "completed", "completed", None),
        ("tool_calls", "completed", "completed", None),
        ("length", "incomplete", "incomplete", {"reason": "max_output_tokens"}),
        ("abort", "cancelled", "incomplete", None),
    ],
)
def test_the_end_decides_the_status(finish: str, status: str, item_status: str, reason: Any) -> None:
    response = events(new(), chunks([Run("content", "x"), Run("call", "{}")], finish=finish))[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == (status, reason)
    assert [item["status"] for item in response["output"]] == ["completed", item_status]


def test_the_response_has_the_requests_fields_and_the_usage() -> None:
    stream = events(new(), chunks([Run("content", "abc")]))
    first, last = stream[0]["response"], stream[-1]["response"]
    Response.model_validate(last)
    assert (first["status"], first["usage"], first["output"]) == ("in_progress", None, [])
    assert (last["id"], last["created_at"], last["model"]) == ("resp_1", 1700000000, "served")
    assert last["metadata"] == {"a": "b"}
    assert [tool["name"] for tool in last["tools"]] == ["f", "run"]
    assert last["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 2, "tool_output_tokens": 0},
        "total_tokens": 13,
    }


def test_cached_tokens_are_told() -> None:
    translator = new()
    end = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}
    (*_, last) = translator.push(HEAD | {"choices": [end], "usage": usage(1, cached=4)})
    assert last["response"]["usage"]["input_tokens_details"]["cached_tokens"] == 4


def test_an_answer_without_anything_is_complete() -> None:
    stream = events(new(), chunks([]))
    assert kinds(stream) == ["created", "in_progress", "completed"]
    assert stream[-1]["response"]["output"] == []


def test_the_whole_answer_is_that_of_the_last_event() -> None:
    translator = new()
    stream = events(translator, chunks([Run("content", "x")]))
    assert translator.finish() == []
    whole = translator.whole(stream, {"kv_transfer_params": {"a": 1}})
    assert whole == stream[-1]["response"] | {"kv_transfer_params": {"a": 1}, "ec_transfer_params": None}


def test_an_answer_that_nobody_ends_can_be_finished() -> None:
    translator = new()
    stream = events(translator, chunks([Run("content", "x")], finish=None)) + translator.finish()
    assert kinds(stream)[-2:] == ["output_item.done", "completed"]
    assert stream[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize(
    ("arguments", "given_to_the_tool"),
    [
        ('{"input": "ls\\n"}', "ls\n"),
        ("ls -l", "ls -l"),
        ('{"other": 1}', '{"other": 1}'),
        ("[1]", "[1]"),
        ('{"inp', '{"inp'),
        ('{"input": "\\ud800"}', '{"input": "\\ud800"}'),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_a_custom_tool_gets_its_text_or_what_the_model_wrote(arguments: str, given_to_the_tool: str) -> None:
    stream = events(new(), chunks([Run("call", arguments, "run")]))
    (item,) = stream[-1]["response"]["output"]
    assert item == {
        "type": "custom_tool_call",
        "id": item["id"],
        "call_id": "call-0",
        "name": "run",
        "input": given_to_the_tool,
    }


def test_logprobs_stand_beside_their_text() -> None:
    def chunk(token: str, **delta: str) -> JsonObject:
        entry = {"token": token, "logprob": -0.5, "bytes": [120], "top_logprobs": []}
        return HEAD | {"choices": [{"index": 0, "delta": delta, "logprobs": {"content": [entry]}}]}

    stream = events(new(), [chunk("t", reasoning="t"), chunk("held"), chunk("b", content="held b"), chunk("c", content="c")])
    deltas = [event for event in stream if event["type"] == "response.output_text.delta"]
    assert [[entry["token"] for entry in event["logprobs"]] for event in deltas] == [["held", "b"], ["c"]]
    translator = new()
    stream = events(translator, [chunk("b", content="b"), chunk("end")]) + translator.finish()
    (item,) = stream[-1]["response"]["output"]
    assert [entry["token"] for entry in item["content"][0]["logprobs"]] == ["b", "end"]


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"sequence": -1}, "sequence"),
        ({"sequence": 2**60}, "sequence"),
        ({"status": "odd"}, "status"),
        ({"open": {"kind": "odd", "id": "x"}}, "open.kind"),
        ({"open": {"kind": "message", "id": "x", "text": 5}}, "open.text"),
        ({"output": 5}, "output"),
        ({"output": [5]}, "output.0"),
        ({"created": "soon"}, "created"),
    ],
)
def test_a_state_that_cannot_be_one_is_refused(state: JsonObject, where: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        new().restore(state)
    assert caught.value.param == where
