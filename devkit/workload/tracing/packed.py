"""Linear layers that take the memory of bitsandbytes' 4-bit and 8-bit ones, on tensors without data.

The real ones quantise when they move to a device and call native code, neither of which a trace can follow. What
counts here is what they keep, what they save for the backward pass and what they make for a moment.
Sources: https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/autograd/_functions.py
(MatMul4Bit, MatMul8bitLt) and .../bitsandbytes/nn/modules.py (Linear4bit, Linear8bitLt).
"""

from typing import Any

import torch
from torch import nn
from torch.autograd import Function

BLOCK = 64
"""Weights that share one scale in 4 bits. Source: QLoRA, https://arxiv.org/abs/2305.14314, section 3."""
SCALES_BLOCK = 256
"""Scales that share one second-level scale under double quantisation. Source: as above."""


class _Multiply4bit(Function):
    """Saves no input: the weight is unpacked again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, layer: "Linear4bit") -> torch.Tensor:  # noqa: ANN401 - torch's context
        ctx.layer = layer
        return nn.functional.linear(inputs, layer.unpacked(inputs.dtype), layer.bias_as(inputs.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401 - torch's context
        return gradient @ ctx.layer.unpacked(gradient.dtype), None


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
        return (flat @ ctx.layer.unpacked(gradient.dtype)).view(ctx.shape), None


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
        return self.unpacked(self._compute)

    def unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        """A dense weight of `dtype`, made anew on each call. Shape: [outputs, inputs]."""
        return self.packed.new_empty((self.out_features, self.in_features), dtype=dtype)

    def bias_as(self, dtype: torch.dtype) -> torch.Tensor | None:
        """The bias in the type of the computation."""
        return None if self.bias is None else self.bias.to(dtype)


class Linear4bit(_Packed):
    """nf4 or fp4 in blocks of 64; its scales in fp32, or in 8 bits in blocks of 256 under double quantisation."""

    def __init__(self, like: nn.Linear, *, double_quantisation: bool) -> None:
        super().__init__(like)
        blocks = -(-like.weight.numel() // BLOCK)
        device = like.weight.device
        self.register_buffer("packed", torch.empty(like.weight.numel() // 2, dtype=torch.uint8, device=device))
        scale = torch.uint8 if double_quantisation else torch.float32
        self.register_buffer("scales", torch.empty(blocks, dtype=scale, device=device))
        if double_quantisation:
            self.register_buffer("scales_of_scales", torch.empty(-(-blocks // SCALES_BLOCK), device=device))
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
        bias = self.bias_as(made.dtype)
        return made if bias is None else made + bias
