"""The output formats, by the names under which TOOL_CALL_PARSER and REASONING_PARSER choose them.

This is the one place where a parser is registered: a line here, and a file of its own in `derender/parsers/`. The names are
the reference's. docs/parsers.md says how a parser is written.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReasoningFormat:
    """A way to write reasoning."""

    parser: str
    """`module:Class` within `triton_renderer.derender.parsers`."""
    marks: tuple[str, str] | None = None
    """The tokens around the reasoning, where a prompt can leave it open; the model must have them. None where it begins
    in the output or not at all."""
    tool_format: str | None = None
    """The format of tool calls that belongs to it, where each is a part of the other."""


_THINK = ("<think>", "</think>")

REASONING_FORMATS: dict[str, ReasoningFormat] = {
    "deepseek_r1": ReasoningFormat("deepseek_r1:DeepSeekR1Reasoning", _THINK),
    "granite": ReasoningFormat("granite:GraniteReasoning"),
    "openai_gptoss": ReasoningFormat("openai_gptoss:GptOssReasoning", tool_format="openai"),
    "qwen3": ReasoningFormat("qwen3:Qwen3Reasoning", _THINK),
}

TOOL_FORMATS: dict[str, str] = {
    "deepseek_v3": "deepseek_v3:DeepSeekV3Tools",
    "hermes": "hermes:HermesTools",
    "llama3_json": "llama3_json:Llama3JsonTools",
    "llama4_pythonic": "llama4_pythonic:Llama4PythonicTools",
    "mistral": "mistral:MistralTools",
    "openai": "openai:OpenAITools",
    "pythonic": "pythonic:PythonicTools",
    "qwen3_coder": "qwen3_coder:Qwen3CoderTools",
}
"""`module:Class` within `triton_renderer.derender.parsers`, of each way to write tool calls."""


def go_together(reasoning: str, tools: str) -> bool:
    """False where one of the two is a part of a whole that the other is no part of."""
    bound = {format_.tool_format for format_ in REASONING_FORMATS.values()}
    return REASONING_FORMATS[reasoning].tool_format == (tools if tools in bound else None)
