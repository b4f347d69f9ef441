"""Videos of the bundled model: which frames are taken, what becomes of them, and what is refused."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from tests.golden.videos import FILMS, video
from tests.unit.families import llava
from tests.unit.render.helpers import chat, chat_job, data_url, encoded, image_part, noise, png, settings, text_part, user
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.media import MAX_FRAMES, detach_media
from triton_renderer.render import Rendered, Renderer
from triton_renderer.render import media_renderer as media_renderer_module
from triton_renderer.render.media_options import VideoOptions
from triton_renderer.render.qwen_videos import QwenVideos
from triton_renderer.render.videos import FrameSequence, Pixels
from triton_renderer.wire import Item, decode_item

VIDEO_HEADER = "data:video/mp4;base64"


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer.load(settings(max_model_len=4000))


@pytest.fixture(scope="module")
def trusting() -> Renderer:
    return Renderer.load(settings(max_model_len=4000, trust_request_mm_kwargs=True))


@pytest.fixture(scope="module")
def videos(renderer: Renderer) -> QwenVideos:
    assert renderer._model.media is not None
    videos = renderer._model.media._videos
    assert videos is not None
    return videos


def video_part(name: str = "small.avi", **further: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": data_url(video(name), VIDEO_HEADER)}, **further}


def frames_url(*frames: bytes) -> str:
    return "data:video/jpeg;base64," + ",".join(data_url(frame).partition(",")[2] for frame in frames)


def frames_part(*frames: bytes) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": frames_url(*frames)}}


def item_of(rendered: Rendered, index: int = 0) -> Item:
    return decode_item(rendered.items[2 * index])


def refusal(renderer: Renderer, *content: Any, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        chat(renderer, user(*content), **fields)
    return caught.value


class Film:
    """A video of numbered frames, of which the last `missing` cannot be decoded."""

    is_sampled = False

    def __init__(self, num_frames: int, rate: float, width: int = 40, height: int = 30, missing: int = 0) -> None:
        self.num_frames, self.rate, self.width, self.height = num_frames, rate, width, height
        self._there = num_frames - missing

    def frames(self, indices: Any) -> Iterator[Pixels]:
        yield from (np.full((self.height, self.width, 3), index % 256, np.uint8) for index in indices if index < self._there)
        if max(indices) >= self._there:
            self.num_frames = self._there


# What transformers does


@pytest.mark.parametrize("rate", [1.0, 10.0, 23.976, 25.0, 29.97, 60.0])
@pytest.mark.parametrize("num_frames", [2, 3, 4, 5, 17, 100, 1801])
def test_the_frames_that_transformers_samples_are_taken(videos: QwenVideos, num_frames: int, rate: float) -> None:
    of_class = SimpleNamespace(fps=2, min_frames=4, max_frames=768)
    metadata = SimpleNamespace(total_num_frames=num_frames, fps=rate)
    expected = Qwen3VLVideoProcessor.sample_frames(of_class, metadata).tolist()
    assert videos.taken(Film(num_frames, rate), VideoOptions()) == expected


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_patches_are_those_of_transformers(videos: QwenVideos, count: int) -> None:
    settings, patch = videos._settings, videos._patch
    width, height = 2 * 2 * patch, 3 * 2 * patch
    frames = np.random.default_rng(count).integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    sequence = FrameSequence([png(width, height)] * count, 10**6, time.monotonic() + 9, 1.0)
    sequence.frames = lambda indices: iter(frames)  # type: ignore[method-assign]
    options = VideoOptions(processor={"size": {"shortest_edge": 1, "longest_edge": 10**9}})
    prepared = videos.prepare(sequence, options)
    expected, *grid = Qwen3VLVideoProcessor.patchify(
        None, torch.from_numpy(frames).permute(0, 3, 1, 2)[None], patch, settings["merge_size"], settings["temporal_patch_size"]
    )
    assert np.array_equal(prepared.item["pixel_values_videos"].data, expected[0].numpy())  # type: ignore[arg-type]
    assert prepared.item["video_grid_thw"].data.tolist() == grid  # type: ignore[union-attr]


@pytest.mark.parametrize("num_frames", [2, 7, 40])
def test_the_placeholder_is_that_of_transformers(renderer: Renderer, videos: QwenVideos, num_frames: int) -> None:
    film = Film(num_frames, 8.0)
    prepared = videos.prepare(film, VideoOptions())
    grid = np.asarray(prepared.item["video_grid_thw"].data)
    tokenizer = renderer._model.tokenizer
    processor = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=videos._merge, temporal_patch_size=videos._temporal),
        vision_start_token="<|vision_start|>",
        vision_end_token="<|vision_end|>",
        video_token="<|video_pad|>",
        _calculate_timestamps=lambda *arguments: Qwen3VLProcessor._calculate_timestamps(None, *arguments),
    )
    metadata = SimpleNamespace(fps=8.0, frames_indices=videos.taken(film, VideoOptions()))
    inputs = {"video_grid_thw": grid[None], "video_metadata": [metadata]}
    assert tokenizer.decode(prepared.token_ids) == Qwen3VLProcessor.replace_video_token(processor, inputs, 0)


def test_a_film_that_ends_early_is_sampled_as_far_as_it_goes(videos: QwenVideos) -> None:
    whole, short = videos.prepare(Film(40, 4.0), VideoOptions()), videos.prepare(Film(43, 4.0, missing=3), VideoOptions())
    assert np.array_equal(whole.token_ids, short.token_ids)
    assert np.array_equal(whole.item["pixel_values_videos"].data, short.item["pixel_values_videos"].data)  # type: ignore[arg-type]


# In a prompt


def test_a_video_stands_where_the_template_puts_it(renderer: Renderer) -> None:
    rendered = chat(renderer, user(text_part("A"), video_part(), text_part("B")))
    (feature,) = rendered.context.features
    assert feature.modality == "video"
    span, tokenizer = feature.placeholder, renderer._model.tokenizer
    grid = item_of(rendered)["video_grid_thw"].data.tolist()  # type: ignore[union-attr]
    text = (
        tokenizer.decode(rendered.token_ids[: span.offset]),
        tokenizer.decode(rendered.token_ids[span.offset + span.length :]),
    )
    assert text[0].endswith("A<|vision_start|>")
    assert text[1].startswith("<|vision_end|>B")
    assert span.is_embed is not None
    assert sum(span.is_embed) == span.length
    assert sum(span.is_embed[1::2]) == np.prod(grid) // 4
    inside = rendered.token_ids[span.offset : span.offset + span.length]
    takes_row = np.repeat(np.arange(len(span.is_embed)) % 2 == 1, span.is_embed)
    assert np.array_equal(inside == tokenizer.token_id("<|video_pad|>"), takes_row)


def test_items_are_in_the_order_of_the_prompt(renderer: Renderer) -> None:
    rendered = chat(renderer, user(image_part(), video_part("tall.mp4"), image_part(png(64, 64)), video_part()))
    features = rendered.context.features
    assert [feature.modality for feature in features] == ["image", "video", "image", "video"]
    offsets = [feature.placeholder.offset for feature in features]
    assert offsets == sorted(offsets)
    fields = [sorted(item_of(rendered, index)) for index in range(4)]
    assert fields[0] == fields[2] == ["image_grid_thw", "pixel_values"]
    assert fields[1] == fields[3] == ["pixel_values_videos", "timestamps", "video_grid_thw"]
    assert sorted(decode_item(rendered.items[3])) == ["timestamps", "video_grid_thw"]


def test_frames_that_leave_the_body_give_the_same(renderer: Renderer) -> None:
    frames = [png(96, 64, seed) for seed in range(3)]
    whole = chat(renderer, user(frames_part(*frames), image_part()))
    body = {"messages": [user(frames_part(*frames), image_part())]}
    media = detach_media(body)
    assert [len(part) for part in media] == [len(frame) for frame in [*frames, png()]]
    fresh = Renderer.load(settings(max_model_len=4000))
    detached = fresh.render(chat_job(*body["messages"]), [memoryview(part) for part in media])
    assert np.array_equal(whole.token_ids, detached.token_ids)
    assert whole.items == detached.items


def test_a_video_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = Renderer.load(settings())
    first = chat(renderer, user(video_part(), video_part(uuid="film")))
    monkeypatch.setattr(media_renderer_module, "open_video", None)
    again = chat(renderer, user({"type": "video_url", "video_url": None, "uuid": "film"}, video_part()))
    assert again.items == first.items
    assert [feature.mm_hash for feature in again.context.features] == ["film", first.context.features[0].mm_hash]


def test_a_name_of_a_picture_is_none_of_a_video(renderer: Renderer) -> None:
    chat(renderer, user(image_part(uuid="shared")))
    error = refusal(renderer, {"type": "video_url", "video_url": None, "uuid": "shared"})
    assert "no video is kept under the uuid 'shared'" in error.message


def test_other_frames_are_another_video(trusting: Renderer) -> None:
    frames = [png(96, 64, seed) for seed in range(4)]

    def hash_of(*content: Any, **reading: Any) -> str:
        options = {"media_io_kwargs": {"video": reading}} if reading else {}
        return chat(trusting, user(*content), **options).context.features[0].mm_hash

    hashes = [
        hash_of(frames_part(*frames)),
        hash_of(frames_part(*reversed(frames))),
        hash_of(frames_part(*frames[:3])),
        hash_of(frames_part(*frames), fps=3),
        hash_of(video_part()),
        hash_of(video_part(), fps=3),
        hash_of(video_part(), max_frames=2),
        hash_of(video_part("tall.mp4")),
    ]
    assert len(set(hashes)) == len(hashes)


# Options


def test_a_request_that_is_trusted_says_which_frames(trusting: Renderer) -> None:
    def seconds(part: dict[str, Any], **reading: Any) -> Any:
        return item_of(chat(trusting, user(part), media_io_kwargs={"video": reading}))["timestamps"].data

    every = [index / 9 for index in range(FILMS["small.avi"].frames)]
    pairs = [(first + second) / 2 for first, second in zip(every[::2], every[1::2], strict=True)]
    assert seconds(video_part(), fps=9) == pytest.approx(pairs)
    assert seconds(video_part(), fps=1000) == pytest.approx(pairs)
    assert len(seconds(video_part(), max_frames=2)) == 1
    frames = frames_part(*[png(96, 64, seed) for seed in range(4)])
    assert seconds(frames) == [0.5, 2.5]
    assert seconds(frames, fps=4) == [0.125, 0.625]
    assert seconds(frames, fps=10, frames_indices=[0, 5, 9, 12]) == pytest.approx([0.25, 1.05])
    assert seconds(frames, num_frames=2) == [0.5]


@pytest.mark.parametrize("size", [{}, {"shortest_edge": 0, "longest_edge": 9}, {"longest_edge": "much"}, "large"])
def test_a_size_that_cannot_be_meant_is_refused(trusting: Renderer, size: Any) -> None:
    given = {"size": size} if size else {"max_pixels": 1.5}
    error = refusal(trusting, video_part(), mm_processor_kwargs={"videos_kwargs": given})
    assert error.param == "mm_processor_kwargs"


def test_numbers_for_other_frames_are_refused(trusting: Renderer) -> None:
    options = {"video": {"frames_indices": [1, 2, 3]}}
    error = refusal(trusting, frames_part(png(), png()), media_io_kwargs=options)
    assert "there are 2 frames, and 3 in frames_indices" in error.message


# Refused


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (video_part("cut.mp4"), "the bytes are not a video in a known format"),
        (frames_part(png()), "the model takes a video of 2 frames at least, not of 1"),
        (frames_part(b""), "the picture has no bytes"),
        (frames_part(png(), b"hello"), "the bytes are not a picture in a known format"),
        (frames_part(png(), png(64, 64)), "frame 1 of the video has 64×64 pixels, its first one 96×96"),
        (frames_part(png(), encoded(noise(96, 96), "JPEG")[:3000]), "the picture is cut off or damaged"),
        ({"type": "video_url", "video_url": {"url": "data:video/jpeg;base64,AAAA,?"}}, "base64 is not valid"),
        ({"type": "video_url", "video_url": {"url": "data:video/jpeg,AAAA"}}, "only data URLs in base64"),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,A"}}, "base64 is not valid"),
        ({"type": "video_url", "video_url": {"url": "data:video/jpeg;base64," + "," * MAX_FRAMES}}, "more than 4096 frames"),
        ({"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}}, "does not fetch"),
        ({"type": "video_url", "video_url": {"url": "file:///etc/passwd"}}, "reads no files"),
        ({"type": "video_url", "video_url": {"url": "attached-frames:0,1"}}, "there is no attachment '0'"),
        ({"type": "video_url", "video_url": {"url": "attached-frames:"}}, "there is no attachment ''"),
    ],
)
def test_what_is_wrong_with_a_video_is_said_with_its_place(renderer: Renderer, part: dict[str, Any], words: str) -> None:
    error = refusal(renderer, text_part("first"), part)
    assert error.param == "messages.0.content.1"
    assert words in error.message


def test_frames_are_turned_upright_as_pictures_are(renderer: Renderer) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(noise(96, 64, 1), "PNG", exif=exif)
    error = refusal(renderer, frames_part(png(96, 64), turned))
    assert "frame 1 of the video has 64×96 pixels, its first one 96×64" in error.message
    upright = encoded(noise(96, 64, 1).transpose(Image.Transpose.ROTATE_270), "PNG")
    items = [chat(renderer, user(frames_part(frame, frame))).items for frame in (turned, upright)]
    assert items[0] == items[1]


def test_limits_are_the_operators() -> None:
    renderer = Renderer.load(settings(max_videos=1, max_video_frames=3, max_image_pixels=96 * 64, trust_request_mm_kwargs=True))
    small = frames_part(png(96, 64), png(96, 64, 1))
    assert "2 videos are more than the limit of 1" in refusal(renderer, small, small).message
    assert "4 frames are more than the limit of 3" in refusal(renderer, frames_part(*[png(96, 64)] * 4)).message
    assert "larger than the limit of 6144 pixels" in refusal(renderer, frames_part(png(96, 65), png(96, 65))).message
    assert "larger than the limit of 6144 pixels" in refusal(renderer, video_part("turned.mp4")).message
    rendered = chat(renderer, user(video_part("small.avi")), media_io_kwargs={"video": {"fps": 9}})
    assert item_of(rendered)["video_grid_thw"].data.tolist()[0] == 2  # type: ignore[union-attr]


def test_all_frames_together_are_limited(monkeypatch: pytest.MonkeyPatch, renderer: Renderer) -> None:
    monkeypatch.setattr(media_renderer_module, "TOTAL_PIXELS", {"image": 2, "video": 0})
    assert "the request's videos have more than 0 pixels together" in refusal(renderer, video_part("ntsc.mp4")).message


def test_decoding_ends_in_time(monkeypatch: pytest.MonkeyPatch, renderer: Renderer) -> None:
    monkeypatch.setattr(media_renderer_module, "VIDEO_TIMEOUT_S", -1.0)
    started = time.monotonic()
    assert "takes too long to decode" in refusal(renderer, video_part("long.mp4")).message
    assert time.monotonic() - started < 5


def test_a_cut_through_a_video_is_refused(renderer: Renderer) -> None:
    assert "do not hold the prompt's picture or video 0" in refusal(renderer, video_part(), truncate_prompt_tokens=9).message


def test_a_family_without_videos_says_what_it_takes(tmp_path: Any) -> None:
    renderer = Renderer.load(settings(model=str(llava(tmp_path / "m"))))
    error = refusal(renderer, video_part())
    assert error.param == "messages.0.content.0"
    assert "video_url is not supported by this model, which takes text and pictures only" in error.message
