"""Render requests with videos: files, and frames that are sent as pictures."""

from collections.abc import Iterator

from tests.golden.cases import CHAT, Body, Case, frames, image, message, text, user, video
from tests.golden.videos import FILMS

SERVER = "qwen3-vl"
TRUSTING = "qwen3-vl-plain"
PICTURES = [f"jpeg-orientation-{turn}" for turn in (1, 2, 3, 4)]
"""Pictures of one size."""


def cases() -> Iterator[Case]:
    """All of them."""
    for number, name in enumerate(FILMS):
        yield _chat(f"video-{name}", [user(video(name), text(f"What happens in video {number}?"))])
    yield from _places()
    yield from _frames()
    yield from _trusting()
    yield from _errors()


def _chat(name: str, messages: list[Body], **fields: object) -> Case:
    return Case(SERVER, name, CHAT, {"messages": messages, **fields})


def _places() -> Iterator[Case]:
    film, other = video("two-seconds.mp4"), video("tall.mp4")
    yield _chat("video-alone", [user(film)])
    yield _chat("video-behind-text", [user(text("Watch this."), film)])
    yield _chat("videos-two", [user(film, other, text("Which is longer?"))])
    yield _chat("videos-twice-the-same", [user(film, film)])
    yield _chat("videos-and-pictures", [user(image("png-64x64"), film, image("png-96x96"), text("and"), other)])
    yield _chat("video-in-every-turn", [user(film), message("assistant", "one"), user(text("and"), other, image("jpeg"))])
    yield _chat("video-in-system", [message("system", text("Look"), film), user("And?")])
    yield _chat("video-uuid", [user(video("small.avi", uuid="film-1"), text("named"))])
    yield _chat("video-payload-none", [user(film, text("none"))], mm_payload="none")
    yield _chat("video-no-kwargs", [user(film, image("png-64x64"), text("false"))], return_mm_kwargs=False)
    yield _chat("video-typed-token", [user(film, text("what does <|vision_end|> mean?"))])
    yield _chat("video-label", [user(video("small.avi", header="data:application/octet-stream;base64,"), text("label"))])
    yield _chat("video-without-a-type", [user({"video_url": film["video_url"]}, text("untyped"))])


def _frames() -> Iterator[Case]:
    for count in (2, 3, 4):
        yield _chat(f"frames-{count}", [user(frames(*PICTURES[:count]), text(f"{count} frames"))])
    yield _chat("frames-odd-size", [user(frames("png-333x500", "png-333x500"), text("odd"))])
    yield _chat("frames-tiny", [user(frames(*["png-3x5"] * 5), text("tiny"))])
    yield _chat("frames-of-several-formats", [user(frames("png", "webp", "gif"), text("formats"))])
    yield _chat("frames-33", [user(frames(*["png-31x33"] * 33), text("more than count"))])
    yield _chat("frames-and-file", [user(frames(*PICTURES[:2]), video("ntsc.mp4"))])
    yield _chat("frames-long-sides", [user(frames("png-1000x50", "png-1000x50", "png-1000x50"))])


def _trusting() -> Iterator[Case]:
    """A server on which a request may change how media are read and processed."""
    of_files: dict[str, Body] = {
        "fps": {"media_io_kwargs": {"video": {"fps": 5}}},
        "fps-fraction": {"media_io_kwargs": {"video": {"fps": 4.5}}},
        "fps-few": {"media_io_kwargs": {"video": {"fps": 0.5}}},
        "num-frames": {"media_io_kwargs": {"video": {"num_frames": 8}}},
        "max-frames": {"media_io_kwargs": {"video": {"max_frames": 2}}},
        "min-frames": {"media_io_kwargs": {"video": {"min_frames": 10}}},
        "size": {"mm_processor_kwargs": {"size": {"shortest_edge": 4096, "longest_edge": 20000}}},
        "pixels": {"mm_processor_kwargs": {"videos_kwargs": {"max_pixels": 20000}}},
        "pixels-of-pictures": {"mm_processor_kwargs": {"images_kwargs": {"max_pixels": 20000}}},
    }
    for name, fields in of_files.items():
        yield Case(TRUSTING, f"video-{name}", CHAT, {"messages": [user(video("two-seconds.mp4"), text(name))], **fields})
    of_frames: dict[str, Body] = {
        "fps": {"fps": 4},
        "num-frames": {"num_frames": 2},
        "all": {"num_frames": -1},
        "indices": {"frames_indices": [0, 5, 9, 12], "fps": 10, "total_num_frames": 20},
    }
    for name, options in of_frames.items():
        body = {"messages": [user(frames(*PICTURES), text(name))], "media_io_kwargs": {"video": options}}
        yield Case(TRUSTING, f"frames-{name}", CHAT, body)


def _errors() -> Iterator[Case]:
    yield _chat("error-video-cut", [user(video("cut.mp4"))])
    yield _chat("error-video-without-video", [user(video("no-video.mp4"))])
    yield _chat("error-video-not-a-video", [user({"type": "video_url", "video_url": {"url": {"$picture": "png-64x64"}}})])
    yield _chat("error-one-frame", [user(frames("jpeg"))])
    yield _chat("error-frames-of-two-sizes", [user(frames("png-64x64", "png-96x96"))])
    yield _chat("error-frame-not-a-picture", [user(frames("png-64x64", "bad-text"))])
    yield _chat("error-video-without-url", [user({"type": "video_url", "video_url": {}})])
    yield _chat("error-video-options-not-trusted", [user(video("small.avi"))], media_io_kwargs={"video": {"fps": 1}})
    yield _chat("error-video-cut-through", [user(video("large.mp4"), text("cut"))], truncate_prompt_tokens=20)
    for name, options in {"num-frames-zero": {"num_frames": 0}, "fewer-in-all": {"total_num_frames": 2}}.items():
        body = {"messages": [user(frames(*PICTURES))], "media_io_kwargs": {"video": options}}
        yield Case(TRUSTING, f"error-frames-{name}", CHAT, body)
