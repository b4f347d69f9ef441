"""Each format from tokens to the client's answer, where its markers are special tokens of the model and where they are text."""

import re
from dataclasses import replace
from functools import cache

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.unit.derender.answers import Output, both, model, whole
from tests.unit.derender.formats import WRITTEN
from tests.unit.derender.streams import Stream
from triton_renderer.derender.model import OutputModel
from triton_renderer.derender.parsers import reasoning_parser, tool_parser
from triton_renderer.text.formats import REASONING_FORMATS, TOOL_FORMATS

TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "g.h"}},
]
CALLS = [("f", {"a": "x {y}\n🙂", "n": 1}), ("g.h", {})]
EXPECTED = [("f", '{"a": "x {y}\\n🙂", "n": 1}'), ("g.h", "{}")]


@cache
def served(tools: str | None, reasoning: str | None, special: bool) -> OutputModel:
    """The bundled model with other parsers, and with their markers as tokens; they must not be skipped."""
    parsers = [tool_parser(tools)] if tools else []
    thinking = reasoning_parser(reasoning) if reasoning else None
    markers = {marker for parser in [*parsers, *([thinking] if thinking else [])] for marker in parser.markers}
    tokenizer = Tokenizer.from_str(model().tokenizer.backend_tokenizer.to_str())
    tokenizer.add_tokens([AddedToken(marker, special=special, normalized=False) for marker in sorted(markers)])
    if special:
        tokenizer.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in sorted(markers)])
    return replace(
        model(),
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>"),
        vocab_size=model().vocab_size + len(markers),
        tool_parser=parsers[0] if parsers else None,
        reasoning_parser=thinking,
    )


def tokens(text: str, of: OutputModel) -> list[int]:
    return [*of.tokenizer.encode(text, add_special_tokens=False), model().tokenizer.eos_token_id]


@pytest.mark.parametrize(("special", "skip"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_calls_are_found_in_an_answer_and_in_its_streams(name, special, skip):
    of = served(name, None, special)
    output = Output(tokens(WRITTEN[name](CALLS), of), with_logprobs=True)
    types = {"f": {"n": ["integer"]}}
    answer = both(output, of, tool_choice="auto", parameter_types=types, skip_special_tokens=skip, want_logprobs=True)
    assert (answer.content, answer.calls, answer.finish_reason) == ("", EXPECTED, "tool_calls")
    assert len(answer.tokens) == len(output.token_ids)
    stream = Stream(asked={"tools": TOOLS, "skip_special_tokens": skip}, served=of)
    message = stream.run(output)
    assert (message.content, message.calls, message.finish_reason) == ("", EXPECTED, "tool_calls")
    assert len(set(message.ids)) == 2


@pytest.mark.parametrize("name", ["hermes", "mistral"])
def test_a_call_of_the_route_that_is_sent_twice_gives_the_same_ids(name):
    of = served(name, None, special=False)
    token_ids = tokens(WRITTEN[name](CALLS), of)
    first = Stream(asked={"tools": TOOLS}, served=of)
    first.push(token_ids[:1])
    ids = []
    for _ in range(2):
        again = Stream(asked={"tools": TOOLS}, served=of, state=first.state)
        again.push(token_ids[1:], finish_reason="stop")
        ids.append(again.message.ids)
    assert len(set(ids[0])) == 2
    assert ids[0] == ids[1]


@pytest.mark.parametrize("tool_choice", ["auto", "required", "named"])
def test_mistrals_ids_are_what_its_templates_take_however_the_call_was_asked_for(tool_choice):
    of = served("mistral", None, special=False)
    output = Output(tokens(WRITTEN["mistral"](CALLS), of))
    (choice,) = whole(output, of, tool_choice=tool_choice)["choices"]
    named = {"type": "function", "function": {"name": "f"}}
    streamed = Stream(asked={"tools": TOOLS, "tool_choice": named if tool_choice == "named" else tool_choice}, served=of)
    for ids in ([call["id"] for call in choice["message"]["tool_calls"]], streamed.run(output).ids):
        assert len(set(ids)) == len(CALLS)
        assert all(re.fullmatch("[A-Za-z0-9]{9}", call_id) for call_id in ids)


@pytest.mark.parametrize("name", [name for name in TOOL_FORMATS if not tool_parser(name).frames_content])
def test_where_no_calls_may_be_made_the_text_is_left_as_it_is(name):
    of = served(name, None, special=False)
    assert both(Output(tokens(WRITTEN[name](CALLS), of)), of, tool_choice="none").content == WRITTEN[name](CALLS)


@pytest.mark.parametrize("reasoning", [None, "openai_gptoss"])
@pytest.mark.parametrize("special", [True, False])
def test_where_no_calls_may_be_made_what_gpt_oss_says_is_still_told_from_its_markup(reasoning, special):
    of = served("openai", reasoning, special)
    text = f"{THOUGHTS['openai_gptoss']}{WRITTEN['openai'](CALLS)}<|start|>assistant<|channel|>final<|message|>Hi"
    answer = both(Output(tokens(text, of)), of, tool_choice="none")
    assert (answer.reasoning, answer.content, answer.calls) == ("hm" if reasoning else "", "Hi", [])
    assert answer.finish_reason == "stop"


THOUGHTS = {
    "deepseek_r1": "<think>hm</think>",
    "granite": "Here is my thought process:hmHere is my response:",
    "openai_gptoss": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant",
    "qwen3": "<think>hm</think>",
}


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(
    ("reasoning", "tools"),
    [("deepseek_r1", "deepseek_v3"), ("granite", "hermes"), ("openai_gptoss", "openai"), ("qwen3", "qwen3_coder")],
)
def test_reasoning_and_calls_go_together(reasoning, tools, special):
    assert set(THOUGHTS) == set(REASONING_FORMATS)
    of = served(tools, reasoning, special)
    output = Output(tokens(THOUGHTS[reasoning] + WRITTEN[tools](CALLS), of))
    answer = both(output, of, tool_choice="auto", parameter_types={"f": {"n": ["integer"]}})
    assert (answer.reasoning, answer.content, answer.calls) == ("hm", "", EXPECTED)
    message = Stream(asked={"tools": TOOLS}, served=of).run(output)
    assert (message.reasoning, message.content, message.calls) == ("hm", "", EXPECTED)
