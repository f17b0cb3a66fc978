"""What an optimizer keeps and makes, as allocations: its step is known to the byte, so none has to run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from devkit.estimate.settings import Optimizer
from devkit.workload.tracing.stream import Allocation, Event, Kind, Phase, Release, Section

BLOCK = 256
"""Numbers of an 8-bit state that share one fp32 scale.

Source: https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/optim/optimizer.py
"""
SMALLEST_8BIT = 4096
"""Parameters with fewer numbers keep their state in fp32 (min_8bit_size). Source: as above."""

MOMENTS = 2
"""Adam keeps a running mean of gradients and one of their squares."""


@dataclass(frozen=True)
class Trained:
    """A trainable parameter: its layer, how many numbers it has and the bytes of one."""

    layer: int | None
    numbers: int
    item_bytes: int


def state_bytes(parameter: Trained, optimizer: Optimizer, *, masters: bool = False) -> list[int]:
    """The tensors of state on the GPU, in bytes. A paged state counts in full: it leaves only under pressure.

    With `masters` there is a copy of the weight among them, and all are in fp32.
    """
    if masters:
        return [4 * parameter.numbers] * (MOMENTS + 1)
    if optimizer in {Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT}:
        if parameter.numbers < SMALLEST_8BIT:
            return [4 * parameter.numbers] * MOMENTS
        scales = 4 * -(-parameter.numbers // BLOCK)
        return [parameter.numbers, scales] * MOMENTS
    item = 4 if optimizer is Optimizer.PAGED_ADAMW else parameter.item_bytes
    return [item * parameter.numbers] * MOMENTS


def states(parameters: Sequence[Trained], optimizer: Optimizer, *, masters: bool = False) -> Iterator[Event]:
    """The state, as its first step leaves it."""
    counts: dict[Section, int] = {}
    for parameter in parameters:
        section = Section(Phase.LOAD, parameter.layer, part="state")
        for size in state_bytes(parameter, optimizer, masters=masters):
            counts[section] = counts.get(section, -1) + 1
            yield Allocation(section, counts[section], size, Kind.OPTIMIZER_STATE)


def buckets(parameters: Sequence[Trained]) -> Iterator[Event]:
    """DDP's copy of the gradients, through which they reach the other processes.

    Source: https://github.com/pytorch/pytorch/blob/main/torch/nn/parallel/distributed.py
    """
    counts: dict[Section, int] = {}
    for parameter in parameters:
        section = Section(Phase.LOAD, parameter.layer, part="buckets")
        counts[section] = counts.get(section, -1) + 1
        yield Allocation(section, counts[section], parameter.numbers * parameter.item_bytes, Kind.GRADIENTS)


def step(parameters: Sequence[Trained], optimizer: Optimizer) -> Iterator[Event]:
    """What one step makes and drops.

    torch's foreach AdamW, its default on GPUs, holds one square root of every second moment at once; its fused one
    and bitsandbytes' make nothing. Source: _multi_tensor_adamw and _fused_adamw in
    https://github.com/pytorch/pytorch/blob/main/torch/optim/adam.py
    """
    if optimizer is not Optimizer.ADAMW_FOREACH:
        return
    counts: dict[Section, int] = {}
    made = []
    for parameter in parameters:
        section = Section(Phase.OPTIMIZER, parameter.layer)
        counts[section] = counts.get(section, -1) + 1
        made.append(Allocation(section, counts[section], parameter.numbers * parameter.item_bytes))
    yield from made
    for each in made:
        yield Release(each.section, each.name)
