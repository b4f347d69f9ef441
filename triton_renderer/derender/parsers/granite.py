"""Reasoning of IBM's Granite 3: «Here is my thought process:» and «Here is my response:», in plain words."""

from typing import ClassVar

from triton_renderer.derender.parsers.thinking import ThinkingParser


class GraniteReasoning(ThinkingParser):
    """Reasoning between two sentences, each in its long and its short form. No prompt opens it."""

    openings: ClassVar[tuple[str, ...]] = ("Here is my thought process:", "Here's my thought process:")
    closings: ClassVar[tuple[str, ...]] = ("Here is my response:", "Here's my response:")
    markers: ClassVar[tuple[str, ...]] = openings + closings

    @classmethod
    def closes_unopened(cls, text: str) -> bool:
        return False
