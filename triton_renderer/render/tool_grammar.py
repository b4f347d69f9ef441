"""What holds a model to its format of tool calls: a structural tag in xgrammar's form, for the server that generates.

Where a call is forced (`tool_choice` required or named) the output is nothing but calls; where a tool is `strict`, or there
may be a single call only, and the choice is the model's, each call that it begins has to be one. Arguments are held to the tool's schema if it is strict, and
free otherwise. Formats that are not here leave the output free, and whether calls were made shows when it is read.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from triton_renderer.protocol.openai import ChatCompletionRequest, NamedToolChoice, Tool

Tag = dict[str, Any]


def tool_grammar(request: ChatCompletionRequest, tool_format: str | None) -> dict[str, Any] | None:
    """`structured_outputs` for the calls of `request` in `tool_format`; None where the output is free."""
    form = _FORMS.get(tool_format or "")
    choice = request.effective_tool_choice
    if form is None or choice == "none" or not request.tools:
        return None
    tools = request.tools
    if isinstance(choice, NamedToolChoice):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
    elif choice == "auto" and request.parallel_tool_calls is not False and not any(map(_is_strict, tools)):
        return None
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": form(tools, request)}, ensure_ascii=False)}


def can_force_calls(tool_format: str | None) -> bool:
    """A model can be held to this format."""
    return tool_format in _FORMS


def keeps_special_tokens(request: ChatCompletionRequest, tool_format: str | None, reasoning_format: str | None) -> bool:
    """The output goes to a parser that looks for special tokens, so that its text must keep them."""
    calls = bool(request.tools) and request.effective_tool_choice != "none"
    return reasoning_format in _WITH_SPECIAL_TOKENS or (tool_format in _WITH_SPECIAL_TOKENS and calls)


_WITH_SPECIAL_TOKENS = frozenset({"hermes", "qwen3", "qwen3_coder", "granite", "mistral", "openai", "openai_gptoss"})
"""Formats whose marks are special tokens of some models."""


def _hermes(tools: Sequence[Tool], request: ChatCompletionRequest) -> Tag:
    """Between marks, each on a line of its own or not."""
    single = request.parallel_tool_calls is False
    tags = [
        _tag(f'<tool_call>{gap}{{"name": "{tool.function.name}", "arguments": ', tool, f"}}{gap}</tool_call>")
        for tool in tools
        for gap in ("\n", "")
    ]
    if request.effective_tool_choice == "auto":
        return _triggered(["<tool_call>"], tags, stop_after_first=single)
    named = isinstance(request.effective_tool_choice, NamedToolChoice)
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": "",
        "at_least_one": True,
        "stop_after_first": named or single,
    }


def _llama3_json(tools: Sequence[Tool], request: ChatCompletionRequest) -> Tag:
    """Bare objects."""
    tags = [_tag(f'{{"name": "{tool.function.name}", "parameters": ', tool, "}") for tool in tools]
    choice = request.effective_tool_choice
    if isinstance(choice, NamedToolChoice):
        return tags[0]
    single = request.parallel_tool_calls is False
    return _triggered(
        ['{"name": '], tags, at_least_one=choice == "required", stop_after_first=single, excludes=["<think>", "</think>"]
    )


_FORMS: dict[str, Callable[[Sequence[Tool], ChatCompletionRequest], Tag]] = {"hermes": _hermes, "llama3_json": _llama3_json}


def _triggered(
    triggers: list[str],
    tags: list[Tag],
    *,
    at_least_one: bool = False,
    stop_after_first: bool = False,
    excludes: Sequence[str] = (),
) -> Tag:
    return {
        "type": "triggered_tags",
        "triggers": triggers,
        "tags": tags,
        "at_least_one": at_least_one,
        "stop_after_first": stop_after_first,
        "excludes": list(excludes),
    }


def _tag(begin: str, tool: Tool, end: str) -> Tag:
    schema = tool.function.parameters if _is_strict(tool) and tool.function.parameters is not None else True
    content: dict[str, Any] = {
        "type": "json_schema",
        "json_schema": schema,
        "style": "json",
        "any_order": False,
        "max_whitespace_cnt": None,
        "excludes": [],
    }
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _is_strict(tool: Tool) -> bool:
    return (tool.function.model_extra or {}).get("strict") is True
