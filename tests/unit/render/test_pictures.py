"""From the bytes of a picture to upright RGB pixels."""

import contextlib
import random
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from PIL import Image

from tests.unit.render.helpers import encoded, noise
from triton_renderer.render.bad_media import BadMedia
from triton_renderer.render.pictures import FORMATS, decode, read_header

LIMIT = 178_956_970
ORIENTATION = 0x0112
PILLOW_WARNS = pytest.mark.filterwarnings("ignore::UserWarning")  # of damaged bytes that it can do without


def pixels(data: bytes, limit: int = LIMIT) -> np.ndarray:
    return np.asarray(decode(read_header(data, limit)))


def png_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def declared_png(width: int, height: int) -> bytes:
    """A small PNG that declares this size and has nearly no data."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(3_000_000))
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_format_is_read(file_format: str) -> None:
    picture = noise(48, 32)
    options = {"WEBP": {"lossless": True}, "AVIF": {"quality": 100}}.get(file_format, {})
    data = encoded(picture.convert("P") if file_format == "GIF" else picture, file_format, **options)
    assert pixels(data).shape == (32, 48, 3)


# Upright


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "WEBP"])
def test_exif_turns_are_undone(orientation: int, file_format: str) -> None:
    upright = noise(16, 24)
    turned = {
        1: None, 2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_270,
    }[orientation]  # fmt: skip
    stored = upright if turned is None else upright.transpose(turned)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encoded(stored, file_format, exif=exif, **({"lossless": True} if file_format == "WEBP" else {}))
    assert np.array_equal(pixels(data), np.asarray(upright))


def test_a_turned_jpeg_is_its_own_pixels_turned() -> None:
    picture = noise(24, 16)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    plain, turned = encoded(picture, "JPEG", quality=95), encoded(picture, "JPEG", quality=95, exif=exif)
    assert np.array_equal(pixels(turned), np.rot90(pixels(plain), -1))
    assert pixels(turned).shape == (24, 16, 3)


@PILLOW_WARNS
def test_damaged_exif_leaves_the_picture_as_it_is() -> None:
    data = encoded(noise(24, 16), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert pixels(data).shape == (16, 24, 3)


# Background and modes


def test_what_is_transparent_becomes_white() -> None:
    assert pixels(encoded(Image.new("RGBA", (1, 1), (255, 0, 0, 0)))).tolist() == [[[255, 255, 255]]]


def test_what_is_half_transparent_is_blended_with_white() -> None:
    red, green, blue = pixels(encoded(Image.new("RGBA", (1, 1), (255, 0, 0, 128))))[0, 0]
    assert red == 255
    assert green == blue == 127


def test_the_background_can_be_another_one() -> None:
    image = read_header(encoded(Image.new("RGBA", (1, 1), (255, 0, 0, 0))), LIMIT)
    assert decode(image, background=(0, 0, 0)).getpixel((0, 0)) == (0, 0, 0)


def test_transparency_of_grey_and_palette_pictures() -> None:
    assert pixels(encoded(Image.new("LA", (1, 1), (0, 0)))).tolist() == [[[255, 255, 255]]]
    palette = Image.new("P", (1, 1), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    assert pixels(encoded(palette)).tolist() == [[[10, 20, 30]]]
    assert pixels(encoded(palette, transparency=1)).tolist() == [[[255, 255, 255]]]
    assert pixels(encoded(palette, "GIF", transparency=1)).tolist() == [[[255, 255, 255]]]


def test_a_colour_declared_transparent_becomes_white() -> None:
    assert pixels(encoded(Image.new("RGB", (1, 1), (1, 2, 3)), transparency=(1, 2, 3))).tolist() == [[[255, 255, 255]]]


def test_grey_bilevel_and_cmyk() -> None:
    assert pixels(encoded(Image.new("L", (1, 1), 77))).tolist() == [[[77, 77, 77]]]
    assert pixels(encoded(Image.new("1", (1, 1), 1))).tolist() == [[[255, 255, 255]]]
    assert pixels(encoded(Image.new("CMYK", (1, 1), (0, 255, 255, 0)), "TIFF")).tolist() == [[[255, 0, 0]]]


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    ramp = np.arange(0, 65536, 256, dtype=np.uint16).reshape(16, 16)
    shown = pixels(encoded(Image.fromarray(ramp)))
    assert shown[..., 0].reshape(-1).tolist() == list(range(256))


def test_of_several_frames_the_first_counts() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue", "lime")]
    for file_format in ("GIF", "WEBP", "TIFF"):
        options = {"lossless": True} if file_format == "WEBP" else {}
        data = encoded(frames[0], file_format, save_all=True, append_images=frames[1:], **options)
        assert pixels(data)[0, 0].tolist() == [255, 0, 0]


def test_a_phones_jpeg_with_further_pictures_in_it_is_its_first() -> None:
    first, depth = noise(48, 32, 1), noise(24, 16, 2)
    data = encoded(first, "MPO", save_all=True, append_images=[depth], quality=95)
    assert np.array_equal(pixels(data), pixels(encoded(first, "JPEG", quality=95)))


# Hostile


def peak_memory() -> int:
    """The process's highest resident memory since `forget_peak_memory`, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def forget_peak_memory() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def test_a_small_file_that_declares_a_huge_picture_costs_nothing() -> None:
    data = declared_png(20_000, 20_000)
    assert len(data) < 10_000
    forget_peak_memory()
    before, started = peak_memory(), time.thread_time()
    with pytest.raises(BadMedia, match="20000×20000"):
        pixels(data)
    assert time.thread_time() - started < 0.1, "seconds of computing, whatever else this machine does"
    assert peak_memory() - before < 50 * 2**20


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"])
def test_the_limit_is_exact_and_checked_before_decoding(file_format: str) -> None:
    data = encoded(noise(40, 30), file_format)
    assert pixels(data, limit=1200).shape == (30, 40, 3)
    with pytest.raises(BadMedia, match="40×30 pixels is larger than the limit of 1199"):
        read_header(data, 1199)


