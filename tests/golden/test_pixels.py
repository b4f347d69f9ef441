"""Pictures against what the reference made of them (`pixels.npz`): sizes and grids equal, values by another resampling library."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.golden.pictures import BAD_PICTURES, PICTURES, picture
from tests.golden.pixels import PROCESSORS, RECORDING, cases, sample
from tests.unit.render.helpers import settings
from triton_renderer.checkpoint import load_config
from triton_renderer.render.bad_media import BadMedia
from triton_renderer.render.image_processor import load_image_processor
from triton_renderer.render.images import QwenVlImages
from triton_renderer.render.pictures import decode, read_header
from triton_renderer.settings import BUNDLED_MODEL
from triton_renderer.text.tokenizer import load_tokenizer

LIMIT = 178_956_970
FAR = 8
"""Levels of 255 that no value may be away from the reference's."""
MANY = 0.005
"""The part of the values that may be more than one level away."""

BETTER = {
    "png-gray16": "clipped to 8 bits, nearly all of it white",
    "tiff-gray16": "clipped to 8 bits, nearly all of it white",
    "png-colour-key": "the colour that stands for transparency shown instead of the background",
}
"""Pictures of which the reference does not make what a viewer shows, and what it makes of them."""

CASES = [case for case in cases() if case[1] not in BETTER]


@pytest.fixture(scope="module")
def recording() -> Mapping[str, npt.NDArray[Any]]:
    with np.load(RECORDING, allow_pickle=False) as file:
        return dict(file)


@pytest.fixture(scope="module")
def processors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folders = {name: tmp_path_factory.mktemp(name) for name in PROCESSORS}
    for name, folder in folders.items():
        Path(folder, "preprocessor_config.json").write_text(json.dumps(PROCESSORS[name]))
    return {name: load_image_processor(str(folder)) for name, folder in folders.items()}


@cache
def qwen(image_processor: Any) -> QwenVlImages:
    return QwenVlImages(image_processor, load_config(settings()), load_tokenizer(str(BUNDLED_MODEL)))


def outputs(image_processor: Any, name: str) -> dict[str, npt.NDArray[Any]]:
    """What stage render makes of a picture: raw levels, and the sizes that go with them."""
    image = decode(read_header(picture(name), LIMIT))
    if "patch_size" in image_processor.to_dict():
        item = qwen(image_processor).prepare(image).item
        return {key: np.asarray(field.data) for key, field in item.items()}
    made = image_processor([image], do_rescale=False, do_normalize=False, return_tensors="np")
    return {key: np.asarray(value) for key, value in made.items()}


@pytest.mark.parametrize(("processor", "name"), CASES, ids=["-".join(case) for case in CASES])
def test_a_picture_is_the_references(
    processor: str, name: str, recording: Mapping[str, npt.NDArray[Any]], processors: dict[str, Any]
) -> None:
    made, key = outputs(processors[processor], name), f"{processor}/{name}"
    assert list(made["pixel_values"].shape) == recording[f"{key}/shape"].tolist()
    for field in ("image_grid_thw", "image_sizes"):
        if f"{key}/{field}" in recording:
            assert made[field].reshape(-1).tolist() == recording[f"{key}/{field}"].reshape(-1).tolist()
    ours = sample(made["pixel_values"].astype(np.uint8)).astype(int)
    distance = np.abs(ours - recording[f"{key}/levels"])
    assert distance.max() <= FAR
    assert np.mean(distance > 1) <= MANY


@pytest.mark.parametrize("name", BETTER)
def test_where_the_reference_shows_another_picture_than_a_viewer_we_do_not(
    name: str, recording: Mapping[str, npt.NDArray[Any]]
) -> None:
    ours = np.asarray(decode(read_header(picture(name), LIMIT)))
    levels = recording[f"qwen3-vl/{name}/levels"]
    if name == "png-colour-key":
        assert set(np.unique(levels)) == {1, 2, 3}
        assert np.all(ours == 255)
    else:
        assert np.mean(levels == 255) > 0.99
        assert np.array_equal(ours, np.asarray(decode(read_header(picture("png-gray"), LIMIT))))


def test_every_recorded_picture_is_compared(recording: Mapping[str, npt.NDArray[Any]]) -> None:
    recorded = {tuple(key.split("/")[:2]) for key in recording}
    assert recorded == set(cases())
    assert len(recorded) - len(CASES) <= 0.03 * len(recorded)
    assert {name for _, name in recorded} == set(PICTURES)


@pytest.mark.parametrize("name", BAD_PICTURES)
def test_a_bad_picture_is_refused(name: str) -> None:
    with pytest.raises(BadMedia):
        decode(read_header(picture(name), LIMIT))
