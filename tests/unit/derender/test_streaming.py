"""The streaming derender routes: any cutting gives the message of the one-shot route, and a call costs its new tokens."""

import json
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from tests.unit.derender.answers import Output, derenderer, logprobs_of, model, tokens
from tests.unit.derender.parsing import OUTPUTS
from tests.unit.derender.parsing import call as tool_call
from tests.unit.derender.streams import CHAT, PROMPT, TOOLS, Message, Stream, call
from tests.unit.text.tokenizers_for_tests import byte_ids, byte_level, cuttings, ids, sentencepiece

EOS = model().tokenizer.eos_token_id
PLAIN = replace(model(), reasoning_parser=None, tool_parser=None)
THOUGHT = "<think>\nhm\n</think>\n\n"


def one_shot(output: Output, kind: str, asked: dict[str, Any], prompt: list[int]) -> Message:
    """What the one-shot route makes of the whole output."""
    choice = {
        "index": 0,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "logprobs": logprobs_of(output.token_ids).model_dump() if output.with_logprobs else None,
    }
    response = {"request_id": "generate-tokens-7", "choices": [choice]}
    if kind == "chat":
        body = {"generate_response": response, "chat_request": CHAT | asked, "prompt_token_ids": prompt}
        (found,) = json.loads(derenderer().derender_chat(body))["choices"]
        message = found["message"]
    else:
        body = {
            "generate_responses": [response],
            "completion_request": {"prompt": "x"} | asked,
            "prompt_token_ids": [prompt],
        }
        (found,) = json.loads(derenderer().derender_completion(body))["choices"]
        message = {"content": found["text"]}
    logprobs = found["logprobs"] or {}
    return Message(
        message.get("reasoning") or "",
        message["content"] or "",
        [(made["function"]["name"], made["function"]["arguments"]) for made in message.get("tool_calls", [])],
        [],
        found["finish_reason"],
        found["stop_reason"],
        logprobs.get("content") or logprobs.get("tokens") or [],
        logprobs.get("text_offset") or [],
        found["token_ids"] or [],
    )


@settings(max_examples=100, deadline=None)
@given(data=st.data(), text=OUTPUTS, token_ids=st.lists(st.integers(0, model().vocab_size - 1), max_size=5))
def test_any_cutting_gives_the_one_shot_message(data, text, token_ids):
    kind = data.draw(st.sampled_from(["chat", "completion"]))
    finish_reason = data.draw(st.sampled_from(["stop", "length"]))
    output = Output([*tokens(text), *token_ids, EOS], finish_reason, with_logprobs=data.draw(st.booleans()))
    asked = {
        "skip_special_tokens": data.draw(st.booleans()),
        "stop": data.draw(st.sampled_from([[], ["text"], ["</tool_call>", "\n\n", "é"]])),
        "include_stop_str_in_output": data.draw(st.booleans()),
        "min_tokens": data.draw(st.integers(0, 5)),
        "return_token_ids": data.draw(st.booleans()),
    }
    if kind == "chat":
        choice = data.draw(st.sampled_from(["none", "auto", "required", "named"]))
        asked |= {
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "f"}} if choice == "named" else choice,
            "parallel_tool_calls": data.draw(st.booleans()),
            "include_reasoning": data.draw(st.booleans()),
            "logprobs": True,
            "top_logprobs": data.draw(st.integers(0, 1)),
        }
    prompt = PROMPT + data.draw(st.sampled_from([[], tokens("<think>"), byte_ids(byte_level(), "🙂".encode()[:2])]))
    stream = Stream(kind, asked, prompt)
    found = stream.run(output, data.draw(cuttings(len(output.token_ids))), finish_apart=data.draw(st.booleans()))
    found.ids = []
    assert found == one_shot(output, kind, asked, prompt)


OFF, OPEN = tokens("<think>\n\n</think>\n\n"), tokens("<think>\n")
TWO_CALLS = f"{tool_call()}\n{tool_call('g', '[1]')}"


