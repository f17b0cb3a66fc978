"""Emulation of GPU kernels on tensors without data, where a trace on a CPU would differ from a run on a GPU.

The linear layers take the memory of bitsandbytes' 4-bit and 8-bit ones. The real ones quantize when they move to a
device and call native code, neither of which a trace can follow: what counts here is what they keep, what they save for
the backward pass and what they allocate temporarily.
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
from devkit.estimate.activations import TRL_TILE

SCALE_BLOCK = 64
"""Weights that share one scale in 4 bits. Source: QLoRA, https://arxiv.org/abs/2305.14314, section 3."""
NESTED_SCALE_BLOCK = 256
"""Scales that share one second-level scale under double quantization. Source: as above."""

FP32_BYTES = 4


@contextmanager
def emulate_gpu() -> Iterator[None]:
    """Let softmax treat half precision as CUDA's kernel does, and take no row for several packed texts."""
    with (
        _patch(functional, "softmax", _softmax),
        _patch(masking_utils, "find_packed_sequence_indices", _find_no_packed_sequences),
    ):
        yield


@contextmanager
def refuse_mixed_precision_experts() -> Iterator[None]:
    """Raise DevkitError for fused experts in another dtype than bf16: a limit of torch, no bug of devkit.

    Source: _grouped_mm_validate_inputs, which requires bf16 of both matrices, in
    https://github.com/pytorch/pytorch/blob/main/torch/_meta_registrations.py
    """
    try:
        yield
    except RuntimeError as error:
        if "Expected inputs of BF16 type" not in str(error):
            raise
        raise DevkitError(
            "torch multiplies fused experts in bf16 alone, and these are in another type",
            "Use --dtype bf16 and --set upcast=false.",
        ) from error


