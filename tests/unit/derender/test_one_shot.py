"""The stateless route: one whole generate response becomes a chat completion."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.derender.answers import Output, checked, derenderer, logprobs_of, model, of_whole, tokens, whole
from tests.unit.derender.parsing import OUTPUTS, call
from triton_renderer.errors import InvalidRequest, NotFound

EOS = model().tokenizer.eos_token_id
TOOLS = [{"type": "function", "function": {"name": "f"}}]
ASSISTANT = "<|im_start|>assistant\n"
PLAIN = replace(model(), reasoning_parser=None, tool_parser=None)


def request(output: Output | list[int], chat: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The body of a derender request."""
    output = Output(output) if isinstance(output, list) else output
    choice = {
        "index": output.index,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "logprobs": logprobs_of(output.token_ids).model_dump() if output.with_logprobs else None,
    }
    response = {"request_id": "generate-tokens-7", "choices": [choice]} | fields.pop("response", {})
    chat_request = {"messages": [{"role": "user", "content": "x"}]} | (chat or {})
    return {"generate_response": response, "chat_request": chat_request} | fields


def derender(body: dict[str, Any], served=None) -> dict[str, Any]:
    return checked(derenderer(served).derender_chat(json.loads(json.dumps(body))))


def message(*args: Any, **fields: Any) -> dict[str, Any]:
    return derender(request(*args, **fields))["choices"][0]["message"]


@settings(max_examples=100, deadline=None)
@given(data=st.data(), text=OUTPUTS)
def test_it_answers_what_the_coupled_route_answers(data, text):
    output = Output([*tokens(text), EOS], data.draw(st.sampled_from(["stop", "length"])), with_logprobs=True)
    is_open, logprobs = data.draw(st.booleans()), data.draw(st.booleans())
    stop = data.draw(st.sampled_from([[], ["text"], ["\n\n"]]))
    choice = data.draw(st.sampled_from(["none", "auto", "required", "named"]))
    named = {"type": "function", "function": {"name": "f"}}
    chat = {
        "tools": TOOLS,
        "tool_choice": named if choice == "named" else choice,
        "logprobs": logprobs,
        "top_logprobs": 1 if logprobs else 0,
        "stop": stop,
        "return_token_ids": data.draw(st.booleans()),
        "parallel_tool_calls": data.draw(st.booleans()),
        "skip_special_tokens": data.draw(st.booleans()),
    }
    output.with_logprobs = logprobs
    prompt = tokens(f"<|im_start|>user\nx<|im_end|>\n{ASSISTANT}{'<think>' if is_open else ''}")
    ours = derender(request(output, chat, prompt_token_ids=prompt))
    options = {
        "prompt_tail": prompt,
        "reasoning_open": is_open,
        "tool_choice": choice,
        "want_logprobs": logprobs,
        "top_logprobs": 1,
        **{name: chat[name] for name in ("stop", "return_token_ids", "parallel_tool_calls", "skip_special_tokens")},
    }
    coupled = whole(output, **options)
    assert of_whole(ours) == of_whole(coupled)
    assert ours["choices"][0]["message"]["content"] == coupled["choices"][0]["message"]["content"]
    assert ours["usage"]["completion_tokens_details"] == coupled["usage"]["completion_tokens_details"]


def test_the_id_is_the_responses_own():
    answer = derender(request(tokens("a")))
    assert (answer["id"], answer["model"], answer["object"]) == ("generate-tokens-7", "shapes-vl", "chat.completion")


def test_what_the_engine_hands_on_is_kept():
    handed_on = {
        "kv_transfer_params": {"a": 1},
        "ec_transfer_params": {"ec_items": []},
        "prompt_logprobs": [None, {"5": {"logprob": -1.0}}],
    }
    answer = derender(request(tokens("a"), response=handed_on))
    assert {name: answer[name] for name in handed_on} == handed_on


@pytest.mark.parametrize("finish_reason", ["stop", "length", "abort", None])
def test_the_finish_reason_is_passed_on(finish_reason):
    assert derender(request(Output(tokens("a"), finish_reason)))["choices"][0]["finish_reason"] == finish_reason


