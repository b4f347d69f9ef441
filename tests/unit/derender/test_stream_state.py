"""The state has been out of our hands: whatever comes back is checked, and nothing of it makes a call fail unexpectedly."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.derender.answers import model, tokens
from tests.unit.derender.parsing import OUTPUTS
from tests.unit.derender.streams import CHAT, PROMPT, TOOLS, Stream, call
from tests.unit.hostile import changed, places
from triton_renderer.derender.derenderer import Derenderer
from triton_renderer.derender.open_requests import OpenRequests
from triton_renderer.derender.parsers import reasoning_parser, tool_parser
from triton_renderer.derender.streaming import StreamDerenderer
from triton_renderer.errors import InvalidRequest, NotFound
from triton_renderer.text.formats import REASONING_FORMATS, TOOL_FORMATS

EOS = model().tokenizer.eos_token_id
ASKED = {"tools": TOOLS, "stop": ["END"]}
BEGINNINGS = [
    "",
    "a <tool",
    "<think>hm",
    '<tool_call>\n{"na',
    '<tool_call>\n{"arguments": {"a": 1}, "name": "f',
    '<tool_call>\n{"name": "f", "arguments": {"a": "b\\',
    '<tool_call>\n{"name": "f", "arguments": 12 ',
    "a\n E",
]


@cache
def derenderer() -> StreamDerenderer:
    return StreamDerenderer(model())


@cache
def state_behind(text: str) -> str:
    stream = Stream(asked=ASKED)
    stream.push(tokens(text))
    return json.dumps(stream.state)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from([2**53, -(2**63), 2**64 - 1, 0.5, 1e300])
    | st.text(max_size=4),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=6,
)
LIKELY = st.sampled_from(
    [*("text", "object", "key", "in_key", "colon", "value", "name", "arguments", "skip", "after", "done"), "start", "content"]
)


@cache
def served(reasoning: str | None, tools: str | None) -> StreamDerenderer:
    """The bundled model as if it wrote these formats."""
    return StreamDerenderer(
        replace(
            model(),
            reasoning_parser=reasoning_parser(reasoning) if reasoning else None,
            tool_parser=tool_parser(tools) if tools else None,
        )
    )


FORMATS = [
    *(("qwen3", name) for name in TOOL_FORMATS),
    *((name, "hermes") for name in REASONING_FORMATS),
    (None, "hermes"),
    ("qwen3", None),
]
JSON_PARTS = ['{"name": "f', '"arguments": {"a": "b\\', "[f(a=[1, ", "<function=f>", "12 ", "\n", " ", "text", "EN", "é"]


@settings(max_examples=250, deadline=None)
@given(data=st.data(), text=OUTPUTS)
def test_an_altered_state_is_refused_by_its_place_or_taken_for_what_it_says(data, text):
    reasoning, tools = data.draw(st.sampled_from(FORMATS))
    under_test = served(reasoning, tools)
    markers = [*(reasoning_parser(reasoning).markers if reasoning else ()), *(tool_parser(tools).markers if tools else ())]
    before = data.draw(
        st.sampled_from(BEGINNINGS) | st.lists(st.sampled_from([*markers, *JSON_PARTS]), max_size=6).map("".join)
    )
    state = json.loads(under_test.chat(call(tokens(before), None, ASKED)))["stream_state"]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(places(state)))
        state = changed(state, place, data.draw(JSON | LIKELY))
    body = call([*tokens(text), EOS], None, ASKED, finish_reason=data.draw(st.sampled_from([None, "stop", "length"])))
    body["stream_state"] = state
    refusal, answer = None, {}
    try:
        answer = json.loads(under_test.chat(body))
    except InvalidRequest as error:
        refusal = error.param or "nowhere"
    if refusal is None:
        body["stream_state"], body["generate_chunk"]["choices"] = answer["stream_state"], []
        assert "chunk" in json.loads(under_test.chat(body))
    else:
        assert refusal.startswith(("stream_state", "prompt_token_ids", "generate_chunk.choices.0"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), "state"),
        ((), [1]),
        (("kind",), "completion"),
        (("kind",), "other"),
        (("created",), -1),
        (("created",), 2**53),
        (("created",), 1.0),
        (("created",), True),
        (("index",), "0"),
        (("choice",), None),
        (("choice", "num_tokens"), -1),
        (("choice", "is_finished"), 0),
        (("choice", "unread"), -1),
        (("choice", "stop"), 1),
        (("choice", "stopped_by"), []),
        (("choice", "detokenizer", "pending"), [256]),
        (("choice", "detokenizer", "pending"), [240, 159, 153, 130]),
        (("choice", "detokenizer", "at_start"), None),
        (("choice", "logprobs", "text_offset"), -1),
        (("choice", "parser", "separates"), "yes"),
        (("choice", "parser", "reasoning"), None),
        (("choice", "parser", "reasoning", "phase"), "thinking"),
        (("choice", "parser", "tools"), {"phase": "nowhere"}),
        (("choice", "parser", "tools"), []),
        (("choice", "parser", "tools", "calls"), -1),
        (("choice", "parser", "tools", "more"), 1),
        (("choice", "more"), 1),
        (("more",), 1),
    ],
)
def test_a_misfit_is_a_400_that_names_its_place(path, value):
    state = changed(json.loads(state_behind('<tool_call>\n{"name": "f')), path, value)
    body = call(tokens("a"), None, ASKED) | {"stream_state": state}
    with pytest.raises(InvalidRequest) as caught:
        derenderer().chat(body)
    assert (caught.value.status, caught.value.type) == (400, "Bad Request")
    assert caught.value.param is not None
    assert caught.value.param.startswith(".".join(("stream_state", *path)))


@pytest.mark.parametrize("missing", ["kind", "choice"])
def test_a_part_that_is_missing_is_named(missing):
    state = json.loads(state_behind("a"))
    del state[missing]
    with pytest.raises(InvalidRequest) as caught:
        derenderer().chat(call(tokens("a")) | {"stream_state": state})
    assert caught.value.param == f"stream_state.{missing}"


@pytest.mark.parametrize("part", ["stream_state", "stream_state.choice", "stream_state.choice.detokenizer"])
def test_a_part_that_is_no_object_is_told_without_the_name_of_a_class(part):
    state = changed(json.loads(state_behind("a")), tuple(part.split(".")[1:]), 5)
    with pytest.raises(InvalidRequest) as caught:
        derenderer().chat(call(tokens("a")) | {"stream_state": state})
    assert caught.value.message == f"{part}: Input should be an object"


def test_a_list_of_a_state_is_read_up_to_its_first_misfit():
    state = changed(json.loads(state_behind("a")), ("choice", "parser", "tools", "raw"), [None] * 1000)
    with pytest.raises(InvalidRequest) as caught:
        derenderer().chat(call(tokens("a"), None, ASKED) | {"stream_state": state})
    complaint: Any = caught.value
    while not isinstance(complaint, ValidationError):
        complaint = complaint.__cause__
    assert complaint.error_count() == 1


def test_a_state_that_another_request_asked_for_is_refused():
    state = json.loads(state_behind("a"))
    with pytest.raises(InvalidRequest) as caught:
        derenderer().chat(call(tokens("a"), state, {"tools": TOOLS, "tool_choice": "none"}))
    assert caught.value.param == "stream_state.choice.parser.tools"


def test_a_choice_does_not_go_on_with_the_state_of_another():
    with pytest.raises(InvalidRequest, match="belongs to choice 0, not 1") as caught:
        derenderer().chat(call(tokens("a"), json.loads(state_behind("a")), ASKED, index=1))
    assert caught.value.param == "stream_state.index"


def test_a_choice_does_not_go_on_behind_its_end():
    stream = Stream()
    stream.push(tokens("a"), finish_reason="stop")
    for more in ({"token_ids": tokens("a")}, {"token_ids": [], "finish_reason": "stop"}):
        with pytest.raises(InvalidRequest, match="has ended") as caught:
            stream.send(choices=[{"index": 0} | more])
        assert caught.value.param == "generate_chunk.choices.0"


VOCAB, CONTEXT = model().vocab_size, model().max_model_len
ENTRY = {"token_id": 1, "logprob": -1.0}
TWO = [{"index": 0, "token_ids": [1]}, {"index": 1, "token_ids": [1]}]


def choice(**fields: Any) -> dict[str, Any]:
    return {"generate_chunk": {"request_id": "r", "choices": [{"index": 0, "token_ids": [1]} | fields]}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"generate_chunk": None}, "generate_chunk"),
        ({"generate_chunk": {"request_id": "r"}}, "generate_chunk.choices"),
        ({"generate_chunk": {"choices": TWO}}, "generate_chunk.choices"),
        ({"generate_chunk": {"choices": [], "output_mode": "text"}}, "generate_chunk.output_mode"),
        ({"generate_chunk": {"choices": [], "usage": {"prompt_tokens": -1}}}, "generate_chunk.usage.prompt_tokens"),
        ({"chat_request": None}, "chat_request"),
        ({"chat_request": {"messages": "x"}}, "chat_request.messages"),
        ({"chat_request": {"messages": []}}, "chat_request.messages"),
        ({"prompt_token_ids": None}, "prompt_token_ids"),
        ({"prompt_token_ids": [1, VOCAB]}, "prompt_token_ids.1"),
        ({"prompt_token_ids": [1] * (CONTEXT + 1)}, "prompt_token_ids"),
        ({"prompt_tokens": -1}, "prompt_tokens"),
        (choice(token_ids=[1, VOCAB]), "generate_chunk.choices.0.token_ids.1"),
        (choice(token_ids=[1, -1]), "generate_chunk.choices.0.token_ids.1"),
        (choice(token_ids=[2**63]), "generate_chunk.choices.0.token_ids.0"),
        (choice(token_ids=[1] * (CONTEXT + 1)), "generate_chunk.choices.0.token_ids"),
        (choice(index=-1), "generate_chunk.choices.0.index"),
        (choice(index=2**64 - 1), "generate_chunk.choices.0.index"),
        (choice(finish_reason="because"), "generate_chunk.choices.0.finish_reason"),
        (choice(logprobs={"content": [ENTRY] * 2}), "generate_chunk.choices.0.logprobs"),
        (choice(logprobs={"content": [{"token": "a"}]}), "generate_chunk.choices.0.logprobs"),
        (
            choice(logprobs={"content": [ENTRY | {"top_logprobs": [ENTRY] * 22}]}),
            "generate_chunk.choices.0.logprobs.content.0.top_logprobs",
        ),
        ({"model": 1}, "model"),
    ],
)
def test_bad_calls_say_what_is_wrong_and_where(fields, param):
    with pytest.raises(InvalidRequest) as caught:
        derenderer().chat(call([1]) | fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_the_context_is_the_limit_of_all_tokens_together():
    stream = Stream("completion")
    stream.push([1] * (CONTEXT - 1))
    with pytest.raises(InvalidRequest, match=f"2 tokens behind {CONTEXT - 1} exceed") as caught:
        stream.push([1, 1])
    assert caught.value.param == "generate_chunk.choices.0.token_ids"
    stream.push([1])


def test_another_models_name_is_not_found():
    with pytest.raises(NotFound):
        derenderer().chat(call([1]) | {"model": "other"})


def test_a_request_that_is_nested_too_deeply_for_json_is_refused():
    nested: Any = []
    for _ in range(300):
        nested = [nested]
    with pytest.raises(InvalidRequest) as caught:
        derenderer().chat(call([1]) | {"chat_request": CHAT | {"chat_template_kwargs": {"a": nested}}})
    assert caught.value.param == "chat_request"


def test_what_is_handed_on_may_not_nest_too_deeply_for_json():
    nested: Any = []
    for _ in range(300):
        nested = [nested]
    stream = Stream()
    answer = {"request_id": "r", "choices": [{"index": 0, "token_ids": [1]}], "kv_transfer_params": {"a": nested}}
    body = {"generate_response": answer, "chat_request": CHAT}
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        Derenderer(model(), OpenRequests(4, 60)).derender_chat(body)
    first = {"stream": True, "responses_request": {"input": "x"}, "prompt_token_ids": PROMPT, "generate_chunk": answer}
    state = json.loads(stream.derenderer.responses(first))["stream_state"]
    state["translator"]["output"] = [{"a": nested}]
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        stream.derenderer.responses(first | {"stream_state": state})


def test_requests_are_read_once_and_forgotten_in_time(monkeypatch):
    read = []
    context_of = "triton_renderer.derender.reading.chat_context"
    original = __import__("triton_renderer.derender.asked", fromlist=["chat_context"]).chat_context
    monkeypatch.setattr(context_of, lambda request: read.append(request["stop"]) or original(request))
    monkeypatch.setattr("triton_renderer.derender.reading.MAX_READINGS", 2)
    monkeypatch.setattr("triton_renderer.derender.reading.MAX_REQUEST_BYTES", 300)
    under_test = StreamDerenderer(replace(model(), name="m"))
    for stop in ("a", "a", "b", "a", "c", "b", "a" * 400, "a" * 400):
        under_test.chat(call([1], None, {"stop": stop}))
    assert [stop[:3] for stop in read] == ["a", "b", "c", "b", "aaa", "aaa"]
    assert PROMPT
