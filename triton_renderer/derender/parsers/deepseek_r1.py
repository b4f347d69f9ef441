"""Reasoning of DeepSeek R1 and its kin: `<think>…</think>` in front of the answer."""

from typing import ClassVar

from triton_renderer.derender.parsers.thinking import ThinkingParser


class DeepSeekR1Reasoning(ThinkingParser):
    """Reasoning between `<think>` and `</think>`; newer templates write the first one into the prompt."""

    openings: ClassVar[tuple[str, ...]] = ("<think>",)
    closings: ClassVar[tuple[str, ...]] = ("</think>",)
    markers: ClassVar[tuple[str, ...]] = openings + closings
