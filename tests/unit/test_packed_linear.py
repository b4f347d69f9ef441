import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from triton_renderer.packed_linear import PackedLinear, PatchLinear, TransposedLinear, pack_linears, pack_patches, replace_gelus


@pytest.mark.parametrize("tokens", [1, 2, 32, 300])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("form", [PackedLinear, TransposedLinear])
def test_either_form_computes_what_the_layer_does(
    form: type[PackedLinear] | type[TransposedLinear], tokens: int, bias: bool
) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(48, 80, bias=bias)
    x, residual = torch.randn(1, tokens, 48), torch.randn(1, tokens, 80)
    with torch.inference_mode():
        expected, packed = linear(x), form(linear)
        assert torch.allclose(packed(x), expected, atol=1e-5)
        assert torch.allclose(packed(x, residual), expected + residual, atol=1e-5)


def test_small_layers_are_transposed_and_large_ones_packed() -> None:
    assert type(PackedLinear.of(nn.Linear(64, 64))) is TransposedLinear
    assert type(PackedLinear.of(nn.Linear(1024, 1024))) is PackedLinear


def test_every_linear_layer_of_a_model_is_replaced_and_nothing_else() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32)), nn.Embedding(4, 16))
    x = torch.randn(5, 16)
    with torch.inference_mode():
        expected = model[1](model[0](x))
        assert pack_linears(model) == 2
        assert [type(module).__name__ for module in model.modules()] == [
            "Sequential", "TransposedLinear", "Sequential", "LayerNorm", "TransposedLinear", "Embedding",
        ]  # fmt: skip
        assert torch.allclose(model[1](model[0](x)), expected, atol=1e-5)


def test_a_dtype_that_cannot_be_packed_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(16, 16).double())
    assert pack_linears(model) == 0
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(2, 4, 4), (2, 8, 12)])
def test_a_convolution_over_patches_is_a_product_and_over_pictures_stays_one(size: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    conv = nn.Conv3d(3, 20, kernel_size=(2, 4, 4), stride=(2, 4, 4), bias=bias)
    model, x = nn.Sequential(conv), torch.randn(7, 3, *size)
    with torch.inference_mode():
        expected = model(x)
        assert pack_patches(model) == 1
        assert isinstance(model[0], PatchLinear)
        calls: list[object] = []
        model[0].conv.register_forward_hook(lambda *_: calls.append(1))
        assert torch.allclose(model(x), expected, atol=1e-5)
    assert len(calls) == (size != (2, 4, 4))


def test_a_convolution_with_groups_or_padding_is_left_alone() -> None:
    assert pack_patches(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 2, groups=2), nn.Conv1d(4, 4, 2))) == 0


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 0)])
def test_the_tanh_gelu_is_what_it_replaces(dtype: torch.dtype, tolerance: float) -> None:
    model = nn.Sequential(nn.Sequential(nn.GELU(approximate="tanh")), ACT2FN["gelu_pytorch_tanh"], nn.GELU(), nn.SiLU())
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([0.0, -1e20, 1e20, -3e38])]).to(dtype)
    kept = x.clone()
    expected = [model[0](x), model[1](x)]
    assert replace_gelus(model) == 2
    for got, wanted in zip([model[0](x), model[1](x)], expected, strict=True):
        assert torch.allclose(got, wanted, rtol=tolerance, atol=tolerance)
    assert torch.equal(x, kept)
    assert type(model[2]) is nn.GELU
