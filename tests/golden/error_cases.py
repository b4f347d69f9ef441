"""Requests that are refused, one reason each."""

from collections.abc import Iterator
from typing import Any

from tests.golden.cases import CHAT, COMPLETION, MESSAGES, RESPONSES, Body, Case, image, message, repeat, text, user
from tests.golden.text_cases import BARE, SCHEMA, WEATHER, call, named

HI = [user("Hi")]


def cases() -> Iterator[Case]:
    """All of them."""
    for name, fields in _CHAT.items():
        yield Case("qwen3", f"error-{name}", CHAT, {"messages": HI, **fields})
    for name, body in _WHOLE_BODIES.items():
        yield Case("qwen3", f"error-{name}", CHAT, body)
    for name, fields in _COMPLETION.items():
        yield Case("qwen3", f"error-completion-{name}", COMPLETION, {"prompt": "Once", **fields})
    for name, content in _CONTENT.items():
        yield Case("qwen3-vl", f"error-{name}", CHAT, {"messages": [user(*content)]})
    for name, fields in _PICTURE_REQUESTS.items():
        yield Case("qwen3-vl", f"error-{name}", CHAT, {"messages": [user(image("png-64x64"), text("what is this"))], **fields})
    yield Case("gemma", "error-roles-do-not-alternate", CHAT, {"messages": [user("a"), user("b")]})
    yield Case("gemma", "error-tools-without-parser", CHAT, {"messages": HI, "tools": [WEATHER]})
    yield Case("gemma", "error-required-without-parser", CHAT, {"messages": HI, "tools": [WEATHER], "tool_choice": "required"})
    yield Case(
        "gemma", "error-named-without-parser", CHAT, {"messages": HI, "tools": [WEATHER], "tool_choice": named("get_weather")}
    )
    yield Case("gemma", "error-picture-for-a-text-model", CHAT, {"messages": [user(image("png-64x64"))]})
    two_calls = {"role": "assistant", "content": None, "tool_calls": [call("{}"), call("{}", "ping", "call_2")]}
    yield Case("llama", "error-two-calls-in-one-turn", CHAT, {"messages": [user("a"), two_calls], "tools": [WEATHER, BARE]})
    yield Case("smollm2", "error-suffix", COMPLETION, {"prompt": "a", "suffix": "b"})
    yield Case("qwen3", "error-responses-previous", RESPONSES, {"input": "Hi", "previous_response_id": "resp_1"})
    yield Case("qwen3", "error-responses-no-input", RESPONSES, {})
    yield Case("qwen3", "error-responses-model", RESPONSES, {"input": "Hi", "model": "other"})
    yield Case("qwen3", "error-messages-none", MESSAGES, {"model": "qwen3", "max_tokens": 5})
    yield Case("qwen3", "error-messages-no-max-tokens", MESSAGES, {"model": "qwen3", "messages": HI})
    yield Case("qwen3", "error-messages-model", MESSAGES, {"model": "other", "messages": HI, "max_tokens": 5})
    yield Case("qwen3-plain", "error-broken-template", CHAT, {"messages": HI, "chat_template": "{% for %}"})
    yield Case(
        "qwen3-plain",
        "error-template-that-raises",
        CHAT,
        {"messages": HI, "chat_template": "{{ raise_exception('Not today') }}"},
    )
    yield Case(
        "qwen3-plain",
        "error-template-out-of-the-sandbox",
        CHAT,
        {"messages": HI, "chat_template": "{{ ''.__class__.__mro__ }}"},
    )


