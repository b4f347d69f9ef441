"""Answers in the forms of the Responses and the Messages API: whole, streamed, and with a state that the caller carries."""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_renderer.derender.streaming import StreamDerenderer
from triton_renderer.errors import InvalidRequest, RendererError
from triton_renderer.protocol.forms import MessagesForm, ResponsesForm
from triton_renderer.protocol.messages.events import message_of
from triton_renderer.protocol.stages import ChunkChoice, GeneratedChunk

from .answers import context, derenderer, model, tokens

OUTPUT = (
    "<think>I see ✓</think>a red circle"
    '<tool_call>\n{"name": "f", "arguments": {"a": [1, "é"]}}\n</tool_call>'
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>and so on<|im_end|>'
)
TOKENS = tokens(OUTPUT)
TOOLS = [{"type": "function", "name": "f", "parameters": {}}]
ASKED: dict[str, dict[str, Any]] = {
    "responses": {"responses_request": {"input": "x", "tools": TOOLS}},
    "messages": {
        "messages_request": {
            "model": "shapes-vl",
            "max_tokens": 5,
            "messages": [{"role": "user", "content": "x"}],
            "tools": [{"name": "f", "input_schema": {}}],
        }
    },
}
FORMS = {"responses": ResponsesForm(head={}), "messages": MessagesForm()}
KINDS = pytest.mark.parametrize("kind", ["responses", "messages"])
CUTS = st.lists(st.integers(1, len(TOKENS)), max_size=8).map(sorted)

SAID = {
    "responses": [
        ("reasoning", "I see ✓"),
        ("message", "a red circle"),
        ("function_call", '{"a": [1, "é"]}'),
        ("function_call", "{}"),
        ("message", "and so on"),
    ],
    "messages": [
        ("thinking", "I see ✓"),
        ("text", "a red circle"),
        ("tool_use", {"a": [1, "é"]}),
        ("tool_use", {}),
        ("text", "and so on"),
    ],
}


