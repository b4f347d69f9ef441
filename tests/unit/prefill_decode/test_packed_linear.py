import pytest
import torch
from torch import nn

from triton_renderer.prefill_decode.packed_linear import PackedLinear, pack_linears


@pytest.mark.parametrize("tokens", [1, 2, 32, 300])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_layer_computes_what_the_layer_does(tokens: int, bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(48, 80, bias=bias)
    x = torch.randn(1, tokens, 48)
    with torch.inference_mode():
        assert torch.allclose(PackedLinear(linear)(x), linear(x), atol=1e-5)


def test_every_linear_layer_of_a_model_is_replaced_and_nothing_else() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32)), nn.Embedding(4, 16))
    x = torch.randn(5, 16)
    with torch.inference_mode():
        expected = model[1](model[0](x))
        assert pack_linears(model) == 2
        assert [type(module).__name__ for module in model.modules()] == [
            "Sequential", "PackedLinear", "Sequential", "LayerNorm", "PackedLinear", "Embedding",
        ]  # fmt: skip
        assert torch.allclose(model[1](model[0](x)), expected, atol=1e-5)


def test_a_dtype_that_cannot_be_packed_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(16, 16).double())
    assert pack_linears(model) == 0
    assert type(model[0]) is nn.Linear
