"""The encode stage: the vision tower, its cache, and the checks in front of it."""

from triton_renderer.encode.encoder import Encoded, Encoder, TextOnlyEncoder

__all__ = ["Encoded", "Encoder", "TextOnlyEncoder"]