@pytest.mark.parametrize(
    ("prompt", "text", "finish", "expected"),
    [
        (OFF, "Hello", "stop", ("", "Hello", [], "stop")),
        (OFF, TWO_CALLS, "stop", ("", "", [("f", "{}"), ("g", "[1]")], "tool_calls")),
        (OPEN, f"hm</think>\n\n{TWO_CALLS}", "stop", ("hm", "", [("f", "{}"), ("g", "[1]")], "tool_calls")),
        (OPEN, "a</think>b", "stop", ("a", "b", [], "stop")),
        (OPEN, "hm, hm", "length", ("hm, hm", "", [], "length")),
    ],
)
def test_the_prompts_end_decides_what_reasoning_is_whole_and_streamed(prompt, text, finish, expected):
    output = Output([*tokens(text), *([EOS] if finish == "stop" else [])], finish)
    whole = one_shot(output, "chat", {"tools": TOOLS}, PROMPT + prompt)
    assert (whole.reasoning, whole.content, whole.calls, whole.finish_reason) == expected
    streamed = Stream(asked={"tools": TOOLS}, prompt=PROMPT + prompt).run(output)
    assert (streamed.reasoning, streamed.content, streamed.calls, streamed.finish_reason) == expected


def test_a_chat_chunk_has_every_field_of_the_reference():
    stream = Stream(asked={"tools": TOOLS})
    text = f"<think>a</think>b{tool_call('f', '[]')}"
    chunks = [stream.push([token_id]) for token_id in tokens(text)]
    chunks.append(stream.push([], finish_reason="stop"))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    nothing = {
        "id": "generate-tokens-7",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "shapes-vl",
        "usage": None,
        "system_fingerprint": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "metrics": None,
    }
    empty = {"index": 0, "logprobs": None, "finish_reason": None, "stop_reason": None, "token_ids": None}
    delta = {"role": None, "content": None, "reasoning": None}
    deltas = [delta | {"role": "assistant"}, delta | {"reasoning": "a"}, delta, delta | {"content": "b"}]
    for chunk, expected in zip(chunks, deltas, strict=False):
        assert chunk == nothing | {"choices": [empty | {"delta": expected}]}
    calls = [made for chunk in chunks for made in chunk["choices"][0]["delta"].get("tool_calls", [])]
    (call_id,) = stream.message.ids
    assert calls[0] == {"id": call_id, "type": "function", "index": 0, "function": {"name": "f", "arguments": None}}
    later = {"id": None, "type": None, "index": 0}
    assert all(made == later | {"function": {"name": None, "arguments": made["function"]["arguments"]}} for made in calls[1:])
    assert "".join(made["function"]["arguments"] for made in calls[1:]) == "[]"
    assert chunks[-1]["choices"] == [empty | {"delta": delta, "finish_reason": "tool_calls"}]


def test_a_completion_chunk_has_every_field_of_the_reference():
    stream = Stream("completion")
    first, last = stream.push(tokens("a")), stream.push([EOS], finish_reason="stop")
    Completion.model_validate(last)
    choice = {
        "index": 0,
        "text": "a",
        "logprobs": None,
        "finish_reason": None,
        "stop_reason": None,
        "prompt_token_ids": None,
        "token_ids": None,
    }
    assert first == {
        "id": "generate-tokens-7",
        "object": "text_completion",
        "created": 1700000000,
        "model": "shapes-vl",
        "choices": [choice],
        "usage": None,
        "system_fingerprint": None,
        "metrics": None,
    }
    assert last["choices"] == [choice | {"text": "", "finish_reason": "stop"}]


def test_the_first_chunk_of_a_choice_has_the_role_and_no_other():
    stream = Stream()
    stream.send()
    roles = [stream.push(part)["choices"][0]["delta"]["role"] for part in ([], tokens("a"), tokens("b"))]
    assert roles == ["assistant", None, None]


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def test_a_chunk_with_usage_alone_is_the_usage_chunk():
    stream = Stream()
    stream.run(Output([*tokens("<think>a"), EOS]))
    chunk = stream.send(usage=USAGE | {"prompt_tokens_details": {"cached_tokens": 8}})
    assert chunk["choices"] == []
    assert chunk["usage"] == USAGE | {
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }


def test_reasoning_tokens_of_several_choices_are_not_told_by_the_state_of_one():
    stream = Stream()
    stream.run(Output(tokens("<think>a")))
    assert stream.send(usage=USAGE)["usage"] == USAGE | {"prompt_tokens_details": None, "completion_tokens_details": None}


