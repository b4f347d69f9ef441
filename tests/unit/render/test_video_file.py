"""Frames of a file: as a player shows them, and nothing that the file makes this server do besides."""

import contextlib
import random
import time
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.golden.videos import FILMS, Film, make, moving, video
from triton_renderer.render import video_file as video_file_module
from triton_renderer.render import videos as videos_module
from triton_renderer.render.bad_media import BadMedia
from triton_renderer.render.video_file import VideoFile
from triton_renderer.render.videos import Pixels, open_video

LIMIT = 10**6


def opened(data: bytes, limit: int = LIMIT, seconds: float = 30.0) -> VideoFile:
    return VideoFile(data, limit, time.monotonic() + seconds)


@pytest.mark.parametrize("name", [name for name, film in FILMS.items() if not film.turn])
def test_a_file_is_what_was_put_into_it(name: str) -> None:
    film, file = FILMS[name], opened(video(name))
    assert (file.width, file.height, file.num_frames) == (film.width, film.height, film.frames)
    assert file.rate == pytest.approx(float(Fraction(film.rate)))
    frames = list(file.frames(range(film.frames)))
    assert len(frames) == film.frames
    for shown, drawn in zip(frames, moving(film), strict=True):
        assert shown.shape == drawn.shape
        assert np.abs(shown.astype(int) - drawn).mean() < 20  # what the encoder lost


def test_only_the_frames_that_are_asked_for_come() -> None:
    file = opened(video("two-seconds.mp4"))
    every = list(file.frames(range(20)))
    for wanted in ([0], [19], [0, 6, 13, 19], [5, 6, 7]):
        assert all(np.array_equal(frame, every[index]) for frame, index in zip(file.frames(wanted), wanted, strict=True))


@pytest.mark.parametrize("turn", [90, 180, -90])
def test_a_telephone_that_was_held_upright_is_shown_upright(turn: int) -> None:
    film = Film(4, "4", 96, 64)
    plain, turned = (opened(make("a.mp4", film)), opened(make("a.mp4", Film(4, "4", 96, 64, turn=turn))))
    assert (turned.width, turned.height) == ((96, 64) if turn == 180 else (64, 96))
    for stored, shown in zip(plain.frames([0, 3]), turned.frames([0, 3]), strict=True):
        # Each is encoded for itself, which need not come out the same.
        assert np.abs(np.rot90(stored, turn // 90).astype(int) - shown).mean() < 5
        assert np.abs(stored.reshape(-1).astype(int) - shown.reshape(-1)).mean() > 20


def test_a_file_that_ends_before_its_packets_are_through_says_how_far_it_goes() -> None:
    file = opened(video("small.avi"))
    file.num_frames += 2
    assert len(list(file.frames([0, file.num_frames - 1]))) == 1
    assert file.num_frames == FILMS["small.avi"].frames


def every_frame(data: bytes, **limits: Any) -> list[Pixels]:
    file = opened(data, **limits)
    return list(file.frames(range(file.num_frames)))


def refusal(data: bytes, **limits: Any) -> str:
    with pytest.raises(BadMedia) as caught:
        every_frame(data, **limits)
    return str(caught.value)


@pytest.mark.parametrize("data", [b"hello world" * 99, b"\0" * 5000, video("cut.mp4"), video("no-video.mp4")])
def test_what_is_no_video_is_refused(data: bytes) -> None:
    assert refusal(data) == "the bytes are not a video in a known format"


def test_nothing_is_refused_as_nothing() -> None:
    assert refusal(b"") == "the video has no bytes"


def test_sound_alone_is_refused() -> None:
    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    assert refusal(file.getvalue()) == "the file has no video in it"


def test_a_large_frame_is_refused_before_it_is_decoded() -> None:
    assert "640×360 pixels is larger than the limit of 10000 pixels" in refusal(video("large.mp4"), limit=10_000)


def test_a_video_that_changes_its_size_is_refused() -> None:
    small, wide = make("a.ts", Film(4, "4", 64, 64)), make("a.ts", Film(4, "4", 96, 64))
    assert len(every_frame(small + small)) == 8
    assert refusal(small + wide) == refusal(wide + small) == "the video changes its size"


@pytest.mark.parametrize("num_large", [2, 4, 8])
def test_a_large_frame_in_the_middle_is_never_decoded(monkeypatch: pytest.MonkeyPatch, num_large: int) -> None:
    """With other frames in work the decoder may leave it out without a word."""
    sizes = []
    real = video_file_module._upright
    monkeypatch.setattr(video_file_module, "_upright", lambda frame: sizes.append((frame.width, frame.height)) or real(frame))
    small, large = make("a.ts", Film(4, "4", 64, 64)), make("a.ts", Film(num_large, "4", 1920, 1088))
    with contextlib.suppress(BadMedia):
        every_frame(small + large, limit=10_000)
    assert set(sizes) == {(64, 64)}


def test_a_long_strip_is_refused() -> None:
    assert "over 200 times as long" in refusal(make("a.avi", Film(2, "2", 2050, 10, "mpeg4")))


def test_time_is_limited() -> None:
    assert refusal(video("long.mp4"), seconds=-1.0) == "the video takes too long to decode"


def test_a_codec_that_is_not_listed_is_refused() -> None:
    assert refusal(make("a.avi", Film(2, "2", 64, 64, "ffv1"))) == "a video coded as ffv1 is not supported"


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nFILE\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile FILE\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nconcat:FILE\n#EXT-X-ENDLIST\n",
        (
            '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
            '<Representation id="1"><BaseURL>FILE</BaseURL></Representation></AdaptationSet></Period></MPD>'
        ),
    ],
)
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_list_of_other_files_opens_none_of_them(tmp_path: Path, text: str, scheme: str) -> None:
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(video("two-seconds.mp4"))
    assert refusal(text.replace("FILE", f"{scheme}{secret}").encode()) == "the bytes are not a video in a known format"


def test_damaged_bytes_are_shown_or_refused_and_nothing_else_happens() -> None:
    rng = random.Random(3)
    for name in ("two-seconds.mp4", "odd.webm", "small.avi"):
        for _ in range(30):
            data = bytearray(video(name))
            for _ in range(rng.randrange(1, 30)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            try:
                file = opened(bytes(data[: rng.randrange(len(data) // 2, len(data) + 1)]))
                shapes = {frame.shape for frame in file.frames(range(file.num_frames))}
            except BadMedia:
                continue
            assert shapes <= {(file.height, file.width, 3)}


def test_without_the_extra_a_file_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(videos_module, "HAS_DECODER", False)
    with pytest.raises(BadMedia, match="without the extra `video`: send the frames"):
        open_video(video("small.avi"), LIMIT, time.monotonic() + 9)
