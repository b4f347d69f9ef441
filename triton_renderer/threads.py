"""How many threads a stage computes with, and which of its threads has them.

Each thread that computes with OpenMP has a team of its own. A stage computes in one thread only: with a second team there
are more threads than cores, and a team's threads then sleep between two operations instead of spinning for the next one: a
step of 40 ms took 60 (measured, 135 M parameters on two cores).
"""

import os

import torch

SMALL_MODEL_BYTES = 64 * 2**20
"""Weights of a model that computes with one thread. Two would wait for each other at the end of each of some hundred operations
of a step, 3 ms in all; and one reads so few weights in 6 ms (measured, with 10 GB/s). It also leaves a core to the other stages.
OMP_NUM_THREADS, where it is set, is what counts."""

ALL = torch.get_num_threads()
"""What torch was started with: the cores of the machine, or OMP_NUM_THREADS."""


def leave_to_another() -> None:
    """The calling thread computes with no team: what it does beside the one that does the work is little."""
    torch.set_num_threads(1)


def take(weight_bytes: int, device: torch.device) -> int:
    """The calling thread is the one that computes with weights of that size. Returns the number of its threads."""
    is_small = device.type == "cpu" and weight_bytes < SMALL_MODEL_BYTES
    count = 1 if is_small and "OMP_NUM_THREADS" not in os.environ else ALL
    torch.set_num_threads(count)
    return count