def said(kind: str, answer: dict[str, Any]) -> list[tuple[str, Any]]:
    """The kinds and the contents of the items or blocks of an answer."""
    if kind == "messages":
        return [(b["type"], b.get("thinking") or b.get("text") or b.get("input", {})) for b in answer["content"]]
    return [
        (item["type"], item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
        for item in answer["output"]
    ]


def whole_of(kind: str, events: list[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = message_of(events) if kind == "messages" else events[-1]["response"]
    return whole


def coupled(kind: str, cuts: Sequence[int], stream: bool, finish: str = "stop") -> list[dict[str, Any]]:
    """The documents that the chunks of a request make ready."""
    stage = derenderer()
    documents: list[bytes] = []
    bounds = sorted({0, *cuts, len(TOKENS)}) if stream else [0, len(TOKENS)]
    for number, (start, end) in enumerate(pairwise(bounds)):
        last = end == len(TOKENS)
        choice = ChunkChoice(index=0, num_tokens=end - start, finish_reason=finish if last else None)
        chunk = GeneratedChunk(
            id="r",
            number=number,
            choices=[choice],
            final=last,
            prompt_tokens=11,
            derender=context(stream=stream, form=FORMS[kind], tool_choice="auto") if number == 0 else None,
        )
        documents += stage.chunk(np.array(TOKENS[start:end], np.int64), chunk)
    return [json.loads(document) for document in documents]


def derender(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    stage = derenderer()
    call = stage.derender_responses if kind == "responses" else stage.derender_messages
    answer: dict[str, Any] = json.loads(call(body))
    return answer


def one_shot(kind: str, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "token_ids": TOKENS, "finish_reason": "stop"}
    response = {"request_id": "r", "choices": [choice]}
    return derender(
        kind, {"generate_response": response, "prompt_token_ids": tokens("a"), "prompt_tokens": 11} | ASKED[kind] | fields
    )


def calls(kind: str, cuts: Sequence[int], **fields: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The events of a stream of calls, each with the state of the one before as JSON; and the states."""
    events: list[dict[str, Any]] = []
    states: list[dict[str, Any]] = []
    streams = StreamDerenderer(model())
    bounds = sorted({0, *cuts, len(TOKENS)})
    for start, end in pairwise(bounds):
        last = end == len(TOKENS)
        choice = {"index": 0, "token_ids": TOKENS[start:end], "finish_reason": "stop" if last else None}
        body = {"stream": True, "generate_chunk": {"request_id": "r", "choices": [choice]}} | ASKED[kind] | fields
        body |= {"stream_state": states[-1]} if states else {"prompt_token_ids": tokens("a")}
        answer = json.loads(streams.responses(body) if kind == "responses" else streams.messages(body))
        events += answer["events"]
        states.append(answer["stream_state"])
    return events, states


@KINDS
@settings(deadline=None)
@given(cuts=CUTS)
def test_any_cut_of_the_stream_says_the_same_in_the_same_order(kind: str, cuts: list[int]) -> None:
    assert said(kind, whole_of(kind, coupled(kind, cuts, stream=True))) == SAID[kind]


@KINDS
@settings(deadline=None)
@given(cuts=CUTS)
def test_so_does_any_cut_into_calls(kind: str, cuts: list[int]) -> None:
    events, _ = calls(kind, cuts)
    assert said(kind, whole_of(kind, events)) == SAID[kind]


@KINDS
def test_and_so_do_whole_answers(kind: str) -> None:
    (answer,) = coupled(kind, [], stream=False)
    assert said(kind, answer) == SAID[kind]
    assert said(kind, one_shot(kind)) == SAID[kind]


@KINDS
def test_usage_is_the_same_on_all_ways(kind: str) -> None:
    (answer,) = coupled(kind, [], stream=False)
    usages = [
        answer["usage"],
        whole_of(kind, coupled(kind, [5], stream=True))["usage"],
        one_shot(kind)["usage"],
        whole_of(kind, calls(kind, [5], prompt_tokens=11)[0])["usage"],
    ]
    assert all(usage == usages[0] for usage in usages)
    assert (usages[0]["input_tokens"], usages[0]["output_tokens"]) == (11, len(TOKENS))


@KINDS
def test_the_prompts_tokens_are_counted_where_nobody_says_how_many(kind: str) -> None:
    events, _ = calls(kind, [5, 9])
    assert whole_of(kind, events)["usage"]["input_tokens"] == len(tokens("a"))


@KINDS
def test_the_engines_count_goes_before(kind: str) -> None:
    choice = {"index": 0, "token_ids": TOKENS, "finish_reason": "stop"}
    usage = {"prompt_tokens": 40, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 8}}
    body = {"stream": True, "generate_chunk": {"request_id": "r", "choices": [choice], "usage": usage}} | ASKED[kind]
    answer = derender(kind, body | {"prompt_token_ids": tokens("a")})
    told = whole_of(kind, answer["events"])["usage"]
    assert told["input_tokens"] == (40 if kind == "responses" else 32)


@KINDS
def test_a_call_without_a_choice_changes_nothing(kind: str) -> None:
    events, states = calls(kind, [])
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    body = {"stream": True, "stream_state": states[-1], "generate_chunk": {"choices": [], "usage": usage}} | ASKED[kind]
    answer = derender(kind, body)
    assert events
    assert answer["events"] == []


def test_a_response_says_what_was_used_where_that_is_known() -> None:
    sampling = {"temperature": 0.25, "top_p": 0.5, "max_tokens": 44}
    for answer in (
        one_shot("responses", sampling_params=sampling),
        whole_of("responses", calls("responses", [5], sampling_params=sampling)[0]),
    ):
        assert (answer["temperature"], answer["top_p"], answer["max_output_tokens"]) == (0.25, 0.5, 44)
        assert [tool["name"] for tool in answer["tools"]] == ["f"]


def test_the_id_is_that_of_the_generate_response() -> None:
    assert one_shot("responses")["id"] == one_shot("messages")["id"] == "r"
    assert calls("responses", [])[0][0]["response"]["id"] == "r"


def test_the_state_of_a_message_does_not_grow_with_the_output() -> None:
    def size(text: str) -> int:
        choice = {"index": 0, "token_ids": tokens(text), "finish_reason": None}
        body = {"stream": True, "generate_chunk": {"request_id": "r", "choices": [choice]}} | ASKED["messages"]
        return len(json.dumps(derender("messages", body | {"prompt_token_ids": tokens("a")})["stream_state"]))

    assert size("word " * 2000) <= size("word " * 10) + 20


@KINDS
def test_logprobs_do_not_disturb(kind: str) -> None:
    entries = [{"token_id": token, "logprob": -0.5, "top_logprobs": []} for token in TOKENS]
    choice = {"index": 0, "token_ids": TOKENS, "finish_reason": "stop", "logprobs": {"content": entries}}
    answer = one_shot(kind, generate_response={"request_id": "r", "choices": [choice]})
    assert said(kind, answer) == SAID[kind]


def test_each_texts_logprobs_are_its_own() -> None:
    entries = [{"token_id": token, "logprob": -0.5, "top_logprobs": []} for token in TOKENS]
    choice = {"index": 0, "token_ids": TOKENS, "finish_reason": "stop", "logprobs": {"content": entries}}
    asked = {"responses_request": ASKED["responses"]["responses_request"] | {"include": ["message.output_text.logprobs"]}}
    answer = one_shot("responses", generate_response={"request_id": "r", "choices": [choice]}, **asked)
    texts = [item["content"][0] for item in answer["output"] if item["type"] == "message"]
    for text in texts:
        assert text["text"] in "".join(entry["token"] for entry in text["logprobs"])
    assert sum(len(text["logprobs"]) for text in texts) < len(TOKENS) / 2


@KINDS
def test_a_call_that_is_sent_again_is_answered_the_same(kind: str) -> None:
    _, states = calls(kind, [3])
    choice = {"index": 0, "token_ids": TOKENS[3:], "finish_reason": "stop"}
    body = {"stream": True, "generate_chunk": {"request_id": "r", "choices": [choice]}, "stream_state": states[0]} | ASKED[kind]
    assert derender(kind, body) == derender(kind, body)


@KINDS
def test_no_two_answers_have_ids_in_common(kind: str) -> None:
    first, second = (json.dumps(one_shot(kind)) for _ in range(2))
    ids = [set(re.findall(r"[0-9a-f]{16,}", text)) for text in (first, second)]
    assert len(ids[0]) >= 3
    assert not ids[0] & ids[1]


@KINDS
def test_one_choice_is_all_that_there_can_be(kind: str) -> None:
    choices = [{"index": index, "token_ids": TOKENS, "finish_reason": "stop"} for index in range(2)]
    with pytest.raises(InvalidRequest, match="only one"):
        one_shot(kind, generate_response={"request_id": "r", "choices": choices})


@KINDS
def test_an_answer_that_says_no_reason_is_finished(kind: str) -> None:
    choice = {"index": 0, "token_ids": TOKENS, "finish_reason": None}
    answer = one_shot(kind, generate_response={"request_id": "r", "choices": [choice]})
    assert said(kind, answer) == SAID[kind]


@KINDS
def test_a_length_is_told(kind: str) -> None:
    answer = whole_of(kind, coupled(kind, [7], stream=True, finish="length"))
    assert answer["status" if kind == "responses" else "stop_reason"] == ("incomplete" if kind == "responses" else "max_tokens")


@KINDS
@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"kind": "chat"}, "stream_state.kind"),
        ({"created": -1}, "stream_state.created"),
        ({"prompt_tokens": "x"}, "stream_state.prompt_tokens"),
        ({"translator": 5}, "stream_state.translator"),
        ({"choice": {}}, "stream_state.choice.num_tokens"),
        ({"more": 1}, "stream_state.more"),
    ],
)
def test_an_altered_state_is_refused(kind: str, change: dict[str, Any], param: str) -> None:
    _, states = calls(kind, [4])
    choice = {"index": 0, "token_ids": TOKENS[4:6]}
    body = {"stream": True, "generate_chunk": {"choices": [choice]}, "stream_state": states[0] | change} | ASKED[kind]
    with pytest.raises(InvalidRequest) as caught:
        derender(kind, body)
    assert caught.value.param == param


def test_an_altered_translators_state_is_refused() -> None:
    _, states = calls("responses", [4])
    choice = {"index": 0, "token_ids": TOKENS[4:6]}
    altered = states[0] | {"translator": states[0]["translator"] | {"sequence": -1}}
    with pytest.raises(InvalidRequest) as caught:
        derender(
            "responses", {"stream": True, "generate_chunk": {"choices": [choice]}, "stream_state": altered} | ASKED["responses"]
        )
    assert caught.value.param == "stream_state.translator.sequence"


@KINDS
@pytest.mark.parametrize("stream", [False, True])
def test_what_was_asked_for_is_needed(kind: str, stream: bool) -> None:
    choice = {"index": 0, "token_ids": TOKENS, "finish_reason": "stop"}
    field = "generate_chunk" if stream else "generate_response"
    with pytest.raises(InvalidRequest) as caught:
        derender(kind, {"stream": stream, field: {"choices": [choice]}, "prompt_token_ids": [1]})
    assert caught.value.param == f"{kind}_request"


@pytest.mark.parametrize("stream", [False, True])
def test_misfits_of_what_was_asked_for_say_where(stream: bool) -> None:
    choice = {"index": 0, "token_ids": TOKENS, "finish_reason": "stop"}
    field = "generate_chunk" if stream else "generate_response"
    body = {"stream": stream, field: {"choices": [choice]}, "responses_request": {"input": "x", "previous_response_id": "r"}}
    with pytest.raises(InvalidRequest) as caught:
        derender("responses", body)
    assert caught.value.param == "responses_request.previous_response_id"


@KINDS
def test_a_lost_chunk_is_noticed(kind: str) -> None:
    stage = derenderer()
    first = ChunkChoice(index=0, num_tokens=1)
    chunk = GeneratedChunk(id="r", choices=[first], derender=context(stream=True, form=FORMS[kind]))
    stage.chunk(np.array(TOKENS[:1], np.int64), chunk)
    with pytest.raises(RendererError):
        stage.chunk(np.array(TOKENS[1:2], np.int64), GeneratedChunk(id="r", number=2, choices=[first]))
