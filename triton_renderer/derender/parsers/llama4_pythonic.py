"""Tool calls of Llama 4: a list in the manner of Python, which `<|python_start|>` and `<|python_end|>` may surround."""

from typing import ClassVar

from triton_renderer.derender.parsers.pythonic import PythonicTools

OPENING, CLOSING = "<|python_start|>", "<|python_end|>"


class Llama4PythonicTools(PythonicTools):
    """As pythonic; a list may also stand behind other text if the opening marker does. Both markers are dropped."""

    markers: ClassVar[tuple[str, ...]] = (OPENING, CLOSING)
    call_markers: ClassVar[tuple[str, ...]] = (OPENING,)
