"""A video as frames: a file that FFmpeg decodes, or the frames themselves as pictures."""

import importlib.util
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_renderer.render.bad_media import BadMedia
from triton_renderer.render.pictures import WHITE, decode, read_header

Pixels = npt.NDArray[np.uint8]
HAS_DECODER = importlib.util.find_spec("av") is not None
"""The extra `video` is installed."""


class Video(Protocol):
    """Frames of one size."""

    width: int
    height: int
    num_frames: int
    """As far as it is known: right for sure when all frames have been asked for."""
    rate: float
    """Frames a second."""
    is_sampled: bool
    """The client chose the frames itself: all of them are meant."""

    def frames(self, indices: Sequence[int]) -> Iterator[Pixels]:
        """The frames with these numbers, ascending, as RGB [height, width, 3]; fewer where the file ends before.

        Raises BadMedia where one is damaged, or they take too long.
        """


class FrameSequence:
    """A video whose frames the client sends as pictures."""

    is_sampled = True

    def __init__(
        self,
        pictures: Sequence[bytes | memoryview],
        max_pixels: int,
        deadline: float,
        rate: float,
        background: tuple[int, int, int] = WHITE,
    ) -> None:
        """`pictures`: at least one file. `max_pixels`, `deadline`: as of `open_video`.

        Raises BadMedia where one is no picture or too large, or the first one is damaged.
        """
        self._pictures = pictures
        self._max_pixels = max_pixels
        self._deadline = deadline
        self._background = background
        self.num_frames = len(pictures)
        self.rate = rate
        for picture in pictures:
            read_header(picture, max_pixels)
        self.width, self.height = self._decoded(0).size

    def frames(self, indices: Sequence[int]) -> Iterator[Pixels]:
        """As in `Video`; all of them have to have the size of the first one."""
        for index in indices:
            picture = self._decoded(index)
            if picture.size != (self.width, self.height):
                raise BadMedia(
                    f"frame {index} of the video has {picture.width}×{picture.height} pixels, its first one "
                    f"{self.width}×{self.height}"
                )
            yield np.asarray(picture)

    def _decoded(self, index: int) -> Image.Image:
        check_time(self._deadline)
        return decode(read_header(self._pictures[index], self._max_pixels), self._background)


def check_time(deadline: float) -> None:
    """Raises BadMedia where `deadline`, on the clock `time.monotonic`, has passed."""
    if time.monotonic() > deadline:
        raise BadMedia("the video takes too long to decode")


def open_video(data: bytes | memoryview, max_pixels: int, deadline: float) -> Video:
    """The video in a file. `max_pixels`: of one frame. `deadline`: of all that is done with it, on the clock `time.monotonic`.

    Raises BadMedia where it is no video, its frames are too large, or this server has no decoder.
    """
    if not HAS_DECODER:
        raise BadMedia(
            "this server decodes no video files, as it was installed without the extra `video`: send the frames, as "
            "data:video/jpeg;base64,FRAME,FRAME,…"
        )
    from triton_renderer.render.video_file import VideoFile  # noqa: PLC0415  # needs the extra

    return VideoFile(data, max_pixels, deadline)
