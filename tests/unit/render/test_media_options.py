"""What a request may change about its pictures where it is trusted: the background, and how the image processor is called."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.unit.families import llava
from tests.unit.render.helpers import chat, data_url, encoded, image_part, noise, png, settings, user
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.openai import ChatCompletionRequest
from triton_renderer.render import Renderer
from triton_renderer.render.images import ROUNDING
from triton_renderer.render.item_cache import RenderedItem
from triton_renderer.render.media_options import MediaOptions, VideoOptions, media_options
from triton_renderer.render.media_renderer import MediaRenderer
from triton_renderer.render.messages import MediaPart
from triton_renderer.wire import decode_item


def options(**fields: Any) -> MediaOptions:
    return media_options(parse(ChatCompletionRequest, {"messages": [user("x")], **fields}))


def processor(**kwargs: Any) -> MediaOptions:
    return options(mm_processor_kwargs=kwargs)


@pytest.fixture(scope="module")
def images() -> MediaRenderer:
    found = Renderer.load(settings())._model.media
    assert found is not None
    return found


def render(images: MediaRenderer, data: bytes | None, changed: MediaOptions, uuid: str | None = None) -> RenderedItem:
    part = MediaPart("image", None if data is None else data_url(data), uuid, "messages.0.content.0")
    (image,) = images.render([part], [], changed)
    return image


def grid(image: RenderedItem) -> list[int]:
    data = decode_item(image.kwargs)["image_grid_thw"].data
    assert isinstance(data, np.ndarray)
    sizes: list[int] = data.tolist()
    return sizes


def pixels(image: RenderedItem) -> npt.NDArray[Any]:
    data = decode_item(image.kwargs)["pixel_values"].data
    assert isinstance(data, np.ndarray)
    return data


def test_a_name_does_not_stand_for_what_a_requests_own_options_made() -> None:
    renderer = Renderer.load(settings(trust_request_mm_kwargs=True))
    part = image_part(png(96, 64)) | {"uuid": "mine"}
    plain = chat(renderer, user(part)).context.features[0].mm_hash
    other = (
        chat(renderer, user(part), media_io_kwargs={"image": {"rgba_background_color": [1, 2, 3]}}).context.features[0].mm_hash
    )
    assert plain == "mine"
    assert other != "mine"


def test_without_options_there_is_nothing_to_tell_apart() -> None:
    assert options() == options(mm_processor_kwargs={}, media_io_kwargs={}) == MediaOptions()
    for same in (options(), options(media_io_kwargs={"image": {"rgba_background_color": [255, 255, 255]}})):
        assert same.identity("image") == same.identity("video") == b""


def test_options_are_taken_from_where_they_are_meant_for_pictures() -> None:
    nested = {"images_kwargs": {"size": 1}, "videos_kwargs": {"fps": 2}, "text_kwargs": {}, "do_resize": False}
    assert dict(options(mm_processor_kwargs=nested).processor) == {"size": 1, "do_resize": False}
    assert options(media_io_kwargs={"video": {"unknown": 3}, "image": {"unknown": 1}}) == MediaOptions()


def test_options_are_taken_from_where_they_are_meant_for_videos() -> None:
    nested = {"images_kwargs": {"size": 1}, "videos_kwargs": {"max_pixels": 2}, "min_pixels": 3}
    assert dict(options(mm_processor_kwargs=nested).video.processor) == {"max_pixels": 2, "min_pixels": 3}
    reading = {"fps": 3, "num_frames": 7, "min_frames": 5, "max_frames": 9, "frames_indices": [0, 4], "total_num_frames": 11}
    assert options(media_io_kwargs={"video": reading}).video == VideoOptions(3.0, 5, 9, 7, (0, 4), 11)


def test_what_is_meant_for_the_one_does_not_change_the_other() -> None:
    of_videos = options(media_io_kwargs={"video": {"fps": 3}})
    assert of_videos.identity("image") == b"" != of_videos.identity("video")
    of_pictures = options(mm_processor_kwargs={"images_kwargs": {"max_pixels": 9}})
    assert of_pictures.identity("video") == b"" != of_pictures.identity("image")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"media_io_kwargs": {"image": {"rgba_background_color": [0, 0]}}}, "media_io_kwargs.image.rgba_background_color"),
        ({"media_io_kwargs": {"image": {"rgba_background_color": [0, 0, 256]}}}, "media_io_kwargs.image.rgba_background_color"),
        ({"media_io_kwargs": {"image": {"rgba_background_color": "red"}}}, "media_io_kwargs.image.rgba_background_color"),
        ({"media_io_kwargs": {"image": {"image_mode": "L"}}}, "media_io_kwargs.image.image_mode"),
        ({"mm_processor_kwargs": {"images_kwargs": 1}}, "mm_processor_kwargs.images_kwargs"),
        ({"mm_processor_kwargs": {"videos_kwargs": [1]}}, "mm_processor_kwargs.videos_kwargs"),
        *[
            ({"media_io_kwargs": {"video": {name: value}}}, f"media_io_kwargs.video.{name}")
            for name, values in {
                "fps": (0, -1, "many", True, float("inf"), float("nan")),
                "num_frames": (0, -2, 1.5, "all", None),
                "min_frames": (0, "few"),
                "max_frames": (-1, [3]),
                "total_num_frames": (0, "x"),
                "frames_indices": (3, [-1], ["a"], [0.5]),
            }.items()
            for value in values
        ],
    ],
)
def test_options_that_cannot_be_meant_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        options(**fields)
    assert caught.value.param == param


def test_the_background_is_the_requests(images: MediaRenderer) -> None:
    clear = encoded(Image.new("RGBA", (96, 96), (255, 0, 0, 0)))
    blue = options(media_io_kwargs={"image": {"rgba_background_color": [0, 128, 255]}})
    for changed, colour in ((MediaOptions(), [255, 255, 255]), (blue, [0, 128, 255])):
        shown = pixels(render(images, clear, changed))
        channels = shown.reshape(len(shown), 3, -1)
        assert [np.unique(channels[:, channel]).tolist() for channel in range(3)] == [[level] for level in colour]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"size": {"shortest_edge": 65536, "longest_edge": 131072}},
        {"min_pixels": 65536, "max_pixels": 131072},
        {"images_kwargs": {"min_pixels": 65536, "max_pixels": 131072}},
    ],
)
def test_a_picture_takes_the_size_that_the_request_says(images: MediaRenderer, kwargs: dict[str, Any]) -> None:
    usual, large = render(images, png(128, 96), MediaOptions()), render(images, png(128, 96), processor(**kwargs))
    _, rows, columns = grid(large)
    own = images._images._image_processor  # type: ignore[attr-defined]
    assert 65536 <= rows * columns * own.patch_size**2 <= 131072
    assert len(large.token_ids) == rows * columns // own.merge_size**2 > len(usual.token_ids)
    expected = own(
        images=[noise(128, 96)], do_rescale=False, do_normalize=False, size={"shortest_edge": 65536, "longest_edge": 131072}
    )
    assert np.array_equal(pixels(large), expected["pixel_values"])


def test_a_limit_alone_leaves_the_other_as_it_is(images: MediaRenderer) -> None:
    own = images._images._image_processor  # type: ignore[attr-defined]
    _, rows, columns = grid(render(images, png(300, 300), processor(max_pixels=own.size["shortest_edge"])))
    assert rows * columns * own.patch_size**2 <= own.size["shortest_edge"]


def test_what_the_processor_does_not_know_is_ignored(images: MediaRenderer) -> None:
    usual, same = (
        render(images, png(64, 64, 3), changed) for changed in (MediaOptions(), processor(unknown=1, return_tensors="pt"))
    )
    # Pillow resizes for the family's own processor, torch where no option stands in the way: they round differently.
    assert np.abs(pixels(usual).astype(int) - pixels(same)).max() <= ROUNDING


@pytest.mark.parametrize(
    "kwargs",
    [
        {"size": {"shortest_edge": 0, "longest_edge": 0}},
        {"size": {"height": 32, "width": 32}},
        {"size": "large"},
        {"size": [1, 2, 3]},
        {"size": [1, 2, 3], "min_pixels": 65536},
        {"size": None, "max_pixels": 131072},
        {"do_resize": "perhaps"},
        {"patch_size": 7},
        {"image_mean": [0, 0, 0]},
        {"do_normalize": False},
        {"max_pixels": "many"},
        {"max_pixels": None},
    ],
)
def test_what_the_processor_cannot_do_is_refused_by_its_name(images: MediaRenderer, kwargs: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"^mm_processor_kwargs: ") as caught:
        render(images, png(64, 64, 4), processor(**kwargs))
    assert caught.value.param == "mm_processor_kwargs"


def test_a_fixed_option_may_be_repeated(images: MediaRenderer) -> None:
    own = images._images._image_processor  # type: ignore[attr-defined]
    render(images, png(64, 64, 5), processor(patch_size=own.patch_size, image_mean=list(own.image_mean)))


def test_equal_files_under_other_options_are_other_pictures(images: MediaRenderer) -> None:
    data, larger = png(96, 64, 6), processor(min_pixels=65536, max_pixels=131072)
    usual = render(images, data, MediaOptions(), "cat")
    large = render(images, data, larger, "cat")
    assert usual.digest != large.digest
    assert render(images, None, MediaOptions(), "cat") == usual
    assert render(images, None, larger, "cat") == large


def test_other_families_take_their_own_options(tmp_path: Path) -> None:
    images = Renderer.load(settings(model=str(llava(tmp_path / "m"))))._model.media
    assert images is not None
    usual = render(images, png(80, 56), MediaOptions())
    squeezed = render(images, png(80, 56), processor(size={"height": 56, "width": 56}))
    assert pixels(usual).shape == pixels(squeezed).shape
    assert not np.array_equal(pixels(usual), pixels(squeezed))
