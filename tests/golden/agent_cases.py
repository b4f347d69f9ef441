"""Render requests as chat clients and agents send them: long tool loops, kept reasoning, continued turns, and prompts in batches."""

from collections.abc import Iterator
from typing import Any

from tests.golden.cases import CHAT, COMPLETION, Body, Case, image, message, repeat, text, user
from tests.golden.text_cases import BARE, SCHEMA, SEARCH, STRICT, WEATHER, call, named, result

NO_PARAMETERS: Body = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": None}}
NESTED: Body = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Books a journey.",
        "parameters": {
            "type": "object",
            "$defs": {"stop": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}}}},
            "properties": {
                "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}},
                "class": {"anyOf": [{"type": "string", "enum": ["first", "second"]}, {"type": "null"}], "default": None},
            },
            "required": ["stops"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip

CONTINUED: Body = {"add_generation_prompt": False, "continue_final_message": True}
QUESTION = user("How warm is it in Paris and in Rome?")
CALLED: Body = {"role": "assistant", "content": None, "tool_calls": [call('{"city": "Paris"}')]}


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _tool_loops()
    yield from _tool_definitions()
    yield from _turns()
    yield from _continued()
    yield from _sampling()
    yield from _truncated()
    yield from _templates_of_others()
    yield from _completions()
    yield from _pictures()
    yield from _trusting()


def _chat(server: str, name: str, messages: list[Body], **fields: Any) -> Case:
    return Case(server, name, CHAT, {"messages": messages, **fields})


def _tool_loops() -> Iterator[Case]:
    """Calls and results over several turns."""
    both: Body = {
        "role": "assistant",
        "tool_calls": [call('{"city": "Paris"}', call_id="a"), call('{"city": "Rome"}', call_id="b")],
    }
    again: Body = {"role": "assistant", "content": "", "tool_calls": [call('{"query": "rain"}', "search", "c")]}
    loop = [QUESTION, both, result("18", "a"), result("24", "b"), again, result("none", "c")]
    yield _chat("qwen3", "loop-of-calls", loop, tools=[WEATHER, SEARCH])
    yield _chat("qwen3", "loop-answered", [*loop, message("assistant", "18 and 24."), user("Thanks")], tools=[WEATHER, SEARCH])
    yield _chat("qwen3", "loop-results-swapped", [QUESTION, both, result("24", "b"), result("18", "a")], tools=[WEATHER])
    yield _chat(
        "qwen3",
        "loop-with-reasoning",
        [
            QUESTION,
            both | {"reasoning_content": "Two cities, two calls."}, result("18", "a"), result("24", "b"),
            again | {"reasoning_content": "And the rain?"}, result("none", "c"),
        ],
        tools=[WEATHER, SEARCH],
    )  # fmt: skip
    yield _chat(
        "qwen3",
        "loop-thinking-off",
        [QUESTION, CALLED, result("18")],
        tools=[WEATHER],
        chat_template_kwargs={"enable_thinking": False},
    )
    yield _chat("qwen3", "result-json", [QUESTION, CALLED, result('{"temperature": 18, "unit": "°C"}')], tools=[WEATHER])
    yield _chat("qwen3", "result-empty", [QUESTION, CALLED, result("")], tools=[WEATHER])
    yield _chat("qwen3", "result-without-id", [QUESTION, CALLED, {"role": "tool", "content": "18"}], tools=[WEATHER])
    yield _chat(
        "qwen3", "result-without-content", [QUESTION, CALLED, {"role": "tool", "tool_call_id": "call_1"}], tools=[WEATHER]
    )
    yield _chat("qwen3", "result-no-parts", [QUESTION, CALLED, result([])], tools=[WEATHER])
    yield _chat("qwen3", "result-long", [QUESTION, CALLED, result(repeat("row;", 300))], tools=[WEATHER])
    yield _chat("qwen3", "result-as-markup", [QUESTION, CALLED, result("<tool_response>18</tool_response>")], tools=[WEATHER])
    yield _chat(
        "qwen3", "result-old-function-role", [QUESTION, CALLED, {"role": "function", "name": "get_weather", "content": "18"}]
    )
    yield _chat(
        "qwen3",
        "call-as-clients-stream-it",
        [
            QUESTION,
            {**CALLED, "tool_calls": [{**call('{"city": "Bonn"}'), "index": 0}], "refusal": None, "annotations": []},
            result("7"),
        ],
        tools=[WEATHER],
    )
    yield _chat(
        "qwen3", "call-spaced-arguments", [QUESTION, {**CALLED, "tool_calls": [call('{ "city" :\n"Bonn" }')]}, result("7")]
    )
    yield _chat(
        "qwen3",
        "call-number-arguments",
        [
            QUESTION,
            {**CALLED, "tool_calls": [call('{"a": 1.0, "b": 1e3, "c": -0, "d": 12345678901234567890}', "add")]},
            result("7"),
        ],
    )
    yield _chat(
        "qwen3", "call-unicode-arguments", [QUESTION, {**CALLED, "tool_calls": [call('{"city": "Zürich 🏔"}')]}, result("3")]
    )
    yield _chat("qwen3", "call-without-id", [QUESTION, {**CALLED, "tool_calls": [call("{}") | {"id": ""}]}, result("3", "")])
    yield _chat("qwen3", "calls-null", [QUESTION, message("assistant", "None needed", tool_calls=None), user("Sure?")])
    yield _chat("qwen3", "call-last", [QUESTION, CALLED], tools=[WEATHER], add_generation_prompt=False)
    yield _chat("llama", "loop-of-calls", [QUESTION, CALLED, result("18"), CALLED | {"tool_calls": [call('{"city": "Rome"}')]}, result("24")], tools=[WEATHER])  # fmt: skip
    yield _chat(
        "llama",
        "call-without-arguments",
        [QUESTION, {**CALLED, "tool_calls": [call("{}", "ping")]}, result("pong")],
        tools=[BARE],
    )
    yield _chat(
        "deepseek_v3",
        "loop-of-calls",
        [QUESTION, both | {"content": None}, result("18", "a"), result("24", "b")],
        tools=[WEATHER],
    )
    yield _chat(
        "deepseek_v3", "call-with-text", [QUESTION, both | {"content": "Looking"}, result("18", "a"), result("24", "b")]
    )
    yield _chat(
        "deepseek_v3", "answer-after-result", [QUESTION, CALLED, result("18"), message("assistant", "18."), user("And Rome?")]
    )


def _tool_definitions() -> Iterator[Case]:
    """Tools and what may be done with them."""
    yield _chat("qwen3", "tool-nested-schema", [user("Book it")], tools=[NESTED])
    yield _chat("qwen3", "tool-null-parameters", [user("What time is it?")], tools=[NO_PARAMETERS])
    yield _chat("qwen3", "tool-without-type", [user("Ping")], tools=[{"function": BARE["function"]}])
    yield _chat("qwen3", "tools-required-strict", [user("Add")], tools=[STRICT, WEATHER], tool_choice="required")
    yield _chat(
        "qwen3", "tools-named-single", [user("Ping!")], tools=[BARE], tool_choice=named("ping"), parallel_tool_calls=False
    )
    yield _chat(
        "qwen3", "tools-auto-strict", [user("Add 1 and 2")], tools=[STRICT], tool_choice="auto", parallel_tool_calls=False
    )
    yield _chat(
        "qwen3", "tools-none-strict", [user("Do not add")], tools=[STRICT], tool_choice="none", parallel_tool_calls=True
    )
    yield _chat("qwen3", "tool-choice-none-alone", [user("Nothing")], tool_choice="none")
    yield _chat("qwen3", "tools-null", [user("No tools")], tools=None, tool_choice=None, parallel_tool_calls=None)
    yield _chat("qwen3", "tools-and-documents", [user("Look it up")], tools=[SEARCH], documents=[{"title": "A", "text": "b"}])
    yield _chat("llama", "tools-none", [user("Weather?")], tools=[WEATHER], tool_choice="none")
    yield _chat(
        "llama", "tools-required-strict", [user("Add")], tools=[STRICT], tool_choice="required", parallel_tool_calls=False
    )
    yield _chat("llama", "tools-auto-strict", [user("Add it")], tools=[STRICT, BARE])


def _turns() -> Iterator[Case]:
    """Who says what."""
    yield _chat(
        "qwen3",
        "reasoning-kept-over-turns",
        [
            user("1+1?"), message("assistant", "2", reasoning_content="one, one"),
            user("2+2?"), message("assistant", "4", reasoning_content="two, two"), user("3+3?"),
        ],
    )  # fmt: skip
    yield _chat(
        "qwen3", "reasoning-both-fields", [user("1+2?"), message("assistant", "3", reasoning="a", reasoning_content="b")]
    )
    yield _chat(
        "qwen3",
        "reasoning-null",
        [user("1+3?"), message("assistant", "4", reasoning=None, reasoning_content=None), user("So?")],
    )
    yield _chat("qwen3", "reasoning-only", [user("1+4?"), {"role": "assistant", "content": None, "reasoning_content": "five"}])
    yield _chat("qwen3", "system-last", [user("Hi"), message("system", "Answer in French.")])
    yield _chat("qwen3", "two-systems", [message("system", "One."), message("system", "Two."), user("Hi")])
    yield _chat("qwen3", "developer-in-parts", [message("developer", text("Be"), text("kind.")), user("Hi")])
    yield _chat("qwen3", "developer-with-tools", [message("developer", "Use tools."), QUESTION], tools=[WEATHER])
    yield _chat("qwen3", "two-users", [user("First"), user("Second")])
    yield _chat("qwen3", "assistant-first", [message("assistant", "Welcome!"), user("Hi")])
    yield _chat(
        "qwen3", "assistant-refused", [user("x"), {"role": "assistant", "content": None, "refusal": "I cannot."}, user("Why?")]
    )
    yield _chat("qwen3", "assistant-sound", [user("x"), message("assistant", "y", audio={"id": "audio_1"}), user("z")])
    yield _chat("qwen3", "no-parts", [user("before"), {"role": "assistant", "content": []}, {"role": "user", "content": []}])
    yield _chat("qwen3", "empty-part", [user(text(""), text("after"))])
    yield _chat("qwen3", "many-turns", [message(("user", "assistant")[n % 2], f"Turn {n}") for n in range(41)])
    yield _chat("qwen3", "response-of-a-client", [user("x"), {"role": "assistant", "content": "y", "refusal": None, "function_call": None}, user("z")])  # fmt: skip
    yield _chat("gemma", "system-in-parts", [message("system", text("Be"), text("brief")), user(text("Hi"), text("you"))])
    yield _chat("gemma", "empty-answer", [user("a"), message("assistant", ""), user("b")], reasoning_effort="high")
    yield _chat("llama", "late-system", [user("a"), message("system", "b"), user("c")])
    yield _chat("deepseek_v3", "late-system", [user("a"), message("assistant", "b"), message("system", "c"), user("d")])


def _continued() -> Iterator[Case]:
    """A last message that goes on."""
    yield _chat(
        "qwen3", "continued-code", [user("Code!"), message("assistant", "```python\ndef f(")], **CONTINUED, stop=["```"]
    )
    yield _chat("qwen3", "continued-reasoning", [user("Sum?"), message("assistant", "<think>\nLet me")], **CONTINUED)
    yield _chat(
        "qwen3", "continued-reasoning-field", [user("Sum?"), message("assistant", "It is", reasoning_content="hm")], **CONTINUED
    )
    yield _chat("qwen3", "continued-with-tools", [QUESTION, message("assistant", "Let me look")], tools=[WEATHER], **CONTINUED)
    yield _chat("qwen3", "continued-echo-user", [user("I say"), user("and say")], echo=True, **CONTINUED)
    yield _chat(
        "qwen3", "echo-no-continuation", [user("Say"), message("assistant", "So")], echo=True, add_generation_prompt=False
    )
    yield _chat(
        "qwen3", "continued-newline", [user("Say"), message("assistant", "One\n")], **CONTINUED, return_token_offsets=True
    )


def _sampling() -> Iterator[Case]:
    """Fields that the first round did not put together."""
    fields: dict[str, Body] = {
        "defaults-overridden": {"temperature": 1.0, "top_p": 1.0, "top_k": 20, "repetition_penalty": 1.0},
        "defaults-null": {"temperature": None, "top_p": None, "top_k": None, "min_p": None, "seed": None, "max_tokens": None},
        "greedy-with-seed": {"temperature": 0.0, "seed": 7, "n": 1, "logprobs": True, "top_logprobs": 1},
        "many-choices": {"n": 128, "temperature": 1.2},
        "bias-fractions": {"logit_bias": {"10": 0.5, "11": -0.001, "151935": 100}},
        "bias-empty": {"logit_bias": {}},
        "bias-padded-id": {"logit_bias": {"007": 3}},
        "stop-many": {"stop": [f"s{n}" for n in range(16)]},
        "stop-unicode": {"stop": ["终", "\u00e9\n", "</s>"], "stop_token_ids": [151645, 0]},
        "stop-empty-list": {"stop": [], "stop_token_ids": []},
        "budget-of-both": {"max_tokens": 3, "max_completion_tokens": None},
        "floats-as-integers": {"temperature": 1, "top_p": 1, "presence_penalty": 2, "frequency_penalty": -2},
        "numbers-as-text": {"temperature": "0.5", "max_tokens": "12", "n": "2"},
        "flags-as-numbers": {"stream": 1, "ignore_eos": 0, "logprobs": 1},
        "seed-large": {"seed": 2**63 - 1, "priority": -(2**31)},
        "seed-zero": {"seed": 0, "min_tokens": 0, "max_tokens": 17},
        "all-logprobs": {"logprobs": True, "top_logprobs": -1},
        "all-prompt-logprobs": {"prompt_logprobs": -1},
        "logprobs-many": {"logprobs": True, "top_logprobs": 20},
        "structured-schema-text": {"structured_outputs": {"json": '{"type": "object"}'}},
        "structured-whitespace": {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "[ ]?"}},
        "structured-tag": {"response_format": {"type": "structural_tag", "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a>"]}},
        "format-and-structured": {"response_format": {"type": "json_object"}, "structured_outputs": {"disable_any_whitespace": True}},
        "format-schema-bare": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
        "format-null": {"response_format": None, "structured_outputs": None},
        "format-streamed": {"response_format": {"type": "json_schema", "json_schema": {"name": "y", "description": "d", "schema": SCHEMA, "strict": None}}, "stream": True},
        "salt-and-id": {"cache_salt": "tenant-1_A.b:c=", "request_id": "0f-Ünï code/1", "priority": 0},
        "id-empty": {"request_id": ""},
        "transfer": {"kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": [1, 2], "remote_host": "10.0.0.1"}, "ec_transfer_params": {"a": 1}},
        "usage-null": {"stream": True, "stream_options": None, "user": ""},
        "usage-off": {"stream": True, "stream_options": {"include_usage": False}},
        "words-and-ids": {"bad_words": [" a", "b "], "allowed_token_ids": [0, 151935], "detokenize": False},
        "openai-fields": {"store": False, "metadata": {}, "service_tier": "auto", "modalities": ["text"], "verbosity": "low", "prediction": None, "web_search_options": None, "function_call": "none"},
        "effort-medium": {"reasoning_effort": "medium", "include_reasoning": True},
        "effort-minimal": {"reasoning_effort": "minimal"},
        "effort-null": {"reasoning_effort": None, "chat_template_kwargs": None},
        "variables-of-other-models": {"chat_template_kwargs": {"thinking": True, "reasoning_effort": "high", "preserve_thinking": 1, "x": [1, {"y": None}]}},
        "documents-empty": {"documents": []},
    }  # fmt: skip
    for number, (name, body) in enumerate(fields.items()):
        yield _chat("qwen3", f"fields-{name}", [user(f"Question {number}")], **body)
    yield _chat(
        "gemma", "fields-defaults", [user("Model's own")], temperature=0.9, repetition_penalty=1.0, max_completion_tokens=None
    )
    yield _chat("gemma", "fields-greedy", [user("Greedy")], temperature=0, top_k=None, max_tokens=701)
    for name, budget in {"fields-thinking-budget": 256, "fields-thinking-unlimited": -1, "error-thinking-budget": -2}.items():
        yield _chat("deepseek_v3", name, [user("Think, but not for long")], thinking_token_budget=budget)
    yield _chat("deepseek_v3", "fields-thinking", [user("Think!")], chat_template_kwargs={"thinking": True}, max_tokens=64)


