"""Two pictures never share a hash, and one picture has one hash everywhere."""

import json
import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.render.helpers import chat, edited, encoded, image_part, model_folder, noise, png, settings, user
from triton_renderer.render import Renderer
from triton_renderer.render.media_options import MediaOptions
from triton_renderer.render.pictures import decode, read_header


def hash_of(renderer: Renderer, data: bytes) -> str:
    return chat(renderer, user(image_part(data))).context.features[0].mm_hash


def test_hashes_are_256_bits_in_full(renderer: Renderer) -> None:
    value = hash_of(renderer, png())
    assert len(value) == 64
    assert int(value, 16) > 0


def test_the_same_bytes_in_another_shape(renderer: Renderer) -> None:
    wide, tall = (encoded(Image.new("RGB", size, (9, 9, 9))) for size in ((30, 150), (150, 30)))
    assert hash_of(renderer, wide) != hash_of(renderer, tall)


def test_one_pixel_more_or_less(renderer: Renderer) -> None:
    pixels = np.zeros((40, 40, 3), np.uint8)
    changed = pixels.copy()
    changed[39, 39, 2] = 1
    assert hash_of(renderer, encoded(Image.fromarray(pixels))) != hash_of(renderer, encoded(Image.fromarray(changed)))


def test_the_same_transparent_bytes_on_another_ground(renderer: Renderer) -> None:
    data = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 4), dtype=np.uint8)))
    images = renderer._model.media
    assert images is not None
    grounds = [decode(read_header(data, 100), background=colour) for colour in ((255, 255, 255), (0, 0, 0))]
    assert images._digest(grounds[0], MediaOptions()) != images._digest(grounds[1], MediaOptions())


def test_files_that_begin_alike(renderer: Renderer) -> None:
    first = noise(64, 64)
    second = first.copy()
    second.putpixel((63, 63), (1, 2, 3))
    files = [encoded(picture, "BMP") for picture in (first, second)]
    assert hash_of(renderer, files[0]) != hash_of(renderer, files[1])
    comment = b"c" * 2000
    jpegs = [encoded(picture, "JPEG", comment=comment) for picture in (noise(64, 64, 1), noise(64, 64, 2))]
    assert jpegs[0][:1000] == jpegs[1][:1000]
    assert hash_of(renderer, jpegs[0]) != hash_of(renderer, jpegs[1])


def test_other_settings_of_the_image_processor(renderer: Renderer, tmp_path: Path) -> None:
    changed = edited("preprocessor_config", size={"shortest_edge": 9216, "longest_edge": 30720})
    other = Renderer.load(settings(model=str(model_folder(tmp_path / "shapes-vl", preprocessor_config=changed))))
    assert hash_of(renderer, png()) != hash_of(other, png())


def test_another_model(renderer: Renderer, tmp_path: Path) -> None:
    copy = Renderer.load(settings(model=str(model_folder(tmp_path / "shapes-vl"))))
    renamed = Renderer.load(settings(model=str(model_folder(tmp_path / "other"))))
    config = json.loads(json.dumps(edited("config")))
    config["text_config"]["num_hidden_layers"] = 7
    changed = Renderer.load(settings(model=str(model_folder(tmp_path / "changed" / "shapes-vl", config=config))))
    value = hash_of(renderer, png())
    assert hash_of(copy, png()) == value  # the same model in another place
    assert hash_of(renamed, png()) != value
    assert hash_of(changed, png()) != value


def _send_hash(to: Connection) -> None:
    to.send(hash_of(Renderer.load(settings()), png()))


def test_the_same_picture_in_another_process(renderer: Renderer) -> None:
    """Forked, since importing transformers anew takes longer than all other tests."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_send_hash, args=(sender,))
    process.start()
    try:
        assert receiver.poll(60)
        assert receiver.recv() == hash_of(renderer, png())
    finally:
        process.kill()
        process.join()


@pytest.mark.long
def test_the_same_picture_with_other_hash_seeds(renderer: Renderer) -> None:
    """In new interpreters: nothing of the hash may depend on the order of a set."""
    program = (
        "from tests.unit.render.helpers import *\n"
        "print(chat(Renderer.load(settings()), user(image_part(png()))).context.features[0].mm_hash)"
    )
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100, env=environment)
        assert done.stdout.strip() == hash_of(renderer, png())
