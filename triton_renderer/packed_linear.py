"""Linear layers whose weights lie as a step of a few tokens wants them, for decoding on a CPU.

Such a step reads every weight once and computes little with it. `nn.Linear` lets oneDNN (or MKL) rearrange the weight anew at
each call; here that is done once, while the model is loaded. Large weights lie as oneDNN's operators want them, those that
torch.compile's freezing uses for the same purpose; small ones are only transposed, since starting a oneDNN operator costs
more than they do: 120 µs instead of 215 for the five products of a layer of 192 (measured).
"""

import functools
import math
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from transformers.activations import GELUTanh

_USUAL_TOKENS = 32
"""The step that the layout of the weights is chosen for; any other works as well."""
_SMALL_BYTES = 2 * 2**20
"""Weights up to this size are transposed only."""
_TOLERANCE = 1e-3
_GELU_LINEAR = 2 * math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715 * _GELU_LINEAR


class PackedLinear(nn.Module):
    """Computes what the given layer does: x [..., in] → [..., out]. Keeps a rearranged copy of its weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._weight: Any = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _USUAL_TOKENS)

    @staticmethod
    def of(linear: nn.Linear) -> "PackedLinear | TransposedLinear":
        """The form that is faster for a layer of its size. Only where `can_pack`."""
        small = linear.weight.numel() * linear.weight.itemsize <= _SMALL_BYTES
        return TransposedLinear(linear) if small else PackedLinear(linear)

    @staticmethod
    def can_pack(linear: nn.Linear) -> bool:
        """Whether the packed form computes the same: the operators are not a public interface of torch."""
        return type(linear) is nn.Linear and linear.weight.device.type == "cpu" and _computes_the_same(linear.weight.dtype)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x: [..., in], in the dtype of the weights. residual: [..., out], added to the product."""
        out: Tensor
        if residual is None:
            out = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, "none", [], "")
        else:
            out = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self.bias, "add")
        return out


class TransposedLinear(nn.Module):
    """Computes what the given layer does: x [..., in] → [..., out]. Keeps a transposed copy of its weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._weight = linear.weight.detach().t().contiguous()

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """As of PackedLinear."""
        if residual is not None and self.bias is None and x.ndim == 2:
            return torch.addmm(residual, x, self._weight)
        out = x @ self._weight
        if self.bias is not None:
            out += self.bias
        return out if residual is None else out.add_(residual)


class PatchLinear(nn.Module):
    """A convolution over patches: where its input is no larger than its kernel, it is one product.

    Towers that get their pictures as patches (Qwen-VL) still put them through a convolution, which takes five times as long.
    """

    def __init__(self, conv: nn.Conv2d | nn.Conv3d) -> None:
        super().__init__()
        self.conv = conv
        weight = conv.weight.detach().flatten(1)
        linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
        linear.weight, linear.bias = nn.Parameter(weight, requires_grad=False), conv.bias  # type: ignore[assignment]
        self.linear = PackedLinear.of(linear)

    @staticmethod
    def can_replace(conv: nn.Module) -> TypeGuard[nn.Conv2d | nn.Conv3d]:
        """Whether each place of the kernel meets one place of the input, once."""
        return (
            type(conv) in (nn.Conv2d, nn.Conv3d)
            and isinstance(conv, nn.Conv2d | nn.Conv3d)
            and conv.groups == 1
            and all(size == 0 for size in conv.padding)
        )

    @property
    def weight(self) -> Tensor:
        """The convolution's, whose dtype models ask for."""
        return self.conv.weight

    def forward(self, x: Tensor) -> Tensor:
        """x: [patches, channels, ...] → [patches, out, ...], as of the convolution."""
        if x.shape[2:] != self.conv.kernel_size:
            out: Tensor = self.conv(x)
            return out
        flat: Tensor = self.linear(x.flatten(1))
        return flat.view(*flat.shape, *(1 for _ in self.conv.kernel_size))


@torch.inference_mode()
def pack_patches(model: nn.Module) -> int:
    """Replaces the convolutions over patches of a model on the CPU, and returns how many."""
    convs = [
        (owner, name, child)
        for owner in model.modules()
        for name, child in owner.named_children()
        if PatchLinear.can_replace(child) and child.weight.device.type == "cpu" and _computes_the_same(child.weight.dtype)
    ]
    for owner, name, conv in convs:
        setattr(owner, name, PatchLinear(conv))
    return len(convs)


class FastTanhGELU(nn.Module):
    """GELU by its tanh formula, in half the time of torch's kernel on a CPU, within 1e-6 in float32.

    x/2 · (1 + tanh u) = x · sigmoid(2u), with u = √(2/π) · (x + 0.044715 x³) (Hendrycks and Gimpel, arXiv 1606.08415).
    """

    def forward(self, x: Tensor) -> Tensor:
        """x: any shape, float32; another dtype would lose digits in between and takes torch's kernel."""
        if x.dtype != torch.float32:
            return nn.functional.gelu(x, approximate="tanh")
        twice_u = (x * x).mul_(_GELU_CUBIC).add_(_GELU_LINEAR).mul_(x)
        return twice_u.sigmoid_().mul_(x)


@torch.inference_mode()
def replace_gelus(model: nn.Module) -> int:
    """Replaces the tanh GELUs of a model on the CPU, and returns how many."""
    gelus = [
        (owner, name)
        for owner in model.modules()
        for name, child in owner.named_children()
        if type(child) is GELUTanh or (type(child) is nn.GELU and child.approximate == "tanh")
    ]
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return 0
    for owner, name in gelus:
        setattr(owner, name, FastTanhGELU())
    return len(gelus)


@torch.inference_mode()
def pack_linears(model: nn.Module) -> int:
    """Replaces the linear layers of a model on the CPU by packed ones, and returns how many.

    Does nothing where the first of them cannot be packed.
    """
    linears = [
        (owner, name, child) for owner in model.modules() for name, child in owner.named_children() if type(child) is nn.Linear
    ]
    if not (linears and PackedLinear.can_pack(linears[0][2])):
        return 0
    for owner, name, linear in linears:
        setattr(owner, name, PackedLinear.of(linear))
    return len(linears)


@functools.cache
def _computes_the_same(dtype: torch.dtype) -> bool:
    try:
        linear = nn.Linear(48, 80).to(dtype)
        x, residual = torch.linspace(-1, 1, 3 * 48).view(1, 3, 48).to(dtype), torch.ones(1, 3, 80, dtype=dtype)
        packed, expected = PackedLinear(linear), linear(x)
        pairs = ((packed(x), expected), (packed(x, residual), expected + residual))
    except (RuntimeError, AttributeError):  # another dtype, or a torch without these operators
        return False
    return all(torch.allclose(got, wanted, rtol=_TOLERANCE, atol=_TOLERANCE) for got, wanted in pairs)
