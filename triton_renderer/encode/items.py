"""Checks multimodal items that come from a client, and turns them into inputs of the vision tower.

An item may be anything that MessagePack can say, and the tower would index its weights with it: every size is checked
against the others here, before the tower or the GPU sees it.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.stages import MAX_METADATA
from triton_renderer.transfer import to_device
from triton_renderer.wire import Field, Item, decode_item

PIXEL_DTYPES = ("uint8", "float32", "float16", "bfloat16")
MAX_GRID_SIDE = 4096
"""Patches along one axis. 4096 patches of 14 pixels are more than any picture within the pixel limit."""
TIMESTAMPS = "timestamps"
"""Comes with a video: the seconds that its prompt shows as text. No tower takes them."""

OF_VIDEOS: dict[str, Any] = {"pixels": "pixel_values_videos", "grid": "video_grid_thw", "max_frames": MAX_GRID_SIDE}
"""What of a `PixelFormat` is another for videos."""


@dataclass(frozen=True)
class PixelFormat:
    """How raw pixel values become the tower's input: (value · rescale - mean) / std, for each colour channel.

    From the checkpoint's preprocessor_config.json, for videos video_preprocessor_config.json. `patch` is (channels, temporal patch, patch, patch) where pictures
    come as flattened patches with a grid (Qwen-VL and relatives), else None.
    """

    rescale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    patch: tuple[int, int, int, int] | None
    merge_size: int
    pixels: str = "pixel_values"
    """The names of the two fields that have to fit each other."""
    grid: str = "image_grid_thw"
    max_frames: int = 1
    """Temporal patches of one item."""

    @classmethod
    def from_config(cls, config: dict[str, Any], vision_config: Any, **names: Any) -> "PixelFormat":
        """Reads preprocessor_config.json and the model's vision configuration. `names`: the fields that are not a picture's."""
        patched = hasattr(vision_config, "spatial_merge_size") and hasattr(vision_config, "patch_size")
        channels = int(getattr(vision_config, "in_channels", 3))
        patch = int(getattr(vision_config, "patch_size", 0)) if patched else 0
        rescale = float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0
        normalize = config.get("do_normalize", True)
        return cls(
            rescale,
            tuple(config["image_mean"]) if normalize else (0.0,) * channels,
            tuple(config["image_std"]) if normalize else (1.0,) * channels,
            (channels, int(getattr(vision_config, "temporal_patch_size", 1)), patch, patch) if patched else None,
            int(getattr(vision_config, "spatial_merge_size", 1)),
            **names,
        )

    def normalize(self, pixels: torch.Tensor) -> torch.Tensor:
        """Raw uint8 values as normalised float32, same shape; float values are taken as normalised already.

        Channels are the slowest part of a flattened patch ([patches, C·T·P·P]), else the third axis from the end.
        """
        if pixels.dtype != torch.uint8:
            return pixels
        channels = len(self.mean)
        view = pixels.view(pixels.shape[0], channels, -1) if pixels.ndim == 2 else pixels
        axes = (1, channels, 1) if pixels.ndim == 2 else (channels, 1, 1)
        mean = torch.tensor(self.mean, device=pixels.device).view(axes)
        std = torch.tensor(self.std, device=pixels.device).view(axes)
        return ((view.float() * self.rescale - mean) / std).view(pixels.shape)


def parse_item(packed: memoryview, where: str) -> Item:
    """A serialized item from a client. Raises InvalidRequest, with `where` as its param."""
    try:
        return decode_item(packed)
    except ValueError as error:
        raise InvalidRequest(f"{where}: {error}", where) from error


def check_pixels(item: Item, pixel_format: PixelFormat, where: str) -> int | None:
    """The rows that the tower will make of the item; None where only the tower can tell.

    Raises InvalidRequest unless the pixel values and the grid, where the model has one, agree in every size.
    """
    pixels, name_of_pixels = item.get(pixel_format.pixels), pixel_format.pixels
    if pixels is None or not isinstance(pixels.data, np.ndarray):
        raise InvalidRequest(f"{where}: {name_of_pixels} must be a tensor", where)
    values = pixels.data
    if values.dtype.name not in PIXEL_DTYPES:
        raise InvalidRequest(
            f"{where}: {name_of_pixels} is {values.dtype.name}, one of {', '.join(PIXEL_DTYPES)} is expected", where
        )
    if values.size == 0:
        raise InvalidRequest(f"{where}: {name_of_pixels} is empty", where)
    if values.dtype.name != "uint8" and not bool(np.isfinite(values.astype(np.float32)).all()):
        raise InvalidRequest(f"{where}: {name_of_pixels} holds values that are not finite", where)
    check_metadata({name: field for name, field in item.items() if name != name_of_pixels}, where)
    if pixel_format.patch is None:
        return None
    grid = check_grid(item, pixel_format, where)
    width = math.prod(pixel_format.patch)
    if values.shape != (math.prod(grid), width):
        raise InvalidRequest(
            f"{where}: {name_of_pixels} has shape {list(values.shape)}, its grid {list(grid)} takes [{math.prod(grid)}, {width}]",
            where,
        )
    return math.prod(grid) // pixel_format.merge_size**2


def check_metadata(item: Item, where: str) -> None:
    """Raises InvalidRequest unless every field is a small tensor of integers, as grids and sizes are, or a video's timestamps."""
    for name, field in item.items():
        if not _is_small(field.data) and not (name == TIMESTAMPS and _are_seconds(field.data)):
            raise InvalidRequest(f"{where}: {name} must be an integer tensor of at most {MAX_METADATA} numbers", where)


