from collections.abc import Iterator

import pytest
import torch

from triton_renderer import threads

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "ALL", 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield
    torch.set_num_threads(before)


def test_small_model_computes_with_one_thread() -> None:
    assert threads.take(2**20, CPU) == torch.get_num_threads() == 1


def test_large_model_computes_with_all_threads() -> None:
    assert threads.take(2**30, CPU) == torch.get_num_threads() == 4


def test_the_users_number_of_threads_counts_for_every_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert threads.take(2**20, CPU) == torch.get_num_threads() == 4


def test_a_thread_that_leaves_the_work_to_another_has_no_team() -> None:
    torch.set_num_threads(4)
    threads.leave_to_another()
    assert torch.get_num_threads() == 1
