"""Outputs in each tool call format: written as the model's template asks for it, and in pieces that make all kinds of nonsense."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.unit.derender.parsing import call

Arguments = dict[str, Any]
Calls = list[tuple[str, Arguments]]

SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
DEEPSEEK = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")


def _deepseek_v3(calls: Calls) -> str:
    begin, separator, end = DEEPSEEK
    written = (f"{begin}function{separator}{name}\n```json\n{dumped(arguments)}\n```{end}" for name, arguments in calls)
    return SECTION[0] + "\n".join(written) + SECTION[1]


def _hermes(calls: Calls) -> str:
    return "\n".join(call(name, dumped(arguments)) for name, arguments in calls)


def _llama3_json(calls: Calls) -> str:
    return "; ".join(f'{{"name": "{name}", "parameters": {dumped(arguments)}}}' for name, arguments in calls)


def _mistral(calls: Calls) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{dumped(arguments)}" for name, arguments in calls)


def _openai(calls: Calls) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumped(arguments)}<|call|>"
        for name, arguments in calls
    )


def _pythonic(calls: Calls) -> str:
    written = (f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" for name, arguments in calls)
    return f"[{', '.join(written)}]"


def _llama4_pythonic(calls: Calls) -> str:
    return f"<|python_start|>{_pythonic(calls)}<|python_end|>"


def _qwen3_coder(calls: Calls) -> str:
    return "\n".join(f"<tool_call>\n{_qwen3_coder_function(name, arguments)}\n</tool_call>" for name, arguments in calls)


def _qwen3_coder_function(name: str, arguments: Arguments) -> str:
    values = {key: value if isinstance(value, str) else dumped(value) for key, value in arguments.items()}
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<function={name}>\n{parameters}</function>"


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


WRITTEN: dict[str, Callable[[Calls], str]] = {
    "deepseek_v3": _deepseek_v3,
    "hermes": _hermes,
    "llama3_json": _llama3_json,
    "llama4_pythonic": _llama4_pythonic,
    "mistral": _mistral,
    "openai": _openai,
    "pythonic": _pythonic,
    "qwen3_coder": _qwen3_coder,
}
CONVERTED = ("pythonic", "llama4_pythonic", "qwen3_coder")
"""Formats whose arguments are not JSON."""

_JSON_PIECES = [
    '{"name": "f", "arguments": {}}',
    '{"a": "}"}',
    '{"a": [1, {"b": "\\""}]}',
    "{",
    "}",
    '"',
    "\\",
    ", ",
    "[",
    "]",
    "1",
]
_CALL_PIECES = ['{"name": "f", "parameters": ', '{"parameters": {"a": 1}, "name": "g"}', '{"type": "function", ', '"name": "h"']
_PYTHON_PIECES = [
    "[f(",
    "a=",
    "1",
    "'x'",
    '"',
    "'",
    "'''",
    "\\",
    ")",
    "]",
    "[",
    ", ",
    "g()",
    "{'k': (1, None)}",
    "f",
    "(",
    "=",
    ".",
]
_PIECES: dict[str, list[str]] = {
    "deepseek_v3": [*SECTION, *DEEPSEEK, "function", "f\n", "```json\n", "\n```", "```", "<｜tool", *_JSON_PIECES],
    "hermes": ["<tool_call>", "</tool_call>", "<tool", "</", *_CALL_PIECES, *_JSON_PIECES],
    "llama3_json": ["<|python_tag|>", "<|py", "; ", *_CALL_PIECES, *_JSON_PIECES],
    "llama4_pythonic": ["<|python_start|>", "<|python_end|>", "<|python", *_PYTHON_PIECES],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL", "f", "abc123", *_CALL_PIECES, *_JSON_PIECES],
    "openai": [
        *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>", "<|", "assistant"),
        *(
            " to=functions.f",
            "to=",
            "analysis",
            "final",
            "commentary",
            " json",
            "<|channel|>analysis<|message|>",
            *_JSON_PIECES,
        ),
    ],
    "pythonic": _PYTHON_PIECES,
    "qwen3_coder": [
        *("<tool_call>", "</tool_call>", "<function=f>", "<function=", "</function>", "<parameter=a>", "<parameter=", ">", "a"),
        *("</parameter>", "<parameter=n>", "\n</parameter>", "1", "null", "<", "</", *_JSON_PIECES),
    ],
}
ONE_CALL: Calls = [("f", {"a": "{x} y", "n": 1})]
TWO_CALLS: Calls = [*ONE_CALL, ("g.h", {})]


def outputs(name: str) -> st.SearchStrategy[str]:
    """Texts that look like outputs in this format, mostly broken ones."""
    whole = [WRITTEN[name](ONE_CALL), WRITTEN[name](TWO_CALLS)]
    pieces = st.sampled_from([*_PIECES[name], *_PIECES[name], *whole, "\n", " ", "text", "é🙂", "\x00"])
    return st.lists(st.one_of(pieces, pieces, pieces, st.text(max_size=3)), max_size=14).map("".join)
