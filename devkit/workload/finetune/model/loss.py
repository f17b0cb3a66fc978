"""The loss: cross-entropy on hidden states, without materializing the full logits.

Every loss here is the sum over targets; the caller divides by their number in the whole effective batch.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from devkit.estimate.settings import Loss
from devkit.workload.finetune.data.batches import IGNORE_INDEX, move_to_device
from devkit.workload.models import Model

CHUNK_TOKENS = 512
"""Tokens whose logits are materialized at once: enough that the product with the head is compute-bound on every GPU so
far, and 0.25 GiB of fp32 logits at a vocabulary of 128 thousand."""


@dataclass(frozen=True)
class OutputHead:
    """The output head: logits = `softcap` * tanh(`scale` * layer(hidden) / `softcap`); 0 for no cap."""

    layer: torch.nn.Module
    scale: float = 1.0
    softcap: float = 0.0

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits in fp32. Shape [..., hidden] to [..., vocabulary]."""
        return self.apply_scale_and_softcap(self.layer(hidden).float())

    def apply_scale_and_softcap(self, raw: torch.Tensor) -> torch.Tensor:
        """Return what the model makes of the head's product, out of place."""
        scaled = raw if self.scale == 1.0 else raw * self.scale
        return torch.tanh(scaled / self.softcap) * self.softcap if self.softcap else scaled

    @property
    def is_plain(self) -> bool:
        """True if the layer is a plain matrix product, whose gradient is written out below."""
        layer = self.layer
        return type(layer) is torch.nn.Linear and not layer._forward_hooks and not layer._forward_pre_hooks


def get_output_head(model: Model) -> OutputHead:
    """Return the output head of a causal language model, with its family's scale and softcap.

    Names of the configuration: Gemma's final_logit_softcapping, Cohere's logit_scale, Granite's logits_scaling.
    """
    config = model.config.get_text_config()
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    return OutputHead(
        model.get_output_embeddings(), scale, softcap=float(getattr(config, "final_logit_softcapping", None) or 0.0)
    )


def head_matches_model(head: OutputHead, model: Model) -> bool:
    """Return True if `head` on the decoder's hidden states gives the model's own logits, tried on four tokens.

    Families differ in what is between the two, and new ones come: if it is not reproduced, it is not chunked. Both are
    of one forward pass, so that dropout does not matter.
    """
    seen: list[torch.Tensor] = []
    hook = model.get_decoder().register_forward_hook(lambda _module, _inputs, output: seen.append(output[0]))
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.arange(1, 5, device=next(model.parameters()).device).remainder(vocabulary).unsqueeze(0)
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits
            found = head.logits(seen[0])
    finally:
        hook.remove()
    wanted = logits.float()
    # Models scale their logits in their own data type, `head` in fp32.
    tolerance = 1e-4 if logits.dtype is torch.float32 else 1e-2
    return wanted.shape == found.shape and bool((wanted - found).abs().max() <= tolerance * wanted.abs().max())


def select_targets(labels: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the flat positions that have a target, and the targets, both on `device` with shape [targets].

    Selected before the labels go to the device: there, the CPU would wait for the GPU to learn how many they are.
    """
    flat = labels.reshape(-1)
    positions = (flat != IGNORE_INDEX).nonzero().squeeze(-1)
    return move_to_device(positions, device), move_to_device(flat[positions], device)


def compute_loss(head: OutputHead, states: torch.Tensor, targets: torch.Tensor, implementation: Loss) -> torch.Tensor:
    """Return the sum of the cross-entropies, in fp32, shape [].

    `states` are the hidden states of the positions with a target, [targets, width], `targets` have shape [targets].
    """
    layer: Any = head.layer
    loss: torch.Tensor
    if implementation is Loss.STANDARD:
        return _chunk_loss(head, states, targets)
    if implementation is Loss.FUSED and head.is_plain and head.scale == 1.0:
        # Liger's Triton kernel. Source: github.com/linkedin/Liger-Kernel.
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        kernel = LigerFusedLinearCrossEntropyLoss(reduction="sum", softcap=head.softcap or None)
        loss = kernel(layer.weight, states.to(layer.weight.dtype), targets, layer.bias)
        return loss
    if head.is_plain:
        loss = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            states.to(layer.weight.dtype), layer.weight, layer.bias, targets, head
        )
        return loss
    # Heads that are more than a matrix, such as one with an adapter: each chunk is recomputed in the backward pass.
    loss = states.new_zeros((), dtype=torch.float32)
    for some, wanted in zip(torch.split(states, CHUNK_TOKENS), torch.split(targets, CHUNK_TOKENS), strict=True):
        loss = loss + checkpoint(_chunk_loss, head, some, wanted, use_reentrant=False)
    return loss


def _chunk_loss(head: OutputHead, states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(head.logits(states), targets, reduction="sum")


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy with gradients chunk by chunk in the forward pass, so that nothing is computed twice."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context has no public type
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        head: OutputHead,
    ) -> torch.Tensor:
        """`states` is [targets, width], `weight` [vocabulary, width]; the loss has shape []."""
        wants = ctx.needs_input_grad
        grad_states = torch.empty_like(states) if wants[0] else None
        # Rounded once, at the end, and not with each chunk.
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if wants[1] else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and wants[2] else None
        total = states.new_zeros((), dtype=torch.float32)
        for start in range(0, len(targets), CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            some = states[part]
            raw = functional.linear(some, weight, bias).float()
            loss, gradient = _loss_and_gradient(raw, targets[part], head, wants_gradient=any(wants[:3]))
            total += loss
            if gradient is None:
                continue
            rounded = gradient.to(states.dtype)
            if grad_states is not None:
                grad_states[part] = rounded @ weight
            if grad_weight is not None:
                grad_weight += rounded.T @ some
            if grad_bias is not None:
                grad_bias += gradient.sum(dim=0)
            # Otherwise they would live beside the next chunk's: a third more memory at the peak.
            del raw, gradient, rounded
        ctx.save_for_backward(grad_states, grad_weight, grad_bias)
        ctx.dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        """Return the gradients of the forward pass, times the gradient of the loss."""
        scale = grad_outputs[0]
        grad_states, grad_weight, grad_bias = ctx.saved_tensors
        return (
            None if grad_states is None else grad_states * scale.to(grad_states.dtype),
            None if grad_weight is None else grad_weight.mul_(scale).to(ctx.dtype),
            None if grad_bias is None else grad_bias.mul_(scale).to(ctx.dtype),
            None,
            None,
        )


def _loss_and_gradient(
    raw: torch.Tensor, targets: torch.Tensor, head: OutputHead, *, wants_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the summed loss of one chunk and its gradient by `raw`, [chunk, vocabulary]. `raw` is overwritten."""
    logits = raw.mul_(head.scale) if head.scale != 1.0 else raw
    slope = None
    if head.softcap:
        logits = logits.div_(head.softcap).tanh_()
        slope = 1.0 - logits.square()
        logits = logits.mul_(head.softcap)
    rows = torch.arange(len(targets), device=raw.device)
    logits.sub_(logits.amax(dim=-1, keepdim=True))
    chosen = logits[rows, targets]
    sums = logits.exp_().sum(dim=-1)
    loss = (sums.log() - chosen).sum()
    if not wants_gradient:
        return loss, None
    gradient = logits.div_(sums.unsqueeze(-1))
    gradient[rows, targets] -= 1.0
    if slope is not None:
        gradient.mul_(slope)
    return loss, gradient.mul_(head.scale) if head.scale != 1.0 else gradient
