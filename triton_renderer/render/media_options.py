"""What a request may change about how its pictures are read and processed, where it is trusted with that."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.openai import ChatCompletionRequest
from triton_renderer.render.pictures import WHITE

_SCOPES = ("images_kwargs", "videos_kwargs", "audio_kwargs", "text_kwargs", "common_kwargs")
_BACKGROUND = "rgba_background_color"


@dataclass(frozen=True)
class MediaOptions:
    """`background`: the colour behind what is transparent. `processor`: arguments for a call of the image processor."""

    background: tuple[int, int, int] = WHITE
    processor: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def identity(self) -> bytes:
        """Tells these options from others; empty for the defaults."""
        if self.background == WHITE and not self.processor:
            return b""
        return json.dumps([self.background, self.processor], sort_keys=True).encode()


def media_options(request: ChatCompletionRequest) -> MediaOptions:
    """The options of `media_io_kwargs.image` and `mm_processor_kwargs`. Raises InvalidRequest for what cannot be meant."""
    given = request.mm_processor_kwargs or {}
    scoped = given.get("images_kwargs", {})
    if not isinstance(scoped, dict):
        where = "mm_processor_kwargs.images_kwargs"
        raise InvalidRequest(f"{where}: an object is expected", where)
    processor = {name: value for name, value in given.items() if name not in _SCOPES} | scoped
    return MediaOptions(_background((request.media_io_kwargs or {}).get("image", {})), processor)


def _background(image: Mapping[str, Any]) -> tuple[int, int, int]:
    if (mode := image.get("image_mode", "RGB")) != "RGB":
        where = "media_io_kwargs.image.image_mode"
        raise InvalidRequest(f"{where}: {mode!r} is not supported, only RGB", where)
    match image.get(_BACKGROUND, WHITE):
        case [int(red), int(green), int(blue)] if all(0 <= level <= 255 for level in (red, green, blue)):
            return red, green, blue
    where = f"media_io_kwargs.image.{_BACKGROUND}"
    raise InvalidRequest(f"{where}: three integers from 0 to 255 are expected", where)
