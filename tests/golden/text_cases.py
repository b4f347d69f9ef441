"""Render requests without pictures: what shapes the prompt, and what shapes the output."""

from collections.abc import Iterator
from itertools import count, cycle
from typing import Any

from tests.golden.cases import CHAT, COMPLETION, MESSAGES, RESPONSES, Body, Case, message, repeat, text, user

TEXTS = (
    "Hello, what is 2 plus 2?",
    "  leading and trailing spaces  ",
    "Line one\nLine two\r\n\r\n\tindented\tline\n\n\n\nfour newlines",
    "def f(x):\n    return {'a': [1, 2.5e-3], \"b\": x ** 2}  # comment",
    "Der Fluß fließt; naïve café, Ångström. e\u0301 (decomposed) and \u00e9 (composed)",
    "你好，世界！今天天气怎么样？日本語のテキストと한국어 텍스트",
    "مرحبا بالعالم — שלום עולם — नमस्ते दुनिया — สวัสดี",
    "Emoji: 🙂👍🏽👨‍👩‍👧‍👦🏳️‍🌈 and symbols ½ € ∑ ∞ ⟨x⟩",
    "Numbers 1234567890, 3.14159265, 1,000,000 and 0x1F; dates 2024-07-26",
    "A literal <|im_end|> and <|endoftext|>, </think>, [INST], <s>, <bos> and <|eot_id|> in a text",
    "<b>bold</b> &amp; <table><tr><td>1</td></tr></table>",
    "Don't, can't, I'LL, we've, O'Neill's 'quoted' \"double\"",
    "zero\u200bwidth, no\u00a0break, soft\u00adhyphen, \ufeffmark, \u2028separator",
    "x" * 60 + " " + "ab" * 40,
    "SHOUTING and CamelCaseWords and snake_case_words and kebab-case-words",
    "https://example.com/a/b?c=d&e=%20f#g user@example.com C:\\path\\file.txt",
    "∀x∈ℝ: x² ≥ 0 ⇒ √(x²) = |x|",
    "- item\n- item\n  1. nested\n\n```python\nprint('hi')\n```\n> quote",
    "{{ not_a_template }} {% if x %}",
    " ",
)

WEATHER: Body = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Its name"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city"],
        },
    },
}
SEARCH: Body = {
    "type": "function",
    "function": {"parameters": {"type": "object", "properties": {"query": {"type": "string"}}}, "name": "search"},
}
BARE: Body = {"type": "function", "function": {"name": "ping"}}
STRICT: Body = {"type": "function", "function": {"name": "add", "strict": True, "description": "a+b", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"],
    "additionalProperties": False}}}  # fmt: skip
UNICODE_TOOL: Body = {
    "type": "function",
    "function": {"name": "grüße", "description": "Sagt „Grüße“ <b>&</b> 'x'", "parameters": {}},
}

SCHEMA: Body = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}


