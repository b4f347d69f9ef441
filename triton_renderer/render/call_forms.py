"""How each format writes tool calls, said as a structural tag; what its parser in `derender/parsers/` reads.

`hermes`, `llama3_json`, `qwen3_coder` and `deepseek_v3` are said as the reference says them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from triton_renderer.protocol.openai import Tool
from triton_renderer.render.pythonic_form import arguments_in_python, is_callable
from triton_renderer.render.tags import (
    Tag,
    any_number,
    any_text,
    between,
    either,
    json_schema,
    listed,
    sequence,
    text,
    triggered,
)

THINKING = ("<think>", "</think>")


@dataclass(frozen=True)
class Wanted:
    """The calls that an output may have."""

    tools: Sequence[Tool]
    """Those that may be called; where one is named, that one."""
    choice: Literal["auto", "required", "named"]
    single: bool
    """One call and no more."""

    @property
    def is_single(self) -> bool:
        """A named tool is called once."""
        return self.single or self.choice == "named"


def is_strict(tool: Tool) -> bool:
    """The client wants the arguments to be held to the tool's schema."""
    return (tool.function.model_extra or {}).get("strict") is True


def _arguments(tool: Tool, style: str = "json") -> Tag:
    schema = tool.function.parameters if is_strict(tool) and tool.function.parameters is not None else True
    return json_schema(schema, style)


def _hermes(wanted: Wanted) -> Tag:
    """Between marks, each on a line of its own or not."""
    tags = [
        between(f'<tool_call>{gap}{{"name": "{tool.function.name}", "arguments": ', _arguments(tool), f"}}{gap}</tool_call>")
        for tool in wanted.tools
        for gap in ("\n", "")
    ]
    if wanted.choice == "auto":
        return triggered(["<tool_call>"], tags, single=wanted.single)
    return listed(tags, "", single=wanted.is_single)


def _llama3_json(wanted: Wanted) -> Tag:
    """Bare objects."""
    tags = [between(f'{{"name": "{tool.function.name}", "parameters": ', _arguments(tool), "}") for tool in wanted.tools]
    if wanted.choice == "named":
        return tags[0]
    required = wanted.choice == "required"
    return triggered(['{"name": '], tags, at_least_one=required, single=wanted.single, excludes=THINKING)


def _qwen3_coder(wanted: Wanted) -> Tag:
    """In the manner of XML: a text as it is, any other value as JSON."""
    tags = [
        between(
            f"<tool_call>\n<function={tool.function.name}>\n",
            _arguments(tool, "qwen_xml"),
            "\n</function>\n</tool_call>",
        )
        for tool in wanted.tools
    ]
    if wanted.choice == "named":
        return tags[0]
    required = wanted.choice == "required"
    return triggered(["<tool_call>\n<function="], tags, at_least_one=required, single=wanted.single, excludes=THINKING)


def _deepseek_v3(wanted: Wanted) -> Tag:
    """Between marks, and marks around all of them."""
    begin, end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    calls = [
        (f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{tool.function.name}\n```json\n", _arguments(tool))
        for tool in wanted.tools
    ]
    call_end = "\n```<｜tool▁call▁end｜>"
    if wanted.choice == "named":
        name, arguments = calls[0]
        return between(begin + name, arguments, call_end + end)
    tags = [between(name, arguments, call_end) for name, arguments in calls]
    section = between(begin, listed(tags, "\n", single=wanted.single), end)
    if wanted.choice == "required":
        return section
    return triggered([begin], [section], single=wanted.single, excludes=THINKING)


def _mistral(wanted: Wanted) -> Tag:
    """A list of objects, as the older tokenizers have it, or names with the arguments behind them, as the newer ones."""
    opening = "[TOOL_CALLS]"
    named = [between(f"{opening}{tool.function.name}[ARGS]", _arguments(tool), "") for tool in wanted.tools]
    objects = [between(f'{{"name": "{tool.function.name}", "arguments": ', _arguments(tool), "}") for tool in wanted.tools]
    lists = [between(f"{opening}{gap}[", listed(objects, ", ", single=wanted.is_single), "]") for gap in (" ", "")]
    if wanted.choice == "auto":
        return triggered([opening], [*named, *lists], single=wanted.single)
    return either(listed(named, "", single=wanted.is_single), *lists)


def _openai(wanted: Wanted) -> Tag:
    """Messages of Harmony: any number for the reasoning and of what is said before a call, then one call, or the answer.

    A call has no end of its own here: `<|call|>` is a token that ends the output.
    """
    start = text("<|start|>assistant")
    spoken = either(
        *(
            between(f"<|channel|>{channel}<|message|>", any_text(_MESSAGE_ENDS), "<|end|>")
            for channel in ("analysis", "commentary")
        )
    )
    calls = [
        sequence(text(begin), _arguments(tool))
        for tool in wanted.tools
        for begin in (
            f"<|channel|>commentary to=functions.{tool.function.name} <|constrain|>json<|message|>",
            f" to=functions.{tool.function.name}<|channel|>commentary <|constrain|>json<|message|>",
        )
    ]
    answer = [sequence(text("<|channel|>final<|message|>"), any_text(_MESSAGE_ENDS))] if wanted.choice == "auto" else []
    return sequence(any_number(sequence(spoken, start)), either(*calls, *answer))


_MESSAGE_ENDS = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>")


def _pythonic(wanted: Wanted) -> Tag | None:
    """A list of calls. None where the choice is the model's, whose answer may begin with a bracket as well, and where no tool
    has a name that can be called in Python."""
    calls = [
        between(f"{tool.function.name}(", arguments_in_python(tool.function.parameters if is_strict(tool) else None), ")")
        for tool in wanted.tools
        if is_callable(tool.function.name)
    ]
    if wanted.choice == "auto" or not calls:
        return None
    return sequence(text("["), listed(calls, ", ", single=wanted.is_single), text("]"))


FORMS: dict[str, Callable[[Wanted], Tag | None]] = {
    "deepseek_v3": _deepseek_v3,
    "hermes": _hermes,
    "llama3_json": _llama3_json,
    "llama4_pythonic": _pythonic,
    "mistral": _mistral,
    "openai": _openai,
    "pythonic": _pythonic,
    "qwen3_coder": _qwen3_coder,
}
"""By the names of `text/formats.py`."""
