"""Model folders of other families than the bundled one: its tokenizer with their special tokens, and small random weights.

Each function writes into a folder that is not there yet, and returns it. Without `weights` it is a folder to render from.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import Gemma3Config, LlavaConfig, LlavaOnevisionConfig, PreTrainedConfig

from tests.unit.render.helpers import edited, model_folder

Make = Callable[..., Path]

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}SLOT{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}"
)
FIRST = 1 + max(token["id"] for token in edited("tokenizer")["added_tokens"])
"""The first id for a further special token: tokenizers numbers them without gaps."""
SIDE, PATCH = 56, 14
"""Pixels of a picture as the tower sees it, and of a patch: 16 patches."""
WEIGHT_SCALE = 6.0
"""With weights as they are initialised, every prompt is answered with one token over and over."""

NORMALISED: dict[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.3, 0.2, 0.1],
}
_TEXT = {
    "vocab_size": FIRST + 8, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 4096, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
_VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": SIDE,
    "patch_size": PATCH,
}  # fmt: skip


def llava(folder: Path, *, weights: bool = False, **preprocessor: Any) -> Path:
    """LLaVA 1.5: one square crop, a CLIP tower whose class token is left out, a Llama."""
    config = LlavaConfig(
        text_config={"model_type": "llama", **_TEXT},
        vision_config={"model_type": "clip_vision_model", **_VISION},
        image_token_id=FIRST,
        architectures=["LlavaForConditionalGeneration"],
    )
    crop = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}, "do_center_crop": True}
    return _family(
        folder,
        ["<image>"],
        config,
        slot="<image>",
        preprocessor={"image_processor_type": "CLIPImageProcessor", **crop, **NORMALISED, **preprocessor},
        processor={
            "processor_class": "LlavaProcessor",
            "patch_size": PATCH,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
        weights=weights,
    )


def llava_onevision(folder: Path, *, weights: bool = False) -> Path:
    """LLaVA-OneVision: as many tiles as the size asks for, row ends among the encoder's rows, a SigLIP tower, a Qwen2."""
    grid = [[SIDE * rows, SIDE * columns] for rows in (1, 2, 3) for columns in (1, 2, 3)]
    config = LlavaOnevisionConfig(
        text_config={"model_type": "qwen2", **_TEXT},
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **_VISION},
        image_token_index=FIRST,
        video_token_index=FIRST + 1,
        image_grid_pinpoints=grid,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        vision_aspect_ratio="anyres_max_2",
        architectures=["LlavaOnevisionForConditionalGeneration"],
    )
    return _family(
        folder,
        ["<image>", "<video>"],
        config,
        slot="<image>",
        preprocessor={
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "size": {"height": SIDE, "width": SIDE},
            "image_grid_pinpoints": grid,
            **NORMALISED,
        },
        processor={
            "processor_class": "LlavaOnevisionProcessor",
            "num_image_tokens": (SIDE // PATCH) ** 2,
            "vision_feature_select_strategy": "full",
            "vision_aspect_ratio": "anyres_max_2",
        },
        weights=weights,
    )


def gemma3(folder: Path, *, weights: bool = False) -> Path:
    """Gemma 3: text around the tokens that take rows, attention both ways inside a picture, layers with a sliding window."""
    start, soft, end = range(FIRST, FIRST + 3)
    config = Gemma3Config(
        text_config={**_TEXT, "sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]},
        vision_config=_VISION,
        boi_token_index=start,
        image_token_index=soft,
        eoi_token_index=end,
        mm_tokens_per_image=4,
        architectures=["Gemma3ForConditionalGeneration"],
    )
    return _family(
        folder,
        ["<soi>", "<soft>", "<eoi>"],
        config,
        slot="<soi>",
        preprocessor={"image_processor_type": "Gemma3ImageProcessor", "size": {"height": SIDE, "width": SIDE}, **NORMALISED},
        processor={"processor_class": "Gemma3Processor", "image_seq_length": 4},
        weights=weights,
        extra_special_tokens={"boi_token": "<soi>", "eoi_token": "<eoi>", "image_token": "<soft>"},
    )


def _family(
    folder: Path,
    tokens: Sequence[str],
    config: PreTrainedConfig,
    *,
    slot: str,
    preprocessor: dict[str, Any],
    processor: dict[str, Any],
    weights: bool,
    **tokenizer_config: Any,
) -> Path:
    """`slot` is what the chat template writes for a picture; `tokens` are the family's own, from id FIRST on."""
    tokenizer = edited("tokenizer")
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": FIRST + index, "content": token, **plain} for index, token in enumerate(tokens)]
    model_folder(
        folder,
        template=TEMPLATE.replace("SLOT", slot),
        tokenizer=tokenizer,
        tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", **tokenizer_config},
        preprocessor_config=preprocessor,
        processor_config=processor,
    )
    if weights:
        torch.manual_seed(0)
        model = getattr(transformers, config.architectures[0])(config).float()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(WEIGHT_SCALE)
        model.save_pretrained(folder)
    config.save_pretrained(folder)
    return folder