def test_usage_may_come_before_and_with_tokens_and_the_caller_knows_the_prompt_better():
    stream = Stream("completion")
    assert stream.send(usage=USAGE)["usage"]["prompt_tokens"] == 9
    entry = {"index": 0, "token_ids": tokens("a")}
    body = {"stream": True, "prompt_tokens": 4, "stream_state": stream.state}
    body["generate_chunk"] = {"request_id": "r", "choices": [entry], "usage": USAGE}
    chunk = json.loads(stream.derenderer.completion(body))["chunk"]
    assert (chunk["choices"][0]["text"], chunk["usage"]["prompt_tokens"], chunk["usage"]["total_tokens"]) == ("a", 4, 7)


def test_what_is_held_back_comes_with_a_finish_reason_alone():
    half = byte_ids(byte_level(), "🙂".encode()[:2])
    assert Stream().run(Output([*tokens("a <think"), *half], "length"), finish_apart=True).content == "a <think\ufffd"


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("finish_apart", [True, False])
def test_the_end_token_is_never_seen_wherever_the_finish_reason_comes(skip, finish_apart):
    asked = {"skip_special_tokens": skip, "tools": TOOLS}
    message = Stream(asked=asked).run(Output([*tokens(f"{THOUGHT}a{tool_call()}"), EOS]), finish_apart=finish_apart)
    assert (message.content, message.calls, message.finish_reason) == ("\n\na", [("f", "{}")], "tool_calls")


def test_an_end_token_that_does_not_end_the_output_is_text():
    message = Stream(asked={"skip_special_tokens": False}).run(Output([EOS, *tokens("a")], "length"))
    assert message.content == "<|im_end|>a"
    message = Stream(asked={"skip_special_tokens": False}).run(Output([*tokens("a"), EOS], "length"), finish_apart=True)
    assert message.content == "a<|im_end|>"


@pytest.mark.parametrize(("prompt", "first"), [("a", " leading"), (None, "leading"), ("", "leading")])
@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_the_prompt_keeps_the_leading_space_of_sentencepiece_and_is_needed_once(kind, prompt, first):
    served = replace(PLAIN, tokenizer=sentencepiece(), vocab_size=len(sentencepiece()))
    prompt_ids = None if prompt is None else ids(sentencepiece(), *prompt)
    stream = Stream(kind, prompt=prompt_ids, served=served)
    message = stream.run(Output(ids(sentencepiece(), "▁leading", "▁x", "▁", "le")))
    assert message.content == f"{first} x le"


def test_the_prompt_may_come_with_the_first_chunk():
    stream = Stream(prompt=None)
    entry = {"index": 0, "token_ids": tokens("a</think>b")}
    stream.send(choices=[entry], prompt_token_ids=[*PROMPT, *tokens("<think>")])
    assert (stream.message.reasoning, stream.message.content) == ("a", "b")


def test_a_later_copy_of_the_prompt_is_ignored():
    stream = Stream()
    stream.push(tokens("a"))
    body = {"stream": True, "stream_state": stream.state, "chat_request": CHAT, "prompt_token_ids": ["nonsense"]}
    body["generate_chunk"] = {"request_id": "r", "choices": [{"index": 0, "token_ids": tokens("b")}]}
    assert json.loads(stream.derenderer.chat(body))["chunk"]["choices"][0]["delta"]["content"] == "b"


def test_a_stop_string_over_several_chunks_is_cut_off_and_ends_the_answer():
    token_ids = [token_id for piece in ("a", "E", "N", "D", "b", "c") for token_id in tokens(piece)]
    message = Stream(asked={"stop": ["END"]}).run(Output(token_ids, "length"))
    assert (message.content, message.finish_reason, message.stop_reason) == ("a", "stop", "END")
    assert Stream(asked={"stop": ["ENX"]}).run(Output(token_ids)).content == "aENDbc"


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_logprobs_go_on_from_chunk_to_chunk(kind):
    text = f"{THOUGHT}é🙂 x"
    stream = Stream(kind, {"logprobs": 1, "top_logprobs": 1} if kind == "chat" else {"logprobs": 1})
    message = stream.run(Output([*tokens(text), EOS], with_logprobs=True))
    if kind == "completion":
        assert "".join(message.logprobs) == f"{text}<|im_end|>"
        lengths = [len(token) for token in message.logprobs]
        assert message.offsets == [sum(lengths[:position]) for position in range(len(lengths))]
    else:
        assert b"".join(bytes(entry["bytes"]) for entry in message.logprobs).decode() == f"{text}<|im_end|>"
        assert all(len(entry["top_logprobs"]) == 1 for entry in message.logprobs)


