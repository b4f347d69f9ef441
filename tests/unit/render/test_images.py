"""Pictures as the model takes them: values, grids, placeholder tokens; for Qwen-VL and for families without code of ours."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoImageProcessor, Qwen3VLProcessor

from tests.unit.families import FIRST, NORMALISED, gemma3, llava
from tests.unit.render.helpers import (
    WITHOUT_WEIGHTS,
    chat,
    encoded,
    image_part,
    model_folder,
    noise,
    png,
    settings,
    text_of,
    text_part,
    user,
)
from triton_renderer.checkpoint import load_config
from triton_renderer.render import Renderer
from triton_renderer.render import images as images_module
from triton_renderer.render.image_processor import horizontal_first
from triton_renderer.render.images import ROUNDING, ProcessorImages, QwenVlImages, load_images
from triton_renderer.settings import BUNDLED_MODEL, SettingsError
from triton_renderer.text.tokenizer import load_tokenizer
from triton_renderer.wire import Item, decode_item, metadata_of


def tensor(item: Item, name: str) -> npt.NDArray[Any]:
    data = item[name].data
    assert isinstance(data, np.ndarray)
    return data


def qwen(**preprocessor: Any) -> QwenVlImages:
    """The bundled model's way of taking pictures, with other settings of its image processor."""
    processor = horizontal_first(AutoImageProcessor.from_pretrained(BUNDLED_MODEL, backend="pil", **preprocessor))
    return QwenVlImages(processor, load_config(settings()), load_tokenizer(str(BUNDLED_MODEL)))


def test_the_item_is_in_the_references_form(renderer: Renderer) -> None:
    rendered = chat(renderer, user(image_part(png(161, 184))))
    processed = AutoImageProcessor.from_pretrained(BUNDLED_MODEL)(Image.new("RGB", (161, 184)), return_tensors="np")
    count, width = processed["pixel_values"].shape
    kwargs, metadata = map(decode_item, rendered.items)
    assert list(kwargs) == ["pixel_values", "image_grid_thw"]
    grid, pixels = kwargs["image_grid_thw"], kwargs["pixel_values"]
    assert (grid.kind, grid.options) == ("batched", {"keep_on_cpu": True})
    assert (tensor(kwargs, "image_grid_thw").dtype, tensor(kwargs, "image_grid_thw").tolist()) == (
        np.int64,
        processed["image_grid_thw"][0].tolist(),
    )
    assert (pixels.kind, list(pixels.options)) == ("flat", ["keep_on_cpu", "slices", "dim"])
    assert pixels.options == {"keep_on_cpu": False, "slices": [[[0, count, None]]], "dim": 0}
    assert (tensor(kwargs, "pixel_values").dtype, tensor(kwargs, "pixel_values").shape) == (np.uint8, (count, width))
    assert list(metadata) == ["image_grid_thw"]
    assert rendered.items[1] == rendered.items[1]
    assert metadata.keys() == metadata_of(kwargs).keys()


SIDES = st.one_of(st.integers(1, 300), st.sampled_from([15, 16, 17, 31, 32, 33, 97, 127, 128, 129, 161, 184, 199, 211, 640]))


@hypothesis_settings(max_examples=60, deadline=None)
@given(SIDES, SIDES)
def test_placeholder_length_and_patches_follow_the_grid_for_every_size(renderer: Renderer, width: int, height: int) -> None:
    assume(max(width, height) <= 200 * min(width, height))
    rendered = chat(renderer, user(image_part(png(width, height))))
    item = decode_item(rendered.items[0])
    grid = tensor(item, "image_grid_thw")
    assert rendered.context.features[0].placeholder.length == grid.prod() // 4
    assert len(tensor(item, "pixel_values")) == grid.prod()


@pytest.mark.parametrize(("patch", "merge", "frames"), [(16, 2, 2), (14, 2, 2), (8, 1, 1), (16, 3, 4)])
@pytest.mark.parametrize("size", [(70, 50), (33, 161), (256, 256), (1, 1), (640, 480)])
def test_values_are_the_image_processors_own(patch: int, merge: int, frames: int, size: tuple[int, int]) -> None:
    images = qwen(patch_size=patch, merge_size=merge, temporal_patch_size=frames)
    picture = noise(*size)
    expected = images._image_processor(images=[picture], return_tensors="np", do_rescale=False, do_normalize=False)
    prepared = images.prepare(picture)
    values = tensor(prepared.item, "pixel_values")
    assert values.shape == expected["pixel_values"].shape
    off = np.abs(values - expected["pixel_values"])
    assert off.max() <= ROUNDING
    assert (off > 1).mean() < 0.001
    assert np.array_equal([tensor(prepared.item, "image_grid_thw")], expected["image_grid_thw"])
    assert images.agrees


def test_the_placeholder_is_the_processor_classs_own(renderer: Renderer) -> None:
    images = qwen()
    processor = images_module._lenient(Qwen3VLProcessor)(images._image_processor, load_tokenizer(str(BUNDLED_MODEL)))
    for size in [(70, 50), (33, 161), (640, 480)]:
        outputs = images._image_processor(images=[noise(*size)], return_tensors="np")
        expected = processor.replace_image_token(outputs, image_idx=0)
        assert renderer._model.tokenizer.decode(images.prepare(noise(*size)).token_ids) == expected


