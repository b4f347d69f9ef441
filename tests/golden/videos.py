"""Small videos as people send them. They lie in `videos/`, since two versions of an encoder need not write the same bytes.

python -m tests.golden.videos    makes them anew (needs the extra `video`)
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.golden.pictures import scene

FOLDER = Path(__file__).with_name("videos")


@dataclass(frozen=True)
class Film:
    """How a file is made: `rate` in frames a second, `turn` as a telephone notes it that was held upright."""

    frames: int
    rate: str
    width: int
    height: int
    codec: str = "libx264"
    turn: int = 0


FILMS = {
    "two-seconds.mp4": Film(20, "10", 96, 64),
    "ntsc.mp4": Film(100, "30000/1001", 160, 120),
    "long.mp4": Film(150, "5", 64, 64),
    "three-frames.mp4": Film(3, "10", 128, 96),
    "one-frame.mp4": Film(1, "10", 128, 96),
    "tall.mp4": Film(30, "15", 62, 182),
    "large.mp4": Film(12, "4", 640, 360),
    "turned.mp4": Film(16, "8", 128, 72, turn=90),
    "odd.webm": Film(24, "12", 97, 61, "libvpx-vp9"),
    "small.avi": Film(18, "9", 80, 56, "mpeg4"),
}
BAD = ("cut.mp4", "no-video.mp4")


@cache
def video(name: str) -> bytes:
    """The file called `name`: one of `FILMS` or `BAD`. Raises KeyError for another name."""
    if name == "cut.mp4":
        return video("two-seconds.mp4")[:700]
    if name == "no-video.mp4":
        return b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41" + bytes(64)
    if name not in FILMS:
        raise KeyError(name)
    return FOLDER.joinpath(name).read_bytes()


def moving(film: Film) -> Iterator[npt.NDArray[np.uint8]]:
    """Its frames, [height, width, 3]: a part of a larger picture that wanders over it, so that every frame is another one."""
    still = np.asarray(scene(film.width * 2, film.height * 2, film.frames))
    for index in range(film.frames):
        x, y = film.width * index // film.frames, film.height * index // film.frames
        yield still[y : y + film.height, x : x + film.width]


def make(name: str, film: Film) -> bytes:
    """The file, as this environment's encoder writes it."""
    import av  # noqa: PLC0415  # whoever only reads the files needs none

    file = io.BytesIO()
    with av.open(
        file, "w", format={"mp4": "mp4", "webm": "webm", "avi": "avi", "ts": "mpegts"}[name.rpartition(".")[2]]
    ) as container:
        stream = container.add_stream(
            film.codec, rate=Fraction(film.rate), options={"crf": "28"} if film.codec != "mpeg4" else {}
        )
        stream.width, stream.height, stream.pix_fmt = film.width, film.height, "yuv420p"
        stream.codec_context.thread_count = 1
        if film.turn:
            stream.set_display_rotation(film.turn)
        for pixels in moving(film):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, film in FILMS.items():
        FOLDER.joinpath(name).write_bytes(make(name, film))
