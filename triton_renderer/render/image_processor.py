"""transformers' image processor of a model, on Pillow, with the results of the reference's, which is on torchvision."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from huggingface_hub.errors import StrictDataclassError
from PIL import Image
from torch.nn.functional import interpolate
from transformers import AutoImageProcessor
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import SizeDict

from triton_renderer.checkpoint import first_line
from triton_renderer.settings import SettingsError

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
FIXED = frozenset(
    {
        "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std",
        "patch_size", "temporal_patch_size", "merge_size", "do_convert_rgb",
    }
)  # fmt: skip
"""Options that the encoder or the decoding of pictures goes by: a call cannot have others than the model's."""
_PIXELS = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
"""Older names for the two parts of `size`."""
_OURS = frozenset({"return_tensors", "device", "data_format", "input_data_format", "disable_grouping"})


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


MODES = {Image.Resampling.BILINEAR: "bilinear", Image.Resampling.BICUBIC: "bicubic"}
"""torch's names for the ways of resampling that it has."""


def to_planes(
    picture: Image.Image | npt.NDArray[np.uint8], size: tuple[int, int], resample: Image.Resampling
) -> npt.NDArray[np.uint8]:
    """An RGB picture, or its pixels [height, width, 3], at `size` (width, height) as uint8 [3, height, width].

    `resample` is one of `MODES`.

    By the function that the reference resizes with, in half of Pillow's time; `HorizontalFirst` rounds a few pixels otherwise.
    """
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]
    if pixels.shape[-2:] != size[::-1]:
        pixels = interpolate(pixels, size[::-1], mode=MODES[resample], antialias=True)
    planes: npt.NDArray[np.uint8] = pixels[0].contiguous().numpy()
    return planes


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


def process(processor: Any, picture: Image.Image, *, raw: bool, options: Mapping[str, Any] = NO_OPTIONS) -> dict[str, Any]:
    """The processor's outputs for one picture, as numpy arrays. `raw`: neither rescaled nor normalised.

    `options` are a client's; those that the processor does not know are ignored, as in the reference. Raises ValueError
    where it refuses the picture, or cannot do anything with the options.
    """
    given = _accepted(processor, options)
    arguments = {"do_rescale": False, "do_normalize": False} if raw else {}
    if not given:
        return dict(processor(images=[picture], return_tensors="np", **arguments))
    try:
        return dict(processor(images=[picture], return_tensors="np", **arguments, **given))
    except (TypeError, LookupError, AttributeError, ArithmeticError, StrictDataclassError) as error:
        raise ValueError(f"{', '.join(given)}: {first_line(error)}") from error


def _accepted(processor: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    known = processor.valid_kwargs.__annotations__.keys() - _OURS
    accepted = {name: value for name, value in options.items() if name in known}
    for name in FIXED & accepted.keys():
        own = getattr(processor, name, None)
        if accepted.pop(name) != (list(own) if isinstance(own, tuple) else own):
            raise ValueError(f"{name} cannot be changed: it is {own}")
    limits = {edge: accepted.pop(name) for name, edge in _PIXELS.items() if name in accepted}
    if limits:
        size = accepted.get("size", {})
        if not isinstance(size, Mapping):
            raise ValueError("size: an object is expected")
        accepted["size"] = dict(processor.size) | dict(size) | limits
    return accepted
