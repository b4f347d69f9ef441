"""Pictures as people send them, made from nothing but numbers: the same bytes on every run and every machine.

Only integer arithmetic goes into the pixels, since the last bit of a sine depends on the processor. The encoders are those of
the pinned Pillow. Needs numpy and Pillow only, so that a reference's environment can import it as well.
"""

import io
import struct
import zlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Make = Callable[[], bytes]

ORIENTATION = 0x0112
"""The EXIF tag that says how a camera was held."""


@cache
def picture(name: str) -> bytes:
    """The file called `name`: one of `PICTURES` or `BAD_PICTURES`. Raises KeyError for another name."""
    return (PICTURES | BAD_PICTURES)[name]()


def scene(width: int, height: int, seed: int = 0) -> Image.Image:
    """Something like a photograph: gradients, edges and grain."""
    if width * height > 2**20:  # quicker than drawing as many pixels, and more like a camera's
        return scene(width // 4, height // 4, seed).resize((width, height), Image.Resampling.BICUBIC)
    x = np.arange(width, dtype=np.int32)[None, :] * 4096 // width
    y = np.arange(height, dtype=np.int32)[:, None] * 4096 // height
    rng = np.random.default_rng(seed)
    pixels = np.empty((height, width, 3), np.uint8)
    for channel in range(3):
        a, b, c = rng.integers(-6, 7, 3).tolist()
        pixels[..., channel] = _triangle((x * a + y * b + x * y // 4096 * c) // 8)
    for _ in range(6):
        cx, cy, radius = *rng.integers(0, 4096, 2).tolist(), int(rng.integers(200, 900))
        pixels[(x - cx) ** 2 + (y - cy) ** 2 < radius**2] = rng.integers(0, 256, 3)
    left, top = rng.integers(0, 3000, 2).tolist()
    pixels[(x > left) & (x < left + 800) & (y > top) & (y < top + 500)] = rng.integers(0, 256, 3)
    grain = rng.integers(-5, 6, (height, width, 1), dtype=np.int16)
    return Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8))


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Nothing but grain: where two ways of resampling differ most."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def checkerboard(width: int, height: int) -> Image.Image:
    """Single pixels of black and white by turns."""
    x, y = np.arange(width)[None, :], np.arange(height)[:, None]
    return Image.fromarray(((x + y) % 2 * 255).astype(np.uint8)).convert("RGB")


def save(image: Image.Image, file_format: str, **options: Any) -> bytes:
    """`image` as a file."""
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def _triangle(values: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """A wave between 0 and 255."""
    wave: npt.NDArray[np.int32] = np.abs(values % 510 - 255)
    return wave


def _alpha(width: int, height: int) -> Image.Image:
    """From invisible on the left to opaque on the right."""
    return Image.fromarray(np.tile((np.arange(width) * 256 // width).astype(np.uint8), (height, 1)))


def _rgba(width: int, height: int, seed: int = 0) -> Image.Image:
    image = scene(width, height, seed).convert("RGBA")
    image.putalpha(_alpha(width, height))
    return image


def _palette(width: int, height: int, colours: int = 64) -> Image.Image:
    return scene(width, height).quantize(colours, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)


def _gray16(width: int, height: int) -> Image.Image:
    gray = np.asarray(scene(width, height).convert("L"), np.uint16)
    return Image.fromarray(gray * 257)


def _png_rgb16(width: int, height: int) -> bytes:
    """A PNG of 16 bits a channel, which Pillow reads but does not write."""
    pixels = np.asarray(scene(width, height), np.uint16) * 257
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def _frames(file_format: str, **options: Any) -> bytes:
    first, *others = (scene(120, 90, seed) for seed in range(3))
    return save(first, file_format, save_all=True, append_images=others, **options)


def _turned(orientation: int, file_format: str, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return save(scene(150, 100, orientation), file_format, exif=exif, **options)


def _file(make: Callable[..., Image.Image], size: tuple[int, int], file_format: str, **options: Any) -> Make:
    return lambda: save(make(*size), file_format, **options)


def _converted(mode: str, size: tuple[int, int] = (160, 120)) -> Callable[[int, int], Image.Image]:
    return lambda width, height: scene(width, height).convert(mode)


_SIZE = (160, 120)

PICTURES: dict[str, Make] = {
    # What PNG can hold
    "png": _file(scene, _SIZE, "PNG"),
    "png-rgba": _file(_rgba, _SIZE, "PNG"),
    "png-rgba-1x1-invisible-red": lambda: save(Image.new("RGBA", (1, 1), (255, 0, 0, 0)), "PNG"),
    "png-gray": _file(_converted("L"), _SIZE, "PNG"),
    "png-gray-alpha": lambda: save(_rgba(*_SIZE).convert("LA"), "PNG"),
    "png-gray16": _file(_gray16, _SIZE, "PNG"),
    "png-rgb16": partial(_png_rgb16, *_SIZE),
    "png-bilevel": _file(_converted("1"), _SIZE, "PNG"),
    "png-palette": _file(_palette, _SIZE, "PNG"),
    "png-palette-16-colours": lambda: save(_palette(*_SIZE, 16), "PNG", bits=4),
    "png-palette-transparent": _file(_palette, _SIZE, "PNG", transparency=3),
    "png-palette-half-transparent": _file(_palette, _SIZE, "PNG", transparency=bytes(range(0, 256, 4))),
    "png-colour-key": lambda: save(Image.new("RGB", (50, 40), (1, 2, 3)), "PNG", transparency=(1, 2, 3)),
    # JPEG
    "jpeg": _file(scene, _SIZE, "JPEG", quality=90),
    "jpeg-coarse": _file(scene, _SIZE, "JPEG", quality=20),
    "jpeg-progressive": _file(scene, _SIZE, "JPEG", progressive=True),
    "jpeg-444": _file(scene, _SIZE, "JPEG", quality=95, subsampling=0),
    "jpeg-odd-size": _file(scene, (161, 117), "JPEG"),
    "jpeg-gray": _file(_converted("L"), _SIZE, "JPEG"),
    "jpeg-cmyk": _file(_converted("CMYK"), _SIZE, "JPEG"),
    # WebP, GIF, BMP, TIFF and others
    "webp": _file(scene, _SIZE, "WEBP", quality=80),
    "webp-lossless": _file(scene, _SIZE, "WEBP", lossless=True),
    "webp-alpha": _file(_rgba, _SIZE, "WEBP", lossless=True, exact=True),
    "webp-animated": partial(_frames, "WEBP", lossless=True),
    "gif": _file(_palette, _SIZE, "GIF"),
    "gif-transparent": _file(_palette, _SIZE, "GIF", transparency=5),
    "gif-animated": partial(_frames, "GIF"),
    "bmp": _file(scene, _SIZE, "BMP"),
    "bmp-palette": _file(_palette, _SIZE, "BMP"),
    "bmp-bilevel": _file(_converted("1"), _SIZE, "BMP"),
    "bmp-32-bit": _file(_rgba, _SIZE, "BMP"),
    "tiff": _file(scene, _SIZE, "TIFF"),
    "tiff-lzw": _file(scene, _SIZE, "TIFF", compression="tiff_lzw"),
    "tiff-deflate": _file(scene, _SIZE, "TIFF", compression="tiff_adobe_deflate"),
    "tiff-rgba": _file(_rgba, _SIZE, "TIFF"),
    "tiff-cmyk": _file(_converted("CMYK"), _SIZE, "TIFF"),
    "tiff-gray16": _file(_gray16, _SIZE, "TIFF"),
    "tiff-palette": _file(_palette, _SIZE, "TIFF"),
    "tiff-pages": partial(_frames, "TIFF"),
    "ppm": _file(scene, _SIZE, "PPM"),
    "jpeg2000": _file(scene, _SIZE, "JPEG2000"),
    # As the camera was held
    **{f"jpeg-orientation-{turn}": partial(_turned, turn, "JPEG", quality=90) for turn in range(1, 9)},
    **{f"png-orientation-{turn}": partial(_turned, turn, "PNG") for turn in (3, 5, 6)},
    **{f"tiff-orientation-{turn}": partial(_turned, turn, "TIFF") for turn in (2, 7, 8)},
    **{f"webp-orientation-{turn}": partial(_turned, turn, "WEBP", lossless=True) for turn in (4, 6, 8)},
    # Sizes
    **{
        f"png-{width}x{height}": _file(scene, (width, height), "PNG")
        for width, height in [
            (1, 1), (1, 2), (3, 5), (1, 200), (200, 1), (15, 17), (16, 16), (28, 28), (31, 33), (32, 32), (47, 111), (64, 64),
            (96, 96), (97, 101), (161, 184), (224, 224), (333, 500), (448, 448), (1000, 50), (64, 1024),
        ]
    },
    **{
        f"jpeg-{width}x{height}": _file(scene, (width, height), "JPEG", quality=85)
        for width, height in [(640, 480), (1280, 720), (1920, 1080), (3000, 4000), (4000, 3000)]
    },
    # What is hard to resample
    "noise-97x301": _file(noise, (97, 301), "PNG"),
    "noise-400x300": _file(noise, (400, 300), "PNG"),
    "checkerboard-300x200": _file(checkerboard, (300, 200), "PNG"),
    "white": lambda: save(Image.new("RGB", (100, 70), "white"), "PNG"),
    "black": lambda: save(Image.new("RGB", (70, 100), "black"), "PNG"),
}  # fmt: skip
"""Files that every server has to take."""

BAD_PICTURES: dict[str, Make] = {
    "bad-empty": lambda: b"",
    "bad-text": lambda: b"hello world",
    "bad-png-signature-only": lambda: b"\x89PNG\r\n\x1a\n",
    "bad-png-cut": lambda: picture("noise-97x301")[:-128],
    "bad-jpeg-cut": lambda: picture("jpeg")[:-128],
    "bad-postscript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
    "bad-201x1": _file(scene, (201, 1), "PNG"),
    "bad-1x201": _file(scene, (1, 201), "PNG"),
    "bad-4022x20": _file(scene, (4022, 20), "PNG"),
}
"""Files that are no picture, or one that no server has to take: the answer is a 400."""
