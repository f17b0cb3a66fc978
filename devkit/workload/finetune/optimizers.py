"""How weights are moved: optimizers, schedules and the limit on the gradient."""

import math
from collections.abc import Callable, Iterable

import torch

from devkit.errors import DevkitError
from devkit.estimate.settings import Optimizer
from devkit.workload.finetune.optimizers_masters import AdamWOnMasters
from devkit.workload.finetune.optimizers_parts import on_parts
from devkit.workload.finetune.settings import Schedule
from devkit.workload.packages import require_bitsandbytes
from devkit.workload.tiny import Model


def learning_rate_at(step: int, *, steps: int, warmup: float, schedule: Schedule, highest: float) -> float:
    """The learning rate of step 0, 1, … `steps` - 1: a pure function, so that a resumed run needs no state of it.

    The warm-up rises in equal strides and reaches `highest` at its last step; without it step 0 has `highest`.
    """
    rising = math.ceil(steps * warmup)
    if step < rising:
        return highest * (step + 1) / rising
    progress = (step - rising) / max(1, steps - rising)
    match schedule:
        case Schedule.CONSTANT:
            return highest
        case Schedule.LINEAR:
            return highest * (1.0 - progress)
        case Schedule.COSINE:
            return highest * (0.5 * (1.0 + math.cos(math.pi * progress)))


def groups_of(model: Model, *, weight_decay: float) -> list[dict[str, object]]:
    """The trainable parameters for an optimizer: matrices decay, norms and biases do not."""
    chosen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not chosen:
        raise DevkitError("nothing in the model can be trained", "Name layers that exist with --targets.")
    matrices = [each for each in chosen if each.ndim >= 2]
    others = [each for each in chosen if each.ndim < 2]
    groups: list[dict[str, object]] = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def optimizer_for(
    model: Model, kind: Optimizer, *, learning_rate: float, weight_decay: float, masters: bool = False
) -> torch.optim.Optimizer:
    """The optimizer over the trainable parameters. Raises DevkitError when its library is not there.

    With `masters`, plain AdamW moves copies in fp32 of weights that are in 16 bits; the others round as they go.
    """
    groups = groups_of(model, weight_decay=weight_decay)
    is_parted = any(hasattr(each, "device_mesh") for each in model.parameters() if each.requires_grad)
    match kind:
        case Optimizer.ADAMW if masters:
            return AdamWOnMasters(groups, lr=learning_rate)
        case Optimizer.ADAMW:
            # One pass over memory, and no second copy of the parameters as `foreach` makes.
            return torch.optim.AdamW(groups, lr=learning_rate, fused=True)
        case Optimizer.ADAMW_FOREACH:
            return torch.optim.AdamW(groups, lr=learning_rate, foreach=True)
        case Optimizer.ADAMW_8BIT | Optimizer.PAGED_ADAMW | Optimizer.PAGED_ADAMW_8BIT:
            return _bitsandbytes(kind, is_parted=is_parted)(groups, lr=learning_rate)


def _bitsandbytes(kind: Optimizer, *, is_parted: bool) -> Callable[..., torch.optim.Optimizer]:
    require_bitsandbytes(f"--optimizer {kind}", without="--optimizer adamw")
    import bitsandbytes

    found: type = {
        Optimizer.ADAMW_8BIT: bitsandbytes.optim.AdamW8bit,
        Optimizer.PAGED_ADAMW: bitsandbytes.optim.PagedAdamW32bit,
        Optimizer.PAGED_ADAMW_8BIT: bitsandbytes.optim.PagedAdamW8bit,
    }[kind]
    return on_parts(found) if is_parted else found


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every group this rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def shorten(parameters: Iterable[torch.nn.Parameter], norm: torch.Tensor, *, limit: float) -> None:
    """Shorten the gradient, of length `norm` over all processes, to `limit`; 0 leaves it."""
    if limit > 0:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
