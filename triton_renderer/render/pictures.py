"""From the bytes of a picture to RGB pixels as a viewer would see them: turned upright, on a set background.

The bytes are hostile: the format comes from them and not from a label, and the size is read from the header and checked
before any pixel is decoded.
"""

import contextlib
import io
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps

from triton_renderer.render.bad_media import BadMedia

FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""Still pictures that Pillow decodes itself, without another program."""
MAX_ASPECT_RATIO = 200
DECODER_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    ArithmeticError,
    RuntimeError,
    struct.error,
    zlib.error,
)
"""What Pillow's decoders raise over damaged bytes."""
WHITE = (255, 255, 255)

# Pillow's own limit is a warning at half of what it refuses; ours is checked on every picture, before decoding.
Image.MAX_IMAGE_PIXELS = None


def read_header(data: bytes | memoryview, max_pixels: int) -> Image.Image:
    """The picture with its format and size, its pixels not yet decoded.

    Raises BadMedia where it is no picture, has more than `max_pixels` pixels, or is over 200 times as long as wide.
    """
    if not len(data):
        raise BadMedia("the picture has no bytes")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except DECODER_ERRORS as error:
        raise BadMedia("the bytes are not a picture in a known format") from error
    width, height = image.size
    if width < 1 or height < 1:
        raise BadMedia(f"a picture of {width}×{height} pixels is empty")
    if width * height > max_pixels:
        raise BadMedia(f"a picture of {width}×{height} pixels is larger than the limit of {max_pixels} pixels")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise BadMedia(f"a picture of {width}×{height} pixels is over {MAX_ASPECT_RATIO} times as long as it is wide")
    return image


def decode(image: Image.Image, background: tuple[int, int, int] = WHITE) -> Image.Image:
    """The whole picture as RGB: of several frames the first, turned as its EXIF data says, blended onto `background`.

    Raises BadMedia where it is cut off or damaged.
    """
    try:
        image.load()
        _turn_upright(image)
        return _to_rgb(image, background)
    except DECODER_ERRORS as error:
        raise BadMedia("the picture is cut off or damaged") from error


def _turn_upright(image: Image.Image) -> None:
    with contextlib.suppress(*DECODER_ERRORS):  # with damaged EXIF data a picture stays as it is stored
        ImageOps.exif_transpose(image, in_place=True)


def _to_rgb(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    if image.mode.startswith("I;16"):
        # Pillow would clip 16 bits to 8, which makes nearly everything white.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        canvas = Image.new("RGB", image.size, background)
        canvas.paste(layer, mask=layer.getchannel("A"))
        return canvas
    return image if image.mode == "RGB" else image.convert("RGB")
