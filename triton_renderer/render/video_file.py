"""Frames of a video file, by FFmpeg. Needs the extra `video`.

The bytes are hostile. A container may name other files: none is opened. Formats and codecs come from a list, the size of a
frame is limited inside the decoder already, and all work ends at a deadline.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation
from av.video.stream import VideoStream

from triton_renderer.render.bad_media import BadMedia
from triton_renderer.render.pictures import MAX_ASPECT_RATIO
from triton_renderer.render.videos import Pixels, check_time

DEFAULT_RATE = 24.0
"""Frames a second where a file says nothing of it, as transformers has it."""
FORMATS = ("mov", "mp4", "matroska", "webm", "avi", "mpegts", "mpeg")
CODECS = ("h264", "hevc", "vp8", "vp9", "libvpx", "libvpx-vp9", "av1", "libdav1d", "mpeg4", "mpeg1video", "mpeg2video", "mjpeg")
_THREADS = 4


class VideoFile:
    """As in `Video`: a container with a stream of frames, upright as a player shows them."""

    is_sampled = False

    def __init__(self, data: bytes | memoryview, max_pixels: int, deadline: float) -> None:
        """As `open_video`."""
        if not len(data):
            raise BadMedia("the video has no bytes")
        self._data = data
        self._max_pixels = max_pixels
        self._deadline = deadline
        with self._opened() as (container, stream):
            self.rate = float(stream.guessed_rate or DEFAULT_RATE)
            # Headers are mistaken at times, and say nothing of frames that an edit leaves out.
            self.num_frames = sum(1 for packet in self._packets(container, stream) if packet.size and not packet.is_discard)
        with self._opened() as (container, stream):
            first = next(self._decoded(container, stream), None)
            if first is None:
                raise BadMedia("the video has no frames")
            self.height, self.width = _upright(first).shape[:2]
        if max(self.width, self.height) > MAX_ASPECT_RATIO * min(self.width, self.height):
            raise BadMedia(
                f"a video of {self.width}×{self.height} pixels is over {MAX_ASPECT_RATIO} times as long as it is wide"
            )

    def frames(self, indices: Sequence[int]) -> Iterator[Pixels]:
        """As in `Video`."""
        wanted, last, number = frozenset(indices), max(indices), 0
        with self._opened() as (container, stream):
            for frame in self._decoded(container, stream):
                if number in wanted:
                    pixels = _upright(frame)
                    if pixels.shape[:2] != (self.height, self.width):
                        raise BadMedia("the video changes its size")
                    yield pixels
                if number == last:
                    return
                number += 1
        self.num_frames = number  # not every packet has made a frame

    @contextmanager
    def _opened(self) -> Iterator[tuple[InputContainer, VideoStream]]:
        """The container from its start, and its stream of frames. Raises BadMedia for what goes wrong inside."""
        # Decoders count what they round a size up to. The size itself is checked below, and again with every frame.
        largest = {"max_pixels": str(2 * self._max_pixels + 2**16)}
        options = {
            "format_whitelist": ",".join(FORMATS),
            "codec_whitelist": ",".join(CODECS),
            "protocol_whitelist": "",
            **largest,
        }
        try:
            container = av.open(io.BytesIO(self._data), "r", options=options, metadata_errors="replace", io_open=_refused)
        except (FFmpegError, ValueError) as error:
            raise BadMedia("the bytes are not a video in a known format") from error
        with container:
            stream = container.streams.best("video")
            if not isinstance(stream, VideoStream):
                raise BadMedia("the file has no video in it")
            context = stream.codec_context
            if context.name not in CODECS:
                raise BadMedia(f"a video coded as {context.name} is not supported")
            if context.width * context.height > self._max_pixels:
                raise BadMedia(
                    f"a video of {context.width}×{context.height} pixels is larger than the limit of {self._max_pixels} pixels"
                )
            context.options = largest
            context.thread_type = "AUTO"
            context.thread_count = _THREADS
            try:
                yield container, stream
            except FFmpegError as error:
                raise BadMedia("the video is cut off or damaged") from error

    def _packets(self, container: InputContainer, stream: VideoStream) -> Iterator["Packet[VideoStream]"]:
        for packet in container.demux(stream):
            check_time(self._deadline)
            yield packet

    def _decoded(self, container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
        for packet in self._packets(container, stream):
            yield from packet.decode()


def _upright(frame: VideoFrame) -> Pixels:
    """RGB [height, width, 3], turned as the file says."""
    pixels = frame.reformat(format="rgb24", interpolation=Interpolation.BICUBIC).to_ndarray()
    return np.ascontiguousarray(np.rot90(pixels, frame.rotation // 90))


def _refused(url: str, flags: int, options: Any) -> NoReturn:
    raise BadMedia("the video refers to another file")
