"""Where a trace on a CPU without data would go another way than a run on a GPU, and how it is led back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from transformers import masking_utils

from devkit.errors import DevkitError


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Within, softmax treats half precision as CUDA's kernel does, and no row is taken for several packed texts."""
    with (
        _replaced(functional, "softmax", _softmax),
        _replaced(masking_utils, "find_packed_sequence_indices", _unpacked),
    ):
        yield


@contextmanager
def experts_in_bf16() -> Iterator[None]:
    """Within, fused experts that are asked to compute in another type are refused: a limit of torch, no bug of devkit.

    Raises DevkitError. Source: _grouped_mm_validate_inputs, which wants bf16 of both matrices, in
    https://github.com/pytorch/pytorch/blob/main/torch/_meta_registrations.py
    """
    try:
        yield
    except RuntimeError as error:
        if "Expected inputs of BF16 type" not in str(error):
            raise
        raise DevkitError(
            "torch multiplies fused experts in bf16 alone, and these are in another type",
            "Take --dtype bf16 and --no-kbit-upcast, or estimate without --exact.",
        ) from error


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
