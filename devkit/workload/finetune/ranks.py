"""The processes of one run, as torchrun starts them, and what they tell each other."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from devkit.errors import DevkitError

T = TypeVar("T")

PATIENCE_S = 1800.0
"""How long a process waits for the others: the first may be writing a large checkpoint meanwhile."""

_GIVEN_BY_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_OF_THIS_PROCESS = _GIVEN_BY_LAUNCHER[:3]

_LOST = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused", "Timed out waiting", "NCCL", "remote")
"""What gloo and NCCL say when another process is gone; both raise nothing more telling than RuntimeError."""

_PLACE = re.compile(r"^\[[^\]]*:\d+\] ")


@dataclass(frozen=True)
class Ranks:
    """This process among those of its run. What they agree on travels over the CPU: no GPU waits for it.

    Every method but `is_first` must be called by all of them, in the same order.
    """

    rank: int
    world: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process prints and writes what all share."""
        return self.rank == 0

    def sum(self, value: float) -> float:
        """The sum of everyone's value, in double precision."""
        return self._reduced(value, dist.ReduceOp.SUM)

    def largest(self, value: float) -> float:
        """The largest of everyone's value."""
        return self._reduced(value, dist.ReduceOp.MAX)

    def any(self, flag: bool) -> bool:
        """Whether it holds for at least one."""
        return self.largest(float(flag)) > 0

    def barrier(self) -> None:
        """Wait until everyone is here."""
        self.largest(0.0)

    def shared(self, action: Callable[[], T]) -> T:
        """What `action` returns to the first process, for all. A DevkitError in it is raised by all of them, too."""
        if self.world == 1:
            return action()
        told: list[T | DevkitError | None] = [_outcome(action) if self.is_first else None]
        dist.broadcast_object_list(told, src=0, device=torch.device("cpu"))
        if isinstance(told[0], DevkitError):
            raise DevkitError(told[0].message, told[0].hint)
        return told[0]  # type: ignore[return-value]  # of the first process, and that ran the action

    def _reduced(self, value: float, how: "dist.ReduceOp.RedOpType") -> float:
        if self.world == 1:
            return value
        told = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(told, how)
        return told.item()


def _outcome(action: Callable[[], T]) -> T | DevkitError:
    try:
        return action()
    except DevkitError as error:
        return error


@contextmanager
def joined(kind: str, *, patience_s: float = PATIENCE_S) -> Iterator[Ranks]:
    """This process among those that torchrun started, or alone. `kind` is the device's: cuda, cpu or mps.

    Raises DevkitError when the launcher's variables are incomplete or contradict the machine, when the others do not
    come, and when one of them is lost on the way.
    """
    rank, world, local = _place()
    if world == 1:
        yield Ranks(0, 1, torch.device("cuda", 0) if kind == "cuda" else torch.device(kind))
        return
    device = _device(kind, local)
    _meet(kind, rank, world, patience_s)
    try:
        yield Ranks(rank, world, device)
    except RuntimeError as error:
        if not any(mark in str(error) for mark in _LOST):
            raise
        raise _lost(rank, error) from None
    # Left standing after an error: taking a group down waits for those that are gone.
    dist.destroy_process_group()


def _place() -> tuple[int, int, int]:
    """Rank, world and local rank from the environment."""
    if not any(name in os.environ for name in _OF_THIS_PROCESS):
        return 0, 1, 0
    missing = [name for name in _GIVEN_BY_LAUNCHER if not os.environ.get(name)]
    hint = (
        "Start several processes with `torchrun --nproc-per-node N -m devkit finetune ...`, which sets them all; "
        f"for one process unset {', '.join(_OF_THIS_PROCESS)}."
    )
    if missing:
        there = [name for name in _GIVEN_BY_LAUNCHER if name not in missing]
        raise DevkitError(f"{', '.join(there)} set, but not {', '.join(missing)}", hint)
    texts = [os.environ[name] for name in _OF_THIS_PROCESS]
    if not all(text.isascii() and text.isdigit() for text in texts):
        raise DevkitError(f"RANK, WORLD_SIZE, LOCAL_RANK are {', '.join(map(repr, texts))}, not whole numbers", hint)
    rank, world, local = map(int, texts)
    if rank >= world:
        raise DevkitError(f"RANK is {rank} and WORLD_SIZE {world}: ranks count from 0", hint)
    return rank, world, local


def _device(kind: str, local: int) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    if kind != "cuda":
        raise DevkitError(f"several processes cannot share {kind}", "Start one process, or train on GPUs by NVIDIA.")
    if local >= (there := torch.cuda.device_count()):
        raise DevkitError(
            f"LOCAL_RANK is {local}, and torch sees {there} GPU{'' if there == 1 else 's'} here",
            f"Start at most --nproc-per-node {there} on this machine.",
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _meet(kind: str, rank: int, world: int, patience_s: float) -> None:
    # Both back ends on GPUs: what the processes agree on goes over gloo and does not interrupt the GPU's work.
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=patience_s))
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise DevkitError(
            f"process {rank} of {world} did not find the others at {where}: {_in_short(error)}",
            "Check that all of them were started, with one --rdzv-endpoint, and that the port is open between the "
            "machines. Where a machine has several network cards, name the right one in GLOO_SOCKET_IFNAME and "
            "NCCL_SOCKET_IFNAME.",
        ) from None


def _lost(rank: int, error: RuntimeError) -> DevkitError:
    return DevkitError(
        f"process {rank} lost another process of this run: {_in_short(error)}",
        "Look at that process's last lines: it was killed, ran out of memory or failed. Nothing was saved since the "
        "last checkpoint; the same command goes on from there.",
    )


def _in_short(error: Exception) -> str:
    """The first sentence of what gloo or NCCL say, without the place in their source: what follows never differs."""
    line = str(error).strip().splitlines()[0]
    return _PLACE.sub("", line).partition(". ")[0]