def test_what_is_held_back_comes_without_a_finish_reason_too():
    assert message(Output(tokens("a <think"), None))["content"] == "a <think"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0),
        ({"prompt_token_ids": [1, 2]}, 2),
        ({"prompt_token_ids": [1, 2], "response": {"usage": {"prompt_tokens": 5}}}, 5),
        ({"prompt_tokens": 9, "prompt_token_ids": [1, 2], "response": {"usage": {"prompt_tokens": 5}}}, 9),
        ({"prompt_tokens": 0, "prompt_token_ids": [1, 2]}, 0),
    ],
)
def test_prompt_tokens_come_from_who_knows_best(fields, expected):
    usage = derender(request(tokens("abc"), **fields))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (expected, len(tokens("abc")))
    assert usage["total_tokens"] == expected + len(tokens("abc"))


def test_cached_tokens_are_kept():
    response = {"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}}
    assert derender(request(tokens("a"), response=response))["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


@pytest.mark.parametrize("said", [-1, True, 1.0, 2**31, 2**64 - 1, "4", None, [4]])
def test_cached_tokens_that_are_no_number_of_tokens_count_as_none(said):
    response = {"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": said}}}
    assert derender(request(tokens("a"), response=response))["usage"]["prompt_tokens_details"] is None


@pytest.mark.parametrize(
    ("prompt", "reasoning"),
    [
        (ASSISTANT, None),
        (f"{ASSISTANT}<think>\n", "a"),
        (f"{ASSISTANT}<think>\n\n</think>\n\n", None),
        (f"<|im_start|>user\nwhat is <think>?<|im_end|>\n{ASSISTANT}", None),
        (f"<|im_start|>user\nwhat is </think>?<|im_end|>\n{ASSISTANT}<think>", "a"),
        (f"{ASSISTANT}<think>\nx\n</think>\n\ny<|im_end|>\n{ASSISTANT}", None),
        ("no turns at all <think>", "a"),
        (f"{ASSISTANT}<think>\n<|vision_start|>", None),
    ],
)
@pytest.mark.parametrize("where", ["request", "response"])
def test_the_last_turn_of_the_prompt_decides_whether_reasoning_is_open(prompt, reasoning, where):
    ids = {"prompt_token_ids": tokens(prompt)}
    result = message([*tokens("a</think>b"), EOS], **({"response": ids} if where == "response" else ids))
    assert (result["reasoning"], result["content"]) == (reasoning, "b" if reasoning else "a</think>b")


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [("a</think>b", "a", "b"), ("<think>a</think>b", "a", "b"), ("a", None, "a"), ("a <think>", None, "a <think>")],
)
def test_without_the_prompt_the_output_tells(text, reasoning, content):
    result = message([*tokens(text), EOS])
    assert (result["reasoning"], result["content"]) == (reasoning, content)


def test_the_request_decides_about_calls():
    assert message(tokens(call()), {"tools": TOOLS})["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    for chat in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        assert message(tokens(call()), chat)["content"] == call()


def test_several_choices_keep_their_indices_and_their_order():
    first, second = (request(Output(tokens(text), index=index))["generate_response"] for index, text in ((3, "a"), (1, "b")))
    body = request(tokens("a"), response={"choices": first["choices"] + second["choices"]})
    assert [(c["index"], c["message"]["content"]) for c in derender(body)["choices"]] == [(3, "a"), (1, "b")]


def test_logprobs_show_all_candidates_without_a_request():
    body = request(Output(tokens("a"), with_logprobs=True)) | {"chat_request": None}
    (entry,) = derender(body, PLAIN)["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"], len(entry["top_logprobs"])) == ("a", [97], 1)


def test_logprobs_of_one_choice_do_not_need_those_of_another():
    choices = [
        request(Output(tokens("a"), index=index, with_logprobs=bool(index)))["generate_response"]["choices"][0]
        for index in (0, 1)
    ]
    without, with_logprobs = derender(request(tokens("a"), response={"choices": choices}))["choices"]
    assert without["logprobs"] is None
    assert len(with_logprobs["logprobs"]["content"]) == 1


