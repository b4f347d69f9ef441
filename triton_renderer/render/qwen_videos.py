"""Videos of Qwen3-VL: frames sampled evenly become patches, each pair of them with the second that it shows as text.

The rules of sampling, size and text are those of transformers' Qwen3VLVideoProcessor and Qwen3VLProcessor, which themselves
run with torchvision only.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from tokenizers import Tokenizer
from transformers import PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor, smart_resize
from transformers.video_processing_utils import BaseVideoProcessor

from triton_renderer.render.bad_media import BadMedia
from triton_renderer.render.image_processor import MODES, to_planes
from triton_renderer.render.images import MediaInput, flat, token_named
from triton_renderer.render.media_options import VideoOptions
from triton_renderer.render.patches import Planes, patches_of
from triton_renderer.render.videos import Video
from triton_renderer.wire import Field

_DEFAULTS = (
    "patch_size", "temporal_patch_size", "merge_size", "size", "resample", "image_mean", "image_std", "do_resize",
    "do_rescale", "do_normalize",
)  # fmt: skip
"""Settings of a video processor that have a default."""
_FAMILIES = ("qwen3_vl", "qwen3_vl_moe")
_EDGES = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
"""Older names for the two parts of `size`."""
RATE, HIGHEST_RATE = 2.0, 30.0
"""Frames that are taken of a second: as a rule, and at most."""
MIN_FRAMES, MAX_FRAMES = 4, 768


class QwenVideos:
    """How a model takes videos, and where (`MediaPlace`). Safe to use from several threads."""

    def __init__(
        self, settings: Mapping[str, Any], config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, max_frames: int
    ) -> None:
        """`settings`: of the video processor. `max_frames`: of one video."""
        self._settings = settings
        self._max_frames = max_frames
        self._patch: int = settings["patch_size"]
        self._merge: int = settings["merge_size"]
        self._temporal: int = settings["temporal_patch_size"]
        self._start_end: tuple[int, int] = (config.vision_start_token_id, config.vision_end_token_id)
        # A copy: transformers' own wrapper changes the tokenizer's state, and several threads come by here.
        self._tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.slot: str = tokenizer.convert_ids_to_tokens(config.video_token_id)
        self.embed_token_id: int = config.video_token_id
        self.frame = (
            token_named(config, "vision_start_token_id", tokenizer),
            token_named(config, "vision_end_token_id", tokenizer),
        )

    def prepare(self, video: Video, options: VideoOptions) -> MediaInput:
        """Inputs and placeholder of a video. Pixel values are uint8, neither rescaled nor normalised, as in the reference.

        Raises BadMedia for what is wrong with the video, ValueError where the processor refuses its size or the options.
        """
        numbers, frames = self._frames(video, options)
        pairs = [frames[first : first + self._temporal] for first in range(0, len(frames), self._temporal)]
        values = np.concatenate([patches_of(pair, self._temporal, self._patch, self._merge) for pair in pairs])
        _, height, width = frames[0].shape
        grid = np.array([len(pairs), height // self._patch, width // self._patch], np.int64)
        seconds = self._seconds(numbers, video.rate)
        item = {
            "pixel_values_videos": flat(values),
            "video_grid_thw": Field(grid, "batched", {"keep_on_cpu": True}),
            "timestamps": Field(list(seconds), "batched", {"keep_on_cpu": True}),
        }
        return MediaInput(item, self._placeholder(seconds, int(grid[1] * grid[2]) // self._merge**2))

    def identity(self) -> str:
        """Everything that the result depends on besides the video, the model and the options."""
        return f"{type(self).__name__} {self._max_frames} {json.dumps(self._settings, sort_keys=True)}"

    def _frames(self, video: Video, options: VideoOptions) -> tuple[list[int], list[Planes]]:
        """The numbers of the frames that are taken, and the frames at the size that the model takes."""
        resample = Image.Resampling(self._settings["resample"])
        for _ in range(2):  # a file may end before its packets are through: the first time it is found out where
            taken = self.taken(video, options)
            size = self._size(len(taken), video, options)
            frames = [to_planes(frame, size, resample) for frame in video.frames(taken)]
            if len(frames) == len(taken):
                return list(options.indices or taken), frames
            if not frames:
                break
        raise BadMedia("the video is cut off or damaged")

    def taken(self, video: Video, options: VideoOptions) -> list[int]:
        """The frames that are taken: of a file evenly spaced ones, as many a second as the model wants; of a sequence all.

        Raises BadMedia where these are too many.
        """
        most = min(options.max_frames or MAX_FRAMES, MAX_FRAMES, self._max_frames)
        if not video.is_sampled:
            wanted = int(video.num_frames / video.rate * min(options.rate or RATE, HIGHEST_RATE))
            count = min(max(wanted, options.min_frames or MIN_FRAMES), most, video.num_frames)
            taken: list[int] = np.linspace(0, video.num_frames - 1, count).round().astype(int).tolist()
            return taken
        if video.num_frames > self._max_frames:
            raise BadMedia(f"{video.num_frames} frames are more than the limit of {self._max_frames}")
        if options.indices is not None and len(options.indices) != video.num_frames:
            raise BadMedia(f"there are {video.num_frames} frames, and {len(options.indices)} in frames_indices")
        if options.total is not None and options.total < video.num_frames:
            raise BadMedia(f"there are {video.num_frames} frames, which is more than total_num_frames says: {options.total}")
        return list(range(video.num_frames))

    def _size(self, num_frames: int, video: Video, options: VideoOptions) -> tuple[int, int]:
        """Width and height of each frame for the model. Raises ValueError, and BadMedia where there are too few frames."""
        if num_frames < self._temporal:
            raise BadMedia(f"the model takes a video of {self._temporal} frames at least, not of {num_frames}")
        given = options.processor.get("size") or {}
        if not isinstance(given, Mapping):
            raise ValueError("size: an object is expected")
        size = {**self._settings["size"], **given}
        size |= {edge: options.processor[name] for name, edge in _EDGES.items() if options.processor.get(name) is not None}
        least, most = size.get("shortest_edge"), size.get("longest_edge")
        if type(least) is not int or type(most) is not int or not 0 < least <= most:
            raise ValueError(
                "size: shortest_edge and longest_edge have to be integers above 0, the first one not above the second"
            )
        height, width = smart_resize(
            num_frames,
            video.height,
            video.width,
            temporal_factor=self._temporal,
            factor=self._patch * self._merge,
            min_pixels=least,
            max_pixels=most,
        )
        return width, height

    def _seconds(self, numbers: Sequence[int], rate: float) -> list[float]:
        """When each pair of frames is shown: half way between its first and its last frame."""
        step = self._temporal
        padded = [*numbers, *[numbers[-1]] * (-len(numbers) % step)]
        return [(padded[first] / rate + padded[first + step - 1] / rate) / 2 for first in range(0, len(padded), step)]

    def _placeholder(self, seconds: Sequence[float], rows: int) -> npt.NDArray[np.int64]:
        """For each pair of frames its second as text, and `rows` tokens between two marks."""
        start, end = self._start_end
        token_ids: list[int] = []
        for second in seconds:
            token_ids += self._tokenizer.encode(f"<{second:.1f} seconds>", add_special_tokens=False).ids
            token_ids += [start, *[self.embed_token_id] * rows, end]
        return np.array(token_ids, np.int64)


def load_videos(model: str, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, max_frames: int) -> QwenVideos | None:
    """How the model takes videos; None where it takes none, or takes them in a way that is not supported."""
    if config.model_type not in _FAMILIES:
        return None
    if None in (getattr(config, name, None) for name in ("video_token_id", "vision_start_token_id", "vision_end_token_id")):
        return None
    own, _ = BaseVideoProcessor.get_video_processor_dict(model)
    settings = {name: own.get(name, getattr(Qwen3VLVideoProcessor, name)) for name in _DEFAULTS}
    settings["size"] = {**Qwen3VLVideoProcessor.size, **settings["size"]}
    is_usual = (
        settings["do_resize"] and settings["do_rescale"] and settings["do_normalize"] and not own.get("cap_pixels_per_frame")
    )
    return QwenVideos(settings, config, tokenizer, max_frames) if is_usual and settings["resample"] in MODES else None
