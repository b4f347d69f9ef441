"""Render requests of the Responses and the Messages API, as their clients send them."""

from collections.abc import Iterator
from typing import Any

from tests.golden.cases import MESSAGES, RESPONSES, Body, Case, message, text, user
from tests.golden.text_cases import SCHEMA

FLAT: Body = {
    "type": "function", "name": "search", "description": "d", "strict": False,
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
}  # fmt: skip
FLAT_STRICT: Body = {"type": "function", "name": "answer", "parameters": SCHEMA, "strict": True}
TOOL: Body = {"name": "search", "description": "d", "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}}}
SHORT_TOOL: Body = {"name": "ping", "input_schema": {}}


def cases() -> Iterator[Case]:
    """All of them."""
    for name, body in _RESPONSES.items():
        yield Case("qwen3", f"responses-{name}", RESPONSES, body)
    for name, body in _BAD_RESPONSES.items():
        yield Case("qwen3", f"error-responses-{name}", RESPONSES, body)
    for name, items in _SEEN_RESPONSES.items():
        yield Case("qwen3-vl", f"responses-{name}", RESPONSES, {"input": items})
    for name, body in _MESSAGES.items():
        yield Case("qwen3", f"messages-{name}", MESSAGES, {"model": "qwen3", "max_tokens": 100, **body})
    for name, body in _BAD_MESSAGES.items():
        yield Case("qwen3", f"error-messages-{name}", MESSAGES, {"model": "qwen3", "max_tokens": 100, **body})
    for name, turns in _SEEN_MESSAGES.items():
        yield Case("qwen3-vl", f"messages-{name}", MESSAGES, {"model": "qwen3-vl", "max_tokens": 100, "messages": turns})


def said(*content: Any, **fields: Any) -> Body:
    """A message of the assistant as a Response has it."""
    parts = [{"type": "output_text", "text": words, "annotations": [], "logprobs": []} for words in content]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": parts, **fields}


def called(arguments: str, call_id: str = "c1", **fields: Any) -> Body:
    """A call as a Response has it."""
    return {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": "search", "arguments": arguments, **fields}


def output(value: Any, call_id: str = "c1", **fields: Any) -> Body:
    """What the client answers to a call."""
    return {"type": "function_call_output", "call_id": call_id, "output": value, **fields}


def thought(content: list[str] | None, summary: tuple[str, ...] = (), **fields: Any) -> Body:
    """A reasoning item as a Response has it."""
    item: Body = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": words} for words in summary]}
    return item | {"content": content and [{"type": "reasoning_text", "text": words} for words in content]} | fields


def seen(name: str, **fields: Any) -> Body:
    """A picture of a Responses request."""
    return {"type": "input_image", "image_url": {"$picture": name}, "detail": "auto", **fields}


def typed(words: str) -> Body:
    """A text of a Responses request."""
    return {"type": "input_text", "text": words}


def shown(name: str, media_type: str = "image/png") -> Body:
    """A picture of a Messages request."""
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": {"$base64": name}}}


def used(name: str, arguments: Body, use_id: str = "t1") -> Body:
    """A tool_use block."""
    return {"type": "tool_use", "id": use_id, "name": name, "input": arguments}


def gave(content: Any, use_id: str = "t1", **fields: Any) -> Body:
    """A tool_result block."""
    return {"type": "tool_result", "tool_use_id": use_id, "content": content, **fields}


ASK = user("Search it")

_RESPONSES: dict[str, Body] = {
    "agent-loop": {"input": [ASK, thought(["I must search."]), called('{"q": "it"}'), output("found"), said("Found."), user("More")], "tools": [FLAT]},
    "two-calls": {"input": [ASK, called('{"q": "a"}'), called('{"q": "b"}', "c2"), output("A"), output("B", "c2")], "tools": [FLAT]},
    "text-and-call": {"input": [ASK, said("Searching"), called('{"q": "a"}'), output("A")], "tools": [FLAT]},
    "call-completed": {"input": [ASK, called('{"q": "a"}', status="completed"), output("A", status="completed", id="fco_1")], "tools": [FLAT]},
    "call-unicode": {"input": [ASK, called('{"q": "Grüße 🙂"}'), output("été")], "tools": [FLAT]},
    "output-parts": {"input": [ASK, called("{}"), output([typed("one"), typed("two")])], "tools": [FLAT]},
    "reasoning-summary": {"input": [ASK, thought(None, ("In short.",)), said("Yes"), user("And?")]},
    "reasoning-two-parts": {"input": [ASK, thought(["a", "b"]), said("Yes"), user("Well?")]},
    "output-text": {"input": [user("One"), said("Two", "and a half"), user("Three")]},
    "system-item": {"input": [message("system", "Be kind."), user("Hi")]},
    "developer-item": {"input": [message("developer", "Be kind."), user("Hi")], "instructions": "Be brief."},
    "unfinished": {"input": [user("Count"), said("One, two", status="in_progress")]},
    "typed-message": {"input": [{"type": "message", "role": "user", "content": "Hi", "status": "completed", "id": "msg_0"}]},
    "tools-required": {"input": "Search", "tools": [FLAT], "tool_choice": "required", "parallel_tool_calls": False},
    "tools-named": {"input": "Search", "tools": [FLAT, FLAT_STRICT], "tool_choice": {"type": "function", "name": "answer"}},
    "tools-none": {"input": "Search", "tools": [FLAT], "tool_choice": "none"},
    "tools-strict": {"input": "Answer", "tools": [FLAT_STRICT], "tool_choice": "auto"},
    "tools-empty": {"input": "Nothing", "tools": []},
    "format-object": {"input": "JSON", "text": {"format": {"type": "json_object"}}},
    "format-text": {"input": "Words", "text": {"format": {"type": "text"}, "verbosity": "low"}},
    "logprobs": {"input": "Logs", "include": ["message.output_text.logprobs"], "top_logprobs": 4},
    "logprobs-not-included": {"input": "No logs", "top_logprobs": 3},
    "effort-none": {"input": "Quick", "reasoning": {"effort": "none"}},
    "effort-summary": {"input": "Slow", "reasoning": {"effort": "high", "summary": "auto"}},
    "variables": {"input": "Hi", "chat_template_kwargs": {"enable_thinking": False}},
    "stored": {"input": "Hi", "store": False, "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "include": [], "max_tool_calls": 3, "truncation": "disabled"},
    "engine-fields": {"input": "Hi", "priority": 3, "cache_salt": "salt", "request_id": "resp-mine", "skip_special_tokens": False, "stop": ["END"], "ignore_eos": True},
    "penalties": {"input": "Hi", "presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.5, "logit_bias": {"5": 2}, "min_p": 0.1},
    "greedy": {"input": "Cold", "temperature": 0, "max_output_tokens": 16},
    "stream-parts": {"input": [{"role": "user", "content": [typed("a"), typed("b")]}], "stream": True, "temperature": None},
    "empty-text": {"input": ""},
    "output-without-id": {"input": [ASK, called("{}"), {"type": "function_call_output", "output": "x"}]},
    "background": {"input": "Hi", "background": True},
}  # fmt: skip

_BAD_RESPONSES: dict[str, Body] = {
    "input-number": {"input": 5},
    "item-unknown": {"input": [{"type": "wobble"}]},
    "role-unknown": {"input": [message("wizard", "Hi")]},
    "call-without-name": {"input": [ASK, {"type": "function_call", "call_id": "c1", "arguments": "{}"}]},
    "temperature": {"input": "Hi", "temperature": 200},
    "top-p": {"input": "Hi", "top_p": 0},
    "max-output-tokens": {"input": "Hi", "max_output_tokens": 4096},
    "tool-choice-alone": {"input": "Hi", "tool_choice": "required"},
    "tool-choice-other": {"input": "Hi", "tools": [FLAT], "tool_choice": {"type": "function", "name": "other"}},
    "tool-without-name": {"input": "Hi", "tools": [{"type": "function", "parameters": {}}]},
    "truncation": {"input": "Hi", "truncation": "middle"},
    "logprobs-too-many": {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 21},
    "logprobs-streamed-negative": {"input": "Hi", "top_logprobs": -2, "include": ["message.output_text.logprobs"]},
    "salt-empty": {"input": "Hi", "cache_salt": ""},
    "prompt": {"input": "Hi", "prompt": {"id": "pmpt_1"}},
    "too-long": {"input": {"$repeat": "word ", "times": 2100}},
    "picture-for-a-text-model": {"input": [{"role": "user", "content": [seen("png-64x64")]}]},
}  # fmt: skip

_SEEN_RESPONSES: dict[str, list[Body]] = {
    "two-pictures": [{"role": "user", "content": [typed("Compare"), seen("png-32x32"), typed("and"), seen("jpeg", detail="high")]}],
    "pictures-over-turns": [{"role": "user", "content": [seen("png-96x96")]}, said("A scene"), {"role": "user", "content": [seen("gif"), typed("And this?")]}],
    "picture-in-output": [user("Look"), called("{}"), output([typed("Here"), seen("png-28x28")])],
    "picture-of-file": [{"role": "user", "content": [{"type": "input_file", "filename": "a.pdf", "file_data": "aGk="}]}],
    "error-picture-bad": [{"role": "user", "content": [seen("bad-text")]}],
    "picture-after-reasoning": [{"role": "user", "content": [seen("png-64x64"), typed("?")]}, thought(["I look."]), said("Blue"), user("Sure?")],
}  # fmt: skip

_MESSAGES: dict[str, Body] = {
    "agent-loop": {"messages": [
        ASK,
        message("assistant", {"type": "thinking", "thinking": "I search.", "signature": "s"}, text("Searching"), used("search", {"q": "it"})),
        user(gave([text("found"), text("twice")])), message("assistant", "Found."), user("More"),
    ], "tools": [TOOL]},
    "two-uses": {"messages": [ASK, message("assistant", used("search", {"q": "a"}), used("search", {"q": "b"}, "t2")), user(gave("A"), gave("B", "t2"))], "tools": [TOOL]},
    "result-then-text": {"messages": [ASK, message("assistant", used("search", {})), user(gave("A"), text("and hurry"))], "tools": [TOOL]},
    "text-then-result": {"messages": [ASK, message("assistant", used("search", {})), user(text("Here:"), gave("A"))], "tools": [TOOL]},
    "result-error": {"messages": [ASK, message("assistant", used("search", {})), user(gave("no network", is_error=True))], "tools": [TOOL]},
    "result-empty": {"messages": [ASK, message("assistant", used("search", {})), user({"type": "tool_result", "tool_use_id": "t1"})], "tools": [TOOL]},
    "use-unicode": {"messages": [ASK, message("assistant", used("search", {"q": "Grüße 🙂", "n": [1, None, 2.5]})), user(gave("é"))], "tools": [TOOL]},
    "thinking-block": {"messages": [ASK, message("assistant", {"type": "thinking", "thinking": "hm", "signature": "s"}, text("Yes")), user("And?")]},
    "redacted-thinking": {"messages": [ASK, message("assistant", {"type": "redacted_thinking", "data": "x"}, text("Yes")), user("Well?")]},
    "thinking-disabled": {"messages": [user("Quick")], "thinking": {"type": "disabled"}},
    "thinking-adaptive": {"messages": [user("As you like")], "thinking": {"type": "adaptive"}},
    "thinking-and-variable": {"messages": [user("Think")], "thinking": {"type": "enabled", "budget_tokens": 1500}, "max_tokens": 1900, "chat_template_kwargs": {"a": 1}},
    "system-cached": {"messages": [user("Hi")], "system": [{**text("Be brief."), "cache_control": {"type": "ephemeral"}}, text("Be kind.")]},
    "system-empty": {"messages": [user("Hi there")], "system": ""},
    "system-accounting": {"messages": [user("Hi")], "system": [text("x-anthropic-billing-header: a=b"), text("Be useful.")]},
    "system-in-turns": {"messages": [user("Hi"), message("system", "Be brief."), user("Go on")]},
    "cached-blocks": {"messages": [user({**text("Long text"), "cache_control": {"type": "ephemeral", "ttl": "1h"}}, text("Question"))]},
    "two-texts": {"messages": [user("Hi"), message("assistant", text("One"), text("Two")), user("Three")]},
    "prefill-blocks": {"messages": [user("JSON please"), message("assistant", text('{"a":'))]},
    "tools-auto-single": {"messages": [ASK], "tools": [TOOL, SHORT_TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    "tools-none": {"messages": [ASK], "tools": [TOOL], "tool_choice": {"type": "none"}},
    "tools-strict": {"messages": [ASK], "tools": [{**TOOL, "strict": True}], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    "tools-cached": {"messages": [ASK], "tools": [{**TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}}]},
    "format": {"messages": [user("JSON")], "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"}},
    "metadata": {"messages": [user("Hi")], "metadata": {"user_id": "u"}, "service_tier": "auto", "stop_sequences": ["\n\nHuman:", "END"]},
    "greedy": {"messages": [user("Cold")], "temperature": 0.0, "top_k": 1, "max_tokens": 16},
    "engine-fields": {"messages": [user("Hi")], "cache_salt": "salt", "kv_transfer_params": {"do_remote_decode": True}, "mm_payload": "none"},
    "empty-blocks": {"messages": [user(text(""), text("Hi"))]},
    "two-users": {"messages": [user("One"), user("Two")]},
}  # fmt: skip

_BAD_MESSAGES: dict[str, Body] = {
    "no-turns": {"messages": []},
    "role": {"messages": [message("wizard", "Hi")]},
    "block-unknown": {"messages": [user({"type": "wobble"})]},
    "max-tokens-zero": {"messages": [user("Hi")], "max_tokens": 0},
    "max-tokens-over-context": {"messages": [user("Hi")], "max_tokens": 4096},
    "temperature": {"messages": [user("Hi")], "temperature": -1},
    "thinking-without-budget": {"messages": [user("Hi")], "thinking": {"type": "enabled"}},
    "thinking-budget-small": {"messages": [user("Hi")], "thinking": {"type": "enabled", "budget_tokens": 100}},
    "tool-without-schema": {"messages": [ASK], "tools": [{"name": "search"}]},
    "tool-choice-without-name": {"messages": [ASK], "tools": [TOOL], "tool_choice": {"type": "tool"}},
    "tool-choice-other": {"messages": [ASK], "tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}},
    "tool-choice-unknown": {"messages": [ASK], "tools": [TOOL], "tool_choice": {"type": "sometimes"}},
    "stop-not-a-list": {"messages": [user("Hi")], "stop_sequences": "END"},
    "too-long": {"messages": [user({"$repeat": "word ", "times": 2100})]},
    "picture-for-a-text-model": {"messages": [user(shown("png-64x64"))]},
}  # fmt: skip

_SEEN_MESSAGES: dict[str, list[Body]] = {
    "two-pictures": [user(text("Compare"), shown("png-32x32"), shown("jpeg", "image/jpeg"))],
    "pictures-over-turns": [user(shown("png-96x96")), message("assistant", "A scene"), user(shown("webp", "image/webp"), text("And this?"))],
    "picture-in-result": [user("Look"), message("assistant", used("search", {})), user(gave([text("Here"), shown("png-28x28")]))],
    "pictures-in-results": [user("Look"), message("assistant", used("search", {}), used("search", {}, "t2")), user(gave([shown("png-16x16")]), gave([shown("png-15x17")], "t2"), text("?"))],
    "error-picture-bad": [user(shown("bad-text"))],
}  # fmt: skip
