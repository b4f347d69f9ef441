"""Loads the part of a checkpoint that a stage needs: the encoders, or the language model.

A multimodal model of transformers is one module whose decoder (`get_decoder`) and output head make the language part, and
whose other children (vision tower, projector) make the encoder part. Here a subclass of the model's own class drops the
other part while it is still on the meta device, so that its weights are neither read nor allocated. No code for any family.
"""

import inspect
from typing import Any, Literal, cast

import blake3
import torch
import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from triton_renderer.settings import Settings

Part = Literal["encoder", "language"]


class CheckpointError(Exception):
    """The model cannot be loaded; the message is one line for the operator."""


def load_config(settings: Settings) -> PreTrainedConfig:
    """The model's configuration. Raises CheckpointError where there is none that transformers knows."""
    try:
        return AutoConfig.from_pretrained(settings.model)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"MODEL={settings.model}: {first_line(error)}") from error


def context_length(config: PreTrainedConfig, settings: Settings) -> int:
    """Tokens that prompt and output may have together.

    Raises CheckpointError where MAX_MODEL_LEN is above what the model was made for.
    """
    longest: int = config.get_text_config().max_position_embeddings
    if settings.max_model_len is not None and settings.max_model_len > longest:
        raise CheckpointError(f"MAX_MODEL_LEN={settings.max_model_len} is above the model's {longest} positions")
    return settings.max_model_len or longest


def device() -> torch.device:
    """The GPU where there is one; Triton gives a stage on a GPU of its own by CUDA_VISIBLE_DEVICES."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class that the checkpoint names. Raises CheckpointError where transformers has no such class."""
    name = (config.architectures or ["(none)"])[0]
    cls = getattr(transformers, name, None)
    if cls is None:
        raise CheckpointError(f"the architecture {name} is not part of transformers {transformers.__version__}")
    return cast("type[PreTrainedModel]", cls)


def has_encoder(config: PreTrainedConfig) -> bool:
    """The model takes pictures, not only text."""
    return hasattr(model_class(config), "get_image_features")


def takes_videos(model: PreTrainedModel) -> bool:
    """The model takes videos as patches with a grid, whose positions are all that this grid and the tokens say (Qwen3-VL)."""
    rope = getattr(model.base_model, "get_rope_index", None)
    if rope is None or not hasattr(model, "get_video_features"):
        return False
    parameters = inspect.signature(rope).parameters
    return "video_grid_thw" in parameters and "second_per_grid_ts" not in parameters


def load_part(settings: Settings, part: Part) -> PreTrainedModel:
    """The model with only `part` present, in eval mode, on `device()`, in the configured dtype.

    Raises CheckpointError where weights of that part are missing or have another shape.
    """
    config = load_config(settings)
    cls = model_class(config)
    if has_encoder(config):
        cls = _without_other_part(cls, part)
    elif part == "encoder":
        raise CheckpointError(f"{cls.__name__} has no encoder: it takes text only")
    try:
        model, report = cls.from_pretrained(
            settings.model,
            config=config,
            dtype=_dtype(config, settings),
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"MODEL={settings.model}: {first_line(error)}") from error
    if missing := sorted(report["missing_keys"]) + sorted(key for key, *_ in report["mismatched_keys"]):
        raise CheckpointError(f"MODEL={settings.model}: {len(missing)} weights are missing or misshapen, such as {missing[0]}")
    return cast(PreTrainedModel, model.eval().requires_grad_(False).to(device()))


def _dtype(config: PreTrainedConfig, settings: Settings) -> torch.dtype:
    """The configured dtype; by default the checkpoint's own, or float32 where the CPU would only emulate that."""
    if settings.dtype != "auto":
        return cast(torch.dtype, getattr(torch, settings.dtype))
    own = config.dtype or config.get_text_config().dtype or torch.float32
    if device().type == "cpu" and own != torch.float32 and not _computes_in(own):
        return torch.float32
    return cast(torch.dtype, own)


def _computes_in(dtype: torch.dtype) -> bool:
    """This CPU multiplies matrices of `dtype`: where it does not, a prompt takes many times as long as in float32."""
    able = torch.cpu.get_capabilities()
    names = {torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16"), torch.float16: ("avx512_fp16", "amx_fp16", "fp16")}
    return any(able.get(name, False) for name in names.get(dtype, ()))


def fingerprint(config: PreTrainedConfig, dtype: torch.dtype) -> bytes:
    """Identifies the model in cache keys: 32 bytes over its configuration, name and dtype."""
    return blake3.blake3(f"{config._name_or_path}\0{dtype}\0{config.to_json_string(use_diff=False)}".encode()).digest()


def _without_other_part(cls: type[PreTrainedModel], part: Part) -> type[PreTrainedModel]:
    """A subclass of `cls` that keeps only one part of its modules."""

    def __init__(self: Any, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        cls.__init__(self, config, *args, **kwargs)
        decoder, head = self.get_decoder(), self.get_output_embeddings()
        base = self.base_model
        for owner, name, child in [(base, *pair) for pair in base.named_children()] + [
            (self, *pair) for pair in self.named_children()
        ]:
            if child is not base and (child is decoder or child is head) != (part == "language"):
                setattr(owner, name, None)

    namespace = {
        "__init__": __init__,
        "__module__": cls.__module__,
        # The other part's weights are in the checkpoint and not wanted.
        "_keys_to_ignore_on_load_unexpected": [".*"],
    }
    if part == "encoder":
        namespace["_tied_weights_keys"] = None  # the tied pair is in the language part
    return type(cls.__name__, (cls,), namespace)


def parameter_bytes(model: nn.Module) -> int:
    """Memory of the weights, each shared one counted once."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def first_line(error: Exception) -> str:
    """What `error` says, for a message of one line: the libraries' own go on for pages."""
    return str(error).strip().split("\n")[0]
