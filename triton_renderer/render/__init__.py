"""Render: from an OpenAI request to token ids, placeholders, serialized pictures and sampling parameters."""

from triton_renderer.render.renderer import Rendered, Renderer

__all__ = ["Rendered", "Renderer"]