def _truncated() -> Iterator[Case]:
    """Prompts that are cut."""
    long = [user("begin " + "middle " * 30 + "end")]
    for side, limit in (("left", 1), ("right", 1), ("left", 33), ("right", 33)):
        yield _chat("qwen3", f"cut-{side}-to-{limit}", long, truncate_prompt_tokens=limit, truncation_side=side)
    yield _chat("qwen3", "cut-null", long, truncate_prompt_tokens=None, truncation_side="left", max_tokens=5)
    yield _chat(
        "qwen3", "cut-offsets-right", long, truncate_prompt_tokens=12, truncation_side="right", return_token_offsets=True
    )
    yield _chat("qwen3", "cut-to-context", long, truncate_prompt_tokens=2048, max_tokens=100)
    yield _chat("qwen3", "cut-and-ids", long, truncate_prompt_tokens=20, return_token_ids=True, add_special_tokens=True)
    yield _chat("llama", "cut-special-left", long, truncate_prompt_tokens=9, truncation_side="left", add_special_tokens=True)
    yield _chat("gemma", "cut-special", long, truncate_prompt_tokens=9, add_special_tokens=True)


def _templates_of_others() -> Iterator[Case]:
    """Templates that come with the request, with features that models' own use."""
    features: dict[str, tuple[str, Body]] = {
        "namespace": ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", {}),
        "generation-block": ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", {}),
        "loop-controls": ("{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}", {}),
        "macros": ("{% macro say(m) %}<{{ m.role }}>{{ m.content }}{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}", {}),
        "slices-and-filters": ("{{ messages[::-1] | map(attribute='role') | join(',') }} {{ messages[0].content | upper | trim }}", {}),
        "json-indent": ("{{ tools | tojson(indent=2) }}{{ messages[0].content }}", {"tools": [WEATHER], "tool_choice": "none"}),
        "special-tokens": ("{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ messages[0].content }}", {}),
        "message-fields": ("{% for m in messages %}{{ m | length }}{{ m.keys() | sort | join(',') }}:{{ m.content }} {% endfor %}", {}),
        "documents": ("{% for d in documents %}{{ d.title }}={{ d.text }};{% endfor %}{{ messages[0].content }}", {"documents": [{"title": "a", "text": "b"}, {"title": "c", "text": "d"}]}),
        "trim-blocks": ("{% for m in messages %}\n  {% if true %}\n    {{ m.content }}\n  {% endif %}\n{% endfor %}\n", {}),
    }  # fmt: skip
    for name, (template, body) in features.items():
        messages = [message("system", "  be  "), user(f"Feature {name}")]
        yield _chat("qwen3-plain", f"template-{name}", messages, chat_template=template, **body)


