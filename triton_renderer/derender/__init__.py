"""From generated tokens to the client's answer: text, reasoning, tool calls, logprobs, usage."""

from triton_renderer.derender.derenderer import Derenderer

__all__ = ["Derenderer"]
