"""That fused layers compute the same is what the tests against transformers' `generate` show; here is which ones are fused."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tests.unit import families
from triton_renderer import checkpoint
from triton_renderer.prefill_decode.fused_layers import FusedLayer, fuse_layers, is_fusible
from triton_renderer.settings import load_settings

CONFIG = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2)


def kinds(model: nn.Module) -> list[str]:
    return [type(layer).__name__ for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module]


def test_every_layer_of_the_bundled_language_model_is_fused() -> None:
    model = checkpoint.load_part(load_settings(), "language")
    assert fuse_layers(model) == model.config.get_text_config().num_hidden_layers
    assert set(kinds(model.base_model.language_model)) == {"FusedLayer"}


def test_layers_that_are_laid_out_otherwise_are_left_alone(tmp_path: Path) -> None:
    model = checkpoint.load_part(load_settings(model=str(families.gemma3(tmp_path / "gemma", weights=True))), "language")
    before = kinds(model)
    assert fuse_layers(model) == 0
    assert kinds(model) == before


def test_a_layer_of_a_known_name_with_a_part_that_is_not_known_is_left_alone() -> None:
    layer = LlamaForCausalLM(CONFIG).eval().model.layers[0]
    assert is_fusible(layer)
    layer.self_attn.scale_norm = nn.LayerNorm(8)
    assert not is_fusible(layer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_layers_keep_the_dtype(dtype: torch.dtype) -> None:
    model = LlamaForCausalLM(CONFIG).eval().to(dtype)
    fuse_layers(model)
    assert all(isinstance(layer, FusedLayer) for layer in model.model.layers)
    assert {buffer.dtype for layer in model.model.layers for buffer in layer.buffers()} == {dtype}
