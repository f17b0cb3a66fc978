"""The processes of one run, as torchrun starts them, and what they tell each other."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from devkit.errors import DevkitError
from devkit.workload.finetune.leaving import ToldByAnother
from devkit.workload.finetune.ranks_meeting import MEETING_S, PATIENCE_S, Store, await_askers, in_short, meet
from devkit.workload.finetune.stopping import Stopped

T = TypeVar("T")

_GIVEN_BY_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_OF_THIS_PROCESS = _GIVEN_BY_LAUNCHER[:3]

_LOST = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused", "Timed out waiting", "NCCL", "remote")
"""What gloo and NCCL say when another process is gone; both raise nothing more telling than RuntimeError."""

_TOLD = "devkit/told"
"""Where processes count in the store they met at who of them tells why the run ends."""

_STOPPED = "devkit/stopped"
"""Where a process that a signal ends before the first step says so to those who wait for it."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of its run. What they agree on travels over the CPU: no GPU waits for it.

    Every method but `is_first`, `leads`, `tells`, `leave` and `left_because` must be called by all of them, in the same
    order. `local` counts the processes of a node; `store` is where they met, None for one alone.
    """

    rank: int
    world: int
    device: torch.device
    local: int = 0
    store: Store | None = field(default=None, repr=False, compare=False)

    @property
    def is_first(self) -> bool:
        """Whether this process prints and writes what all share."""
        return self.rank == 0

    @property
    def leads(self) -> bool:
        """Whether this is the first process of its node."""
        return self.local == 0

    def tells(self) -> bool:
        """Whether this process is the first that asks: the one to tell why the run ends. True where nobody knows."""
        if self.store is None:
            return True
        try:
            is_first_to_ask = int(self.store.add(_TOLD, 1)) == 1
            if self.is_first:
                await_askers(self.store, _TOLD, self.world - 1)
            return is_first_to_ask
        except RuntimeError:
            # The process that kept the store is gone.
            return True

    def leave(self, because: signal.Signals) -> None:
        """Let the others know, which wait for this process and find it gone, that a signal ends the run."""
        if self.store is not None:
            with contextlib.suppress(RuntimeError):
                self.store.set(_STOPPED, str(int(because)))

    def left_because(self) -> signal.Signals | None:
        """The signal that another process left because of; None where none did, or nobody knows."""
        with contextlib.suppress(RuntimeError):
            if self.store is not None and self.store.check([_STOPPED]):
                return signal.Signals(int(self.store.get(_STOPPED)))
        return None

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
        """What `action` returns to the first process, for all.

        A DevkitError in it is raised by the first, and as ToldByAnother by the others.
        """
        if self.world == 1:
            return action()
        told: T = self._told(_outcome(action) if self.is_first else None, by=0)
        return told

    def agreed(self, action: Callable[[], T]) -> T:
        """What `action` returns to each process for itself, once it went through in all of them.

        Where some raise a DevkitError, the first of them tells; the others raise ToldByAnother.
        """
        if self.world == 1:
            return action()
        found = _outcome(action)
        failed = self.world - int(self.largest(self.world - self.rank if isinstance(found, DevkitError) else 0))
        if failed == self.world:
            return found  # type: ignore[return-value]  # nobody failed
        raised: T = self._told(found, by=failed)
        return raised

    def leading(self, action: Callable[[], T]) -> T:
        """What `action` returns to each process, run by the first of each node before the others: it may download."""
        found = self.agreed(lambda: action() if self.leads else None)
        return self.agreed(lambda: found if self.leads else action())  # type: ignore[return-value]  # None in between

    def _told(self, found: object, *, by: int) -> Any:  # noqa: ANN401 - whatever an action gives
        """What process `by` found, for all; raised where it is a DevkitError, which travels as its two texts."""
        told: list[Any] = [
            isinstance(found, DevkitError),
            (found.message, found.hint) if isinstance(found, DevkitError) else found,
        ]
        dist.broadcast_object_list(told, src=by, device=torch.device("cpu"))
        if not told[0]:
            return told[1]
        message, hint = told[1]
        raise (DevkitError if self.rank == by else ToldByAnother)(message, hint)

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


@contextlib.contextmanager
def joined(kind: str, *, meeting_s: float = MEETING_S, patience_s: float = PATIENCE_S) -> Iterator[Ranks]:
    """This process among those that torchrun started, or alone. `kind` is the device's: cuda, cpu or mps.

    Raises DevkitError when the launcher's variables are incomplete or contradict the machine, when the others do not
    come within `meeting_s`, and when one of them is lost on the way; one process tells, the others raise ToldByAnother.
    Raises Stopped when a signal ended another one before the first step.
    """
    rank, world, local = _place()
    if world == 1:
        yield Ranks(0, 1, torch.device("cuda", 0) if kind == "cuda" else torch.device(kind))
        return
    device = _device(kind, local)
    store = meet(kind, rank, world, local=local, meeting_s=meeting_s, patience_s=patience_s)
    together = Ranks(rank, world, device, local, store)
    try:
        yield together
    except RuntimeError as error:
        if not any(mark in str(error) for mark in _LOST):
            raise
        raise _lost(together, error) from None
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
        kind_of_error = DevkitError if local == there else ToldByAnother
        raise kind_of_error(
            f"LOCAL_RANK is {local}, and torch sees {there} GPU{'' if there == 1 else 's'} here",
            f"Start at most --nproc-per-node {there} on this machine.",
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _lost(together: Ranks, error: RuntimeError) -> DevkitError | Stopped:
    because = together.left_because()
    if because is not None:
        return Stopped(because)
    kind = DevkitError if together.tells() else ToldByAnother
    return kind(
        f"process {together.rank} lost another process of this run: {in_short(error)}",
        "Look at that process's last lines: it was killed, ran out of memory or failed. Nothing was saved since the "
        "last checkpoint; the same command goes on from there.",
    )
