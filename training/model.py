"""The model's shape (a small Qwen3-VL) and how pictures are prepared for it."""

from typing import Any

from transformers import Qwen3VLConfig

PATCH, MERGE, FRAMES = 8, 2, 2
# Areas in pixels. A merged token covers 16 by 16 of them, so that a picture becomes 28 to 40 tokens: enough that two small
# shapes seldom share one.
MIN_PIXELS, MAX_PIXELS = 28 * 256, 40 * 256

PREPROCESSOR: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen3VLProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "resample": 3,
    "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
    "patch_size": PATCH,
    "temporal_patch_size": FRAMES,
    "merge_size": MERGE,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def make_config(token_ids: dict[str, int], vocab_size: int) -> Qwen3VLConfig:
    """The configuration; `token_ids` maps Qwen's special tokens to the ids that the vocabulary gave them."""
    text = {
        "vocab_size": vocab_size,
        "hidden_size": 192,
        "intermediate_size": 352,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 48,
        "max_position_embeddings": 8192,
        # The same number of frequencies for time, height and width: position within a picture is what counts here.
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [8, 8, 8],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
        "bos_token_id": token_ids["<|endoftext|>"],
        "eos_token_id": token_ids["<|im_end|>"],
        "pad_token_id": token_ids["<|endoftext|>"],
    }
    vision = {
        "depth": 4,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_heads": 4,
        "out_hidden_size": 192,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [1],
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token_ids["<|image_pad|>"],
        video_token_id=token_ids["<|video_pad|>"],
        vision_start_token_id=token_ids["<|vision_start|>"],
        vision_end_token_id=token_ids["<|vision_end|>"],
        tie_word_embeddings=True,
        dtype="float32",
        architectures=["Qwen3VLForConditionalGeneration"],
    )
