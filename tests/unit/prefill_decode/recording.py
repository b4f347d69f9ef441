"""A recorder of torch's operations: what a CUDA graph is on a GPU.

Like a graph it knows nothing of Python: what the recorded function computed on the host is part of the recording, and shows
up as wrong numbers when it should have been another. What a GPU's capture refuses, it refuses.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_ATEN: Any = torch.ops.aten
_WAITING = frozenset(
    {_ATEN._local_scalar_dense, _ATEN.item, _ATEN.is_nonzero, _ATEN.equal, _ATEN.nonzero, _ATEN.masked_select, _ATEN.lift_fresh}
)
"""The host needs a value of the device for them, or brings one along."""
Call = tuple[Callable[..., Any], Any, Any, Any]


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in _WAITING:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


def record(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A `Recorder` (see decode_graphs.py)."""
    run()
    with _Recording() as recording:
        out = run()
    if not recording.calls:
        raise RuntimeError("nothing was recorded")

    def replay() -> Tensor:
        made: dict[int, Tensor] = {}  # by the tensor that was made at its place while recording; the recording keeps those

        def now(value: Any) -> Any:
            return made.get(id(value), value)

        for func, args, kwargs, outputs in recording.calls:
            results = func(*tree_map(now, args), **tree_map(now, kwargs))
            made.update(zip(map(id, tree_leaves(outputs)), tree_leaves(results), strict=True))
        return made[id(out)]

    return replay
