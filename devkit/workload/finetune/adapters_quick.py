"""LoRA on a linear layer in the fewest passes over memory: what peft computes, in another order.

peft makes the adapter's product, a scaled copy of it and the sum with the base's product, each as large as the layer's
output, and as many gradients on the way back; on 4-bit bases it copies the base's product first. Here the scale goes
into the product itself, which is added up where the base's product lies. Source of what is replaced: peft 0.21,
peft/tuners/lora/layer.py, Linear.forward, and peft/tuners/lora/bnb.py, Linear4bit.forward.
"""

from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from devkit.workload.tiny import Model
from devkit.workload.tuners import Linear, LoraLayer

Found: TypeAlias = tuple[torch.Tensor | None, ...]


def quicken(model: Model) -> int:
    """Have every layer of `model` that can compute so do it; how many can.

    Layers stay as they are that do more than add a scaled product: with dropout, with DoRA's magnitudes, with weights
    of several data types. What is saved, and what peft computes on a model that was loaded again, stays the same.
    """
    chosen = [each for each in model.modules() if isinstance(each, LoraLayer) and _can(each)]
    for layer in chosen:
        layer.forward = _Quick(layer)
    return len(chosen)


def _can(layer: Any) -> bool:  # noqa: ANN401 - peft's layers share no type that has forward and weights
    """Whether `layer` computes base(x) + scale * B(A(x)) and nothing else."""
    base = layer.get_base_layer()
    names = list(layer.active_adapters)
    if not isinstance(base, nn.Linear) or layer.merged or layer.disable_adapters or len(names) != 1:
        return False
    name = names[0]
    if name not in layer.lora_A or _is_variant(layer, name) or not _is_idle(layer.lora_dropout[name]):
        return False
    first, second = layer.lora_A[name], layer.lora_B[name]
    is_plain = type(first) is nn.Linear and type(second) is nn.Linear and first.bias is None and second.bias is None
    return is_plain and first.weight.dtype is second.weight.dtype


def _is_variant(layer: Any, name: str) -> bool:  # noqa: ANN401 - as above
    """Whether peft computes something else there, such as DoRA, which is all that it knew before its release 0.16."""
    if hasattr(layer, "lora_variant"):
        return name in layer.lora_variant
    return bool(layer.use_dora.get(name))


def _is_idle(dropout: nn.Module) -> bool:
    return isinstance(dropout, nn.Identity) or (isinstance(dropout, nn.Dropout) and dropout.p == 0.0)


class _Quick:
    """What stands in the place of a layer's `forward`."""

    def __init__(self, layer: Any) -> None:  # noqa: ANN401 - as above
        name = next(iter(layer.active_adapters))
        self._layer = layer
        self._base = layer.get_base_layer()
        self._first, self._second = layer.lora_A[name], layer.lora_B[name]
        self._scale = float(layer.scaling[name])
        self._is_bare = type(layer) is Linear and type(self._base) is nn.Linear and not self._base.weight.requires_grad

    def __call__(self, given: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:  # noqa: ANN401 - handed on
        """Shape [..., inputs] to [..., outputs]."""
        first, second = self._first.weight, self._second.weight
        if self._layer.disable_adapters or self._layer.merged or given.dtype is not first.dtype or more or named:
            computed: torch.Tensor = type(self._layer).forward(self._layer, given, *more, **named)
            return computed
        if self._is_bare and self._base.weight.dtype is given.dtype:
            found: torch.Tensor = _Adapted.apply(  # type: ignore[no-untyped-call]
                given, self._base.weight, self._base.bias, first, second, self._scale
            )
            return found
        whole: torch.Tensor = self._base(given)
        if whole.dtype is not given.dtype:
            return whole + (self._scale * functional.linear(functional.linear(given, first), second)).to(whole.dtype)
        inner = functional.linear(given, first).reshape(-1, first.shape[0])
        added = torch.addmm(whole.reshape(-1, whole.shape[-1]), inner, second.T, alpha=self._scale)
        return added.view(whole.shape)


class _Adapted(torch.autograd.Function):
    """A frozen weight and its adapter. The base's product and its gradient are made once and added to in place."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context has no public type
        given: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        first: torch.Tensor,
        second: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """`given` is [..., inputs], `weight` [outputs, inputs], `first` [rank, inputs], `second` [outputs, rank]."""
        flat = given.reshape(-1, given.shape[-1])
        inner = flat @ first.T
        whole = functional.linear(flat, weight, bias).addmm_(inner, second.T, alpha=scale)
        ctx.save_for_backward(flat, inner, weight, first, second)
        ctx.scale, ctx.shape = scale, given.shape
        return whole.view(*given.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> Found:  # noqa: ANN401
        """The gradients of `given`, `first` and `second`; the base is frozen."""
        flat, inner, weight, first, second = ctx.saved_tensors
        gradient = outer[0].reshape(-1, weight.shape[0])
        through = gradient @ second
        of_given = None
        if ctx.needs_input_grad[0]:
            of_given = (gradient @ weight).addmm_(through, first, alpha=ctx.scale).view(ctx.shape)
        of_first = (through.T @ flat).mul_(ctx.scale)
        of_second = (gradient.T @ inner).mul_(ctx.scale)
        return of_given, None, None, of_first, of_second, None
