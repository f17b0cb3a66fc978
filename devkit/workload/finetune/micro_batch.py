"""How many rows fit into one pass: found by one worst-case step before training, and halved when memory runs out."""

import gc
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch

from devkit.text import human_bytes
from devkit.workload.finetune.batch import MicroBatch
from devkit.workload.finetune.ranks import Ranks

_MARKS = ("MPS backend out of memory", "DefaultCPUAllocator: can't allocate memory")
"""What torch says where running out of memory has no exception of its own: on Apple's GPUs and on the CPU."""


class OutOfMemory(Exception):  # noqa: N818 - no error: all processes agreed on it, and the step can be taken again
    """Memory ran out in at least one process; nothing of the step was taken."""


@dataclass(frozen=True)
class Memory:
    """A device's memory in bytes: the peak of tensors, the peak of what the allocator held for them, what is free."""

    allocated: int = 0
    reserved: int = 0
    free: int = 0

    def fields(self) -> dict[str, int]:
        """As events have them; empty where nothing was counted."""
        named = {"allocated_bytes": self.allocated, "reserved_bytes": self.reserved, "free_bytes": self.free}
        return named if self.reserved else {}

    def __str__(self) -> str:
        return (
            f"tensors took up to {human_bytes(self.allocated)}, the allocator up to {human_bytes(self.reserved)}, "
            f"{human_bytes(self.free)} are free"
        )


def read_memory(device: torch.device) -> Memory:
    """The peaks since they were last reset, and what is free now. Zeros on the CPU, which keeps no such count."""
    if device.type != "cuda":
        return Memory()
    free, _ = torch.cuda.mem_get_info(device)
    return Memory(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device), free)


def peak_fields(device: torch.device) -> dict[str, int]:
    """The peak so far, as events have it: of tensors on a GPU, of the whole process elsewhere."""
    if device.type == "cuda":
        return {"peak_allocated_bytes": torch.cuda.max_memory_allocated(device)}
    try:
        import resource
    except ImportError:  # Windows
        return {}
    unit = 1 if sys.platform == "darwin" else 1024
    return {"peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}


def reset_peaks(device: torch.device) -> None:
    """Count peaks from here on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on any device."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(mark in str(error) for mark in _MARKS)
    )


def let_go(error: BaseException, device: torch.device) -> None:
    """Free what a failed pass held: its tensors live in the frames of the traceback until those are cleared."""
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each = each.__context__
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class Probed:
    """The micro-batch that fits, with what was measured at it. `refused` are those tried before, largest first.

    `micro_batch` is 0 where not even one row fits; `memory` is then that of the last attempt.
    """

    micro_batch: int
    memory: Memory
    refused: tuple[int, ...] = ()


def probed(
    worst_case: Callable[[int], MicroBatch],
    attempt: Callable[[MicroBatch], None],
    *,
    start: int,
    ranks: Ranks,
) -> Probed:
    """Halve `start` until `attempt` of the worst case goes through on every process.

    `attempt` is one whole step, optimizer included, that leaves no trace. All processes must call and agree, so that
    the effective batch stays the same one everywhere.
    """
    refused: list[int] = []
    size = start
    while size:
        reset_peaks(ranks.device)
        failed = _fails(attempt, worst_case(size), ranks.device)
        memory = read_memory(ranks.device)
        if not ranks.any(failed):
            return Probed(size, memory, tuple(refused))
        refused.append(size)
        size //= 2
    return Probed(0, memory, tuple(refused))


def _fails(attempt: Callable[[MicroBatch], None], batch: MicroBatch, device: torch.device) -> bool:
    try:
        attempt(batch)
    except OutOfMemory:
        return True
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        let_go(error, device)
        return True
    return False
