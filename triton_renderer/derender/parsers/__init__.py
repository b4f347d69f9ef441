"""Parsers of reasoning and tool calls, by the names under which they are configured."""

from triton_renderer.derender.parsers.base import ReasoningParser, ToolParser
from triton_renderer.derender.parsers.hermes import HermesTools
from triton_renderer.derender.parsers.qwen3 import Qwen3Reasoning

REASONING_PARSERS: dict[str, type[ReasoningParser]] = {"qwen3": Qwen3Reasoning}
TOOL_PARSERS: dict[str, type[ToolParser]] = {"hermes": HermesTools}
