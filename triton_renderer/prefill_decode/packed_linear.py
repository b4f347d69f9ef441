"""Linear layers whose weights lie as oneDNN wants them, for decoding on a CPU.

A step of a few tokens reads every weight once and computes little with it. `nn.Linear` lets oneDNN (or MKL) rearrange the
weight anew at each call; here that is done once, while the model is loaded, with the operators that torch.compile's freezing
uses for the same purpose.
"""

from typing import Any

import torch
from torch import Tensor, nn

_USUAL_TOKENS = 32
"""The step that the layout of the weights is chosen for; any other works as well."""
_TOLERANCE = 1e-3


class PackedLinear(nn.Module):
    """Computes what the given layer does: x [..., in] → [..., out]. Keeps a rearranged copy of its weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._weight: Any = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _USUAL_TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in], in the dtype of the weights."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, "none", [], "")
        return out


@torch.inference_mode()
def pack_linears(model: nn.Module) -> int:
    """Replaces the linear layers of a model on the CPU by packed ones, and returns how many.

    Does nothing where a layer's packed form does not compute the same: the operators are not a public interface of torch.
    """
    linears = [
        (owner, name, child)
        for owner in model.modules()
        for name, child in owner.named_children()
        if type(child) is nn.Linear and child.weight.device.type == "cpu"
    ]
    if not (linears and _computes_the_same(linears[0][2])):
        return 0
    for owner, name, linear in linears:
        setattr(owner, name, PackedLinear(linear))
    return len(linears)


def _computes_the_same(linear: nn.Linear) -> bool:
    x = torch.linspace(-1, 1, 3 * linear.in_features).view(1, 3, -1).to(linear.weight.dtype)
    try:
        packed = PackedLinear(linear)(x)
    except (RuntimeError, AttributeError):  # another dtype, or a torch without these operators
        return False
    return torch.allclose(packed, linear(x), rtol=_TOLERANCE, atol=_TOLERANCE)
