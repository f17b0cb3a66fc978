"""Where a trace on a CPU without data would go another way than a run on a GPU, and how it is led back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from transformers import masking_utils


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Within, softmax treats half precision as CUDA's kernel does, and no row is taken for several packed texts."""
    with (
        _replaced(functional, "softmax", _softmax),
        _replaced(masking_utils, "find_packed_sequence_indices", _unpacked),
    ):
        yield


def _softmax(scores: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Half-precision scores become fp32 inside the kernel, and so do their gradients.

    Source: softmax in https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/SoftMax.cpp
    """
    if scores.dtype is torch.float16 and dtype is torch.float32:
        inside: torch.Tensor = torch.ops.aten._softmax(scores, dim, True)
        return inside
    return torch.softmax(scores, dim, dtype=dtype)


def _unpacked(*_: object) -> None:
    """transformers looks at the positions for rows of several texts, and makes a mask where it cannot look.

    Positions without data cannot be looked at; the mask, and keys and values repeated for every head with it, would be
    traced where a real run has neither.
    """


@contextmanager
def _replaced(owner: Any, name: str, stand_in: Any) -> Iterator[None]:  # noqa: ANN401 - a module and what is in it
    before = getattr(owner, name)
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        setattr(owner, name, before)