def test_text_offsets_count_tokens_that_came_without_logprobs():
    stream = Stream("completion")
    stream.push(tokens("ab"))
    stream.push(tokens("c"), logprobs=True)
    assert stream.message.offsets == [2]


def test_choices_do_not_mix():
    texts = {0: f"{THOUGHT}one", 2: tool_call("f", '{"a": 1}'), 1: "three 🙂"}
    streams = {index: Stream(asked={"tools": TOOLS}, index=index) for index in texts}
    left = {index: [*tokens(text), EOS] for index, text in texts.items()}
    while any(left.values()):
        for index, token_ids in left.items():
            if token_ids:
                ending = {"finish_reason": "stop"} if len(token_ids) == 1 else {}
                streams[index].push([token_ids.pop(0)], **ending)
    found = {index: stream.message for index, stream in streams.items()}
    assert (found[0].reasoning, found[0].content) == ("\nhm\n", "\n\none")
    assert (found[2].calls, found[2].finish_reason) == ([("f", '{"a": 1}')], "tool_calls")
    assert found[1].content == "three 🙂"


def test_calls_have_ids_of_their_own_that_come_once():
    stream = Stream(asked={"tools": TOOLS})
    stream.run(Output([*tokens(tool_call() + tool_call("g", '{"a": [1, 2]}')), EOS]))
    assert stream.message.calls == [("f", "{}"), ("g", '{"a": [1, 2]}')]
    assert len(set(stream.message.ids)) == 2


def test_a_call_that_is_sent_again_is_answered_with_the_same_ids():
    stream = Stream(asked={"tools": TOOLS})
    stream.push(tokens("a"))
    state, answers = stream.state, []
    for _ in range(2):
        stream.state, stream.message = state, Message()
        stream.push(tokens(tool_call() + tool_call()))
        answers.append((stream.message.ids, stream.chunks[-1]))
    assert answers[0] == answers[1]
    assert len(set(answers[0][0])) == 2


def test_without_parsers_neither_request_nor_prompt_is_needed():
    body = {"stream": True, "generate_chunk": {"request_id": "r", "choices": [{"index": 0, "token_ids": tokens("<think>a")}]}}
    answer = json.loads(Stream(served=PLAIN).derenderer.chat(body))
    assert answer["chunk"]["choices"][0]["delta"] == {"role": "assistant", "content": "<think>a", "reasoning": None}


def test_an_empty_state_is_none():
    body = {"stream": True, "stream_state": {}, "chat_request": CHAT, "prompt_token_ids": PROMPT}
    body["generate_chunk"] = {"request_id": "r", "choices": [{"index": 0, "token_ids": tokens("a")}]}
    answer = json.loads(Stream().derenderer.chat(body))
    assert answer["chunk"]["choices"][0]["delta"]["role"] == "assistant"


def test_the_state_is_as_small_after_thousands_of_tokens_as_after_a_few():
    stream = Stream(asked={"tools": TOOLS, "stop": ["END"]})
    text = '<think>hm hm</think>ok <tool_call>\n{"name": "f", "arguments": {"a": "'
    stream.push(tokens(text))
    early = len(json.dumps(stream.state))
    for _ in range(20):
        stream.push(tokens("and so on, ") * 20)
    assert len(stream.message.calls[0][1]) > 4000
    assert len(json.dumps(stream.state)) < early + 40 < 1100


def test_the_two_thousandth_chunk_is_no_more_work_than_the_twentieth():
    """Counted in calls of functions, Python's and C's; what they are given is bounded by the state, which does not grow."""
    stream = Stream(asked={"tools": TOOLS})
    stream.push(tokens('<tool_call>\n{"name": "f", "arguments": {"a": "'))
    (token_id,) = tokens("a")
    counts = []
    for _ in range(2000):
        body = call([token_id], stream.state, {"tools": TOOLS})
        calls = 0

        def count(_frame, event, _argument):
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            answer = stream.derenderer.chat(body)
        finally:
            sys.setprofile(None)
        counts.append((calls, len(answer)))
        stream.state = json.loads(answer)["stream_state"]
    assert counts[19][0] > 50
    assert counts[1999][0] <= counts[19][0]
    assert counts[1999][1] <= counts[19][1] + 8  # the digits of its counts
