"""Whole generate responses for the derender routes. The streamed ones are in `stream_cases`."""

from collections.abc import Iterator
from typing import Any

from tests.golden.cases import DERENDER_CHAT, DERENDER_COMPLETION, Body, Case, user
from tests.golden.outputs import THINKING_OFF, THINKING_ON, choice, ended, prompt, tokens
from tests.golden.text_cases import SEARCH, STRICT, WEATHER, named

NO_THINKING: Body = {"chat_template_kwargs": {"enable_thinking": False}}

PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
OSLO = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius"}}\n</tool_call>'
FIND = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'
NESTED = (
    '<tool_call>\n{"name": "search", "arguments": {"query": "a \\"b\\" {c}", "filters": [{"year": 2024, "tags": ["x", []]}, null], '
    '"deep": {"er": {"est": 1.5e-3}}, "flag": true}}\n</tool_call>'
)
UNICODE = '<tool_call>\n{"name": "search", "arguments": {"query": "Fluß 天气 🙂 e\u0301"}}\n</tool_call>'
PROMPT_LOGPROBS: list[Any] = [None, {"5": {"logprob": -1.5, "rank": 2, "decoded_token": None}}]

WRITINGS = {
    "german": "Der Fluß fließt; naïve café, Ångström.",
    "chinese": "你好，世界！今天天气怎么样？",
    "arabic": "مرحبا بالعالم — שלום — नमस्ते",
    "emoji": "Family 👨‍👩‍👧‍👦 flag 🏳️‍🌈 thumb 👍🏽.",
    "code": "def f(x):\n    return {'a': [1, 2.5e-3], \"b\": x ** 2}  # comment",
    "markdown": "# Title\n\n- item\n  1. nested\n\n```python\nprint('hi')\n```\n",
    "numbers": "1234567890 3.14159 1,000,000 0x1F 2024-07-26",
    "html": "<b>bold</b> &amp; <table><tr><td>1</td></tr></table>",
    "spaces": "  two  spaces   three\t\ttabs \n\n\n lines  ",
    "symbols": "∀x∈ℝ: x² ≥ 0 ⇒ √(x²) = |x| € ½",
    "quotes": "Don't say \"I'LL\" or 'we've' \\ /",
    "invisible": "zero\u200bwidth no\u00a0break \ufeffmark",
}


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _qwen3()
    yield from _without_parsers()
    yield from _writings()
    yield from _sentencepiece()
    yield from _smollm2()
    yield from _llama()
    yield from _deepseek()
    yield from _other_parsers()
    yield from _completions()
    yield from _refused()


def _chat(server: str, name: str, *outputs: Body, asked: Body | None = None, turn: str = "", **fields: Any) -> Case:
    """The choices `outputs` to a prompt that ends with `turn`; `fields` of the body, or of the response where it has them."""
    of_body = {key: fields.pop(key) for key in ("model", "prompt_token_ids", "chat_request", "stream") if key in fields}
    ids = prompt(server, turn)
    body: Body = {
        "generate_response": {"request_id": f"chatcmpl-{name}", "choices": list(outputs), **fields},
        "prompt_tokens": 20 + len(name),
        "prompt_token_ids": ids,
        "chat_request": {"messages": [user(name.replace("-", " "))], **(asked or {})},
        **of_body,
    }
    return Case(server, f"derender-{name}", DERENDER_CHAT, {key: value for key, value in body.items() if value is not None})


