"""Tensors that the first process alone holds, given to all processes part by part.

A model that is shared out because no GPU holds it must not be whole on any of them on the way there. Nor must every
process of a machine keep a copy in its memory: one reads, and the others learn from it what they keep a part of.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from devkit.errors import DevkitError
from devkit.workload.finetune.ranks import Ranks

Holder: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class _Slot:
    """A place in a module where a tensor stands."""

    name: str
    owner: nn.Module
    holder: Holder
    key: str

    @property
    def held(self) -> torch.Tensor:
        tensor: torch.Tensor = self.holder[self.key]
        return tensor


@dataclass(frozen=True)
class _Told:
    """What the first process has in a slot. Slots of one `number` share a tensor, as embedding and head may."""

    name: str
    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool


class Handout:
    """The tensors of a module of which the first process has the numbers, the others no more than the places.

    All processes must make it, and give the same parts in the same order. Raises DevkitError where they made different
    models of the same files.
    """

    def __init__(self, module: nn.Module, ranks: Ranks) -> None:
        self._ranks = ranks
        slots = list(_slots(module))
        told: list[_Told] = ranks.shared(lambda: _described(slots))
        ranks.agreed(lambda: _require_same(slots, told))
        self._left = list(zip(slots, told, strict=True))

    def give(self, part: nn.Module) -> None:
        """Put onto the device of each process what stands in `part` and was not given before; 4-bit weights packed."""
        modules = set(part.modules())
        given: dict[int, torch.Tensor] = {}
        left = []
        for slot, told in self._left:
            if slot.owner not in modules:
                left.append((slot, told))
                continue
            if told.number not in given:
                given[told.number] = self._sent(slot.held, told)
            slot.holder[slot.key] = given[told.number]
        self._left = left

    @torch.no_grad()
    def _sent(self, held: torch.Tensor, told: _Told) -> torch.Tensor:
        device = self._ranks.device
        if self._ranks.is_first:
            whole = held.detach().to(device).contiguous()
        else:
            whole = torch.empty(told.shape, dtype=told.dtype, device=device)
        dist.broadcast(whole, src=0)
        if not isinstance(held, nn.Parameter):
            return whole
        if hasattr(held, "bnb_quantized"):
            packed: torch.Tensor = type(held)(whole, requires_grad=False, **vars(held)).to(device)
            return packed
        return nn.Parameter(whole, requires_grad=told.requires_grad)


def _slots(module: nn.Module) -> Iterator[_Slot]:
    """Parameters, buffers, and what some models keep as plain attributes, in an order that all processes have."""
    for prefix, owner in module.named_modules():
        for holder in (owner._parameters, owner._buffers, vars(owner)):
            for key, value in holder.items():
                if isinstance(value, torch.Tensor):
                    yield _Slot(f"{prefix}.{key}", owner, holder, key)


def _described(slots: list[_Slot]) -> list[_Told]:
    numbers: dict[int, int] = {}
    return [
        _Told(
            slot.name,
            numbers.setdefault(id(slot.held), len(numbers)),
            tuple(slot.held.shape),
            slot.held.dtype,
            slot.held.requires_grad,
        )
        for slot in slots
    ]


def _require_same(slots: list[_Slot], told: list[_Told]) -> None:
    names = zip_longest([slot.name for slot in slots], [each.name for each in told])
    unlike = next((here or there for here, there in names if here != there), None)
    if unlike is not None:
        raise DevkitError(
            f"the processes of this run make different models of the same files: {unlike} does not stand alike in all",
            "Install the same versions of transformers and peft on all machines.",
        )
