"""Linear layers that take the memory of bitsandbytes' 4-bit and 8-bit ones, on tensors without data.

The real ones quantise when they move to a device and call native code, neither of which a trace can follow. What
counts here is what they keep, what they save for the backward pass and what they make for a moment.
Sources: https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/autograd/_functions.py
(MatMul4Bit, MatMul8bitLt) and .../bitsandbytes/nn/modules.py (Linear4bit, Linear8bitLt).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional
from transformers import masking_utils

from devkit.errors import DevkitError

# Liger's fused loss in shapes: its Triton kernel writes gradients over logits, a chunk of tokens at a time.
#
# Source: https://github.com/linkedin/Liger-Kernel/blob/main/src/liger_kernel/ops/fused_linear_cross_entropy.py


class EmulatedFusedLoss(Function):
    """Hidden states [tokens, width] and the head's weight [vocabulary, width] to a loss of shape []."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - torch's context
        """Gradients are made here already, as the kernel does."""
        of_states = torch.zeros_like(states)
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        losses = states.new_empty(len(states), dtype=torch.float32)
        for some in torch.split(states, count_chunk_tokens(states, weight)):
            logits = some @ weight.T
            of_states[: len(some)] = logits @ weight
            if of_weight is not None:
                of_weight.addmm_(logits.T, some)
            del logits
        ctx.save_for_backward(of_states, of_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:  # noqa: ANN401 - as above
        """The gradients of the forward pass, scaled in place."""
        of_states, of_weight = ctx.saved_tensors
        return of_states, of_weight


def count_chunk_tokens(states: torch.Tensor, weight: torch.Tensor) -> int:
    """How many tokens have their logits in memory at once: so many that these are as large as the states."""
    ratio = -(-weight.shape[0] // weight.shape[1])
    tokens = -(-len(states) // ratio)
    return int(1 << (tokens - 1).bit_length())


# Where a trace on a CPU without data would go another way than a run on a GPU, and how it is led back.


@contextmanager
def emulate_gpu() -> Iterator[None]:
    """Within, softmax treats half precision as CUDA's kernel does, and no row is taken for several packed texts."""
    with (
        _replaced(functional, "softmax", _softmax),
        _replaced(masking_utils, "find_packed_sequence_indices", _unpacked),
    ):
        yield


@contextmanager
def refuse_mixed_precision_experts() -> Iterator[None]:
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


SCALE_BLOCK = 64
"""Weights that share one scale in 4 bits. Source: QLoRA, https://arxiv.org/abs/2305.14314, section 3."""
NESTED_SCALE_BLOCK = 256
"""Scales that share one second-level scale under double quantisation. Source: as above."""


class _Multiply4bit(Function):
    """Saves no input: the weight is unpacked again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, layer: "Linear4bit") -> torch.Tensor:  # noqa: ANN401 - torch's context
        ctx.layer = layer
        return nn.functional.linear(inputs, layer.unpack_weight(inputs.dtype), layer.cast_bias(inputs.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401 - torch's context
        return gradient @ ctx.layer.unpack_weight(gradient.dtype), None


class _Multiply8bit(Function):
    """LLM.int8(): rows of the input and of the weight are scaled to int8, the product is int32; the input is kept."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, layer: "Linear8bit") -> torch.Tensor:  # noqa: ANN401 - torch's context
        flat = inputs.reshape(-1, inputs.shape[-1])
        scaled = flat.to(torch.float16)
        rows = torch.empty_like(scaled, dtype=torch.int8)
        scales = scaled.new_empty(len(flat), dtype=torch.float32)
        del scaled
        product = rows.new_empty((len(flat), layer.out_features), dtype=torch.int32)
        made = product.new_empty(product.shape, dtype=inputs.dtype)
        del product, rows, scales
        ctx.kept, ctx.layer, ctx.shape = flat, layer, inputs.shape
        return made.reshape(*inputs.shape[:-1], layer.out_features)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401 - torch's context
        flat = gradient.reshape(-1, gradient.shape[-1])
        return (flat @ ctx.layer.unpack_weight(gradient.dtype)).view(ctx.shape), None


class _Packed(nn.Linear):
    """A linear layer whose weight is kept packed; `weight` unpacks it, as DoRA does for its norm."""

    packed: torch.Tensor

    def __init__(self, like: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = like.in_features, like.out_features
        self._compute = like.weight.dtype
        self.bias = like.bias

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override] # a parameter in the parent, made on demand here
        return self.unpack_weight(self._compute)

    def unpack_weight(self, dtype: torch.dtype) -> torch.Tensor:
        """A dense weight of `dtype`, made anew on each call. Shape: [outputs, inputs]."""
        return self.packed.new_empty((self.out_features, self.in_features), dtype=dtype)

    def cast_bias(self, dtype: torch.dtype) -> torch.Tensor | None:
        """The bias in the type of the computation."""
        return None if self.bias is None else self.bias.to(dtype)


class Linear4bit(_Packed):
    """nf4 or fp4 in blocks of 64; its scales in fp32, or in 8 bits in blocks of 256 under double quantisation."""

    def __init__(self, like: nn.Linear, *, double_quantisation: bool) -> None:
        super().__init__(like)
        blocks = -(-like.weight.numel() // SCALE_BLOCK)
        device = like.weight.device
        self.register_buffer("packed", torch.empty(like.weight.numel() // 2, dtype=torch.uint8, device=device))
        scale = torch.uint8 if double_quantisation else torch.float32
        self.register_buffer("scales", torch.empty(blocks, dtype=scale, device=device))
        if double_quantisation:
            self.register_buffer("scales_of_scales", torch.empty(-(-blocks // NESTED_SCALE_BLOCK), device=device))
            # The offset and the two code books, 256 and 16 numbers.
            self.register_buffer("codes", torch.empty(1 + 256 + 16, device=device))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """`inputs` times the unpacked weight, computed in the layer's own type, in the type of the inputs."""
        if inputs.numel() == self.in_features and not torch.is_grad_enabled():
            # One token is multiplied with the packed weight as it is (gemv_4bit).
            return inputs.new_empty((*inputs.shape[:-1], self.out_features))
        made: torch.Tensor = _Multiply4bit.apply(inputs.to(self._compute), self)  # type: ignore[no-untyped-call]
        # peft clones the product of a 4-bit layer before it adds the adapter's.
        return made.to(inputs.dtype).clone()


class Linear8bit(_Packed):
    """LLM.int8(): one byte a weight and one fp32 scale a row."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__(like)
        device = like.weight.device
        self.register_buffer("packed", torch.empty(like.weight.shape, dtype=torch.int8, device=device))
        self.register_buffer("scales", torch.empty(like.out_features, device=device))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """`inputs` times the weight, in the type of the inputs."""
        made: torch.Tensor = _Multiply8bit.apply(inputs, self)  # type: ignore[no-untyped-call]
        bias = self.cast_bias(made.dtype)
        return made if bias is None else made + bias


# Memory that CUDA's kernels take for a moment and the CPU's, which shapes are traced by, do not.

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
SCRATCH_BYTES: dict[object, Callable[..., int]] = {
    _aten._softmax_backward_data.default: _softmax_backward,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _flash_backward,
}
"""Bytes of scratch memory by operator, from its arguments."""
