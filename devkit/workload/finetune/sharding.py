"""How several processes share one model: DDP, where each holds it whole, and FSDP2, where each holds a part.

Either way the gradients that a step sees are the sum over all processes of those of `shared.factor` times the loss:
with losses summed over tokens and divided by the tokens of the whole step, the number of processes changes nothing
but rounding.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from devkit.estimate.settings import Method, Sharding
from devkit.workload.finetune.model import lead_past_kernel
from devkit.workload.finetune.ranks import Ranks
from devkit.workload.finetune.settings import require_shareable
from devkit.workload.finetune.sharding_handout import Handout
from devkit.workload.tiny import Model

T = TypeVar("T")

_PARTED = {Sharding.ZERO2: False, Sharding.ZERO3: True}
"""Whether FSDP2 takes a layer's weights apart again after its forward pass, and gathers them anew for the backward."""


BUCKET_NUMBERS = 2**24
"""Numbers that are sent at once: enough that the network is busy, and a copy of them is small."""


@dataclass(frozen=True)
class Shared:
    """A module whose gradients the processes share. Call it, not what it was made of; its parameters are the same.

    `factor` goes onto the loss: DDP and FSDP2 take the mean over processes where the sum is wanted.
    """

    module: nn.Module
    factor: float = 1.0

    @torch.no_grad()
    def tried(self, trial: Callable[[Model], T]) -> T:
        """What `trial` makes of the model, called where its weights are whole. All processes must call."""
        made: T = self.module(trial)
        return made

    def passing(self) -> AbstractContextManager[None]:
        """Around forward and backward of one pass: under DDP gradients stay in this process until `exchange`.

        Not so under FSDP2: gradients that wait to be reduced are as large as the model on every process, which is
        what it was chosen to avoid.
        """
        if isinstance(self.module, DistributedDataParallel):
            return self.module.no_sync()
        return nullcontext()

    @torch.no_grad()
    def exchange(self) -> None:
        """Take the mean of everyone's gradients, once all passes of a step went through everywhere.

        DDP itself would send them during the last backward pass. A process that runs out of memory there leaves the
        others waiting for good, and a pass given up leaves DDP half-way into an exchange.
        """
        if not isinstance(self.module, DistributedDataParallel):
            return
        gradients = [each.grad for each in self.module.parameters() if each.grad is not None]
        for bucket in _buckets(gradients):
            flat = torch.cat([each.reshape(-1) for each in bucket])
            dist.all_reduce(flat)
            flat /= self.factor
            for each, part in zip(bucket, torch.split(flat, [each.numel() for each in bucket]), strict=True):
                each.copy_(part.view_as(each))


class _SharedOut(Shared):
    """Of which each process holds a part, and gathers what a pass needs."""

    @torch.no_grad()
    def tried(self, trial: Callable[[Model], T]) -> T:
        from torch.distributed.fsdp import FSDPModule

        made = super().tried(trial)
        for each in self.module.modules():
            if isinstance(each, FSDPModule):
                # Kept whole for a backward pass that does not come: an optimizer would be made for what stands there.
                each.reshard()
        return made


def _buckets(gradients: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The gradients in their order, together as long as they are of one data type and not too large."""
    bucket: list[torch.Tensor] = []
    for each in gradients:
        size = sum(other.numel() for other in bucket)
        if bucket and (each.dtype != bucket[0].dtype or size + each.numel() > BUCKET_NUMBERS):
            yield bucket
            bucket = []
        bucket.append(each)
    if bucket:
        yield bucket


def share(
    module: nn.Module, *, sharding: Sharding | None, method: Method, ranks: Ranks, is_handed_out: bool = False
) -> Shared:
    """Share `module`, whose forward gives the loss. Make the optimizer afterwards: FSDP2 replaces the parameters.

    `module` must be equal on all processes, or with `is_handed_out` whole in the first one and without weights in the
    others. None stands for DDP. Raises DevkitError for what cannot be shared so.
    """
    if ranks.world == 1:
        return Shared(module)
    if sharding is None or sharding is Sharding.DDP:
        devices = [ranks.device] if ranks.device.type == "cuda" else None
        # Adapters are all used in every pass: nobody has to look for parameters without a gradient.
        parallel = DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)
        # Buffers are equal from here on. Sent with a pass, they leave a process waiting for one whose pass failed.
        parallel.require_forward_param_sync = False
        return Shared(parallel, ranks.world)
    require_shareable(sharding, method)
    handout = Handout(module, ranks) if is_handed_out else None
    return _SharedOut(_parted(module, ranks, handout, reshard=_PARTED[sharding]), ranks.world)


def gradient_norm(parameters: list[nn.Parameter]) -> torch.Tensor:
    """The length of the gradient over all parameters, parts on other processes included. Shape [], all must ask."""
    norm = torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
    whole: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def _parted(module: nn.Module, ranks: Ranks, handout: Handout | None, *, reshard: bool) -> nn.Module:
    """Layers first, so that no more than one of them is whole on a device at a time; then what lies outside of them."""

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    # Gradients of bf16 weights are added up in fp32: eight processes would round eight times.
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for part in (*decoder_layers(module), module):
        if handout is not None:
            handout.give(part)
            lead_past_kernel(part)
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard and part is not module, mp_policy=policy)
    return module


def decoder_layers(module: nn.Module) -> list[nn.Module]:
    """The decoder's layers: what transformers says must not be split over devices, the largest part used at once."""
    kinds = {name for each in module.modules() for name in getattr(each, "_no_split_modules", None) or ()}
    return [each for each in module.modules() if type(each).__name__ in kinds]
