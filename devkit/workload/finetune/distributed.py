"""The processes of one run, as torchrun starts them, and what they tell each other."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from devkit.errors import DevkitError
from devkit.estimate.settings import Method, Sharding
from devkit.workload.finetune.model.loading import disable_cpu_avx512_kernel
from devkit.workload.finetune.process import ReportedElsewhere, StoppedBySignal
from devkit.workload.finetune.settings import require_sharding_supported
from devkit.workload.models import Model

# How the processes of a run find each other, and for how long they wait.

Store: TypeAlias = Any
"""A torch.distributed.Store, of whose methods torch gives no types."""

RENDEZVOUS_TIMEOUT_S = 300.0
"""How long a process waits for the others to come. Their launchers have found each other by then: what is left is the
import of torch, from a slow disk at worst."""

COLLECTIVE_TIMEOUT_S = 1800.0
"""How long a process waits for the others after that: the first may be writing a large checkpoint meanwhile."""

REPORT_TIMEOUT_S = 10.0
"""How long a process that ends waits to learn whether another one tells why, and for the others to learn it."""

STORE_POLL_S = 0.05

_PLACE = re.compile(r"^\[[^\]]*:\d+\] ")

_HINT = (
    "Check that all of them were started, with one --rdzv-endpoint, and that the port is open between the machines. "
    "Where a machine has several network cards, name the right one in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME."
)


def init_process_group(kind: str, rank: int, world: int, *, local: int, meeting_s: float, patience_s: float) -> Store:
    """Wait for all processes and set up what they exchange over; the store that they met at.

    Raises DevkitError, in the first process of each node, when they do not come; in the others ToldByAnother.
    """
    # Both back ends on GPUs: what the processes agree on goes over gloo and does not interrupt the GPU's work.
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    try:
        store: Store = next(rendezvous("env://", timeout=timedelta(seconds=meeting_s)))[0]
        # gloo would wait for those that went before they said where they are reached, as long as for any exchange.
        _await_all(store, rank, world, meeting_s)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=patience_s)
        )
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        told = DevkitError if local == 0 else ReportedElsewhere
        raise told(
            f"process {rank} of {world} did not find the others at {where}: {summarize_error(error)}", _HINT
        ) from None
    store.set_timeout(timedelta(seconds=REPORT_TIMEOUT_S))
    return store


def await_reporters(store: Store, key: str, askers: int) -> None:
    """Keep the store there until so many processes have counted themselves under `key`, or for as long as they would.

    Only where the store is in the first process: torchrun's own outlives the processes that it started.
    Source: torch 2.13, torch/distributed/rendezvous.py, _torchelastic_use_agent_store.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
        return
    deadline_s = time.monotonic() + REPORT_TIMEOUT_S
    while int(store.add(key, 0)) < askers and time.monotonic() < deadline_s:
        time.sleep(STORE_POLL_S)


def _await_all(store: Store, rank: int, world: int, meeting_s: float) -> None:
    """Raises RuntimeError that names who did not come."""
    store.set(_here(rank), "1")
    try:
        store.wait([_here(each) for each in range(world)], timedelta(seconds=meeting_s))
    except RuntimeError:
        absent = [f"{each}" for each in range(world) if not store.check([_here(each)])]
        if not absent:
            raise
        raise RuntimeError(f"{', '.join(absent)} did not come within {meeting_s:g} s") from None


def _here(rank: int) -> str:
    return f"devkit/here/{rank}"


