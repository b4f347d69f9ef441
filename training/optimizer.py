"""Muon: momentum steps whose matrices are made nearly orthogonal, so that every direction learns equally fast."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

# A quintic whose iteration drives singular values towards one quickly, not exactly; from Keller Jordan's Muon.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


def orthogonalize(matrices: Tensor) -> Tensor:
    """Brings the singular values of each matrix of the stack (n, rows, columns), rows <= columns, close to one."""
    a, b, c = COEFFICIENTS
    x: Tensor = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """Muon for matrices, in float32 and with matrices of one shape in one stack: torch's own is slow on CPUs.

    Updates are scaled to the size of Adam's, so that AdamW's learning rates and weight decay fit.
    """

    def __init__(
        self, matrices: Iterable[torch.nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        """What has more than two dimensions counts as a matrix of its first against all others."""
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update with Nesterov momentum. Closures are not supported."""
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            stacks: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                average = state.setdefault("momentum", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(average, group["momentum"])
                flat = update.flatten(1)
                wide = flat if flat.shape[0] <= flat.shape[1] else flat.mT
                stacks[(wide.shape[0], wide.shape[1])].append((p, wide))
            for (_, columns), members in stacks.items():
                updates = orthogonalize(torch.stack([wide for _, wide in members]))
                for (p, _), update in zip(members, updates, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(
                        (update if p.shape[0] <= p[0].numel() else update.mT).reshape(p.shape),
                        alpha=-group["lr"] * 0.2 * columns**0.5,
                    )