def test_ids_that_only_the_model_knows_give_no_text():
    assert len(model().tokenizer) < model().vocab_size
    assert message([*tokens("a"), len(model().tokenizer), EOS])["content"] == "a"


def choice(**fields: Any) -> dict[str, Any]:
    return {"response": {"choices": [{"index": 0, "token_ids": tokens("a"), "finish_reason": "stop"} | fields]}}


VOCAB, CONTEXT = model().vocab_size, model().max_model_len
ENTRY = {"token_id": 1, "logprob": -1.0}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_request": None}, "chat_request"),
        ({"response": {"output_mode": "text"}}, "generate_response.output_mode"),
        ({"response": {"choices": []}}, "generate_response.choices"),
        ({"response": {"choices": [{"index": i, "token_ids": [1]} for i in range(129)]}}, "generate_response.choices"),
        ({"response": {"choices": [{"index": 0, "token_ids": [1]}] * 2}}, "generate_response.choices"),
        (choice(token_ids=[]), "generate_response.choices.0.token_ids"),
        (choice(token_ids=None), "generate_response.choices.0.token_ids"),
        (choice(token_ids=[1, VOCAB]), "generate_response.choices.0.token_ids.1"),
        (choice(token_ids=[1, -1]), "generate_response.choices.0.token_ids.1"),
        (choice(token_ids=[2**63]), "generate_response.choices.0.token_ids.0"),
        (choice(token_ids=["1x"]), "generate_response.choices.0.token_ids.0"),
        (choice(token_ids=[1] * (CONTEXT + 1)), "generate_response.choices.0.token_ids"),
        (choice(finish_reason="because"), "generate_response.choices.0.finish_reason"),
        (choice(logprobs={"content": [ENTRY] * 2}), "generate_response.choices.0.logprobs"),
        (choice(logprobs={"content": []}), "generate_response.choices.0.logprobs"),
        (choice(logprobs={"content": [{"token": "a"}]}), "generate_response.choices.0.logprobs"),
        (
            choice(logprobs={"content": [ENTRY | {"top_logprobs": [ENTRY] * 22}]}),
            "generate_response.choices.0.logprobs.content.0.top_logprobs",
        ),
        (
            choice(logprobs={"content": [ENTRY | {"top_logprobs": [ENTRY | {"token_id": VOCAB}]}]}),
            "generate_response.choices.0.logprobs.content.0.1",
        ),
        ({"response": {"prompt_logprobs": [None] * (CONTEXT + 1)}}, "generate_response.prompt_logprobs"),
        ({"response": {"prompt_token_ids": [VOCAB]}}, "generate_response.prompt_token_ids.0"),
        ({"prompt_token_ids": [1] * (CONTEXT + 1)}, "prompt_token_ids"),
        ({"prompt_token_ids": [1, VOCAB]}, "prompt_token_ids.1"),
        ({"prompt_tokens": -1}, "prompt_tokens"),
        ({"response": {"usage": {"prompt_tokens": -1}}}, "generate_response.usage.prompt_tokens"),
        ({"stream": True}, "generate_chunk"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_bad_requests_say_what_is_wrong_and_where(fields, param):
    with pytest.raises(InvalidRequest) as caught:
        derender(request(tokens("a"), **fields))
    assert (caught.value.status, caught.value.param) == (400, param)


def test_another_models_name_is_not_found():
    with pytest.raises(NotFound, match=r"^The model `other` does not exist\.$") as caught:
        derender(request(tokens("a"), model="other"))
    assert caught.value.status == 404
    assert derender(request(tokens("a"), model="shapes-vl"))["model"] == "shapes-vl"


def test_without_parsers_no_chat_request_is_needed():
    body = request([*tokens("a<think>"), EOS]) | {"chat_request": None}
    assert derender(body, PLAIN)["choices"][0]["message"]["content"] == "a<think>"