def summarize_error(error: Exception) -> str:
    """The first sentence of what gloo or NCCL say, without the place in their source: what follows never differs."""
    line = str(error).strip().splitlines()[0]
    return _PLACE.sub("", line).partition(". ")[0]


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
    def is_rank0(self) -> bool:
        """Whether this process prints and writes what all share."""
        return self.rank == 0

    @property
    def is_local_rank0(self) -> bool:
        """Whether this is the first process of its node."""
        return self.local == 0

    def claim_reporting(self) -> bool:
        """Whether this process is the first that asks: the one to tell why the run ends. True where nobody knows."""
        if self.store is None:
            return True
        try:
            is_first_to_ask = int(self.store.add(_TOLD, 1)) == 1
            if self.is_rank0:
                await_reporters(self.store, _TOLD, self.world - 1)
            return is_first_to_ask
        except RuntimeError:
            # The process that kept the store is gone.
            return True

    def leave(self, because: signal.Signals) -> None:
        """Let the others know, which wait for this process and find it gone, that a signal ends the run."""
        if self.store is not None:
            with contextlib.suppress(RuntimeError):
                self.store.set(_STOPPED, str(int(because)))

    def find_stop_signal(self) -> signal.Signals | None:
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

    def on_rank0_broadcast(self, action: Callable[[], T]) -> T:
        """What `action` returns to the first process, for all.

        A DevkitError in it is raised by the first, and as ToldByAnother by the others.
        """
        if self.world == 1:
            return action()
        told: T = self._told(_outcome(action) if self.is_rank0 else None, by=0)
        return told

    def on_all_or_fail(self, action: Callable[[], T]) -> T:
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

    def local_rank0_first(self, action: Callable[[], T]) -> T:
        """What `action` returns to each process, run by the first of each node before the others: it may download."""
        found = self.on_all_or_fail(lambda: action() if self.is_local_rank0 else None)
        return self.on_all_or_fail(lambda: found if self.is_local_rank0 else action())  # type: ignore[return-value]  # None in between

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
        raise (DevkitError if self.rank == by else ReportedElsewhere)(message, hint)

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
def join_process_group(
    kind: str, *, meeting_s: float = RENDEZVOUS_TIMEOUT_S, patience_s: float = COLLECTIVE_TIMEOUT_S
) -> Iterator[Ranks]:
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
    store = init_process_group(kind, rank, world, local=local, meeting_s=meeting_s, patience_s=patience_s)
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
        kind_of_error = DevkitError if local == there else ReportedElsewhere
        raise kind_of_error(
            f"LOCAL_RANK is {local}, and torch sees {there} GPU{'' if there == 1 else 's'} here",
            f"Start at most --nproc-per-node {there} on this machine.",
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _lost(together: Ranks, error: RuntimeError) -> DevkitError | StoppedBySignal:
    because = together.find_stop_signal()
    if because is not None:
        return StoppedBySignal(because)
    kind = DevkitError if together.claim_reporting() else ReportedElsewhere
    return kind(
        f"process {together.rank} lost another process of this run: {summarize_error(error)}",
        "Look at that process's last lines: it was killed, ran out of memory or failed. Nothing was saved since the "
        "last checkpoint; the same command goes on from there.",
    )


# Tensors that the first process alone holds, given to all processes part by part.
#
# A model that is shared out because no GPU holds it must not be whole on any of them on the way there. Nor must every
# process of a machine keep a copy in its memory: one reads, and the others learn from it what they keep a part of.

TensorHolder: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class _Slot:
    """A place in a module where a tensor stands."""

    name: str
    owner: nn.Module
    holder: TensorHolder
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


class Rank0Broadcast:
    """The tensors of a module of which the first process has the numbers, the others no more than the places.

    All processes must make it, and give the same parts in the same order. Raises DevkitError where they made different
    models of the same files.
    """

    def __init__(self, module: nn.Module, ranks: Ranks) -> None:
        self._ranks = ranks
        slots = list(_slots(module))
        told: list[_Told] = ranks.on_rank0_broadcast(lambda: _described(slots))
        ranks.on_all_or_fail(lambda: _require_same(slots, told))
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
        if self._ranks.is_rank0:
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


# How several processes share one model: DDP, where each holds it whole, and FSDP2, where each holds a part.
#
# Either way the gradients that a step sees are the sum over all processes of those of `shared.factor` times the loss:
# with losses summed over tokens and divided by the tokens of the whole step, the number of processes changes nothing
# but rounding.

R = TypeVar("R")

_PARTED = {Sharding.ZERO2: False, Sharding.ZERO3: True}
"""Whether FSDP2 takes a layer's weights apart again after its forward pass, and gathers them anew for the backward."""


BUCKET_ELEMENTS = 2**24
"""Numbers that are sent at once: enough that the network is busy, and a copy of them is small."""


@dataclass(frozen=True)
class ParallelModel:
    """A module whose gradients the processes share. Call it, not what it was made of; its parameters are the same.

    `factor` goes onto the loss: DDP and FSDP2 take the mean over processes where the sum is wanted.
    """

    module: nn.Module
    factor: float = 1.0

    @torch.no_grad()
    def call_gathered(self, trial: Callable[[Model], R]) -> R:
        """What `trial` makes of the model, called where its weights are whole. All processes must call."""
        made: R = self.module(trial)
        return made

    def no_sync(self) -> AbstractContextManager[None]:
        """Around forward and backward of one pass: under DDP gradients stay in this process until `exchange`.

        Not so under FSDP2: gradients that wait to be reduced are as large as the model on every process, which is
        what it was chosen to avoid.
        """
        if isinstance(self.module, DistributedDataParallel):
            return self.module.no_sync()
        return nullcontext()

    @torch.no_grad()
    def all_reduce_gradients(self) -> None:
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


class _SharedOut(ParallelModel):
    """Of which each process holds a part, and gathers what a pass needs."""

    @torch.no_grad()
    def tried(self, trial: Callable[[Model], R]) -> R:
        from torch.distributed.fsdp import FSDPModule

        made = super().call_gathered(trial)
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
        if bucket and (each.dtype != bucket[0].dtype or size + each.numel() > BUCKET_ELEMENTS):
            yield bucket
            bucket = []
        bucket.append(each)
    if bucket:
        yield bucket


def wrap_parallel(
    module: nn.Module, *, sharding: Sharding | None, method: Method, ranks: Ranks, is_handed_out: bool = False
) -> ParallelModel:
    """Share `module`, whose forward gives the loss. Make the optimizer afterwards: FSDP2 replaces the parameters.

    `module` must be equal on all processes, or with `is_handed_out` whole in the first one and without weights in the
    others. None stands for DDP. Raises DevkitError for what cannot be shared so.
    """
    if ranks.world == 1:
        return ParallelModel(module)
    if sharding is None or sharding is Sharding.DDP:
        devices = [ranks.device] if ranks.device.type == "cuda" else None
        # Adapters are all used in every pass: nobody has to look for parameters without a gradient.
        parallel = DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)
        # Buffers are equal from here on. Sent with a pass, they leave a process waiting for one whose pass failed.
        parallel.require_forward_param_sync = False
        return ParallelModel(parallel, ranks.world)
    require_sharding_supported(sharding, method)
    handout = Rank0Broadcast(module, ranks) if is_handed_out else None
    return _SharedOut(_parted(module, ranks, handout, reshard=_PARTED[sharding]), ranks.world)


def compute_gradient_norm(parameters: list[nn.Parameter]) -> torch.Tensor:
    """The length of the gradient over all parameters, parts on other processes included. Shape [], all must ask."""
    norm = torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
    whole: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def _parted(module: nn.Module, ranks: Ranks, handout: Rank0Broadcast | None, *, reshard: bool) -> nn.Module:
    """Layers first, so that no more than one of them is whole on a device at a time; then what lies outside of them."""

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    # Gradients of bf16 weights are added up in fp32: eight processes would round eight times.
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for part in (*list_decoder_layers(module), module):
        if handout is not None:
            handout.give(part)
            disable_cpu_avx512_kernel(part)
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard and part is not module, mp_policy=policy)
    return module


def list_decoder_layers(module: nn.Module) -> list[nn.Module]:
    """The decoder's layers: what transformers says must not be split over devices, the largest part used at once."""
    kinds = {name for each in module.modules() for name in getattr(each, "_no_split_modules", None) or ()}
    return [each for each in module.modules() if type(each).__name__ in kinds]
