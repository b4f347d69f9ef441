"""From RGB pixels to what the vision encoder takes, and the tokens that stand for a picture in the prompt.

Both come from transformers' image processor and processor class, without code for a model family. `QwenVlImages` is the one
exception: the same result as the processor's, checked when the model is loaded, for a fifth of the time.
"""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import transformers
from PIL import Image
from tokenizers import Tokenizer
from transformers import PreTrainedConfig, PreTrainedTokenizerFast, ProcessorMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from triton_renderer.checkpoint import first_line
from triton_renderer.render.image_processor import MODES, NO_OPTIONS, load_image_processor, process, to_planes
from triton_renderer.render.patches import patches_of
from triton_renderer.settings import SettingsError
from triton_renderer.wire import Field, Item, encode_item

Pixels = npt.NDArray[Any]

_PROBE_SIZES = ((70, 50), (33, 161), (256, 256))
"""Pictures (width, height) on which a shortcut must agree with the image processor: odd, tall, and of whole patches."""

ROUNDING = 2
"""Levels of 255: of noise, a pixel that the first of two resizing steps rounds to the other side moves those of the second."""


@dataclass(frozen=True)
class MediaInput:
    """One picture or video for the model: the encoder's inputs, and the tokens [tokens] int64 that stand for it in the prompt."""

    item: Item
    token_ids: npt.NDArray[np.int64]
    text: str | None = None
    """The same as text, where it begins or ends with ordinary text: that is tokenized together with the text around it."""


class MediaPlace(Protocol):
    """How a picture or a video stands in a prompt."""

    slot: str
    """The token that the chat template writes for it."""
    embed_token_id: int
    """Placeholder tokens with this id take an encoder row; others in a placeholder are text around them."""
    frame: tuple[str, str]
    """What goes before and after `slot` where the chat template does not place it itself."""


class Images(MediaPlace, Protocol):
    """How a model takes pictures. Safe to use from several threads."""

    def prepare(self, picture: Image.Image, options: Mapping[str, Any] = NO_OPTIONS) -> MediaInput:
        """Inputs and placeholder for an RGB picture. `options` are a client's, for this one call of the image processor.

        Raises ValueError where the processor refuses the picture or the options.
        """

    def identity(self) -> str:
        """Everything that the result depends on besides the picture and the model."""


