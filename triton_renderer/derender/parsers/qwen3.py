"""Reasoning of Qwen3 and its kin: `<think>…</think>` in front of the answer."""

from typing import ClassVar

from triton_renderer.derender.parsers.thinking import ThinkingParser


class Qwen3Reasoning(ThinkingParser):
    """Reasoning between `<think>` and `</think>`."""

    openings: ClassVar[tuple[str, ...]] = ("<think>",)
    closings: ClassVar[tuple[str, ...]] = ("</think>",)
    markers: ClassVar[tuple[str, ...]] = openings + closings
