"""From the host's memory to the device's, without waiting.

A copy from ordinary memory makes the host wait until the GPU has done all that was asked of it before. One from page-locked
memory is queued like any kernel, and the host goes on. torch keeps such memory for the next transfer, and gives it out again
only when the copy has run.
"""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`, where work queued from now on finds it. On a CPU, or where it lies there already, `tensor` itself."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def copy_to(target: Tensor, source: Tensor) -> None:
    """Fills `target`, on any device, from `source` of the same shape; dtypes may differ. Work queued from now on finds it."""
    target.copy_(to_device(source, target.device))