def test_the_shortcut_is_not_taken_for_a_way_of_resampling_that_it_has_not() -> None:
    assert qwen(resample=Image.Resampling.BILINEAR).agrees
    assert not qwen(resample=Image.Resampling.LANCZOS).agrees


def test_with_another_result_than_the_processors_the_shortcut_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    real = QwenVlImages._patches
    monkeypatch.setattr(QwenVlImages, "_patches", lambda self, picture: (real(self, picture)[0] ^ 4, real(self, picture)[1]))
    config, tokenizer = load_config(settings()), load_tokenizer(str(BUNDLED_MODEL))
    images = load_images(str(BUNDLED_MODEL), config, tokenizer)
    assert isinstance(images, ProcessorImages)
    monkeypatch.undo()
    own, shortcut = images.prepare(noise(70, 50)), qwen().prepare(noise(70, 50))
    assert own.token_ids.tolist() == shortcut.token_ids.tolist()
    grid = tensor(own.item, "image_grid_thw")
    assert grid.tolist() == tensor(shortcut.item, "image_grid_thw").tolist()
    expected = images._image_processor(images=[noise(70, 50)], return_tensors="np")["pixel_values"]
    assert np.array_equal(tensor(own.item, "pixel_values"), expected)  # floats, normalised: accepted as well


def test_llava_without_code_of_ours(tmp_path: Path) -> None:
    renderer = Renderer.load(settings(model=str(llava(tmp_path / "m"))))
    rendered = chat(renderer, user(text_part("see <image>"), image_part(png(70, 50)), text_part("?")))
    feature = rendered.context.features[0]
    assert (feature.placeholder.length, feature.placeholder.is_embed) == (16, None)
    span = rendered.token_ids[feature.placeholder.offset :][:16]
    assert span.tolist() == [FIRST] * 16
    assert np.count_nonzero(rendered.token_ids == FIRST) == 16
    item = decode_item(rendered.items[0])
    raw = tensor(item, "pixel_values")
    assert (raw.dtype, raw.shape, item["pixel_values"].kind) == (np.uint8, (3, 56, 56), "batched")
    processor = AutoImageProcessor.from_pretrained(tmp_path / "m")
    expected = processor(images=[noise(70, 50)], return_tensors="np")["pixel_values"][0]
    mean, std = (np.reshape(NORMALISED[name], (3, 1, 1)) for name in ("image_mean", "image_std"))
    assert np.allclose((raw / 255 - mean) / std, expected, atol=1e-4)
    assert rendered.items[1] == b""


def test_values_that_are_no_bytes_before_rescaling_are_sent_normalised(tmp_path: Path) -> None:
    renderer = Renderer.load(settings(model=str(llava(tmp_path / "m", do_normalize=False))))
    pixels = tensor(decode_item(chat(renderer, user(image_part())).items[0]), "pixel_values")
    assert pixels.dtype == np.float32
    assert pixels.max() <= 1.0


def test_gemma3_has_text_around_the_tokens_that_take_rows(tmp_path: Path) -> None:
    soi, soft, eoi = range(FIRST, FIRST + 3)
    folder = gemma3(tmp_path / "m")
    renderer = Renderer.load(settings(model=str(folder)))
    rendered = chat(renderer, user(text_part("see <soi><soft>"), image_part()))
    span = rendered.context.features[0].placeholder
    assert (span.length, span.is_embed) == (4, None)
    assert rendered.token_ids[span.offset - 1 :][:6].tolist() == [soi, soft, soft, soft, soft, eoi]
    assert np.count_nonzero(np.isin(rendered.token_ids, [soi, soft, eoi])) == 6
    assert "see <soi><soft>" in text_of(renderer, rendered)


# Refused at load


def test_a_missing_image_processor_is_refused_at_load(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(SettingsError, match="image processor cannot be loaded"):
        Renderer.load(settings(model=str(folder)))


def test_a_processor_that_does_not_say_how_it_places_pictures_is_refused_at_load(tmp_path: Path) -> None:
    folder = llava(tmp_path / "m")
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    with pytest.raises(SettingsError, match="cannot say how CLIPProcessor places pictures"):
        Renderer.load(settings(model=str(folder)))


def test_a_configuration_with_another_image_token_than_the_tokenizers_is_refused_at_load(tmp_path: Path) -> None:
    folder = llava(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text()) | {"image_token_id": FIRST - 1, "image_token_index": FIRST - 1}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingsError, match=f"no token {FIRST - 1}"):
        Renderer.load(settings(model=str(folder)))


def test_nothing_needs_weights(tmp_path: Path) -> None:
    shutil.copytree(BUNDLED_MODEL, tmp_path / "m", ignore=WITHOUT_WEIGHTS)
    renderer = Renderer.load(settings(model=str(tmp_path / "m")))
    assert chat(renderer, user(image_part())).items


def test_files_of_one_picture_give_one_result(renderer: Renderer) -> None:
    picture = noise(100, 70)
    variants = [encoded(picture, kind) for kind in ("PNG", "BMP", "TIFF", "PPM")]
    rendered = [chat(renderer, user(image_part(data))) for data in variants]
    assert len({tuple(one.items) for one in rendered}) == 1
    assert len({one.context.features[0].mm_hash for one in rendered}) == 1