def call(arguments: Any, name: str = "get_weather", call_id: str = "call_1") -> Body:
    """A tool call of an earlier turn."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: Any, call_id: str = "call_1", **fields: Any) -> Body:
    """What a tool gave back."""
    return {"role": "tool", "tool_call_id": call_id, "content": content, **fields}


def named(name: str) -> Body:
    """A tool choice that names the function."""
    return {"type": "function", "function": {"name": name}}


SAMPLING: tuple[Body, ...] = (
    {"temperature": 0},
    {"temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.2},
    {"temperature": 0.004},
    {"temperature": 1.7, "top_p": 1.0, "top_k": -1},
    {"top_k": 0, "min_p": 0.05, "seed": 42},
    {"presence_penalty": 0.5, "frequency_penalty": -1.25, "repetition_penalty": 1.3},
    {"presence_penalty": 0, "repetition_penalty": 1},
    {"stop": "END", "include_stop_str_in_output": True},
    {"stop": ["\n\n", "User:"], "min_tokens": 5, "max_tokens": 300},
    {"stop": None, "stop_token_ids": None},
    {"stop_token_ids": [5, 6, 7], "ignore_eos": True},
    {"max_tokens": 16},
    {"max_tokens": 1},
    {"max_tokens": 2040},
    {"max_tokens": 2048},
    {"max_completion_tokens": 33, "max_tokens": 7},
    {"n": 3, "seed": -1},
    {"n": None},
    {"logit_bias": {"5": 200, "6": -250.5, "7": 1}},
    {"allowed_token_ids": [1, 2, 3], "bad_words": ["foo", "bar baz"]},
    {"bad_words": []},
    {"skip_special_tokens": False, "spaces_between_special_tokens": False},
    {"priority": 7, "cache_salt": "salty", "user": "somebody"},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream": True},
    {"stream": None},
    {"request_id": "my-own-id"},
    {"prompt_logprobs": 4},
    {"prompt_logprobs": 0},
    {"structured_outputs": {"regex": "[a-z]+"}},
    {"structured_outputs": {"choice": ["yes", "no"]}},
    {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
    {"structured_outputs": {"grammar": 'root ::= "a" | "b"'}},
    {"structured_outputs": {"json_object": True}},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
    {"kv_transfer_params": {"do_remote_decode": True}, "priority": -3},
    {"return_token_ids": True},
    {"wobble": 1, "store": True, "metadata": {"a": "b"}},
)  # fmt: skip
CHAT_SAMPLING: tuple[Body, ...] = (
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 5},
    {"logprobs": True, "top_logprobs": 0},
    {"logprobs": False, "top_logprobs": None},
    {"parallel_tool_calls": False},
    {"echo": True},
)
COMPLETION_SAMPLING: tuple[Body, ...] = (
    {"logprobs": 3},
    {"logprobs": 0},
    {"echo": True, "max_tokens": 0},
    {"echo": True, "logprobs": 2, "max_tokens": 4},
    {"max_tokens": None},
)


def conversations(pick: Iterator[str]) -> Iterator[tuple[str, list[Body]]]:
    """Conversations that every text model takes, of texts from `pick`."""
    yield "one-turn", [user(next(pick))]
    yield "system", [message("system", next(pick)), user(next(pick))]
    yield "three-turns", [user(next(pick)), message("assistant", next(pick)), user(next(pick))]
    yield (
        "system-and-five-turns",
        [
            message("system", next(pick)), user(next(pick)), message("assistant", next(pick)), user(next(pick)),
            message("assistant", next(pick)), user(next(pick)),
        ],
    )  # fmt: skip
    yield "parts", [user(text(next(pick)), text(next(pick)))]
    yield "parts-and-strings", [message("system", text(next(pick))), user(text(next(pick)), next(pick), text(next(pick)))]
    yield "no-content", [{"role": "user"}]
    yield "null-content", [{"role": "user", "content": None}]
    yield "empty-text", [user(""), message("assistant", ""), user(next(pick))]
    yield "ends-with-assistant", [user(next(pick)), message("assistant", next(pick))]
    yield "named-speaker", [user(next(pick), name="alice")]
    yield "other-kinds-of-text", [
        user({"type": "input_text", "text": next(pick)}, {"type": "refusal", "refusal": next(pick)}, text(next(pick))),
    ]  # fmt: skip


OPTIONS: tuple[tuple[str, Body], ...] = (
    ("", {}),
    ("no-generation-prompt", {"add_generation_prompt": False}),
    ("special-tokens", {"add_special_tokens": True}),
    ("offsets", {"return_token_offsets": True}),
    ("truncated-left", {"truncate_prompt_tokens": 9, "truncation_side": "left"}),
    ("truncated-right", {"truncate_prompt_tokens": 9, "truncation_side": "right"}),
    ("truncated-offsets", {"truncate_prompt_tokens": 11, "return_token_offsets": True}),
    ("template-variable", {"chat_template_kwargs": {"custom": 1, "date_string": "1 Jan 2030"}}),
    ("documents", {"documents": [{"title": "T", "text": "Once"}]}),
)

TEXT_SERVERS = ("qwen3", "llama", "gemma", "smollm2", "deepseek_v3")


def cases() -> Iterator[Case]:
    """All of them; the numbering of one group goes on over the servers, so that no two are alike."""
    yield from _everywhere()
    yield from _qwen3()
    yield from _plain()
    yield from _llama()
    yield from _others()
    yield from _forced_formats()
    yield from _completions()
    yield from _responses()
    yield from _messages()


def _everywhere() -> Iterator[Case]:
    """Conversations, options and sampling fields, dealt out over the servers."""
    texts, sampling, options = cycle(TEXTS), cycle(SAMPLING + CHAT_SAMPLING), cycle(OPTIONS)
    number = count()
    for server in TEXT_SERVERS:
        for name, messages in conversations(texts):
            label, option = next(options)
            if server == "gemma" and name == "ends-with-assistant":
                option = {"add_generation_prompt": False}
            yield Case(
                server, f"{name}-{next(number)}-{label}".rstrip("-"), CHAT, {"messages": messages, **next(sampling), **option}
            )
        next(options)  # the pairs of conversation and option change from server to server
        for message_text in (next(texts) for _ in range(4)):
            yield Case(server, f"sampling-{next(number)}", CHAT, {"messages": [user(message_text)], **next(sampling)})


def _chat(server: str, name: str, messages: list[Body], **fields: Any) -> Case:
    return Case(server, name, CHAT, {"messages": messages, **fields})


def _qwen3() -> Iterator[Case]:
    """Tools, thinking and continued messages, where the template knows all of them."""
    question = user("What is the weather in Paris?")
    call_paris = {"role": "assistant", "content": None, "tool_calls": [call('{"city": "Paris"}')]}
    for name, tools in {
        "tools": [WEATHER], "two-tools": [WEATHER, SEARCH], "bare-tool": [BARE], "strict-tool": [STRICT], "unicode-tool": [UNICODE_TOOL],
    }.items():  # fmt: skip
        yield _chat("qwen3", name, [question], tools=tools)
    yield _chat("qwen3", "tools-none", [question], tools=[SEARCH], tool_choice="none")
    yield _chat("qwen3", "tools-auto", [question], tools=[SEARCH, BARE], tool_choice="auto")
    yield _chat("qwen3", "tools-required", [question], tools=[WEATHER, BARE], tool_choice="required")
    yield _chat(
        "qwen3", "tools-required-one-at-a-time", [question], tools=[WEATHER], tool_choice="required", parallel_tool_calls=False
    )
    yield _chat("qwen3", "tools-named", [question], tools=[WEATHER, SEARCH], tool_choice=named("search"))
    yield _chat("qwen3", "tools-named-strict", [question], tools=[STRICT, SEARCH], tool_choice=named("add"), max_tokens=50)
    yield _chat("qwen3", "tools-system", [message("system", "Be brief."), question], tools=[WEATHER])
    yield _chat(
        "qwen3", "tool-extras", [question], tools=[{**BARE, "extra": 1, "function": {**BARE["function"], "further": [1]}}]
    )
    for name, arguments in {
        "object": {"city": "Köln"}, "text": '{"city": "Paris", "days": [1, 2], "x": null}', "broken": '{"city": ', "list": "[1]", "empty": "", "null": None,
        "nested": '{"a": {"b": "c \\"d\\" \\u00e9"}}',
    }.items():  # fmt: skip
        called = {"role": "assistant", "content": "", "tool_calls": [call(arguments)]}
        yield _chat("qwen3", f"history-arguments-{name}", [question, called, result("sunny")], tools=[WEATHER])
    two = {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [call('{"city": "Rome"}'), call("{}", "search", "call_2")],
    }
    yield _chat(
        "qwen3", "two-calls-two-results", [question, two, result("20"), result("none", "call_2")], tools=[WEATHER, SEARCH]
    )
    yield _chat("qwen3", "result-in-parts", [question, call_paris, result([text("warm"), text("dry")])], tools=[WEATHER])
    yield _chat(
        "qwen3",
        "result-and-question",
        [question, call_paris, result("18 °C", name="get_weather"), message("assistant", "18"), user("And Rome?")],
        tools=[WEATHER],
    )
    yield _chat("qwen3", "no-calls-in-a-list", [question, message("assistant", "x", tool_calls=[]), user("more")])
    yield _chat("qwen3", "history-without-tools", [question, call_paris, result("rain")])
    for name, kwargs in {"thinking-off": {"enable_thinking": False}, "thinking-on": {"enable_thinking": True}}.items():
        yield _chat("qwen3", name, [user("Why?")], chat_template_kwargs=kwargs)
    for effort in ("none", "low", "high", "max"):
        yield _chat("qwen3", f"effort-{effort}", [user("How?")], reasoning_effort=effort)
    yield _chat(
        "qwen3",
        "effort-and-variable",
        [user("How so?")],
        reasoning_effort="high",
        chat_template_kwargs={"enable_thinking": False},
    )
    yield _chat("qwen3", "no-reasoning-shown", [user("When?")], include_reasoning=False)
    yield _chat(
        "qwen3",
        "history-with-reasoning",
        [user("2+2?"), message("assistant", "4", reasoning_content="two and two"), user("3+3?")],
    )
    yield _chat(
        "qwen3", "history-with-reasoning-field", [user("2+2?"), message("assistant", "4", reasoning="two, two"), user("5+5?")]
    )
    yield _chat(
        "qwen3",
        "reasoning-before-a-result",
        [question, call_paris | {"reasoning": "I must ask."}, result("hot")],
        tools=[WEATHER],
    )
    yield _chat(
        "qwen3", "history-with-think-tags", [user("2+2?"), message("assistant", "<think>\nhm\n</think>\n\n4"), user("6+6?")]
    )
    yield _chat(
        "qwen3",
        "continued",
        [user("Say it"), message("assistant", "It is")],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    yield _chat(
        "qwen3",
        "continued-parts",
        [user("Say it"), message("assistant", text("It"), text("was"))],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    yield _chat(
        "qwen3",
        "continued-thinking-off",
        [user("Say"), message("assistant", "Well,")],
        add_generation_prompt=False,
        continue_final_message=True,
        chat_template_kwargs={"enable_thinking": False},
    )
    yield _chat(
        "qwen3",
        "continued-user",
        [user("I would like")],
        add_generation_prompt=False,
        continue_final_message=True,
        max_tokens=12,
    )
    yield _chat(
        "qwen3",
        "echo-continued",
        [user("Say it"), message("assistant", "It is so")],
        add_generation_prompt=False,
        continue_final_message=True,
        echo=True,
    )
    yield _chat("qwen3", "developer", [message("developer", "Be kind."), user("Hi")])
    yield _chat("qwen3", "system-and-developer", [message("system", "one"), message("developer", "two"), user("Hi there")])
    yield _chat("qwen3", "developer-late", [user("Hi"), message("developer", "Now be kind."), user("again")])
    yield _chat("qwen3", "unknown-role", [message("wizard", "Abracadabra"), user("Hi!")])
    yield _chat("qwen3", "extra-fields-of-a-message", [user("Hi, you", weight=3, cache_control={"type": "ephemeral"})])
    yield _chat(
        "qwen3", "extra-fields-of-a-part", [user({"type": "text", "text": "Hi, part", "cache_control": {"type": "ephemeral"}})]
    )
    yield _chat("qwen3", "null-part", [user({"type": "text", "text": None}, text("b"))])
    yield _chat(
        "qwen3",
        "thinking-part",
        [user("go"), message("assistant", {"type": "thinking", "thinking": "hm"}, text("done")), user("on")],
    )
    yield _chat("qwen3", "nearly-too-long", [user(repeat("word ", 2000))])
    yield _chat("qwen3", "truncated-to-fit", [user(repeat("long ", 3000))], truncate_prompt_tokens=-1)
    yield _chat(
        "qwen3",
        "truncated-to-fit-right",
        [user(repeat("longer ", 3000))],
        truncate_prompt_tokens=-1,
        truncation_side="right",
        max_tokens=10,
    )
    yield _chat("qwen3", "truncated-and-budget", [user(repeat("budget ", 3000))], truncate_prompt_tokens=-1, max_tokens=100)
    yield _chat("qwen3", "truncation-not-needed", [user("short")], truncate_prompt_tokens=500)
    yield _chat(
        "qwen3",
        "variables-that-are-arguments",
        [user("Hi")],
        chat_template_kwargs={"tokenize": True, "add_generation_prompt": False, "documents": [{"a": "b"}]},
    )
    yield _chat("qwen3", "model-named", [user("Hi, model")], model="qwen3")
    yield _chat("qwen3", "model-empty", [user("Hi, nobody")], model="")
    yield _chat("qwen3", "tools-and-format", [question], tools=[WEATHER], response_format={"type": "json_object"})
    yield _chat("qwen3", "tools-empty-choice-null", [question], tools=[WEATHER], tool_choice=None)


def _plain() -> Iterator[Case]:
    """A server that trusts its clients' templates, without parsers."""
    own = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
    lists = "{% for m in messages %}{{ m.role }}:{% for p in m.content %}({{ p.type }}={{ p.text }}){% endfor %};{% endfor %}"
    extra = "{{ greeting | default('none') }}|{{ tools | length if tools else 0 }}|{{ documents | length if documents else 0 }}|{{ messages[-1].content }}"
    server = "qwen3-plain"
    yield _chat(server, "own-template", [message("system", "s"), user("u")], chat_template=own)
    yield _chat(server, "own-template-parts", [user(text("a"), text("b"))], chat_template=own)
    yield _chat(
        server,
        "own-template-for-lists",
        [user("plain"), message("assistant", text("x"), text("y")), user("z")],
        chat_template=lists,
    )
    yield _chat(
        server,
        "own-template-continued",
        [user("u"), message("assistant", "a")],
        chat_template=own,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    yield _chat(
        server,
        "own-template-variables",
        [user("u")],
        chat_template=extra,
        chat_template_kwargs={"greeting": "hello"},
        documents=[{"title": "t", "text": "x"}],
    )
    yield _chat(server, "own-template-tools", [user("u")], chat_template=extra, tools=[WEATHER], tool_choice="none")
    yield _chat(
        server,
        "own-template-special-tokens",
        [user("u")],
        chat_template="<|im_start|>{{ messages[0].content }}<|im_end|>",
        add_special_tokens=True,
    )
    yield _chat(server, "own-template-offsets", [user("é🙂")], chat_template=own, return_token_offsets=True)
    yield _chat(server, "template-in-variables", [user("u v")], chat_template_kwargs={"chat_template": own})
    yield _chat(server, "tools-none-without-parser", [user("hi")], tools=[SEARCH], tool_choice="none")
    yield _chat(
        server,
        "thinking-without-parser",
        [user("hi hi")],
        chat_template_kwargs={"enable_thinking": False},
        include_reasoning=True,
    )
    yield _chat(server, "effort-without-parser", [user("hi ho")], reasoning_effort="none")
    yield _chat(server, "no-reasoning-without-parser", [user("ho")], include_reasoning=False)
    for number, fields in enumerate(SAMPLING):
        if number % 4 == 1:
            yield _chat(server, f"sampling-{number}", [user(f"Number {number}")], **fields)


def _llama() -> Iterator[Case]:
    """A template for strings, one tool call a turn, and a token that begins the text."""
    question = user("Weather in Oslo?")
    called = {"role": "assistant", "content": None, "tool_calls": [call('{"city": "Oslo"}')]}
    yield _chat("llama", "tools", [question], tools=[WEATHER])
    yield _chat("llama", "tools-system", [message("system", "Use tools."), question], tools=[WEATHER, SEARCH])
    yield _chat("llama", "tools-required", [question], tools=[WEATHER, SEARCH], tool_choice="required")
    yield _chat("llama", "tools-named", [question], tools=[WEATHER, SEARCH], tool_choice=named("get_weather"))
    yield _chat("llama", "history", [question, called, result("snow")], tools=[WEATHER])
    yield _chat("llama", "history-parts", [question, called, result([text("snow"), text("wind")])], tools=[WEATHER])
    yield _chat("llama", "date", [user("Today?")], chat_template_kwargs={"date_string": "01 Jan 2025"})
    yield _chat(
        "llama",
        "continued",
        [user("Go"), message("assistant", "Going")],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    yield _chat(
        "llama",
        "continued-with-space",
        [user("Go"), message("assistant", "Going ")],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    yield _chat("llama", "developer", [message("developer", "Be kind."), user("Hello")])
    yield _chat("llama", "two-begin-tokens", [user("Begin")], add_special_tokens=True, return_token_offsets=True)


def _others() -> Iterator[Case]:
    """What is particular to the other models."""
    yield _chat(
        "gemma",
        "continued",
        [user("Go"), message("assistant", "Going")],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    yield _chat(
        "gemma",
        "spaces",
        [user("  two  spaces   three    four "), message("assistant", "\n\n\nnewlines\n\n"), user("\ttab\t\ttabs")],
    )
    yield _chat("gemma", "bytes", [user("\x01\x7f ࠀ 𐍈 ༀ and � too")])
    yield _chat("gemma", "tools-none", [user("Call")], tools=[WEATHER], tool_choice="none")
    yield _chat("gemma", "developer", [message("developer", "Be kind."), user("Hello")])
    yield _chat("gemma", "own-budget", [user("How long?")], max_tokens=900)
    yield _chat("smollm2", "developer", [message("developer", "Be terse."), user("Hello")])
    yield _chat("smollm2", "tools", [user("Weather?")], tools=[WEATHER])
    yield _chat("smollm2", "tools-required", [user("Weather!")], tools=[STRICT], tool_choice="required")
    yield _chat(
        "smollm2",
        "continued",
        [user("Go"), message("assistant", "Going")],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    yield _chat("deepseek_v3", "two-systems", [message("system", "one"), message("system", "two"), user("Hello")])
    yield _chat("deepseek_v3", "developer", [message("developer", "Be terse."), user("Hello")])
    yield _chat("deepseek_v3", "tools", [user("Weather?")], tools=[WEATHER])
    yield _chat(
        "deepseek_v3",
        "continued",
        [user("Go"), message("assistant", "Going")],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    yield _chat("deepseek_v3", "effort", [user("Think")], reasoning_effort="low")
    yield _chat("deepseek_v3", "spaces", [user("  two  spaces   three ▁ mark")])


def _forced_formats() -> Iterator[Case]:
    """Calls that are held to a format in the manner of XML, and to one with marks around all calls."""
    for server in ("qwen3-coder", "deepseek_v3"):
        yield _chat(server, "tools-required", [user("Forecast!")], tools=[WEATHER, BARE], tool_choice="required")
        yield _chat(
            server, "tools-required-single", [user("Once!")], tools=[STRICT], tool_choice="required", parallel_tool_calls=False
        )
        yield _chat(server, "tools-named", [user("Look it up!")], tools=[WEATHER, SEARCH], tool_choice=named("search"))
        yield _chat(server, "tools-auto-strict", [user("Add 2 and 3")], tools=[STRICT, SEARCH], tool_choice="auto")
        yield _chat(server, "tools-auto-single", [user("Maybe?")], tools=[SEARCH], parallel_tool_calls=False)


def _completions() -> Iterator[Case]:
    texts, sampling = cycle(TEXTS), cycle(COMPLETION_SAMPLING + SAMPLING)
    for server in (*TEXT_SERVERS, "qwen3-plain"):
        forms: dict[str, Any] = {
            "text": next(texts),
            "texts": [next(texts), next(texts)],
            "ids": [5, 6, 7, 8, TEXT_SERVERS.index(server) if server in TEXT_SERVERS else 9],
            "ids-of-two": [[1, 2, 3], [4, 5]],
            "text-again": next(texts) + "!",
        }
        for name, prompt in forms.items():
            yield Case(server, f"completion-{name}", COMPLETION, {"prompt": prompt, **next(sampling)})
        yield Case(server, "completion-plain-tokens", COMPLETION, {"prompt": f"Once {server}", "add_special_tokens": False})
        yield Case(
            server,
            "completion-offsets",
            COMPLETION,
            {"prompt": next(texts), "return_token_offsets": True, "truncate_prompt_tokens": 6},
        )
        yield Case(
            server,
            "completion-truncated",
            COMPLETION,
            {"prompt": repeat("tail ", 30), "truncate_prompt_tokens": 4, "truncation_side": "right"},
        )


def _responses() -> Iterator[Case]:
    flat = {
        "type": "function",
        "name": "search",
        "description": "d",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    }
    bodies: dict[str, Body] = {
        "text": {"input": "Hello there"},
        "instructions": {"input": "Hello", "instructions": "Be brief."},
        "messages": {"input": [user("One"), message("assistant", "Two"), user("Three")]},
        "parts": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "One"}, {"type": "input_text", "text": "Two"}]}]},
        "tools": {"input": "Search", "tools": [flat]},
        "sampling": {"input": "Hot", "temperature": 0.3, "top_p": 0.4, "top_k": 5, "max_output_tokens": 77, "seed": 3},
        "stream": {"input": "Stream", "stream": True},
        "calls": {"input": [
            {"role": "user", "content": "Search it"},
            {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"q": "it"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "found"},
        ], "tools": [flat]},
        "reasoning": {"input": [
            {"role": "user", "content": "Hm?"},
            {"type": "reasoning", "id": "r1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "And?"},
        ]},
        "effort": {"input": "Think", "reasoning": {"effort": "low"}},
        "format": {"input": "JSON", "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}},
        "truncation": {"input": repeat("much ", 3000), "truncation": "auto"},
    }  # fmt: skip
    for name, body in bodies.items():
        yield Case("qwen3", f"responses-{name}", RESPONSES, body)


def _messages() -> Iterator[Case]:
    tool = {"name": "search", "description": "d", "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}}}
    bodies: dict[str, Body] = {
        "text": {"messages": [user("Hello there")], "max_tokens": 20},
        "system": {"messages": [user("Hello")], "system": "Be brief.", "max_tokens": 21},
        "system-parts": {"messages": [user("Hello")], "system": [text("Be"), text("brief.")], "max_tokens": 22},
        "turns": {"messages": [user(text("One")), message("assistant", text("Two")), user(text("Three"))], "max_tokens": 23},
        "tools": {"messages": [user("Search")], "tools": [tool], "max_tokens": 24},
        "tools-any": {"messages": [user("Search")], "tools": [tool], "tool_choice": {"type": "any"}, "max_tokens": 25},
        "tools-named": {"messages": [user("Search")], "tools": [tool], "tool_choice": {"type": "tool", "name": "search"}, "max_tokens": 26},
        "calls": {"messages": [
            user("Search it"),
            message("assistant", text("I will"), {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "it"}}),
            user({"type": "tool_result", "tool_use_id": "t1", "content": "found"}),
        ], "tools": [tool], "max_tokens": 27},
        "sampling": {"messages": [user("Hot")], "temperature": 0.3, "top_p": 0.4, "top_k": 5, "stop_sequences": ["END"], "max_tokens": 28},
        "prefill": {"messages": [user("Go"), message("assistant", "Going")], "max_tokens": 29},
        "stream": {"messages": [user("Stream")], "stream": True, "max_tokens": 30},
        "thinking": {"messages": [user("Think")], "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 31},
    }  # fmt: skip
    for name, body in bodies.items():
        yield Case("qwen3", f"messages-{name}", MESSAGES, {"model": "qwen3", **body})