def _softmax(scores: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Compute softmax as CUDA's kernel: it converts half-precision scores to fp32 inside, and so their gradients.

    Source: softmax in https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/SoftMax.cpp
    """
    if scores.dtype is torch.float16 and dtype is torch.float32:
        inside: torch.Tensor = torch.ops.aten._softmax(scores, dim, True)
        return inside
    return torch.softmax(scores, dim, dtype=dtype)


def _find_no_packed_sequences(*_: object) -> None:
    """Find no packed texts. transformers looks for them in the positions, and makes a mask where these have no data.

    The mask, and keys and values repeated for every head with it, would be traced where a real run has neither.
    """


@contextmanager
def _patch(owner: Any, name: str, substitute: Any) -> Iterator[None]:  # noqa: ANN401 - a module and what is in it
    original = getattr(owner, name)
    setattr(owner, name, substitute)
    try:
        yield
    finally:
        setattr(owner, name, original)


class _Multiply4bit(Function):
    """A 4-bit product. It saves no input: the weight is unpacked again in the backward pass."""

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
        output = product.new_empty(product.shape, dtype=inputs.dtype)
        del product, rows, scales
        ctx.kept, ctx.layer, ctx.shape = flat, layer, inputs.shape
        return output.reshape(*inputs.shape[:-1], layer.out_features)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401 - torch's context
        flat = gradient.reshape(-1, gradient.shape[-1])
        return (flat @ ctx.layer.unpack_weight(gradient.dtype)).view(ctx.shape), None


class _PackedLinear(nn.Linear):
    """A linear layer with a packed weight; `weight` unpacks it, as DoRA does for its norm."""

    packed: torch.Tensor

    def __init__(self, like: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = like.in_features, like.out_features
        self._compute = like.weight.dtype
        self.bias = like.bias

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override] # a parameter in the parent, computed here
        return self.unpack_weight(self._compute)

    def unpack_weight(self, dtype: torch.dtype) -> torch.Tensor:
        """Allocate a dense weight of `dtype`, a new one on each call. Shape: [outputs, inputs]."""
        return self.packed.new_empty((self.out_features, self.in_features), dtype=dtype)

    def cast_bias(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Return the bias in the dtype of the computation."""
        return None if self.bias is None else self.bias.to(dtype)


class Linear4bit(_PackedLinear):
    """A layer in nf4 or fp4, in blocks of 64; scales in fp32, or in 8 bits in blocks of 256 with double quantization."""

    def __init__(self, like: nn.Linear, *, double_quantization: bool) -> None:
        super().__init__(like)
        blocks = -(-like.weight.numel() // SCALE_BLOCK)
        device = like.weight.device
        self.register_buffer("packed", torch.empty(like.weight.numel() // 2, dtype=torch.uint8, device=device))
        scale = torch.uint8 if double_quantization else torch.float32
        self.register_buffer("scales", torch.empty(blocks, dtype=scale, device=device))
        if double_quantization:
            self.register_buffer("scales_of_scales", torch.empty(-(-blocks // NESTED_SCALE_BLOCK), device=device))
            # The offset and the two code books, 256 and 16 numbers.
            self.register_buffer("codes", torch.empty(1 + 256 + 16, device=device))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Multiply `inputs` with the unpacked weight in the layer's own dtype. Returns the dtype of the inputs."""
        if inputs.numel() == self.in_features and not torch.is_grad_enabled():
            # One token is multiplied with the packed weight itself (gemv_4bit).
            return inputs.new_empty((*inputs.shape[:-1], self.out_features))
        product: torch.Tensor = _Multiply4bit.apply(inputs.to(self._compute), self)  # type: ignore[no-untyped-call]
        # peft clones the product of a 4-bit layer before it adds the adapter's.
        return product.to(inputs.dtype).clone()


class Linear8bit(_PackedLinear):
    """A layer in LLM.int8(): one byte for each weight and one fp32 scale for each row."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__(like)
        device = like.weight.device
        self.register_buffer("packed", torch.empty(like.weight.shape, dtype=torch.int8, device=device))
        self.register_buffer("scales", torch.empty(like.out_features, device=device))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Multiply `inputs` with the weight. Returns the dtype of the inputs."""
        product: torch.Tensor = _Multiply8bit.apply(inputs, self)  # type: ignore[no-untyped-call]
        bias = self.cast_bias(product.dtype)
        return product if bias is None else product + bias


class EmulatedFusedLoss(Function):
    """Liger's fused loss: hidden states [tokens, width] and the head's weight [vocabulary, width] to a loss [].

    Its Triton kernel overwrites the logits with their gradients, a chunk of tokens at a time.
    Source: https://github.com/linkedin/Liger-Kernel/blob/main/src/liger_kernel/ops/fused_linear_cross_entropy.py
    """

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - torch's context
        """Compute the gradients already here, as the kernel does."""
        state_gradients = torch.zeros_like(states)
        weight_gradient = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        losses = states.new_empty(len(states), dtype=torch.float32)
        for chunk in torch.split(states, count_chunk_tokens(states, weight)):
            logits = chunk @ weight.T
            state_gradients[: len(chunk)] = logits @ weight
            if weight_gradient is not None:
                weight_gradient.addmm_(logits.T, chunk)
            del logits
        ctx.save_for_backward(state_gradients, weight_gradient)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:  # noqa: ANN401 - as above
        """Return the gradients of the forward pass, scaled in place."""
        state_gradients, weight_gradient = ctx.saved_tensors
        return state_gradients, weight_gradient


class EmulatedTiledLoss(Function):
    """TRL's loss: hidden states [tokens, width] and the head's weight [vocabulary, width] to a loss [].

    A tile of logits at a time, computed again in the backward pass; gradients are summed in fp32.
    Source: https://github.com/huggingface/trl/blob/v1.16.0/trl/kernels/chunked_logprob.py
    """

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - torch's context
        """Compute tile by tile, and keep only the inputs."""
        ctx.save_for_backward(states, weight)
        ctx.dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else states.dtype
        _allocate_tile(states, weight, ctx.dtype)
        return states.new_empty(len(states), dtype=torch.float32).sum()

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:  # noqa: ANN401 - as above
        """Return the gradients, rounded once."""
        states, weight = ctx.saved_tensors
        state_gradients = torch.zeros_like(states, dtype=torch.float32)
        weight_gradients = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        _allocate_tile(states, weight, ctx.dtype)
        rounded = None if weight_gradients is None else weight_gradients.to(weight.dtype)
        return state_gradients.to(states.dtype), rounded


def _allocate_tile(states: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> None:
    states.new_empty((min(len(states), TRL_TILE[0]), min(len(weight), TRL_TILE[1])), dtype=dtype)


def count_chunk_tokens(states: torch.Tensor, weight: torch.Tensor) -> int:
    """Count the tokens whose logits are in memory at once: so many that these are as large as the states."""
    ratio = -(-weight.shape[0] // weight.shape[1])
    tokens = -(-len(states) // ratio)
    return int(1 << (tokens - 1).bit_length())


def _softmax_backward(gradient: torch.Tensor, *_: object) -> int:
    """Count the bytes of the product of gradient and output, which is computed first.

    Source: softmax_backward_cuda_out, https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cuda/SoftMax.cu
    """
    return gradient.numel() * gradient.element_size()


def _flash_backward(_: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *__: object) -> int:
    """Count the bytes of the queries' gradient in fp32, and of shared keys' and values' gradients per query head.

    Source: mha_bwd, https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp
    """
    is_grouped = key.shape[1] != query.shape[1]
    return query.numel() * (FP32_BYTES + (2 * query.element_size() if is_grouped else 0))


_aten: Any = torch.ops.aten
SCRATCH_BYTES: dict[object, Callable[..., int]] = {
    _aten._softmax_backward_data.default: _softmax_backward,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _flash_backward,
}
"""Bytes of scratch memory, by operator, from its arguments: CUDA's kernels take it, and the CPU's do not."""
