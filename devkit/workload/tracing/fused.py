"""Liger's fused loss in shapes: its Triton kernel writes gradients over logits, a chunk of tokens at a time.

Source: https://github.com/linkedin/Liger-Kernel/blob/main/src/liger_kernel/ops/fused_linear_cross_entropy.py
"""

from typing import Any

import torch
from torch.autograd import Function


class FusedLoss(Function):
    """Hidden states [tokens, width] and the head's weight [vocabulary, width] to a loss of shape []."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - torch's context
        """Gradients are made here already, as the kernel does."""
        of_states = torch.zeros_like(states)
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        losses = states.new_empty(len(states), dtype=torch.float32)
        for some in torch.split(states, chunk_tokens(states, weight)):
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


def chunk_tokens(states: torch.Tensor, weight: torch.Tensor) -> int:
    """How many tokens have their logits in memory at once: so many that these are as large as the states."""
    ratio = -(-weight.shape[0] // weight.shape[1])
    tokens = -(-len(states) // ratio)
    return int(1 << (tokens - 1).bit_length())