def _is_small(data: object) -> bool:
    return isinstance(data, np.ndarray) and data.dtype.kind in "iub" and data.size <= MAX_METADATA


def _are_seconds(data: object) -> bool:
    return isinstance(data, list) and len(data) <= MAX_GRID_SIDE and all(isinstance(second, int | float) for second in data)


def check_grid(item: Item, pixel_format: PixelFormat, where: str) -> tuple[int, int, int]:
    """The grid of an item as (frames, height, width) in patches.

    Raises InvalidRequest unless it is int64 [3], positive, bounded, and a whole number of merged patches.
    """
    name, most = pixel_format.grid, pixel_format.max_frames
    found = item.get(name, Field(None)).data
    if not isinstance(found, np.ndarray) or found.dtype != np.int64 or found.shape != (3,):
        raise InvalidRequest(f"{where}: {name} must be an int64 tensor of shape [3]", where)
    frames, height, width = (int(size) for size in found.reshape(-1))
    merge = pixel_format.merge_size
    if not 0 < frames <= most or not all(0 < size <= MAX_GRID_SIDE and size % merge == 0 for size in (height, width)):
        raise InvalidRequest(
            f"{where}: {name} {[frames, height, width]} is not [{'1' if most == 1 else f'1 to {most}'}, height, width] with "
            f"sides that are multiples of {merge} from {merge} to {MAX_GRID_SIDE}",
            where,
        )
    return frames, height, width


def tower_inputs(item: Item, pixel_format: PixelFormat, device: torch.device) -> dict[str, torch.Tensor]:
    """Keyword arguments of `get_image_features`, or `get_video_features`, for one item, each with a leading axis of one item (or its patches or tiles)."""
    inputs = {}
    for name, value in item.items():
        if not isinstance(value.data, np.ndarray):
            continue
        tensor = to_device(to_torch(value.data), device)
        if name == pixel_format.pixels:
            tensor = pixel_format.normalize(tensor)
        has_axis = value.kind == "flat" or (name == pixel_format.pixels and pixel_format.patch is not None)
        inputs[name] = tensor if has_axis else tensor.unsqueeze(0)
    return inputs


def to_torch(array: npt.NDArray[Any]) -> torch.Tensor:
    """A copy of `array` as a tensor of the same dtype, bfloat16 included."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).astype(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))
