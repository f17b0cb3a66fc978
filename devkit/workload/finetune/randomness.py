"""Random numbers that depend on the step alone, so that no generator's state has to be saved or restored.

Each optimizer step starts all generators anew, from the run's seed, the step and the process. A resumed run therefore
draws what the uninterrupted one would have drawn, and a step that was given up half-way leaves no trace: its
accumulated passes drew from generators that the step's repetition sets again.
"""

import hashlib
import random
import sys

import torch

_NUMPY_SEEDS = 2**32


def seed_step(*, seed: int, step: int, rank: int) -> None:
    """Set the generators of Python, torch (CPU and GPUs) and, where it is imported, numpy for one optimizer step."""
    drawn = step_seed(seed=seed, step=step, rank=rank)
    random.seed(drawn)
    torch.manual_seed(drawn)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(drawn % _NUMPY_SEEDS)


def step_seed(*, seed: int, step: int, rank: int) -> int:
    """A number below 2^63 in which neighbouring steps, seeds and processes have nothing in common."""
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
