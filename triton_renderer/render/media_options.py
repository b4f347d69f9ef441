"""What a request may change about how its pictures and videos are read and processed, where it is trusted with that."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.openai import ChatCompletionRequest
from triton_renderer.render.item_cache import Modality
from triton_renderer.render.pictures import WHITE

_SCOPES = ("images_kwargs", "videos_kwargs", "audio_kwargs", "text_kwargs", "common_kwargs")
_BACKGROUND = "rgba_background_color"
MAX_SEQUENCE = 32
"""Frames of a video that is sent as frames: further ones are left out, as in the reference, unless a request says otherwise."""
ALL = -1
MAX_COUNT = 2**31


@dataclass(frozen=True)
class VideoOptions:
    """Which frames a video is made of, and how they are processed. None: as the model has it."""

    rate: float | None = None
    """Frames a second: to take of a file, or with which those that are sent were taken."""
    min_frames: int | None = None
    max_frames: int | None = None
    max_sequence: int = MAX_SEQUENCE
    """Of frames that are sent, how many count; `ALL` for all."""
    indices: tuple[int, ...] | None = None
    """The numbers that frames which are sent had in their video, and `total` how many it had."""
    total: int | None = None
    processor: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for a call of the video processor."""


@dataclass(frozen=True)
class MediaOptions:
    """`background`: the colour behind what is transparent. `processor`: arguments for a call of the image processor."""

    background: tuple[int, int, int] = WHITE
    processor: Mapping[str, Any] = field(default_factory=dict)
    video: VideoOptions = VideoOptions()

    def identity(self, modality: Modality) -> bytes:
        """Tells what these options are for pictures or videos from other options; empty for the defaults."""
        own, usual = (
            [options.background, asdict(options.video) if modality == "video" else options.processor]
            for options in (self, DEFAULTS)
        )
        return b"" if own == usual else json.dumps(own, sort_keys=True).encode()


DEFAULTS = MediaOptions()


def media_options(request: ChatCompletionRequest) -> MediaOptions:
    """The options of `media_io_kwargs` and `mm_processor_kwargs`. Raises InvalidRequest for what cannot be meant."""
    reading = request.media_io_kwargs or {}
    return MediaOptions(
        _background(reading.get("image", {})),
        _scoped(request, "images_kwargs"),
        _video(reading.get("video", {}), _scoped(request, "videos_kwargs")),
    )


def _scoped(request: ChatCompletionRequest, scope: str) -> dict[str, Any]:
    """The arguments of `mm_processor_kwargs` that stand for themselves, and those in `scope`, which go before."""
    given = request.mm_processor_kwargs or {}
    scoped = given.get(scope, {})
    if not isinstance(scoped, dict):
        where = f"mm_processor_kwargs.{scope}"
        raise InvalidRequest(f"{where}: an object is expected", where)
    return {name: value for name, value in given.items() if name not in _SCOPES} | scoped


def _video(reading: Mapping[str, Any], processor: Mapping[str, Any]) -> VideoOptions:
    where = "media_io_kwargs.video"
    rate = reading.get("fps")
    if rate is not None and (type(rate) not in (int, float) or not 0 < rate < math.inf):
        raise InvalidRequest(f"{where}.fps: a number above 0 is expected", f"{where}.fps")
    indices = reading.get("frames_indices")
    if indices is not None and not (isinstance(indices, list) and all(_is_count(index, 0) for index in indices)):
        raise InvalidRequest(f"{where}.frames_indices: a list of integers from 0 on is expected", f"{where}.frames_indices")
    sequence = reading.get("num_frames", MAX_SEQUENCE)
    if sequence != ALL and not _is_count(sequence, 1):
        raise InvalidRequest(f"{where}.num_frames: an integer above 0, or -1 for all, is expected", f"{where}.num_frames")
    for name in ("min_frames", "max_frames", "total_num_frames"):
        if reading.get(name) is not None and not _is_count(reading[name], 1):
            raise InvalidRequest(f"{where}.{name}: an integer above 0 is expected", f"{where}.{name}")
    return VideoOptions(
        None if rate is None else float(rate),
        reading.get("min_frames"),
        reading.get("max_frames"),
        sequence,
        None if indices is None else tuple(indices),
        reading.get("total_num_frames"),
        processor,
    )


def _is_count(value: object, least: int) -> bool:
    return type(value) is int and least <= value <= MAX_COUNT


def _background(image: Mapping[str, Any]) -> tuple[int, int, int]:
    if (mode := image.get("image_mode", "RGB")) != "RGB":
        where = "media_io_kwargs.image.image_mode"
        raise InvalidRequest(f"{where}: {mode!r} is not supported, only RGB", where)
    match image.get(_BACKGROUND, WHITE):
        case [int(red), int(green), int(blue)] if all(0 <= level <= 255 for level in (red, green, blue)):
            return red, green, blue
    where = f"media_io_kwargs.image.{_BACKGROUND}"
    raise InvalidRequest(f"{where}: three integers from 0 to 255 are expected", where)
