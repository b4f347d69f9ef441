"""Parsers of reasoning and tool calls. `triton_renderer.text.formats` has their names; docs/parsers.md says how to add one."""

from importlib import import_module
from typing import Any

from triton_renderer.derender.parsers.base import ReasoningParser, ToolParser
from triton_renderer.text.formats import REASONING_FORMATS, TOOL_FORMATS


def reasoning_parser(name: str) -> type[ReasoningParser]:
    """The reasoning parser that is registered under `name`."""
    parser: type[ReasoningParser] = _load(REASONING_FORMATS[name].parser)
    return parser


def tool_parser(name: str) -> type[ToolParser]:
    """The tool call parser that is registered under `name`."""
    parser: type[ToolParser] = _load(TOOL_FORMATS[name])
    return parser


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), name)
