"""transformers' image processor of a model, on Pillow, with the results of the reference's, which is on torchvision."""

from typing import Any

import numpy.typing as npt
from PIL import Image
from transformers import AutoImageProcessor
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import SizeDict

from triton_renderer.checkpoint import first_line
from triton_renderer.settings import SettingsError


class HorizontalFirst(PilBackend):  # type: ignore[misc]  # transformers is untyped
    """Resizes rows before columns, as torchvision does.

    Pillow takes the quicker order. At a sharp edge the order shows, by up to 16 levels: what the first step overshoots is
    clipped before the second one sees it.
    """

    def resize(self, image: npt.NDArray[Any], size: SizeDict, *args: Any, **options: Any) -> npt.NDArray[Any]:
        """As in transformers. image: [channels, height, width]."""
        resized: npt.NDArray[Any] = super().resize(image, size, *args, **options)
        height, width = resized.shape[-2:]
        if width * image.shape[-2] <= height * image.shape[-1]:
            return resized  # columns shrink no more than rows: Pillow has taken the rows first as well
        rows = super().resize(image, SizeDict(height=image.shape[-2], width=width), *args, **options)
        columns: npt.NDArray[Any] = super().resize(rows, SizeDict(height=height, width=width), *args, **options)
        return columns


def resize_horizontal_first(picture: Image.Image, size: tuple[int, int], resample: Image.Resampling) -> Image.Image:
    """The picture at `size` (width, height), resampled as by `HorizontalFirst`."""
    return picture.resize((size[0], picture.height), resample).resize(size, resample)


def load_image_processor(model: str) -> Any:
    """The same values with and without torchvision. Raises SettingsError where there is none, or it cannot be loaded."""
    try:
        processor = AutoImageProcessor.from_pretrained(model, backend="pil")
    except (OSError, ValueError, ImportError) as error:
        raise SettingsError(f"MODEL={model}: its image processor cannot be loaded: {first_line(error)}") from error
    return horizontal_first(processor)


def horizontal_first(processor: Any) -> Any:
    """`processor`, with `HorizontalFirst` under its class: it goes on by its own name, and keeps its own rules of size."""
    cls = type(processor)
    if isinstance(processor, PilBackend):
        processor.__class__ = type(cls.__name__, (cls, HorizontalFirst), {"__module__": cls.__module__})
    return processor
