"""What an answer says, the same whole and streamed."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.unit.derender.answers import Output, both, model, of_stream, of_whole, stream, tokens, whole
from tests.unit.derender.parsing import OUTPUTS, call
from tests.unit.text.tokenizers_for_tests import byte_ids, byte_level, cuttings

EOS = model().tokenizer.eos_token_id
THOUGHT = "<think>\nhm\n</think>\n\n"


@settings(max_examples=200, deadline=None)
@given(data=st.data(), text=OUTPUTS, token_ids=st.lists(st.integers(0, 900), max_size=5))
def test_any_cutting_into_chunks_gives_the_whole_answer(data, text, token_ids):
    kind = data.draw(st.sampled_from(["chat", "completion"]))
    output = Output([*tokens(text), *token_ids, EOS], data.draw(st.sampled_from(["stop", "length"])), with_logprobs=True)
    options = {
        "kind": kind,
        "tool_choice": data.draw(st.sampled_from(["none", "auto", "required", "named"])),
        "reasoning_open": data.draw(st.booleans()),
        "include_reasoning": data.draw(st.booleans()),
        "parallel_tool_calls": data.draw(st.booleans()),
        "skip_special_tokens": data.draw(st.booleans()),
        "stop": data.draw(st.sampled_from([[], ["text"], ["</tool_call>", "\n\n", "é"]])),
        "include_stop_str_in_output": data.draw(st.booleans()),
        "min_tokens": data.draw(st.integers(0, 5)),
        "want_logprobs": data.draw(st.booleans()),
        "return_token_ids": data.draw(st.booleans()),
        "echo": data.draw(st.sampled_from(["", "echo "])),
    }
    cuts = data.draw(cuttings(len(output.token_ids)))
    assert of_stream(stream(output, cuts, **options)) == of_whole(whole(output, **options))


def test_characters_over_several_tokens_come_whole():
    token_ids = byte_ids(byte_level(), "👩\u200d🚀 中".encode())
    assert both(Output([*token_ids, EOS])).content == "👩\u200d🚀 中"
    pieces = [
        choice["delta"].get("content") for document in stream(Output([*token_ids, EOS])) for choice in document["choices"]
    ]
    assert "".join(filter(None, pieces)) == "👩\u200d🚀 中"
    assert not any("\ufffd" in piece for piece in pieces if piece)


def test_a_character_cut_by_length_is_one_replacement_character():
    assert both(Output(byte_ids(byte_level(), "a🙂".encode()[:3]), "length")).content == "a\ufffd"


@pytest.mark.parametrize(
    ("text", "reasoning_open", "reasoning", "content"),
    [
        ("Hello", False, "", "Hello"),
        (f"{THOUGHT}Hello", False, "\nhm\n", "\n\nHello"),
        ("a</think>b", True, "a", "b"),
        ("Hello", True, "Hello", ""),
    ],
)
def test_the_prompt_decides_whether_reasoning_is_open(text, reasoning_open, reasoning, content):
    answer = both(Output([*tokens(text), EOS]), reasoning_open=reasoning_open)
    assert (answer.reasoning, answer.content) == (reasoning, content)


def test_reasoning_that_is_not_wanted_is_left_out_with_its_tokens():
    output = Output([*tokens(f"{THOUGHT}Hello"), EOS], with_logprobs=True)
    answer = both(output, include_reasoning=False, want_logprobs=True, return_token_ids=True)
    assert (answer.reasoning, answer.content, answer.tokens, answer.token_ids) == ("", "\n\nHello", [], [])


@pytest.mark.parametrize(
    ("text", "tool_choice", "engine", "expected"),
    [
        ("Hello", "auto", "stop", "stop"),
        (call(), "auto", "stop", "tool_calls"),
        (call(), "required", "stop", "tool_calls"),
        (call(), "named", "stop", "stop"),
        (call(), "none", "stop", "stop"),
        (call(), "auto", "length", "length"),
        (call() + call()[:40], "required", "length", "length"),
        ("Hello", "required", "stop", "stop"),
        ("<tool_call>\noops\n</tool_call>", "auto", "stop", "stop"),
    ],
)
def test_finish_reasons(text, tool_choice, engine, expected):
    assert both(Output([*tokens(text), EOS], engine), tool_choice=tool_choice).finish_reason == expected


def test_an_aborted_request_says_so():
    answer = both(Output(tokens(call()), "abort"), tool_choice="auto")
    assert (answer.finish_reason, answer.calls) == ("abort", [("f", "{}")])


@pytest.mark.parametrize(
    ("text", "tool_choice", "content"),
    [
        (call(), "auto", None),
        (f"{THOUGHT}{call()}", "auto", None),
        (call(), "required", ""),
        (call(), "named", ""),
        ("<think>\nhm", "auto", None),
        ("<think>", "auto", None),
        (f"a {call()} b", "auto", "a  b"),
        (call(), "none", call()),
    ],
)
def test_content_is_null_where_there_are_only_calls_or_reasoning_and_empty_where_the_call_was_forced(
    text, tool_choice, content
):
    (choice,) = whole(Output([*tokens(text), EOS]), tool_choice=tool_choice)["choices"]
    assert choice["message"]["content"] == content
    assert ("tool_calls" in choice["message"]) == (tool_choice != "none" and "<tool_call>" in text)


def test_content_is_never_null_without_a_parser():
    served = replace(model(), reasoning_parser=None, tool_parser=None)
    assert whole(Output([EOS]), served)["choices"][0]["message"]["content"] == ""
    assert both(Output([*tokens(THOUGHT), EOS]), served).content == THOUGHT


def test_arguments_join_to_the_json_that_the_model_wrote():
    arguments = '{"numbers":[{"a":1}], "text": "{a,b} }] \\" 🙂"}'
    answer = both(Output([*tokens(f"ok {call('f', arguments)}\n{call('g')} bye"), EOS]), tool_choice="auto")
    assert answer.calls == [("f", arguments), ("g", "{}")]
    json.loads(arguments)
    assert answer.content == "ok  bye"


def test_a_call_keeps_its_id_and_no_two_have_the_same():
    documents = stream(Output([*tokens(call() + call()), EOS]), tool_choice="auto")
    calls = [part for document in documents for part in document["choices"][0]["delta"].get("tool_calls", [])]
    ids = {part["index"]: part["id"] for part in calls if "id" in part}
    assert len(set(ids.values())) == 2
    assert all(id_.startswith("chatcmpl-tool-") and int(id_.removeprefix("chatcmpl-tool-"), 16) >= 0 for id_ in ids.values())
    assert sum("id" in part for part in calls) == 2


def test_only_the_first_call_counts_without_parallel_calls():
    assert both(Output([*tokens(f"{call()}\n{call('g')}"), EOS]), tool_choice="auto", parallel_tool_calls=False).calls == [
        ("f", "{}")
    ]


PIECES = [token_id for piece in ("a", "E", "N", "D", "b") for token_id in tokens(piece)]


@pytest.mark.parametrize(("include", "content"), [(False, "a"), (True, "aEND")])
@pytest.mark.parametrize(
    "served", [model(), replace(model(), reasoning_parser=None, tool_parser=None)], ids=["parsers", "plain"]
)
def test_a_stop_string_is_cut_off_or_kept(include, content, served):
    options = {"stop": ["END"], "include_stop_str_in_output": include, "tool_choice": "auto"}
    answer = both(Output(PIECES[:4], "stop", "END"), served, **options)
    assert (answer.content, answer.finish_reason, answer.stop_reason) == (content, "stop", "END")


def test_an_engine_that_runs_over_a_stop_string_is_corrected():
    answer = both(Output(PIECES, "length"), stop=["END"])
    assert (answer.content, answer.finish_reason, answer.stop_reason) == ("a", "stop", "END")


def test_what_is_no_stop_string_in_the_end_is_delivered():
    assert both(Output([*PIECES, EOS]), stop=["ENX"]).content == "aENDb"
    assert both(Output(PIECES[:3], "length"), stop=["END"]).content == "aEN"


def test_a_stop_string_within_the_first_min_tokens_is_text():
    token_ids = PIECES[:4] + PIECES
    answer = both(Output(token_ids[:8], "stop", "END"), stop=["END"], min_tokens=4)
    assert (answer.content, answer.stop_reason) == ("aENDa", "END")


def test_the_engine_has_the_last_word_on_where_a_stop_string_ends_the_output():
    answer = both(Output(PIECES[:4], "stop", "END"), stop=["END"], min_tokens=4)
    assert answer.content == "a"


def test_a_stop_string_counts_in_reasoning_and_in_calls():
    assert both(Output(PIECES[:4], "stop", "END"), stop=["END"], reasoning_open=True).reasoning == "a"
    text = '<tool_call>\n{"name": "f", "arguments": {"a": "x'
    answer = both(Output([*tokens(text), *PIECES[1:4]], "stop", "END"), stop=["END"], tool_choice="auto")
    assert answer.calls == [("f", '{"a": "x')]
    assert answer.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "text", ["Hello", f"{THOUGHT}Hello", "<think>hm", call(), '<tool_call>\n{"name": "f", "arguments": {"a": "x']
)
@pytest.mark.parametrize("skip", [True, False])
def test_the_end_token_is_never_seen(text, skip):
    answer = both(Output([*tokens(text), EOS]), tool_choice="auto", skip_special_tokens=skip)
    assert "<|im_end|>" not in answer.reasoning + answer.content + str(answer.calls)


def test_a_stop_token_is_never_seen_though_it_is_ordinary_text():
    (stop_token,) = tokens("!")
    answer = both(Output([*tokens("Hello"), stop_token], "stop", stop_token), stop_token_ids=[stop_token])
    assert (answer.content, answer.stop_reason) == ("Hello", stop_token)
    assert both(Output([*tokens("Hello"), stop_token], "stop", stop_token)).content == "Hello"
    assert both(Output([*tokens("Hello"), stop_token], "length"), stop_token_ids=[stop_token]).content == "Hello!"


def test_special_tokens_are_shown_only_where_they_are_wanted():
    token_ids = [*tokens("a"), *tokens("<|im_start|>"), *tokens("b"), EOS]
    assert both(Output(token_ids)).content == "ab"
    assert both(Output(token_ids), skip_special_tokens=False).content == "a<|im_start|>b"


def test_markers_that_are_special_tokens_reach_the_parser_and_no_other_does():
    served = replace(model(), tokenizer=_with_special_markup())
    answer = both(Output([*tokens(f"<think>a</think>b<|im_start|>{call()}"), EOS]), served, tool_choice="auto")
    assert (answer.reasoning, answer.content, answer.calls) == ("a", "b", [("f", "{}")])


def _with_special_markup():
    tokenizer = Tokenizer.from_str(model().tokenizer.backend_tokenizer.to_str())
    markers = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    tokenizer.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")


def test_every_token_has_its_logprobs_exactly_once():
    text = f"{THOUGHT}Hello 🙂{call()}"
    output = Output([*tokens(text), EOS], with_logprobs=True)
    answer = both(output, tool_choice="auto", want_logprobs=True)
    assert len(answer.tokens) == len(output.token_ids)
    assert "".join(answer.tokens) == f"{text}<|im_end|>"


@pytest.mark.parametrize(("shown", "expected"), [(0, 0), (1, 1), (None, 1)])
def test_as_many_candidates_are_shown_as_were_asked_for(shown, expected):
    (choice,) = whole(Output(tokens("a"), with_logprobs=True), want_logprobs=True, top_logprobs=shown)["choices"]
    assert [len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]] == [expected]


def test_logprobs_that_were_not_asked_for_are_null():
    assert whole(Output(tokens("a"), with_logprobs=True))["choices"][0]["logprobs"] is None