@pytest.mark.parametrize("size", [(201, 1), (1, 201), (402, 2)])
def test_a_very_long_picture_is_refused(size: tuple[int, int]) -> None:
    if max(size) > 200 * min(size):
        with pytest.raises(BadMedia, match="200 times"):
            read_header(encoded(noise(*size)), LIMIT)
    assert read_header(encoded(noise(200, 1)), LIMIT).size == (200, 1)


@pytest.mark.parametrize(
    "data", [b"", b"hello world", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff\xe0", b"<svg/>", bytes(5000)]
)
def test_bytes_that_are_no_picture_are_refused(data: bytes) -> None:
    with pytest.raises(BadMedia):
        pixels(data)


def test_postscript_is_not_run() -> None:
    with pytest.raises(BadMedia, match="not a picture"):
        read_header(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", LIMIT)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "BMP", "TIFF"])
def test_a_picture_that_is_cut_off_is_refused(file_format: str) -> None:
    data = encoded(noise(200, 150), file_format)
    with pytest.raises(BadMedia, match=r"cut off or damaged|not a picture"):
        pixels(data[:-128])


SEEDS = {kind: encoded(noise(40, 30), kind) for kind in FORMATS}


@PILLOW_WARNS
@hypothesis_settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(SEEDS)), st.integers(0, 2**32), st.integers(1, 12))
def test_damaged_files_are_read_or_refused_and_nothing_else(file_format: str, seed: int, changes: int) -> None:
    rng, data = random.Random(seed), bytearray(SEEDS[file_format])
    for _ in range(changes):
        # Headers are where the interesting faults are.
        place = rng.randrange(min(len(data), 200)) if rng.random() < 0.7 else rng.randrange(len(data))
        data[place] = rng.randrange(256)
    with contextlib.suppress(BadMedia):
        assert pixels(bytes(data), limit=100_000).ndim == 3
