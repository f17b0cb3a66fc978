"""Optimizers, one of them with master weights in fp32, and the learning rate schedule."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.adamw import adamw

from devkit.errors import DevkitError
from devkit.estimate.settings import Optimizer
from devkit.workload.environment import require_bitsandbytes
from devkit.workload.finetune.settings import Schedule
from devkit.workload.models import Model

_MASTER_STATES = ("master", "exp_avg", "exp_avg_sq")


def compute_learning_rate(step: int, *, steps: int, warmup: float, schedule: Schedule) -> float:
    """Return the share of the highest rate at step 0, 1, … `steps` - 1: a pure function, so resuming needs no state of it.

    The warmup rises linearly and reaches 1 at its last step; without it step 0 has 1.
    """
    warmup_steps = math.ceil(steps * warmup)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    match schedule:
        case Schedule.CONSTANT:
            return 1.0
        case Schedule.LINEAR:
            return 1.0 - progress
        case Schedule.COSINE:
            return 0.5 * (1.0 + math.cos(math.pi * progress))


def build_parameter_groups(model: Model, *, weight_decay: float) -> list[dict[str, object]]:
    """Return the trainable parameters as parameter groups: matrices decay, norms and biases do not."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise DevkitError("nothing in the model can be trained", "Choose existing layers with --targets.")
    matrices = [each for each in trainable if each.ndim >= 2]
    others = [each for each in trainable if each.ndim < 2]
    groups: list[dict[str, object]] = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(
    model: Model, kind: Optimizer, *, learning_rate: float, weight_decay: float, masters: bool = False
) -> torch.optim.Optimizer:
    """Build the optimizer over the trainable parameters. Raises DevkitError if its library is not installed.

    With `masters`, plain AdamW updates master weights in fp32 of weights that are in 16 bits; the others round.
    """
    groups = build_parameter_groups(model, weight_decay=weight_decay)
    if kind is Optimizer.ADAMW and masters:
        return MasterWeightAdamW(groups, lr=learning_rate)
    if kind is Optimizer.ADAMW:
        # One pass over memory, and no second copy of the parameters as `foreach` makes.
        return torch.optim.AdamW(groups, lr=learning_rate, fused=True)
    if kind is Optimizer.ADAMW_FOREACH:
        return torch.optim.AdamW(groups, lr=learning_rate, foreach=True)
    require_bitsandbytes(f"--optimizer {kind}", without="--optimizer adamw")
    from bitsandbytes.optim import AdamW8bit, PagedAdamW8bit, PagedAdamW32bit

    quantized = {Optimizer.ADAMW_8BIT: AdamW8bit, Optimizer.PAGED_ADAMW_8BIT: PagedAdamW8bit}
    optimizer: torch.optim.Optimizer = quantized.get(kind, PagedAdamW32bit)(groups, lr=learning_rate)
    return optimizer


class MasterWeightAdamW(torch.optim.Optimizer):
    """AdamW for weights in 16 bits, computed on master weights in fp32; the weights are their rounded image.

    bf16 has 8 bits of precision. A running mean that keeps 0.999 of itself never falls in it: the thousandth that it
    should lose is rounded away. Nor does a weight change by less than a 256th of itself, as it should once the learning
    rate falls. In fp32 beside an adapter, master weights and both means take 12 bytes for each of its few elements,
    while the forward pass and its activations stay in 16 bits. See Micikevicius et al., Mixed Precision Training, 2017,
    section 3.1 (https://arxiv.org/abs/1710.03740).
    """

    def __init__(self, groups: list[dict[str, Any]], *, lr: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient. A closure is not supported: gradients are computed already."""
        if closure is not None:
            raise ValueError("this optimizer takes gradients as they are")
        for group in self.param_groups:
            weights = [each for each in group["params"] if each.grad is not None]
            if not weights:
                continue
            for weight in weights:
                if not self.state[weight]:
                    master = weight.detach().to(torch.float32, copy=True)
                    self.state[weight] = {
                        "step": torch.zeros((), dtype=torch.float32, device=weight.device),
                        "master": master,
                        "exp_avg": torch.zeros_like(master),
                        "exp_avg_sq": torch.zeros_like(master),
                    }
            states = [self.state[each] for each in weights]
            masters, means, squares = ([_to_local(state[name]) for state in states] for name in _MASTER_STATES)
            adamw(
                masters,
                [_to_local(each.grad).to(torch.float32) for each in weights],
                means,
                squares,
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
            torch._foreach_copy_([_to_local(each.detach()) for each in weights], masters)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the states in fp32 as they are: torch's own method would round them to the weights' data type."""
        weights = [each for group in self.param_groups for each in group["params"]]
        self.state.clear()
        for place, stored in state_dict["state"].items():
            self.state[weights[place]] = {name: value.to(weights[place].device) for name, value in stored.items()}


def _to_local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, in the same memory; other tensors as they are."""
    shard: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return shard