def _qwen3() -> Iterator[Case]:
    """Hermes's calls and Qwen3's reasoning."""
    server = "qwen3"

    def said(text: str, *cut_off: Any, **fields: Any) -> Body:
        return choice(tokens(server, text), *cut_off, **fields)

    def thought(name: str, *outputs: Body, **fields: Any) -> Case:
        return _chat(server, name, *outputs, **fields)

    def plain(name: str, *outputs: Body, asked: Body | None = None, **fields: Any) -> Case:
        return _chat(server, name, *outputs, asked=NO_THINKING | (asked or {}), turn=THINKING_OFF, **fields)

    tools: Body = {"tools": [WEATHER, SEARCH]}
    yield plain("answer", said(ended(server, "It is four.")))
    yield plain("answer-cut", said("It is four, because", "length"))
    yield plain("answer-aborted", said("It is", "abort"))
    yield plain("answer-stop-string", said("It is four", "stop", stop_reason="\n"), asked={"stop": ["\n"]})
    yield plain(
        "answer-stop-token", said("It is four<|endoftext|>", "stop", stop_reason=151643), asked={"stop_token_ids": [151643]}
    )
    yield plain("answer-in-json", said('{"answer": 4}', "length"), asked={"response_format": {"type": "json_object"}})
    yield plain("answer-one-token", said("4", "length"))
    yield plain("answer-begins-with-spaces", said("  \n 4", "length"))
    yield plain("answer-with-tools-at-hand", said("No tool is needed.", "length"), asked=tools)
    yield plain("answer-quotes-a-marker", said("Write <think> first.", "length"))
    yield thought("thinking", said(ended(server, "<think>\nTwo and two.\n</think>\n\nIt is four.")))
    yield thought("thinking-cut", said("<think>\nTwo and two is", "length"))
    yield thought("thinking-ends-at-its-end", said("<think>\nTwo and two.\n</think>", "length"))
    yield thought("thinking-empty", said("<think>\n\n</think>\n\nFour.", "length"))
    yield thought("thinking-one-line", said("<think>Short.</think>Four.", "length"))
    yield thought("thinking-hidden", said("<think>\nSecret.\n</think>\n\nFour.", "length"), asked={"include_reasoning": False})
    yield thought("thinking-hidden-and-cut", said("<think>\nSecret and", "length"), asked={"include_reasoning": False})
    yield thought("thinking-low", said("<think>\nLow.\n</think>\n\nFour!", "length"), asked={"reasoning_effort": "low"})
    yield thought("thinking-unicode", said("<think>\nHm… 天气 🙂\n</think>\n\nSchön 👍🏽", "length"))
    yield thought("thinking-opened-by-the-prompt", said("Two and two.\n</think>\n\nFour.", "length"), turn=THINKING_ON)
    yield thought("thinking-opened-and-cut", said("Two and", "length"), turn=THINKING_ON)
    yield thought("thinking-then-call", said(ended(server, f"<think>\nI ask.\n</think>\n\n{PARIS}")), asked=tools)
    yield thought("thinking-ended-by-call", said(f"<think>\nI ask.\n{PARIS}", "stop"), asked=tools)
    yield thought("thinking-of-a-call", said("<think>\nI could call search.\n</think>\n\nNo.", "length"), asked=tools)
    yield thought("thinking-hidden-call", said(f"<think>\nS.\n</think>\n\n{FIND}"), asked=tools | {"include_reasoning": False})
    yield plain("call", said(ended(server, PARIS)), asked=tools)
    yield plain("call-without-end-token", said(FIND), asked=tools)
    yield plain("call-on-one-line", said(PARIS.replace("\n", "")), asked=tools | {"tool_choice": "auto"})
    yield plain("call-behind-text", said(f"Let me look.\n{OSLO}"), asked=tools)
    yield plain("call-two", said(f"{PARIS}\n{OSLO}"), asked=tools)
    yield plain("call-three-behind-text", said(f"All:\n{PARIS}\n{FIND}\n{OSLO}"), asked=tools)
    yield plain("call-two-one-wanted", said(f"{OSLO}\n{FIND}"), asked=tools | {"parallel_tool_calls": True})
    yield plain("call-nested", said(NESTED), asked=tools)
    yield plain("call-unicode", said(UNICODE), asked=tools)
    yield plain(
        "call-no-arguments", said('<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'), asked={"tools": [WEATHER]}
    )
    yield plain("call-escapes", said(FIND.replace('"x"', '"a\\nb\\tc \\\\ / \\u00e9"')), asked=tools)
    yield plain("call-markup-in-string", said(FIND.replace('"x"', '"<b>&</b> [1] </function>"')), asked=tools)
    yield plain("call-not-closed", said(PARIS.removesuffix("\n</tool_call>"), "stop"), asked=tools)
    yield plain("call-required", said(PARIS), asked=tools | {"tool_choice": "required"})
    yield plain("call-named", said(OSLO), asked=tools | {"tool_choice": named("get_weather")})
    yield plain(
        "call-strict",
        said(FIND.replace('"search"', '"add"').replace('{"query": "x"}', '{"a": 1, "b": 2.5}')),
        asked={"tools": [STRICT]},
    )
    yield plain("call-not-wanted", said("I would search.", "length"), asked=tools | {"tool_choice": "none"})
    yield plain("call-no-json", said("<tool_call>\nsearch(x)\n</tool_call>", "length"), asked=tools)
    yield plain("call-numbers", said(FIND.replace('"x"', "[0, -1, 12345678901234567890, 0.5]")), asked=tools)
    yield plain(
        "choices", said("One.", "length"), said("Two!", "stop", index=1), said("Three?", "abort", index=2), asked={"n": 3}
    )
    yield plain("choices-with-and-without-call", said(PARIS), said("None needed", "length", index=1), asked=tools | {"n": 2})
    yield thought("choices-thinking", said("<think>a</think>b", "length"), said("<think>c", "length", index=1), asked={"n": 2})
    yield plain("choices-from-five", said("Fifth", "length", index=5), said("Sixth", "length", index=6))
    yield plain("logprobs", said("Fine day", "length", logprobs=1), asked={"logprobs": True, "top_logprobs": 1})
    yield plain("logprobs-three", said("So do I", "length", logprobs=3), asked={"logprobs": True, "top_logprobs": 3})
    yield thought(
        "logprobs-thinking", said("<think>a</think>b", "length", logprobs=2), asked={"logprobs": True, "top_logprobs": 2}
    )
    yield plain("logprobs-call", said(PARIS, logprobs=1), asked=tools | {"logprobs": True, "top_logprobs": 1})
    yield plain("keeps-special-tokens", said("a<|im_start|>b", "length"), asked={"skip_special_tokens": False})
    yield plain("handed-on", said("x y", "length"), kv_transfer_params={"remote": [1, "a"]}, model="qwen3")
    yield plain(
        "of-an-engine", said("counted", "length"), usage={"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
    )
    yield plain("prompt-logprobs", said("p", "length"), prompt_logprobs=PROMPT_LOGPROBS, asked={"prompt_logprobs": 1})


def _without_parsers() -> Iterator[Case]:
    """No parser: text is content, and the request may be unknown."""
    server = "qwen3-plain"

    def said(text: str, *cut_off: Any, **fields: Any) -> Body:
        return choice(tokens(server, text), *cut_off, **fields)

    def plain(name: str, *outputs: Body, **fields: Any) -> Case:
        return _chat(server, name, *outputs, **fields)

    half = tokens(server, "🏳️‍🌈")
    yield plain("ended", said(ended(server, "It is four.")))
    yield plain("request-unknown", said(ended(server, "It is five.")), chat_request=None)
    yield plain("prompt-unknown", said(" leading space", "length"), prompt_token_ids=None)
    yield plain("all-unknown", said("It is six", "length"), prompt_token_ids=None, chat_request=None)
    yield plain("finish-unsaid", {"index": 0, "token_ids": tokens(server, "unsaid")})
    yield plain("finish-null", said("null", None))
    yield plain("markers-are-text", said(f"<think>\nhm\n</think>\n\n{PARIS}", "length"))
    yield plain("special-tokens-left-out", said("a<|im_start|>b<|vision_start|>c", "length"))
    yield plain(
        "special-tokens-kept", said("a<|im_start|>b <|vision_start|> c", "length"), asked={"skip_special_tokens": False}
    )
    yield plain(
        "special-tokens-apart",
        said("a<|im_start|><|im_start|>b", "length"),
        asked={"skip_special_tokens": False, "spaces_between_special_tokens": False},
    )
    yield plain("nothing-but-special-tokens", said("<|im_start|><|im_end|>"))
    yield plain("emoji-cut", choice(half[:-1], "length"))
    yield plain("emoji-cut-behind-text", choice(tokens(server, "flag ") + half[:1], "length"))
    yield plain("emoji-whole", choice(half, "length"))
    yield plain("logprobs-without-candidates", said("Fine, good", "length", logprobs=0), asked={"logprobs": True})
    yield plain("logprobs-five", said("Yes, sir", "length", logprobs=5), asked={"logprobs": True, "top_logprobs": 5})
    yield plain("logprobs-unicode", said("é 天", "length", logprobs=2), asked={"logprobs": True, "top_logprobs": 2})
    yield plain("logprobs-emoji", said("a 👍🏽 b", "length", logprobs=1), asked={"logprobs": True, "top_logprobs": 1})
    yield plain("logprobs-special-token", said(ended(server, "end"), logprobs=1), asked={"logprobs": True, "top_logprobs": 1})
    yield plain("logprobs-null", said("none", "length", logprobs=None), asked={"logprobs": False})
    yield plain("three", *(said(f"Number {n}", "length", index=n, logprobs=n) for n in range(3)))
    yield plain("shuffled", said("second", "length", index=1), said("first", "stop"))
    yield plain(
        "stop-string-kept", said("one END", stop_reason="END"), asked={"stop": "END", "include_stop_str_in_output": True}
    )
    yield plain("stop-id", said("one<|endoftext|>", stop_reason=151643), asked={"stop_token_ids": [151643]})
    yield plain("repetition", said("ha ha ha", "repetition", stop_reason="repetition_detected"))
    yield plain("long", said("word " * 300, "length"))


def _writings() -> Iterator[Case]:
    """The same texts from every tokenizer, as chats and as completions."""
    servers = ("qwen3-plain", "gemma", "llama", "smollm2", "deepseek_v3")
    for number, (name, text) in enumerate(WRITINGS.items()):
        for place in (number, number + 2):
            server = servers[place % len(servers)]
            yield _chat(server, f"writes-{name}", choice(tokens(server, text), "length"))
        server = servers[(number + 3) % len(servers)]
        body = {
            "generate_responses": [
                {"request_id": f"cmpl-{name}", "choices": [choice(tokens(server, text), "length", logprobs=number % 3)]}
            ]
        }
        yield Case(server, f"derender-completes-{name}", DERENDER_COMPLETION, body | {"prompt_tokens": [number]})


def _sentencepiece() -> Iterator[Case]:
    """Pieces that begin with a mark for a space, and bytes as pieces."""
    server = "gemma"

    def said(text: str, *cut_off: Any, **fields: Any) -> Body:
        return choice(tokens(server, text), *cut_off, **fields)

    yield _chat(server, "ended", said(ended(server, "It is four.")))
    yield _chat(server, "space-first", said(" four", "length"))
    yield _chat(server, "space-first-prompt-unknown", said(" four", "length"), prompt_token_ids=None)
    yield _chat(server, "space-behind-word", said(" five", "length"), prompt_token_ids=tokens(server, "The answer is"))
    yield _chat(server, "space-behind-space", said(" six", "length"), prompt_token_ids=tokens(server, "The answer is "))
    yield _chat(server, "spaces-only", said("     ", "length"))
    yield _chat(server, "lines-first", said("\n\n\nfour", "length"))
    yield _chat(server, "bytes", said("ࠀ 𐍈 ༀ", "length"))
    yield _chat(server, "bytes-cut", choice(tokens(server, "x 𐍈")[:-2], "length"))
    yield _chat(server, "added-tokens", said("<b>x</b>\t<table>", "length"))
    yield _chat(server, "special-tokens-kept", said("a<start_of_image>b", "length"), asked={"skip_special_tokens": False})
    yield _chat(server, "logprobs", said(" a  b", "length", logprobs=2), asked={"logprobs": True, "top_logprobs": 2})
    response = _response(server, "e", " seven", prompt_token_ids=tokens(server, "It is"))
    yield _completion(server, "prompt-of-the-engine", response)


def _smollm2() -> Iterator[Case]:
    """Hermes's calls without reasoning."""
    server = "smollm2"

    def said(text: str, *cut_off: Any, **fields: Any) -> Body:
        return choice(tokens(server, text), *cut_off, **fields)

    tools: Body = {"tools": [WEATHER, SEARCH]}
    yield _chat(server, "ended", said(ended(server, "Four.")), asked=tools)
    yield _chat(server, "call", said(ended(server, PARIS)), asked=tools)
    yield _chat(server, "calls", said(f"{PARIS}{FIND}"), asked=tools)
    yield _chat(server, "calls-behind-text", said(f"Sure: {OSLO}\n{PARIS}"), asked=tools)
    yield _chat(server, "call-nested", said(NESTED), asked=tools)
    yield _chat(server, "call-unicode", said(UNICODE), asked=tools)
    yield _chat(server, "no-tools", said("Nothing to call", "length"))
    yield _chat(server, "thinking-is-text", said("<think>a</think>b", "length"))
    yield _chat(server, "opening-is-text", said("less < more <tool", "length"), asked=tools)


def _llama() -> Iterator[Case]:
    """Calls as bare JSON."""
    server = "llama"

    def said(text: str, *cut_off: Any, **fields: Any) -> Body:
        return choice(tokens(server, text), *cut_off, **fields)

    tools: Body = {"tools": [WEATHER, SEARCH]}
    call = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
    find = '{"name": "search", "parameters": {"query": "x"}}'
    yield _chat(
        server, "ended", said(ended(server, "Hello there!")), chat_request={"messages": [user("Hi")], "tool_choice": "none"}
    )
    yield _chat(server, "call", said(call), asked=tools)
    yield _chat(server, "call-ended", said(ended(server, find)), asked=tools)
    yield _chat(server, "call-behind-tag", said(f"<|python_tag|>{call}"), asked=tools)
    yield _chat(server, "call-arguments", said(call.replace("parameters", "arguments")), asked=tools)
    yield _chat(server, "calls", said(f"{call}; {find}"), asked=tools)
    yield _chat(server, "call-nested", said(find.replace('"x"', '{"a": [1, {"b": null}], "c": "d;e"}')), asked=tools)
    yield _chat(server, "call-unicode", said(find.replace('"x"', '"Fluß 天气 🙂"')), asked=tools)
    yield _chat(server, "call-empty", said('{"name": "ping", "parameters": {}}'), asked=tools)
    yield _chat(server, "text", said("The weather is fine", "length"), asked=tools)
    yield _chat(server, "call-named", said(find), asked=tools | {"tool_choice": named("search")})
    yield _chat(server, "call-required", said(call), asked=tools | {"tool_choice": "required"})
    yield _chat(server, "choices", said(call), said("No call", "length", index=1), asked=tools)


def _deepseek() -> Iterator[Case]:
    """Calls between tokens of their own."""
    server = "deepseek_v3"

    def said(text: str, *cut_off: Any, **fields: Any) -> Body:
        return choice(tokens(server, text), *cut_off, **fields)

    tools: Body = {"tools": [WEATHER, SEARCH]}
    yield _chat(server, "ended", said(ended(server, "Hello!")), chat_request={"messages": [user("Hi")]})
    yield _chat(server, "text", said("The weather is fine", "length"), asked=tools)
    yield _chat(server, "call", said(deepseek_calls(("get_weather", '{"city": "Paris"}'))), asked=tools)
    yield _chat(server, "call-ended", said(ended(server, deepseek_calls(("search", '{"query": "x"}')))), asked=tools)
    yield _chat(server, "calls", said(deepseek_calls(("search", '{"query": "x"}'), ("ping", "{}"))), asked=tools)
    yield _chat(server, "call-behind-text", said("I ask. " + deepseek_calls(("search", '{"query": "y"}'))), asked=tools)
    yield _chat(server, "call-nested", said(deepseek_calls(("search", '{"query": {"a": [1, {"b": "}"}]}}'))), asked=tools)
    yield _chat(server, "call-unicode", said(deepseek_calls(("search", '{"query": "Fluß 天气 🙂"}'))), asked=tools)
    yield _chat(server, "no-tools", said("Nothing to call.", "length"))


def deepseek_calls(*calls: tuple[str, str]) -> str:
    """Calls of names with arguments, as DeepSeek V3 writes them."""
    fence = "```"
    bodies = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n{fence}json\n{arguments}\n{fence}<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return "<｜tool▁calls▁begin｜>" + "\n".join(bodies) + "<｜tool▁calls▁end｜>"


def coder_call(name: str, **parameters: str) -> str:
    """A call as Qwen3-Coder writes it."""
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


TYPED: Body = {"type": "function", "function": {"name": "typed", "parameters": {"type": "object", "properties": {
    "text": {"type": "string"}, "count": {"type": "integer"}, "ratio": {"type": "number"}, "flag": {"type": "boolean"},
    "items": {"type": "array"}, "object": {"type": "object"}}}}}  # fmt: skip


def _other_parsers() -> Iterator[Case]:
    def said(server: str, text: str, *cut_off: Any, **fields: Any) -> Body:
        return choice(tokens(server, text), *cut_off, **fields)

    tools: Body = {"tools": [WEATHER, SEARCH, TYPED]}
    coder = {
        "call": coder_call("get_weather", city="Paris"),
        "call-two-parameters": coder_call("get_weather", city="Oslo", unit="celsius"),
        "calls": coder_call("get_weather", city="Paris") + "\n" + coder_call("search", query="x"),
        "call-behind-text": "I ask.\n" + coder_call("search", query="what is x"),
        "call-typed": coder_call("typed", text="5", count="5", ratio="2.5", flag="true"),
        "call-of-objects": coder_call("typed", items='[1, "a", null]', object='{"a": {"b": []}}'),
        "call-many-lines": coder_call("search", query="one\n  two\n\nthree"),
        "call-unicode": coder_call("search", query="Fluß 天气 🙂"),
        "call-markup": coder_call("search", query="<b>a < b</b> & c"),
        "call-empty": coder_call("ping"),
        "text": "No call is needed.",
    }
    for name, text in coder.items():
        yield _chat("qwen3-coder", name, said("qwen3-coder", text, "stop" if "call" in name else "length"), asked=tools)
    thoughts = {
        "thinking": "Two and two.\n</think>\n\nIt is four.",
        "thinking-cut": "Two and two is",
        "thinking-opened-twice": "<think>\nTwo.\n</think>\n\nFour.",
        "thinking-empty": "\n</think>\n\nFour.",
        "thinking-unicode": "Hm… 天气 🙂\n</think>\n\nSchön 👍🏽",
        "thinking-two-ends": "a</think>b</think>c",
    }
    for name, text in thoughts.items():
        yield _chat("qwen3-r1", name, said("qwen3-r1", text, "length"), turn=THINKING_ON)
    yield _chat(
        "qwen3-r1",
        "thinking-hidden",
        said("qwen3-r1", "S</think>F", "length"),
        turn=THINKING_ON,
        asked={"include_reasoning": False},
    )
    yield _chat("qwen3-r1", "thinking-ids", said("qwen3-r1", "a</think>b", "length"), turn=THINKING_ON, asked={"seed": 1})
    granite = {
        "thinking": "Here is my thought process: two and two.\nHere is my response: four.",
        "thinking-short-words": "Here's my thought process: two.\nHere's my response: four!",
        "no-thinking": "It is four.",
        "thinking-cut": "Here is my thought process: two and",
        "thinking-unicode": "Here is my thought process: 天气 🙂\nHere is my response: Schön",
    }
    for name, text in granite.items():
        yield _chat("smollm2-granite", name, said("smollm2-granite", text, "length"))
    pythonic = {
        "call": '[get_weather(city="Paris")]',
        "calls": "[get_weather(city='Paris', unit='celsius'), search(query='x')]",
        "call-typed": "[typed(text='5', count=5, ratio=2.5, flag=True, items=[1, 'a', None], object={'a': {'b': []}})]",
        "call-empty": "[ping()]",
        "call-unicode": "[search(query='Fluß 天气 🙂')]",
        "call-quotes": '[search(query="it\'s [a] (b)")]',
        "text": "No call is needed.",
        "text-in-brackets": "[1] is a footnote.",
    }
    for server in ("llama-pythonic", "llama4-pythonic"):
        for name, text in pythonic.items():
            if server == "llama-pythonic" or name in ("call", "calls", "text"):
                yield _chat(server, name, said(server, text, "stop" if "call" in name else "length"), asked=tools)


def _response(server: str, name: str, *texts: str, **fields: Any) -> Body:
    outputs = [choice(tokens(server, text), "length", index=index) for index, text in enumerate(texts)]
    return {"request_id": f"cmpl-{name}", "choices": outputs, **fields}


def _completion(server: str, name: str, *responses: Body, asked: Body | None = None, **fields: Any) -> Case:
    body: Body = {"generate_responses": list(responses), "prompt_tokens": [7 + n for n in range(len(responses))], **fields}
    if asked is not None:
        body["completion_request"] = {"prompt": name, **asked}
    return Case(server, f"derender-completion-{name}", DERENDER_COMPLETION, body)


def _completions() -> Iterator[Case]:
    for server in ("qwen3", "gemma", "llama", "deepseek_v3", "smollm2"):
        for name, text in {
            "text": "once upon a time",
            "spaced": " there was",
            "ended": ended(server, f"the end of {server}."),
        }.items():
            yield _completion(server, name, _response(server, name, text), asked={"max_tokens": 5 + len(name)})
        yield _completion(server, "two-prompts", _response(server, "a", "one"), _response(server, "b", "two", "three"))
    server = "qwen3"
    yield _completion(server, "markers-are-text", _response(server, "m", f"<think>a</think>{PARIS}"), asked={})
    server = "qwen3-plain"
    yield _completion(server, "request-unknown", _response(server, "u", "who asked"))
    yield _completion(server, "prompt-known", _response(server, "p", " world"), prompt_token_ids=[tokens(server, "Hello")])
    yield _completion(
        server, "prompts-half-known", _response(server, "h", " a"), _response(server, "i", " b"), prompt_token_ids=[None, [5]]
    )
    yield _completion(server, "prompt-of-the-engine", _response(server, "e", " c", prompt_token_ids=tokens(server, "a b")))
    yield _completion(server, "handed-on", _response(server, "k", "x", kv_transfer_params={"a": 1}))
    yield _completion(
        server, "handed-on-alike", *(_response(server, f"k{n}", "y", kv_transfer_params={"a": 1}) for n in range(2))
    )
    yield _completion(
        server, "handed-on-unlike", *(_response(server, f"k{n}", "z", kv_transfer_params={"a": n}) for n in range(2))
    )
    yield _completion(
        server, "special-tokens-kept", _response(server, "s", "a<|im_start|>b"), asked={"skip_special_tokens": False}
    )
    yield _completion(server, "choices", _response(server, "n", "a b", "c d", "e f"), asked={"n": 3})
    yield _completion(server, "three-prompts", *(_response(server, f"t{n}", f"{n} things", f"{n} more") for n in range(3)))
    yield _completion(server, "model-named", _response(server, "w", "named"), model="qwen3")
    for count in (0, 1, 4):
        output = choice(tokens(server, f"Top {count} are é"), "length", logprobs=count)
        yield _completion(server, f"logprobs-{count}", {"request_id": "cmpl-l", "choices": [output]}, asked={"logprobs": count})
    stopped = choice(tokens(server, "one\n"), "stop", stop_reason="\n")
    yield _completion(
        server,
        "stopped",
        {"request_id": "cmpl-q", "choices": [stopped]},
        asked={"stop": ["\n"], "include_stop_str_in_output": True},
    )
    output = choice(tokens(server, "echoed not"), "abort")
    yield _completion(server, "echo", {"request_id": "cmpl-e", "choices": [output]}, asked={"echo": True, "max_tokens": 3})


def _refused() -> Iterator[Case]:
    """Bodies that do not fit."""
    server = "qwen3"
    good = choice(tokens(server, "ok"), "length")
    yield _chat(server, "error-request-unknown", good, chat_request=None)
    yield _chat(server, "error-no-tokens", choice([], "length"))
    yield _chat(server, "error-tokens-null", good | {"token_ids": None})
    yield _chat(server, "error-tokens-negative", choice([-1], "length"))
    yield _chat(server, "error-tokens-text", choice([], "length") | {"token_ids": "ab"})
    yield _chat(server, "error-text-mode", good, output_mode="text")
    yield _chat(server, "error-other-model", good, model="another")
    yield _chat(server, "error-too-long", choice([5] * 2100, "length"))
    yield _chat(server, "error-prompt-too-long", good, prompt_token_ids=[5] * 2100)
    yield _chat(server, "error-candidates", choice([5], "length", logprobs=30))
    yield _chat(server, "error-stream-word", good, stream="yes")
    yield _chat(server, "error-messages", good, chat_request={"messages": "none"})
    yield _chat(server, "error-no-index", {"token_ids": [5], "finish_reason": "stop"})
    yield Case(server, "derender-error-empty", DERENDER_CHAT, {})
    yield Case(server, "derender-error-completion-empty", DERENDER_COMPLETION, {"generate_responses": []})
    yield Case(server, "derender-error-completion-missing", DERENDER_COMPLETION, {"prompt_tokens": [1]})
    response = _response(server, "r", "x")
    yield _completion(server, "error-counts", response, prompt_tokens=[1, 2])
    yield _completion(server, "error-prompts", response, prompt_token_ids=[[1], [2]])
    yield _completion(server, "error-other-model", response, model="another")
    yield _completion(server, "error-request", response, completion_request={"prompt": 5})
