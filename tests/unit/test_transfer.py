"""Tensors on their way to the device. That a GPU does not wait for them, only a GPU can show."""

from typing import Any

import pytest
import torch

from triton_renderer.transfer import copy_to, to_device

GPU = torch.device("cuda")


class Noting:
    """Stands in for a tensor, and notes what is asked of it."""

    def __init__(self, is_cuda: bool) -> None:
        self.is_cuda = is_cuda
        self.calls: list[Any] = []

    def pin_memory(self) -> "Noting":
        self.calls.append("pin")
        return self

    def to(self, device: torch.device, non_blocking: bool = False) -> "Noting":
        self.calls.append((device, non_blocking))
        return self


def moved(is_cuda: bool, device: torch.device) -> list[Any]:
    tensor: Any = Noting(is_cuda)
    assert to_device(tensor, device) is tensor
    calls: list[Any] = tensor.calls
    return calls


def test_to_a_gpu_it_goes_from_page_locked_memory_and_nobody_waits() -> None:
    assert moved(False, GPU) == ["pin", (GPU, True)]


def test_what_is_on_the_gpu_cannot_be_page_locked() -> None:
    assert moved(True, GPU) == [(GPU, False)]


def test_on_a_cpu_nothing_is_copied() -> None:
    tensor = torch.ones(3)
    assert to_device(tensor, torch.device("cpu")) is tensor


def test_a_tensor_is_filled_where_it_lies() -> None:
    target = torch.zeros(2, 2, dtype=torch.int32)
    view = target.view(-1)
    copy_to(target, torch.tensor([[1, 2], [3, 4]]))
    assert view.tolist() == [1, 2, 3, 4]
    with pytest.raises(RuntimeError):
        copy_to(target, torch.zeros(3, 2))
