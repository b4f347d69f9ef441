"""What the reference makes of each picture of `pictures.py`: sizes, grids, and a sample of the pixel values.

    REFERENCE_VENV/bin/python -m tests.golden.pixels [FOLDER]

writes `pixels.npz` beside this file, or into FOLDER together with all the values (`all-*.npz`). It needs vLLM, torch and
torchvision in that environment, and nothing of this project's own. `test_pixels.py` compares ours with the sample.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.golden.pictures import PICTURES, picture

RECORDING = Path(__file__).with_name("pixels.npz")
NUM_SAMPLES = 4096

_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_ALL = {"do_convert_rgb": True, "do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255}

PROCESSORS: dict[str, dict[str, Any]] = {
    "qwen3-vl": {
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen3VLProcessor", "patch_size": 16, "merge_size": 2,
        "temporal_patch_size": 2, "size": {"shortest_edge": 65_536, "longest_edge": 1_048_576}, "resample": 3, **_ALL, **_HALF,
    },
    "qwen2-vl": {
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor", "patch_size": 14, "merge_size": 2,
        "temporal_patch_size": 2, "size": {"shortest_edge": 3136, "longest_edge": 200_704}, "resample": 3, **_ALL, **_CLIP,
    },
    "gemma3": {
        "image_processor_type": "Gemma3ImageProcessor", "processor_class": "Gemma3Processor", "do_pan_and_scan": None,
        "size": {"height": 448, "width": 448}, "resample": 2, **_ALL, **_HALF,
    },
    "llava-onevision": {
        "image_processor_type": "LlavaOnevisionImageProcessor", "processor_class": "LlavaOnevisionProcessor", "do_pad": True,
        "size": {"height": 196, "width": 196}, "resample": 3, **_ALL, **_HALF,
        "image_grid_pinpoints": [[196 * rows, 196 * columns] for rows in (1, 2, 3) for columns in (1, 2, 3)],
    },
    "llava": {
        "image_processor_type": "CLIPImageProcessor", "processor_class": "LlavaProcessor", "do_center_crop": True,
        "size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}, "resample": 3, **_ALL, **_CLIP,
    },
}  # fmt: skip
"""`preprocessor_config.json` of some families, with the sizes of small models."""

OF_EVERY_FAMILY = (
    "png", "jpeg", "jpeg-gray", "png-gray-alpha", "gif-animated", "jpeg-orientation-6", "png-1x1", "png-3x5", "png-1x200",
    "png-47x111", "png-224x224", "png-1000x50", "png-333x500", "jpeg-1280x720", "noise-97x301", "checkerboard-300x200",
)  # fmt: skip


def cases() -> list[tuple[str, str]]:
    """Pairs of a processor and a picture: every picture with the first processor, some with all."""
    first, *others = PROCESSORS
    return [(first, name) for name in PICTURES] + [(processor, name) for processor in others for name in OF_EVERY_FAMILY]


def sample(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """At most NUM_SAMPLES of the values, evenly spaced."""
    flat = values.reshape(-1)
    count = min(NUM_SAMPLES, len(flat))
    return flat[np.arange(count) * len(flat) // count]


def record(folder: Path | None) -> None:
    """Asks the reference's own picture reader and image processors."""
    from transformers import AutoImageProcessor  # noqa: PLC0415  # the rest of the module is for our tests as well
    from vllm.multimodal.media.image import ImageMediaIO  # noqa: PLC0415

    reader = ImageMediaIO()
    processors = {name: _load(AutoImageProcessor, settings) for name, settings in PROCESSORS.items()}
    recorded: dict[str, npt.NDArray[Any]] = {}
    for processor, name in cases():
        image = reader.load_bytes(picture(name)).media
        outputs = processors[processor]([image], do_rescale=False, do_normalize=False, return_tensors="np")
        values = np.asarray(outputs["pixel_values"])
        levels = values.astype(np.uint8)
        if not np.array_equal(levels, values):
            raise ValueError(f"{processor} of {name}: its values are not levels of 0 to 255")
        key = f"{processor}/{name}"
        recorded |= {f"{key}/shape": np.array(levels.shape), f"{key}/levels": sample(levels)}
        recorded |= {
            f"{key}/{field}": np.asarray(outputs[field]) for field in ("image_grid_thw", "image_sizes") if field in outputs
        }
        print(processor, name, image.size, levels.shape, flush=True)
        if folder is not None:
            np.savez_compressed(folder / f"all-{processor}-{name}.npz", levels=levels)
    np.savez_compressed(RECORDING if folder is None else folder / RECORDING.name, **recorded)


def _load(auto: Any, settings: Mapping[str, Any]) -> Any:
    import json  # noqa: PLC0415
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "preprocessor_config.json").write_text(json.dumps(settings))
        processor = auto.from_pretrained(folder)
    print(type(processor).__name__, flush=True)
    return processor


if __name__ == "__main__":
    record(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