def _completions() -> Iterator[Case]:
    """Prompts as texts and ids, one and many."""
    prompts: dict[str, Body] = {
        "batch": {"prompt": ["One", "Two, three", "四"], "max_tokens": 8, "n": 2, "stop": "\n"},
        "batch-cut": {"prompt": ["short", "much longer than that one is"], "truncate_prompt_tokens": 3},
        "batch-cut-right": {"prompt": ["short", "much longer than that one is"], "truncate_prompt_tokens": 3, "truncation_side": "right"},
        "batch-offsets": {"prompt": ["naïve 🙂", "plain"], "return_token_offsets": True},
        "batch-id": {"prompt": ["a", "b"], "request_id": "mine", "cache_salt": "s", "priority": 2},
        "batch-alike": {"prompt": ["same", "same"]},
        "ids-cut": {"prompt": list(range(10, 40)), "truncate_prompt_tokens": 5},
        "ids-cut-right": {"prompt": list(range(10, 41)), "truncate_prompt_tokens": 5, "truncation_side": "right"},
        "ids-batch-cut": {"prompt": [[1], list(range(50, 60))], "truncate_prompt_tokens": 4},
        "ids-special": {"prompt": [151643, 151645, 0], "skip_special_tokens": False},
        "ids-echo": {"prompt": [100, 200], "echo": True, "logprobs": 1, "max_tokens": 1},
        "ids-offsets": {"prompt": [100, 201], "return_token_offsets": True},
        "ids-one": {"prompt": [7]},
        "echo-without-more": {"prompt": "echo me", "echo": True},
        "echo-null-budget": {"prompt": "echo me too", "echo": True, "max_tokens": None, "logprobs": 0},
        "special-in-text": {"prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "max_tokens": 50},
        "fill-in-the-middle": {"prompt": "<|fim_prefix|>def f(<|fim_suffix|>return x<|fim_middle|>", "temperature": 0},
        "format": {"prompt": "As JSON:", "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        "whitespace": {"prompt": "\n\n  \t", "max_tokens": 2},
        "cut-to-fit": {"prompt": repeat("word ", 3000), "truncate_prompt_tokens": -1, "max_tokens": 48},
        "stream": {"prompt": "Stream", "stream": True, "stream_options": {"include_usage": True}, "best_of": 1, "user": "u"},
        "logprobs-null": {"prompt": "None", "logprobs": None, "suffix": None, "logit_bias": None, "echo": None},
        "prompt-logprobs": {"prompt": "Look back", "prompt_logprobs": 2, "max_tokens": 1},
    }  # fmt: skip
    for name, body in prompts.items():
        yield Case("qwen3", f"completion-{name}", COMPLETION, body)
    yield Case("llama", "completion-batch-with-begin", COMPLETION, {"prompt": ["a", "<|begin_of_text|>b"], "max_tokens": 3})
    yield Case(
        "gemma", "completion-no-begin", COMPLETION, {"prompt": ["a", "  b"], "add_special_tokens": False, "max_tokens": None}
    )


def _pictures() -> Iterator[Case]:
    """Pictures over turns, with names and between texts."""
    vl = "qwen3-vl"
    yield _chat(
        vl,
        "interleaved-over-turns",
        [
            message("system", "Compare."), user(text("One:"), image("png-32x32"), text("Two:"), image("webp"), text("Which?")),
            message("assistant", "The second."), user(text("And this?"), image("gif-transparent")),
        ],
    )  # fmt: skip
    yield _chat(
        vl, "picture-then-text-turns", [user(image("png-64x64")), message("assistant", "A scene."), user("What colour?")]
    )
    yield _chat(vl, "same-in-two-turns", [user(image("png-96x96"), text("this")), message("assistant", "yes"), user(image("png-96x96"), text("again"))])  # fmt: skip
    yield _chat(vl, "three-formats", [user(image("tiff-palette"), image("bmp-palette"), image("png-palette-transparent"))])
    yield _chat(vl, "one-uuid-of-two", [user(image("png-32x32", uuid="named-1"), image("png-64x64"), text("one is named"))])
    yield _chat(vl, "uuid-number", [user(image("png-15x17", uuid=17), text("a number"))])
    yield _chat(vl, "uuid-null", [user(image("png-28x28", uuid=None), text("null"))])
    yield _chat(vl, "uuid-twice", [user(image("png-224x224", uuid="twice"), image("png-224x224", uuid="twice"))])
    yield _chat(vl, "picture-with-reasoning", [user(image("png-31x33")), message("assistant", "Red", reasoning_content="I see red"), user("Sure?")])  # fmt: skip
    yield _chat(
        vl, "picture-salted", [user(image("png-448x448"), text("salted"))], cache_salt="tenant", priority=1, request_id="pic-1"
    )
    yield _chat(vl, "picture-required-tool", [user(image("png-333x500"))], tools=[STRICT], tool_choice="required")
    yield _chat(vl, "picture-format", [user(image("black"), text("as JSON"))], response_format={"type": "json_object"}, seed=1)
    yield _chat(vl, "picture-truncation-behind", [user(image("png-32x32"), text("tail " * 40))], truncate_prompt_tokens=30)
    yield _chat(vl, "picture-many-tokens", [user(image("png-64x1024"), text("tall"))], max_tokens=2048)
    yield _chat(vl, "picture-in-two-results", [
        user("Show both"), {"role": "assistant", "content": "", "tool_calls": [call("{}", "ping", "a"), call("{}", "ping", "b")]},
        result([image("png-16x16")], "a"), result([text("second"), image("white")], "b"),
    ], tools=[BARE])  # fmt: skip
    yield _chat(vl, "only-text-in-parts", [user(text("no"), text("picture"))], mm_payload="none")
    yield _chat(vl, "payload-full", [user(image("jpeg-coarse"), text("full"))], mm_payload="full")
    yield _chat(vl, "text-only-offsets", [user("no picture at all")], return_token_offsets=True, return_mm_kwargs=False)
    yield Case(vl, "completion-text", COMPLETION, {"prompt": "A picture of", "max_tokens": 4, "return_token_offsets": True})
    yield Case(vl, "completion-typed-picture", COMPLETION, {"prompt": ["<|vision_start|>", "b"], "mm_payload": "none"})


def _trusting() -> Iterator[Case]:
    """Processor options and templates of the request."""
    vl = "qwen3-vl-plain"
    options: dict[str, Body] = {
        "two-pictures-one-size": {"mm_processor_kwargs": {"size": {"shortest_edge": 1024, "longest_edge": 4096}}},
        "min-pixels-only": {"mm_processor_kwargs": {"min_pixels": 65536}},
        "max-pixels-only": {"mm_processor_kwargs": {"max_pixels": 16384}},
        "options-null": {"mm_processor_kwargs": None, "media_io_kwargs": None},
        "options-of-video": {"media_io_kwargs": {"video": {"num_frames": 4}}},
    }
    for name, fields in options.items():
        yield _chat(vl, f"trusted-{name}", [user(image("png-224x224"), image("jpeg"), text(name))], **fields)
    yield _chat(vl, "trusted-named", [user(image("jpeg", uuid="sized"), text("x"))], mm_processor_kwargs={"max_pixels": 12000})
