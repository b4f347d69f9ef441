"""A chat request, from messages to tokens and contexts."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.render.helpers import (
    chat,
    chat_job,
    edited,
    image_part,
    model_folder,
    png,
    settings,
    shown,
    text_of,
    text_part,
    user,
)
from triton_renderer.errors import InvalidRequest, NotFound
from triton_renderer.protocol.stages import DerenderContext
from triton_renderer.render import Renderer
from triton_renderer.render.messages import text_of as joined_text
from triton_renderer.text.detokenizer import PROMPT_TAIL

QUESTION = user("How many circles?")
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}, "description": "d"}}


def derender_of(renderer: Renderer, *messages: Any, **fields: Any) -> DerenderContext:
    context = chat(renderer, *messages, **fields).context.derender
    assert context is not None
    return context


def refusal(renderer: Renderer, *messages: Any, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        chat(renderer, *(messages or (QUESTION,)), **fields)
    return caught.value


def test_text_becomes_the_templates_tokens(renderer: Renderer) -> None:
    rendered = chat(renderer, QUESTION)
    assert rendered.token_ids.dtype == np.int64
    assert rendered.token_ids.ndim == 1
    assert text_of(renderer, rendered) == (
        "<|im_start|>user\nHow many circles?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert rendered.items == []
    assert rendered.context.features == []


def test_tokens_equal_those_of_transformers(renderer: Renderer) -> None:
    messages = [{"role": "system", "content": "Be brief."}, user("Wörter 你好 🙂\n\n  <tool_call> <|im_end|>")]
    expected = renderer._model.tokenizer.hf.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert chat(renderer, *messages).token_ids.tolist() == expected


def test_parts_keep_their_order(renderer: Renderer) -> None:
    first, second = png(96, 64), png(200, 128)
    rendered = chat(renderer, user(text_part("A"), image_part(first), text_part("B"), image_part(second), text_part("C")))
    assert f"A{shown(96, 64)}B{shown(200, 128)}C" in text_of(renderer, rendered)
    alone = [chat(renderer, user(image_part(data))).context.features[0].mm_hash for data in (first, second)]
    assert [feature.mm_hash for feature in rendered.context.features] == alone


def test_pictures_of_several_messages_are_in_the_order_of_the_messages(renderer: Renderer) -> None:
    seeds = [3, 1, 2]
    messages = [user(text_part(f"message {seed}"), image_part(png(seed=seed))) for seed in seeds]
    rendered = chat(renderer, messages[0], {"role": "assistant", "content": "ok"}, messages[1], messages[2])
    alone = [chat(renderer, message).context.features[0].mm_hash for message in messages]
    assert [feature.mm_hash for feature in rendered.context.features] == alone
    spans = [feature.placeholder for feature in rendered.context.features]
    assert all(before.offset + before.length < after.offset for before, after in pairwise(spans))


def test_a_message_without_content_counts_as_empty(renderer: Renderer) -> None:
    assert "<|im_start|>user\n<|im_end|>" in text_of(renderer, chat(renderer, {"role": "user"}))
    assert "assistant\n" in text_of(renderer, chat(renderer, QUESTION, {"role": "assistant", "content": None}))
    assert refusal(renderer, {"role": "user", "content": None}).param == "messages.0.content"


def test_an_unknown_role_goes_to_the_template(renderer: Renderer) -> None:
    assert "<|im_start|>wizard\nhi" in text_of(renderer, chat(renderer, {"role": "wizard", "content": "hi"}))


def test_developer_messages_become_the_system_message(renderer: Renderer) -> None:
    system, developer = {"role": "system", "content": "one"}, {"role": "developer", "content": "two"}
    text = text_of(renderer, chat(renderer, system, QUESTION, developer))
    assert text.startswith("<|im_start|>system\none\n\ntwo<|im_end|>\n<|im_start|>user")


def test_text_parts_of_all_kinds(renderer: Renderer) -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "b"}, {"type": "thinking", "thinking": "c"}]
    assert "user\nabcde<|im_end|>" in text_of(renderer, chat(renderer, user(text_part("a"), *parts[1:], "d", text_part("e"))))
    assert "user\nb<|im_end|>" in text_of(renderer, chat(renderer, user({"type": "text", "text": None}, text_part("b"))))


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "wobble"}, "messages.0.content.0.type"),
        ({"text": "no type"}, "messages.0.content.0.type"),
        ({"type": ["text"]}, "messages.0.content.0.type"),
        ({"type": "text", "text": 5}, "messages.0.content.0.text"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "messages.0.content.0"),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}, "messages.0.content.0"),
        ({"type": "image_url"}, "messages.0.content.0.image_url"),
        ({"type": "video_url"}, "messages.0.content.0.video_url"),
        ({"type": "video_url", "video_url": {"url": 7}}, "messages.0.content.0.video_url.url"),
        ({"type": "image_url", "image_url": {"url": 7}}, "messages.0.content.0.image_url.url"),
        ({"type": "image_url", "image_url": None, "uuid": ""}, "messages.0.content.0.uuid"),
        ({"type": "image_url", "image_url": None, "uuid": {"a": 1}}, "messages.0.content.0.uuid"),
    ],
)
def test_a_part_of_another_form_is_refused_by_its_place(renderer: Renderer, part: dict[str, Any], param: str) -> None:
    assert refusal(renderer, user(part)).param == param


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}}, "takes no sound"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "takes no sound"),
        ({"type": "video", "video": "a.mp4"}, "send the video itself, as video_url"),
        ({"type": "video_embeds", "video_embeds": "AAAA"}, "send the video itself, as video_url"),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, "send the picture itself"),
        ({"type": "file", "file": {"file_id": "1"}}, "send its pictures and its text"),
    ],
)
def test_other_media_are_refused_with_a_word_on_what_to_do(renderer: Renderer, part: dict[str, Any], words: str) -> None:
    error = refusal(renderer, user(text_part("first"), part))
    assert error.param == "messages.0.content.1"
    assert f"{part['type']} is not supported: " in error.message
    assert words in error.message


def test_content_that_is_an_object_is_refused(renderer: Renderer) -> None:
    assert refusal(renderer, {"role": "user", "content": {"type": "text"}}).param == "messages.0.content"


def test_another_model_is_not_found(renderer: Renderer) -> None:
    with pytest.raises(NotFound, match=r"The model `other` does not exist\.") as caught:
        chat(renderer, QUESTION, model="other")
    assert caught.value.param == "model"


def test_answers_carry_the_requested_name(renderer: Renderer) -> None:
    assert derender_of(renderer, QUESTION).model == "shapes-vl"
    assert derender_of(renderer, QUESTION, model="shapes-vl").model == "shapes-vl"


# Template options


def test_thinking_is_a_variable_of_the_template(renderer: Renderer) -> None:
    closed, opened = (
        text_of(renderer, chat(renderer, QUESTION, chat_template_kwargs={"enable_thinking": on})) for on in (False, True)
    )
    assert closed.endswith("</think>\n\n")
    assert opened.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("low", True), ("max", True)])
def test_reasoning_effort_switches_thinking(renderer: Renderer, effort: str, thinks: bool) -> None:
    assert text_of(renderer, chat(renderer, QUESTION, reasoning_effort=effort)).endswith("assistant\n") is thinks


def test_a_variable_of_the_request_goes_before_reasoning_effort(renderer: Renderer) -> None:
    kwargs = {"enable_thinking": False}
    assert not text_of(renderer, chat(renderer, QUESTION, reasoning_effort="high", chat_template_kwargs=kwargs)).endswith(
        "assistant\n"
    )


def test_generation_prompt_and_continued_message(renderer: Renderer) -> None:
    answer = {"role": "assistant", "content": "There are"}
    assert text_of(renderer, chat(renderer, QUESTION, add_generation_prompt=False)).endswith("<|im_end|>\n")
    continued = chat(renderer, QUESTION, answer, add_generation_prompt=False, continue_final_message=True)
    assert text_of(renderer, continued).endswith("<|im_start|>assistant\nThere are")
    parts = {"role": "assistant", "content": [text_part("There"), text_part(" are")]}
    continued = chat(renderer, QUESTION, parts, add_generation_prompt=False, continue_final_message=True)
    assert text_of(renderer, continued).endswith("<|im_start|>assistant\nThere are")


def test_a_message_cannot_be_continued_and_a_new_one_begun(renderer: Renderer) -> None:
    assert refusal(renderer, QUESTION, continue_final_message=True).param == "continue_final_message"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ],
)
def test_a_template_of_the_request_is_not_run_unless_it_is_trusted(
    renderer: Renderer, fields: dict[str, Any], param: str
) -> None:
    assert refusal(renderer, QUESTION, **fields).param == param


def test_arguments_around_the_template_have_no_effect_as_variables(renderer: Renderer) -> None:
    kwargs = {"tokenize": True, "return_tensors": "pt", "add_generation_prompt": False, "unknown": 1, "documents": []}
    assert text_of(renderer, chat(renderer, QUESTION, chat_template_kwargs=kwargs)).endswith("</think>\n\n")


# Tools


def test_tools_are_given_to_the_template_in_the_references_order(renderer: Renderer) -> None:
    text = text_of(renderer, chat(renderer, QUESTION, tools=[WEATHER]))
    expected = '{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}'
    assert f"<tools>\n{expected}\n</tools>" in text
    assert text_of(renderer, chat(renderer, QUESTION, tools=[WEATHER], tool_choice="none")) == text


@pytest.mark.parametrize(
    ("fields", "choice", "name"),
    [
        ({}, "none", None),
        ({"tools": [WEATHER]}, "auto", None),
        ({"tools": [WEATHER], "tool_choice": "none"}, "none", None),
    ],
)
def test_derender_is_told_the_tool_choice(renderer: Renderer, fields: dict[str, Any], choice: str, name: str | None) -> None:
    context = derender_of(renderer, QUESTION, **fields)
    assert (context.tool_choice, context.tool_name) == (choice, name)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
    ],
)
def test_tool_choices_that_cannot_be_are_refused(renderer: Renderer, fields: dict[str, Any], param: str) -> None:
    assert refusal(renderer, QUESTION, **fields).param == param


def test_tools_need_a_parser() -> None:
    without = Renderer.load(settings(tool_call_parser="none", reasoning_parser="none"))
    assert "TOOL_CALL_PARSER" in refusal(without, QUESTION, tools=[WEATHER]).message
    assert chat(without, QUESTION, tools=[WEATHER], tool_choice="none").token_ids.size


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        ('{"city": "Paris"}', '{"city": "Paris"}'),
        ({"city": "Paris"}, '{"city": "Paris"}'),
        ('{"city": ', "{}"),
        ("[1]", "{}"),
        ("", "{}"),
        (None, "{}"),
        ("[" * 100_000, "{}"),
        ('{"city": "\\ud83d"}', "{}"),
        ('{"\\udc00": 1}', "{}"),
        ('{"city": "\\ud83d\\ude42"}', '{"city": "🙂"}'),
    ],
)
def test_arguments_of_earlier_calls_are_objects_for_the_template(renderer: Renderer, arguments: Any, rendered: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    history = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "sunny"}]
    text = text_of(renderer, chat(renderer, QUESTION, *history, tools=[WEATHER]))
    assert f'<tool_call>\n{{"name": "weather", "arguments": {rendered}}}\n</tool_call>' in text


def test_tool_results_in_parts_become_one_text(renderer: Renderer) -> None:
    text = text_of(renderer, chat(renderer, QUESTION, {"role": "tool", "content": [text_part("a"), text_part("b")]}))
    assert "<tool_response>\na\nb\n</tool_response>" in text


@pytest.mark.parametrize("calls", ["x", [7], [{"type": "custom", "custom": {}}], [{"function": {"arguments": "{}"}}]])
def test_calls_of_another_form_are_refused(renderer: Renderer, calls: Any) -> None:
    error = refusal(renderer, {"role": "assistant", "content": "", "tool_calls": calls})
    assert (error.param or "").startswith("messages.0.tool_calls")


def test_reasoning_of_earlier_turns_reaches_the_template_by_both_names(renderer: Renderer) -> None:
    for name in ("reasoning", "reasoning_content"):
        answer = {"role": "assistant", "content": "4", name: "2 and 2"}
        text = text_of(renderer, chat(renderer, QUESTION, answer, {"role": "tool", "content": "r"}))
        assert "<think>\n2 and 2\n</think>\n\n4" in text


def test_reasoning_by_its_newer_name_goes_first(renderer: Renderer) -> None:
    answer = {"role": "assistant", "content": "4", "reasoning_content": "older", "reasoning": "newer"}
    text = text_of(renderer, chat(renderer, QUESTION, answer, {"role": "tool", "content": "r"}))
    assert "newer" in text
    assert "older" not in text


def test_empty_texts_make_no_lines_of_a_string() -> None:
    parts = [{"type": "text", "text": text} for text in ("", "a", "", "b")]
    assert joined_text(parts) == "a\nb"


# Length


def test_the_rest_of_the_context_is_the_default_budget(renderer: Renderer) -> None:
    rendered = chat(renderer, QUESTION)
    assert rendered.context.sampling_params.max_tokens == 600 - len(rendered.token_ids)


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(renderer: Renderer) -> None:
    error = refusal(renderer, user("x 7 " * 350))
    assert "600 tokens" in error.message
    assert any(word.isdigit() and int(word) > 600 for word in error.message.split())


def test_an_absurdly_long_text_is_refused_before_tokenizing(renderer: Renderer) -> None:
    error = refusal(renderer, user("a" * 9_000_000))
    assert "characters" in error.message
    assert "600 tokens" in error.message


def test_truncation_keeps_the_end_unless_told_otherwise(renderer: Renderer) -> None:
    whole = chat(renderer, QUESTION).token_ids
    assert chat(renderer, QUESTION, truncate_prompt_tokens=10).token_ids.tolist() == whole[-10:].tolist()
    left = chat(renderer, QUESTION, truncate_prompt_tokens=10, truncation_side="left")
    assert left.token_ids.tolist() == whole[-10:].tolist()
    right = chat(renderer, QUESTION, truncate_prompt_tokens=10, truncation_side="right")
    assert right.token_ids.tolist() == whole[:10].tolist()
    assert right.context.sampling_params.max_tokens == 590


def test_truncation_to_what_fits_leaves_room_for_a_token(renderer: Renderer) -> None:
    rendered = chat(renderer, user("x 7 " * 700), truncate_prompt_tokens=-1)
    assert len(rendered.token_ids) == 599
    assert rendered.context.sampling_params.max_tokens == 1


def test_truncation_never_cuts_a_picture(renderer: Renderer) -> None:
    message = user(image_part(), text_part("what is this thing"))
    whole = chat(renderer, message)
    begin = whole.context.features[0].placeholder.offset
    assert refusal(renderer, message, truncate_prompt_tokens=8).param == "truncate_prompt_tokens"
    assert refusal(renderer, message, truncate_prompt_tokens=8, truncation_side="right").param == "truncate_prompt_tokens"
    kept = chat(renderer, message, truncate_prompt_tokens=len(whole.token_ids) - begin)
    assert kept.context.features[0].placeholder.offset == 0


@pytest.mark.parametrize("limit", [0, 601])
def test_truncation_to_nothing_or_beyond_the_context_is_refused(renderer: Renderer, limit: int) -> None:
    assert refusal(renderer, QUESTION, truncate_prompt_tokens=limit).param == "truncate_prompt_tokens"


# What goes along


def test_derender_learns_what_it_needs(renderer: Renderer) -> None:
    fields = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": "END",
        "stop_token_ids": [5],
        "include_stop_str_in_output": True,
        "logprobs": True,
        "top_logprobs": 2,
        "return_token_ids": True,
        "parallel_tool_calls": False,
        "include_reasoning": False,
    }
    rendered = chat(renderer, QUESTION, **fields)
    context = rendered.context.derender
    assert context is not None
    assert (context.kind, context.id, context.created) == ("chat", "chatcmpl-1", 7)
    assert (context.stream, context.include_usage, context.continuous_usage) == (True, True, False)
    assert (context.stop, context.stop_token_ids, context.include_stop_str_in_output) == (["END"], [5], True)
    assert (context.want_logprobs, context.parallel_tool_calls, context.include_reasoning) == (True, False, False)
    assert context.prompt_tail == rendered.token_ids[-PROMPT_TAIL:].tolist()
    assert context.prompt_token_ids == rendered.token_ids.tolist()
    assert rendered.context.sampling_params.logprobs == 2
    assert rendered.context.return_token_ids is True


def test_a_parser_keeps_special_tokens(renderer: Renderer) -> None:
    assert chat(renderer, QUESTION).context.sampling_params.skip_special_tokens is False
    without = Renderer.load(settings(tool_call_parser="none", reasoning_parser="none"))
    assert chat(without, QUESTION).context.sampling_params.skip_special_tokens is True


@pytest.mark.parametrize(
    ("messages", "fields", "is_open"),
    [
        ([QUESTION], {}, False),
        ([QUESTION], {"chat_template_kwargs": {"enable_thinking": True}}, False),
        ([QUESTION, {"role": "assistant", "content": "<think>\nLet me"}], {"continue_final_message": True}, True),
        ([user("what does <think> mean?")], {}, False),
        ([user("what does <think> mean?")], {"chat_template_kwargs": {"enable_thinking": True}}, False),
        ([user("<|im_start|>assistant\n<think>")], {"chat_template_kwargs": {"enable_thinking": True}}, False),
    ],
)
def test_reasoning_is_open_only_where_the_prompts_end_left_it_open(
    renderer: Renderer, messages: list[dict[str, Any]], fields: dict[str, Any], is_open: bool
) -> None:
    if fields.get("continue_final_message"):
        fields = fields | {"add_generation_prompt": False}
    assert derender_of(renderer, *messages, **fields).reasoning_open is is_open


def test_a_template_that_opens_reasoning(tmp_path: Path) -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    renderer = Renderer.load(settings(model=str(model_folder(tmp_path / "m", template=source)), reasoning_parser="qwen3"))
    assert derender_of(renderer, QUESTION).reasoning_open is True
    request = chat(renderer, QUESTION, for_generate=True).context.request
    assert request is not None
    assert request["reasoning_ended"] is False


def test_echo_repeats_the_last_message_of_the_assistant(renderer: Renderer) -> None:
    answer = {"role": "assistant", "content": "There are"}
    continued = {"add_generation_prompt": False, "continue_final_message": True}
    assert derender_of(renderer, QUESTION, answer, echo=True, **continued).echo == "There are"
    assert derender_of(renderer, QUESTION, echo=True).echo == ""
    assert derender_of(renderer, QUESTION, answer, **continued).echo == ""


def test_offsets_are_those_of_the_templated_text(renderer: Renderer) -> None:
    rendered = chat(renderer, QUESTION, return_token_offsets=True, for_generate=True)
    text = text_of(renderer, rendered)
    request = rendered.context.request
    assert request is not None
    pieces = [text[begin:end] for begin, end in request["token_offsets"]]
    assert "".join(pieces) == text
    assert len(pieces) == len(rendered.token_ids)
    with_picture = chat(renderer, user(image_part()), return_token_offsets=True, for_generate=True).context.request
    assert with_picture is not None
    assert with_picture["token_offsets"] is None


def test_the_contexts_survive_json(renderer: Renderer) -> None:
    context = chat(renderer, user(image_part(), text_part("x")), logit_bias={"5": 1}, priority=-3, cache_salt="s").context
    assert type(context).model_validate_json(context.model_dump_json(exclude_none=True)) == context


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"mm_processor_kwargs": {"size": 1}}, "mm_processor_kwargs"),
        ({"media_io_kwargs": {"image": {}}}, "media_io_kwargs"),
        ({"cache_salt": "a/b"}, "cache_salt"),
        ({"cache_salt": "a" * 129}, "cache_salt"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"n": 0}, "n"),
        ({"temperature": "hot"}, "temperature"),
    ],
)
def test_fields_that_do_not_fit_are_refused_by_name(renderer: Renderer, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        renderer.render(chat_job(QUESTION).model_copy(update={"body": {"messages": [QUESTION], **fields}}))
    assert caught.value.param == param


def test_a_model_without_template_takes_no_chats(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "chat_template.jinja").unlink()
    renderer = Renderer.load(settings(model=str(folder)))
    assert "no chat template" in refusal(renderer, QUESTION).message


def test_a_text_model_takes_no_pictures(tmp_path: Path) -> None:
    text = json.loads(json.dumps(edited("config")["text_config"]))
    config = text | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    folder = model_folder(tmp_path / "m", config=config)
    (folder / "preprocessor_config.json").unlink()
    renderer = Renderer.load(settings(model=str(folder)))
    assert "takes text only" in refusal(renderer, user(image_part())).message
    assert chat(renderer, QUESTION).token_ids.size


def test_many_threads_render_at_once(renderer: Renderer) -> None:
    messages = [user(text_part(f"picture {number}"), image_part(png(64 + number, 80, number % 3))) for number in range(12)]
    messages += [user(f"How many circles in {number}?") for number in range(12)]
    expected = [chat(renderer, message) for message in messages]
    fresh = Renderer.load(settings())
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda message: chat(fresh, message), messages * 3))
    for rendered, wanted in zip(found, expected * 3, strict=True):
        assert rendered.token_ids.tolist() == wanted.token_ids.tolist()
        assert rendered.items == wanted.items