_CHAT: dict[str, Body] = {
    "model": {"model": "other"},
    "max-tokens-zero": {"max_tokens": 0},
    "max-tokens-negative": {"max_tokens": -5},
    "max-tokens-over-context": {"max_tokens": 2049},
    "max-completion-tokens-over-context": {"max_completion_tokens": 100000},
    "max-tokens-text": {"max_tokens": "many"},
    "temperature-negative": {"temperature": -0.1},
    "temperature-text": {"temperature": "hot"},
    "top-p-zero": {"top_p": 0},
    "top-p-over-one": {"top_p": 1.5},
    "top-k-below": {"top_k": -2},
    "min-p-over-one": {"min_p": 1.1},
    "presence-penalty": {"presence_penalty": 2.5},
    "frequency-penalty": {"frequency_penalty": -2.5},
    "repetition-penalty-zero": {"repetition_penalty": 0},
    "n-zero": {"n": 0},
    "n-negative": {"n": -1},
    "seed-too-large": {"seed": 2**63},
    "min-tokens-negative": {"min_tokens": -1},
    "min-tokens-over-max": {"min_tokens": 20, "max_tokens": 10},
    "stop-empty": {"stop": ""},
    "stop-number": {"stop": 5},
    "stop-token-ids-text": {"stop_token_ids": ["a"]},
    "logit-bias-not-an-id": {"logit_bias": {"x": 1}},
    "logit-bias-beyond-vocabulary": {"logit_bias": {"151936": 1}},
    "allowed-beyond-vocabulary": {"allowed_token_ids": [1000000]},
    "allowed-empty": {"allowed_token_ids": []},
    "top-logprobs-alone": {"top_logprobs": 3},
    "top-logprobs-too-many": {"logprobs": True, "top_logprobs": 21},
    "top-logprobs-negative": {"logprobs": True, "top_logprobs": -2},
    "prompt-logprobs-negative": {"prompt_logprobs": -2},
    "prompt-logprobs-streaming": {"prompt_logprobs": 1, "stream": True},
    "stream-options-alone": {"stream_options": {"include_usage": True}},
    "tools-empty": {"tools": []},
    "tools-not-a-list": {"tools": {}},
    "tool-without-name": {"tools": [{"type": "function", "function": {}}]},
    "tool-choice-without-tools": {"tool_choice": "required"},
    "tool-choice-auto-without-tools": {"tool_choice": "auto"},
    "tool-choice-other": {"tools": [WEATHER], "tool_choice": named("other")},
    "tool-choice-unknown": {"tools": [WEATHER], "tool_choice": "sometimes"},
    "tool-choice-without-name": {"tools": [WEATHER], "tool_choice": {"type": "function"}},
    "response-format-unknown": {"response_format": {"type": "wobble"}},
    "response-format-no-schema": {"response_format": {"type": "json_schema"}},
    "structured-two": {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    "structured-none": {"structured_outputs": {}},
    "structured-and-tool": {
        "structured_outputs": {"json": SCHEMA, "regex": "x"},
        "tools": [WEATHER],
        "tool_choice": named("get_weather"),
    },
    "template": {"chat_template": "{{ messages }}"},
    "template-in-variables": {"chat_template_kwargs": {"chat_template": "x"}},
    "variable-messages": {"chat_template_kwargs": {"messages": []}},
    "continue-and-begin": {"continue_final_message": True, "add_generation_prompt": True},
    "continue-default": {"continue_final_message": True},
    "effort-unknown": {"reasoning_effort": "extreme"},
    "truncate-zero": {"truncate_prompt_tokens": 0},
    "truncate-below": {"truncate_prompt_tokens": -2},
    "truncate-over-context": {"truncate_prompt_tokens": 5000},
    "truncation-side": {"truncate_prompt_tokens": 5, "truncation_side": "middle"},
    "cache-salt-empty": {"cache_salt": ""},
    "cache-salt-path": {"cache_salt": "a/b"},
    "documents-text": {"documents": "none"},
    "media-io": {"media_io_kwargs": {"image": {"a": 1}}},
    "processor": {"mm_processor_kwargs": {"size": {"shortest_edge": 1}}},
    "payload": {"mm_payload": "some"},
    "beams": {"use_beam_search": True},
    "priority-text": {"priority": "high"},
    "bad-words-text": {"bad_words": "foo"},
}

_WHOLE_BODIES: dict[str, Body] = {
    "no-messages": {"model": "qwen3"},
    "messages-empty": {"messages": []},
    "messages-text": {"messages": "Hi"},
    "message-without-role": {"messages": [{"content": "Hi"}]},
    "content-number": {"messages": [{"role": "user", "content": 5}]},
    "content-object": {"messages": [{"role": "user", "content": {"type": "text", "text": "a"}}]},
    "part-unknown": {"messages": [user({"type": "wobble", "wobble": 1})]},
    "part-without-type": {"messages": [user({"wobble": "hi"})]},
    "audio": {"messages": [user({"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}})]},
    "prompt-too-long": {"messages": [user(repeat("word ", 2100))]},
    "prompt-and-budget-too-long": {"messages": [user(repeat("word ", 2030))], "truncate_prompt_tokens": 2048},
    "tool-calls-text": {"messages": [user("a"), message("assistant", "b", tool_calls="c"), user("d")]},
    "tool-call-without-function": {
        "messages": [user("a"), message("assistant", "b", tool_calls=[{"id": "1", "type": "function"}]), user("d")]
    },
}

_COMPLETION: dict[str, Body] = {
    "prompt-empty": {"prompt": ""},
    "prompt-empty-list": {"prompt": []},
    "prompt-null": {"prompt": None},
    "prompt-number": {"prompt": 5},
    "prompt-negative-id": {"prompt": [1, -1]},
    "prompt-id-beyond-vocabulary": {"prompt": [1, 200000]},
    "prompt-mixed": {"prompt": ["a", 1]},
    "prompt-list-of-empty-lists": {"prompt": [[]]},
    "prompt-too-long": {"prompt": repeat("word ", 2100)},
    "suffix": {"suffix": "end"},
    "suffix-and-echo": {"suffix": "end", "echo": True},
    "logprobs-negative": {"logprobs": -2},
    "logprobs-too-many": {"logprobs": 21},
    "max-tokens-over-context": {"max_tokens": 2049},
    "max-tokens-zero": {"max_tokens": 0},
    "echo-streaming-prompt-logprobs": {"echo": True, "stream": True, "prompt_logprobs": 2},
    "model": {"model": "another"},
    "processor": {"mm_processor_kwargs": {"a": 1}},
}

_CONTENT: dict[str, list[Any]] = {
    "picture-bad-base64": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,@@@"}}],
    "picture-no-comma": [{"type": "image_url", "image_url": {"url": "data:image/png;base64"}}],
    "picture-not-base64": [{"type": "image_url", "image_url": {"url": "data:image/png,abc"}}],
    "picture-no-url": [{"type": "image_url", "image_url": {}}],
    "picture-null": [{"type": "image_url", "image_url": None}],
    "picture-number": [{"type": "image_url", "image_url": {"url": 7}}],
    "picture-path": [{"type": "image_url", "image_url": {"url": "/etc/hostname"}}],
    "picture-file": [{"type": "image_url", "image_url": {"url": "file:///etc/hostname"}}],
    "picture-other-scheme": [{"type": "image_url", "image_url": {"url": "ftp://example.com/a.png"}}],
    "picture-relative": [{"type": "image_url", "image_url": {"url": "picture.png"}}],
    "picture-empty": [image("bad-empty")],
    "picture-text": [image("bad-text")],
    "picture-signature-only": [image("bad-png-signature-only")],
    "picture-png-cut": [image("bad-png-cut")],
    "picture-jpeg-cut": [image("bad-jpeg-cut")],
    "picture-postscript": [image("bad-postscript")],
    "picture-too-wide": [image("bad-201x1")],
    "picture-too-tall": [image("bad-1x201")],
    "picture-second-of-two": [image("png-64x64"), image("bad-text")],
    "unknown-uuid": [{"type": "image_url", "image_url": None, "uuid": "never-seen"}],
    "audio-url": [{"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,aGk="}}],
    "pictures-and-long-text": [image("png-64x64"), text(repeat("word ", 2100))],
}

_PICTURE_REQUESTS: dict[str, Body] = {
    "picture-cut-left": {"truncate_prompt_tokens": 6},
    "picture-cut-right": {"truncate_prompt_tokens": 6, "truncation_side": "right"},
    "picture-processor": {"mm_processor_kwargs": {"size": {"shortest_edge": 4096, "longest_edge": 8192}}},
    "picture-media-io": {"media_io_kwargs": {"image": {"rgba_background_color": [0, 0, 0]}}},
}
