"""Memory that CUDA's kernels take for a moment and the CPU's, which shapes are traced by, do not."""

from collections.abc import Callable
from typing import Any

import torch

FP32_BYTES = 4


def _softmax_backward(gradient: torch.Tensor, *_: object) -> int:
    """The product of gradient and output is made first.

    Source: softmax_backward_cuda_out, https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cuda/SoftMax.cu
    """
    return gradient.numel() * gradient.element_size()


def _flash_backward(_: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *__: object) -> int:
    """The gradient of the queries is added up in fp32; those of shared keys and values are made per query head first.

    Source: mha_bwd, https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp
    """
    is_grouped = key.shape[1] != query.shape[1]
    return query.numel() * (FP32_BYTES + (2 * query.element_size() if is_grouped else 0))


_aten: Any = torch.ops.aten
SCRATCH: dict[object, Callable[..., int]] = {
    _aten._softmax_backward_data.default: _softmax_backward,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _flash_backward,
}
"""Bytes of scratch memory by operator, from its arguments."""
