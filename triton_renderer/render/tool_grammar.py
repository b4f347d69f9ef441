"""What holds a model to its format of tool calls: a structural tag in xgrammar's form, for the server that generates.

Where a call is forced (`tool_choice` required or named) the output is nothing but calls; where a tool is `strict`, or there
may be a single call only, and the choice is the model's, each call that it begins has to be one. Arguments are held to the
tool's schema if it is strict, and are any otherwise. Where a format cannot be held to (`call_forms.py` says when) the output
is free, and whether calls were made shows when it is read.
"""

import json
from typing import Any

from triton_renderer.protocol.openai import ChatCompletionRequest, NamedToolChoice
from triton_renderer.render.call_forms import FORMS, Wanted, is_strict


def tool_grammar(request: ChatCompletionRequest, tool_format: str | None) -> dict[str, Any] | None:
    """`structured_outputs` for the calls of `request` in `tool_format`; None where the output is free."""
    form = FORMS.get(tool_format or "")
    choice = request.effective_tool_choice
    if form is None or choice == "none" or not request.tools:
        return None
    tools, single = request.tools, request.parallel_tool_calls is False
    if isinstance(choice, NamedToolChoice):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
    elif choice == "auto" and not single and not any(map(is_strict, tools)):
        return None
    tag = form(Wanted(tools, "named" if isinstance(choice, NamedToolChoice) else choice, single))
    if tag is None:
        return None
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": tag})}


def keeps_special_tokens(request: ChatCompletionRequest, tool_format: str | None, reasoning_format: str | None) -> bool:
    """The output goes to a parser that looks for special tokens, so that its text must keep them."""
    calls = bool(request.tools) and request.effective_tool_choice != "none"
    return reasoning_format in _WITH_SPECIAL_TOKENS or (tool_format in _WITH_SPECIAL_TOKENS and calls)


_WITH_SPECIAL_TOKENS = frozenset({"hermes", "qwen3", "qwen3_coder", "granite", "mistral", "openai", "openai_gptoss"})
"""Formats whose marks are special tokens of some models."""
