"""The fields of the documents."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.derender.answers import PROMPT_TOKENS, Output, checked, context, derenderer, model, stream, tokens, whole
from tests.unit.derender.parsing import call
from triton_renderer.protocol.stages import GeneratedChunk

EOS = model().tokenizer.eos_token_id
HEAD = {"id": "chatcmpl-7", "created": 1700000000, "model": "shapes-vl"}
HELLO = Output([*tokens("Hello"), EOS])


def usage(completion_tokens: int, **details: int) -> dict:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": completion_tokens,
        "total_tokens": PROMPT_TOKENS + completion_tokens,
    } | details


def test_a_whole_chat_answer_has_every_field():
    assert whole(HELLO) == HEAD | {
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello",
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": usage(len(HELLO.token_ids))
        | {"prompt_tokens_details": None, "completion_tokens_details": {"reasoning_tokens": 0}},
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def test_a_whole_completion_has_every_field():
    assert whole(HELLO, kind="completion") == HEAD | {
        "object": "text_completion",
        "choices": [
            {
                "index": 0,
                "text": "Hello",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": usage(len(HELLO.token_ids)) | {"prompt_tokens_details": None, "completion_tokens_details": None},
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def test_tool_calls_have_their_openai_form():
    (tool_call,) = whole(Output(tokens(call("f", '{"a": 1}'))), tool_choice="auto")["choices"][0]["message"]["tool_calls"]
    assert tool_call | {"id": ""} == {"id": "", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def test_a_chat_stream_begins_with_the_role_and_ends_with_the_reason():
    first, second, *_, last = stream(HELLO)
    head = HEAD | {"object": "chat.completion.chunk"}
    choice = {"index": 0, "logprobs": None, "finish_reason": None}
    assert first == head | {
        "choices": [choice | {"delta": {"role": "assistant", "content": ""}}],
        "prompt_token_ids": None,
        "prompt_text": None,
    }
    (token,) = tokens("Hello")[:1]
    assert second == head | {"choices": [choice | {"delta": {"content": model().tokenizer.decode(token)}, "token_ids": None}]}
    assert last == head | {"choices": [choice | {"delta": {}, "finish_reason": "stop", "stop_reason": None, "token_ids": None}]}


def test_without_parsers_every_delta_has_content():
    last = stream(HELLO, served=replace(model(), reasoning_parser=None, tool_parser=None))[-1]
    assert last["choices"][0]["delta"] == {"content": ""}


def test_a_completion_stream_has_the_same_fields_in_each_chunk():
    documents = stream(HELLO, kind="completion")
    assert "".join(document["choices"][0]["text"] for document in documents) == "Hello"
    assert documents[-1] == HEAD | {
        "object": "text_completion",
        "choices": [
            {
                "index": 0,
                "text": "",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "prompt_token_ids": None,
                "token_ids": None,
            }
        ],
    }


@pytest.mark.parametrize(
    ("kind", "details"), [("chat", {"completion_tokens_details": {"reasoning_tokens": 0}}), ("completion", {})]
)
def test_usage_comes_last_where_it_is_asked_for(kind, details):
    *others, last = stream(HELLO, kind=kind, include_usage=True)
    assert not any("usage" in document for document in others)
    assert last["choices"] == []
    assert last["usage"] == usage(len(HELLO.token_ids), **details)


def test_continuous_usage_counts_up_in_every_chunk():
    documents = stream(HELLO, include_usage=True, continuous_usage=True)
    counts = [document["usage"]["completion_tokens"] for document in documents]
    assert counts == [0, *range(1, len(HELLO.token_ids) + 1), len(HELLO.token_ids)]


def test_reasoning_tokens_are_those_between_the_markers():
    output = Output([*tokens("<think>abc</think>d"), EOS])
    assert whole(output)["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(tokens("abc"))}


def test_cached_tokens_are_told_where_there_are_any():
    chunk = GeneratedChunk(
        id="1", choices=[HELLO.part(0, len(HELLO.token_ids))], final=True, cached_tokens=3, derender=context()
    )
    (document,) = derenderer().chunk(np.array(HELLO.token_ids), chunk)
    assert checked(document)["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


def test_what_the_engine_hands_on_is_in_the_answer():
    chunk = GeneratedChunk(
        id="1",
        choices=[HELLO.part(0, len(HELLO.token_ids))],
        final=True,
        kv_transfer_params={"a": 1},
        ec_transfer_params={"ec_items": []},
        prompt_logprobs=[None, {"5": {"logprob": -1.0, "rank": 1, "decoded_token": None}}],
        prompt_token_ids=[1, 2],
        derender=context(return_token_ids=True),
    )
    (document,) = derenderer().chunk(np.array(HELLO.token_ids), chunk)
    answer = checked(document)
    for name in ("kv_transfer_params", "ec_transfer_params", "prompt_logprobs", "prompt_token_ids"):
        assert answer[name] == getattr(chunk, name)
    assert answer["choices"][0]["token_ids"] == HELLO.token_ids


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_a_stream_brings_the_prompts_tokens_first_and_every_token_once(kind):
    documents = stream(HELLO, kind=kind, return_token_ids=True, prompt_token_ids=[1, 2])
    first = documents[0] if kind == "chat" else documents[0]["choices"][0]
    assert first["prompt_token_ids"] == [1, 2]
    assert [token_id for document in documents for token_id in document["choices"][0].get("token_ids") or []] == HELLO.token_ids


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_an_echo_stands_in_front(kind):
    choice = whole(HELLO, kind=kind, echo="Say: ")["choices"][0]
    assert (choice["text"] if kind == "completion" else choice["message"]["content"]) == "Say: Hello"
    texts = [
        choice["text"] if kind == "completion" else choice["delta"].get("content", "")
        for document in stream(HELLO, kind=kind, echo="Say: ")
        for choice in document["choices"]
    ]
    assert "".join(texts) == "Say: Hello"


def test_text_offsets_count_from_behind_the_echo():
    output = Output(tokens("Hello"), with_logprobs=True)
    logprobs = whole(output, kind="completion", echo="Say: ", want_logprobs=True)["choices"][0]["logprobs"]
    assert logprobs["text_offset"][0] == len("Say: ")
    assert "".join(logprobs["tokens"]) == "Hello"


def test_choices_are_numbered_from_the_offset_in_one_answer():
    outputs = [Output(tokens(text), index=index) for index, text in enumerate(["a", "bc"])]
    chunk = GeneratedChunk(
        id="1",
        choices=[output.part(0, len(output.token_ids)) for output in reversed(outputs)],
        final=True,
        derender=context(kind="completion", choice_offset=4),
    )
    token_ids = outputs[1].token_ids + outputs[0].token_ids
    (document,) = derenderer().chunk(np.array(token_ids), chunk)
    answer = checked(document)
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(4, "a"), (5, "bc")]
    assert answer["usage"]["completion_tokens"] == len(token_ids)