class ProcessorImages:
    """Any family that transformers has a processor class for."""

    def __init__(self, image_processor: Any, processor: Any, config: PreTrainedConfig) -> None:
        self._image_processor = image_processor
        self._processor = processor
        # A copy: transformers' own wrapper changes the tokenizer's state, and several threads come by here.
        self._tokenizer = Tokenizer.from_str(processor.tokenizer.backend_tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._special = self._tokenizer.get_added_tokens_decoder().keys()
        self.slot: str = processor.image_token
        self.embed_token_id: int = config.image_token_id
        self.frame = ("", "")
        self._raw = _raw_is_enough(image_processor)
        # What only the placeholder depends on is no input of the model.
        unused = processor.unused_input_names
        self._input_names = [name for name in image_processor.model_input_names if name not in unused]

    def prepare(self, picture: Image.Image, options: Mapping[str, Any] = NO_OPTIONS) -> MediaInput:
        """Pixel values are uint8 where rescaling and normalising can wait for the encoder, else normalised floats."""
        outputs = process(self._image_processor, picture, raw=self._raw, options=options)
        item = {name: _field(name, outputs[name], self._raw) for name in self._input_names if name in outputs}
        text = self._processor.replace_image_token(outputs, image_idx=0)
        token_ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        stands_alone = token_ids[0] in self._special and token_ids[-1] in self._special
        return MediaInput(item, np.array(token_ids, np.int64), None if stands_alone else text)

    def identity(self) -> str:
        """The image processor's settings."""
        return f"{type(self).__name__} {self._raw} {settings_of(self._image_processor)}"


class QwenVlImages:
    """Qwen-VL: a picture becomes patches [patches, C·T·P·P] in the order of merged squares, with a grid [1, height, width].

    Each merged square of merge² patches takes one token. The frame is doubled to make up the temporal patch.
    """

    def __init__(self, image_processor: Qwen2VLImageProcessorPil, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast):
        self._image_processor = image_processor
        self._patch: int = image_processor.patch_size
        self._merge: int = image_processor.merge_size
        self._frames: int = image_processor.temporal_patch_size
        self.slot: str = tokenizer.convert_ids_to_tokens(config.image_token_id)
        self.embed_token_id: int = config.image_token_id
        self.frame = (
            token_named(config, "vision_start_token_id", tokenizer),
            token_named(config, "vision_end_token_id", tokenizer),
        )

    @property
    def agrees(self) -> bool:
        """The shortcut gives the processor's own grid, and its values as closely as two ways to round allow."""
        if self._image_processor.resample not in MODES:
            return False
        for size in _PROBE_SIZES:
            picture = _probe(size)
            expected = process(self._image_processor, picture, raw=True)
            values, grid = self._patches(picture)
            pixels = expected["pixel_values"]
            if values.shape != pixels.shape or np.abs(values - pixels).max() > ROUNDING:
                return False
            if not np.array_equal([grid], expected["image_grid_thw"]):
                return False
        return True

    def prepare(self, picture: Image.Image, options: Mapping[str, Any] = NO_OPTIONS) -> MediaInput:
        """Pixel values are uint8, neither rescaled nor normalised, as in the reference."""
        values, grid = self._processed(picture, options) if options else self._patches(picture)
        item = {"pixel_values": flat(values), "image_grid_thw": Field(grid, "batched", {"keep_on_cpu": True})}
        return MediaInput(item, np.full(int(grid.prod()) // self._merge**2, self.embed_token_id, np.int64))

    def identity(self) -> str:
        """The image processor's settings."""
        return f"{type(self).__name__} {settings_of(self._image_processor)}"

    def _processed(
        self, picture: Image.Image, options: Mapping[str, Any]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        outputs = process(self._image_processor, picture, raw=True, options=options)
        return np.asarray(outputs["pixel_values"]).astype(np.uint8), np.asarray(outputs["image_grid_thw"])[0]

    def _patches(self, picture: Image.Image) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        size, patch, merge = self._image_processor.size, self._patch, self._merge
        height, width = smart_resize(
            picture.height, picture.width, patch * merge, min_pixels=size["shortest_edge"], max_pixels=size["longest_edge"]
        )
        planes = to_planes(picture, (width, height), self._image_processor.resample)
        grid = np.array([1, height // patch, width // patch], np.int64)
        return patches_of([planes], self._frames, patch, merge), grid


def load_images(model: str, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast) -> Images | None:
    """How the model takes pictures; None where it takes none. Loads no weights.

    Raises SettingsError where it takes pictures in a way that is not supported.
    """
    if not hasattr(config, "vision_config"):
        return None
    image_processor = load_image_processor(model)
    if getattr(config, "image_token_id", None) is None:
        raise SettingsError(f"MODEL={model}: its configuration names no image token")
    if isinstance(image_processor, Qwen2VLImageProcessorPil):
        shortcut = QwenVlImages(image_processor, config, tokenizer)
        if shortcut.agrees:
            return shortcut
    processor = _load_processor(model, config, image_processor, tokenizer)
    try:
        images = ProcessorImages(image_processor, processor, config)
        prepared = images.prepare(_probe(_PROBE_SIZES[0]))
        encode_item(prepared.item)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        name = type(image_processor).__name__
        raise SettingsError(f"MODEL={model}: what {name} gives for a picture is not supported: {error!r}") from error
    if images.embed_token_id not in prepared.token_ids:
        raise SettingsError(f"MODEL={model}: a picture's placeholder has no token {images.embed_token_id}, its image token")
    return images


def _load_processor(model: str, config: PreTrainedConfig, image_processor: Any, tokenizer: PreTrainedTokenizerFast) -> Any:
    """The model's processor with what pictures need: a video processor would want torchvision."""
    settings, _ = ProcessorMixin.get_processor_dict(model)
    name = settings.get("processor_class") or PROCESSOR_MAPPING_NAMES.get(config.model_type)
    cls = getattr(transformers, str(name), None)
    if cls is None or cls.replace_image_token is ProcessorMixin.replace_image_token:
        raise SettingsError(f"MODEL={model}: transformers {transformers.__version__} cannot say how {name} places pictures")
    parts = {"image_processor": image_processor, "tokenizer": tokenizer}
    accepted = inspect.signature(cls.__init__).parameters
    options = {key: value for key, value in settings.items() if key in accepted and key not in cls.get_attributes()}
    try:
        processor = _lenient(cls)(**{part: parts.get(part) for part in cls.get_attributes()}, **options)
    except (TypeError, ValueError, AttributeError, ImportError) as error:
        raise SettingsError(f"MODEL={model}: {name} cannot be set up for pictures: {first_line(error)}") from error
    if not getattr(processor, "image_token", None):
        raise SettingsError(f"MODEL={model}: {name} names no token for pictures")
    return processor


def _lenient(cls: type[Any]) -> type[Any]:
    """A subclass of a processor class that may go without some of its parts."""

    def check_argument_for_proper_class(self: Any, argument_name: str, argument: Any) -> Any:
        return None if argument is None else cls.check_argument_for_proper_class(self, argument_name, argument)

    return type(cls.__name__, (cls,), {"check_argument_for_proper_class": check_argument_for_proper_class})


def _raw_is_enough(image_processor: Any) -> bool:
    """The processor's result is (raw · rescale_factor - mean) / std, and its raw values are bytes."""
    if not (getattr(image_processor, "do_rescale", False) and getattr(image_processor, "do_normalize", False)):
        return False
    for size in _PROBE_SIZES:
        picture = _probe(size)
        raw = np.asarray(process(image_processor, picture, raw=True)["pixel_values"])
        full = np.asarray(process(image_processor, picture, raw=False)["pixel_values"])
        if raw.shape != full.shape or raw.ndim < 3 or raw.shape[-3] != 3 or not np.array_equal(raw, raw.astype(np.uint8)):
            return False
        mean, std = (np.reshape(getattr(image_processor, name), (3, 1, 1)) for name in ("image_mean", "image_std"))
        if not np.allclose((raw * image_processor.rescale_factor - mean) / std, full, atol=1e-4):
            return False
    return True


def _field(name: str, value: Any, raw: bool) -> Field:
    """A processor's output for one picture: an array of one item loses its axis, any other is flat."""
    array = np.asarray(value)
    single = np.asarray(array[0]) if len(array) == 1 else None
    if name == "pixel_values":
        dtype = np.uint8 if raw else array.dtype
        return Field(single.astype(dtype)) if single is not None else flat(array.astype(dtype))
    return Field(array if single is None else single, "batched", {"keep_on_cpu": True})


def flat(array: Pixels) -> Field:
    return Field(array, "flat", {"keep_on_cpu": False, "slices": [[[0, len(array), None]]], "dim": 0})


def token_named(config: PreTrainedConfig, attribute: str, tokenizer: PreTrainedTokenizerFast) -> str:
    token_id = getattr(config, attribute, None)
    return "" if token_id is None else str(tokenizer.convert_ids_to_tokens(token_id))


def _probe(size: tuple[int, int]) -> Image.Image:
    width, height = size
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def settings_of(image_processor: Any) -> str:
    return json.dumps(image_processor.to_dict(), sort_keys=True, default=str)
