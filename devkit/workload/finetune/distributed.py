"""Distributed training: the ranks that torchrun starts, how they meet and agree, DDP, and FSDP2.

The gradients of a step are the sum over all ranks of those of `ParallelModel.factor` times the loss: with losses summed
over targets and divided by the targets of the whole step, the world size changes nothing but rounding.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

from devkit.errors import DevkitError
from devkit.estimate.settings import Sharding
from devkit.workload.finetune.model import disable_cpu_avx512_kernel
from devkit.workload.finetune.process import LostProcess, ReportedElsewhere
from devkit.workload.models import Model

T = TypeVar("T")

COLLECTIVE_TIMEOUT_S = 1800.0
"""How long a rank waits for the others: rank 0 may be writing a large checkpoint meanwhile."""

BUCKET_ELEMENTS = 2**24
"""Elements that are reduced at once: enough that the network is busy, and a copy of them is small."""

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")

_LOST_PEER = (
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "Connection refused",
    "Timed out waiting",
    "NCCL",
    "remote",
)
"""Messages of gloo and NCCL when another rank is gone; both raise nothing more telling than RuntimeError."""

_CODE_PLACE = re.compile(r"^\[[^\]]*:\d+\] ")

_RENDEZVOUS_HINT = (
    "Check that all of them were started, with one --rdzv-endpoint, and that the port is open between the machines. "
    "If a machine has several network interfaces, set the right one in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME."
)


@dataclass(frozen=True)
class Ranks:
    """This process's rank among those of its run. Values that ranks agree on travel over the CPU: no GPU waits.

    Every method must be called by all ranks, in the same order.
    """

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_rank0(self) -> bool:
        """True for the rank that prints, and writes what all share."""
        return self.rank == 0

    def sum(self, value: float) -> float:
        """Return the sum over all ranks, in double precision."""
        return self._all_reduce(value, dist.ReduceOp.SUM)

    def max(self, value: float) -> float:
        """Return the maximum over all ranks."""
        return self._all_reduce(value, dist.ReduceOp.MAX)

    def any(self, flag: bool) -> bool:
        """Return True if `flag` is true on at least one rank."""
        return self.max(float(flag)) > 0

    def on_rank0_broadcast(self, action: Callable[[], T]) -> T:
        """Call `action` on rank 0 and return its result on all ranks.

        Its DevkitError is raised on rank 0, and as ReportedElsewhere on the others.
        """
        if self.world_size == 1:
            return action()
        result: T = self._broadcast(_call(action) if self.is_rank0 else None, source=0)
        return result

    def on_all_or_fail(self, action: Callable[[], T]) -> T:
        """Call `action` on each rank and return each rank's own result, once it succeeded on all of them.

        If some raise a DevkitError, the lowest of these ranks raises it, and all others raise ReportedElsewhere.
        """
        if self.world_size == 1:
            return action()
        result = _call(action)
        is_failed = isinstance(result, DevkitError)
        failed = self.world_size - int(self.max(self.world_size - self.rank if is_failed else 0))
        if failed == self.world_size:
            return result  # type: ignore[return-value]  # no rank failed
        raised: T = self._broadcast(result, source=failed)
        return raised

    def _broadcast(self, result: object, *, source: int) -> Any:  # noqa: ANN401 - whatever an action returns
        """Return the result of rank `source` on all ranks; raise it if it is a DevkitError, sent as its two texts."""
        sent: list[Any] = [
            isinstance(result, DevkitError),
            (result.message, result.hint) if isinstance(result, DevkitError) else result,
        ]
        dist.broadcast_object_list(sent, src=source, device=torch.device("cpu"))
        if not sent[0]:
            return sent[1]
        message, hint = sent[1]
        raise (DevkitError if self.rank == source else ReportedElsewhere)(message, hint)

    def _all_reduce(self, value: float, operation: "dist.ReduceOp.RedOpType") -> float:
        if self.world_size == 1:
            return value
        reduced = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(reduced, operation)
        return reduced.item()


def _call(action: Callable[[], T]) -> T | DevkitError:
    try:
        return action()
    except DevkitError as error:
        return error


@contextlib.contextmanager
def join_process_group(device_type: str, *, timeout_s: float = COLLECTIVE_TIMEOUT_S) -> Iterator[Ranks]:
    """Join the process group that torchrun started, or be a world of one. `device_type` is cuda, cpu or mps.

    Raises:
        DevkitError: the launcher's variables are incomplete or contradict the machine, the other ranks do not come in
            time, or one is lost later. Where several find the same at the start, one reports it, and the others raise
            ReportedElsewhere.
    """
    rank, world_size, local_rank = _read_launcher_variables()
    if world_size == 1:
        yield Ranks(0, 1, torch.device("cuda", 0) if device_type == "cuda" else torch.device(device_type))
        return
    device = _select_device(device_type, local_rank)
    # Both back ends on GPUs: values that the ranks agree on go over gloo and do not interrupt the GPU's work.
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise (DevkitError if local_rank == 0 else ReportedElsewhere)(
            f"process {rank} of {world_size} did not find the others at {where}: {summarize_error(error)}",
            _RENDEZVOUS_HINT,
        ) from None
    try:
        yield Ranks(rank, world_size, device)
    except RuntimeError as error:
        if not any(text in str(error) for text in _LOST_PEER):
            raise
        raise LostProcess(
            f"process {rank} lost another process of this run: {summarize_error(error)}",
            "Check that process's last lines of output: it was killed, ran out of memory or failed. Nothing was saved "
            "after the last checkpoint; the same command resumes from it.",
        ) from None
    # Not after an error: destroying a group waits for ranks that are gone.
    dist.destroy_process_group()


def _read_launcher_variables() -> tuple[int, int, int]:
    """Read rank, world size and local rank from the environment."""
    given = {name: os.environ[name] for name in _RANK_VARIABLES if name in os.environ}
    if not given:
        return 0, 1, 0
    hint = (
        "Start several processes with `torchrun --nproc-per-node N --no-python devkit finetune ...`, which sets all of "
        f"them; for one process, unset {', '.join(_RANK_VARIABLES)}."
    )
    try:
        rank, world_size, local_rank = (int(given[name]) for name in _RANK_VARIABLES)
    except (KeyError, ValueError) as error:
        raise DevkitError(f"expected RANK, WORLD_SIZE and LOCAL_RANK as whole numbers, got {given}", hint) from error
    if not 0 <= rank < world_size:
        raise DevkitError(f"RANK is {rank} and WORLD_SIZE {world_size}: ranks start at 0", hint)
    return rank, world_size, local_rank


def _select_device(device_type: str, local_rank: int) -> torch.device:
    if device_type == "cpu":
        return torch.device("cpu")
    if device_type != "cuda":
        raise DevkitError(
            f"several processes cannot share {device_type}", "Start one process, or train on NVIDIA GPUs."
        )
    gpus = torch.cuda.device_count()
    if local_rank >= gpus:
        raise (DevkitError if local_rank == gpus else ReportedElsewhere)(
            f"LOCAL_RANK is {local_rank}, but torch sees {gpus} GPU{'' if gpus == 1 else 's'} here",
            f"Start at most --nproc-per-node {gpus} on this machine.",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def summarize_error(error: Exception) -> str:
    """Return the first sentence of gloo's or NCCL's message, without the place in their source."""
    line = str(error).strip().splitlines()[0]
    return _CODE_PLACE.sub("", line).partition(". ")[0]


@dataclass(frozen=True)
class ParallelModel:
    """A module whose gradients the ranks reduce. Call `module` instead of the original; its parameters are the same.

    `factor` multiplies the loss: FSDP2 takes the mean over ranks where the sum is wanted. One that `is_replicated` is held
    whole by every rank: torch's DistributedDataParallel would reduce during the last backward pass. A rank that runs out of
    memory there leaves the others waiting for good, and an aborted pass leaves it in the middle of a reduction.
    """

    module: nn.Module
    factor: float = 1.0
    is_replicated: bool = False

    @torch.no_grad()
    def call_gathered(self, function: Callable[[Model], T]) -> T:
        """Call `function` with the model while its weights are gathered. All ranks must call."""
        result: T = self.module(function)
        for each in self.module.modules():
            # FSDP2 keeps them gathered for a backward pass that does not come: an optimizer would be built over whole weights.
            if reshard := getattr(each, "reshard", None):
                cast(Callable[[], None], reshard)()
        return result

    @torch.no_grad()
    def all_reduce_gradients(self) -> None:
        """Sum the gradients over all ranks, once all passes of a step succeeded everywhere. FSDP2 has done so."""
        if not self.is_replicated:
            return
        gradients = [each.grad for each in self.module.parameters() if each.grad is not None]
        for bucket in _buckets(gradients):
            flat = torch.cat([each.reshape(-1) for each in bucket])
            dist.all_reduce(flat)
            for each, part in zip(bucket, torch.split(flat, [each.numel() for each in bucket]), strict=True):
                each.copy_(part.view_as(each))


def _buckets(gradients: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield the gradients in their order, together as long as they are of one data type and not too large."""
    bucket: list[torch.Tensor] = []
    for each in gradients:
        size = sum(other.numel() for other in bucket)
        if bucket and (each.dtype != bucket[0].dtype or size + each.numel() > BUCKET_ELEMENTS):
            yield bucket
            bucket = []
        bucket.append(each)
    if bucket:
        yield bucket


def wrap_parallel(module: nn.Module, *, sharding: Sharding, ranks: Ranks) -> ParallelModel:
    """Prepare `module`, whose forward gives the loss, for all ranks. Build the optimizer afterwards: FSDP2 replaces the
    parameters.
    """
    if ranks.world_size == 1:
        return ParallelModel(module)
    if sharding is Sharding.DDP:
        _require_same_parameters(module, ranks)
        for each in module.parameters():
            if each.requires_grad:
                dist.broadcast(each.detach(), src=0)
        return ParallelModel(module, is_replicated=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    _require_same_parameters(module, ranks)
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    # Gradients of bf16 weights are reduced in fp32: eight ranks would round eight times.
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    # Layers first, so that no more than one of them is whole on a device at a time; then what is outside them.
    for part in (*list_decoder_layers(module), module):
        disable_cpu_avx512_kernel(part.to(ranks.device))
        # Frees a layer's weights after its forward pass, and gathers them again.
        reshard = sharding is Sharding.ZERO3 and part is not module
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    return ParallelModel(module, ranks.world_size)


def list_decoder_layers(module: nn.Module) -> list[nn.Module]:
    """Return the decoder's layers: what transformers says must not be split over devices, the largest unit of use."""
    classes = {name for each in module.modules() for name in getattr(each, "_no_split_modules", None) or ()}
    return [each for each in module.modules() if type(each).__name__ in classes]


def compute_gradient_norm(parameters: list[nn.Parameter]) -> torch.Tensor:
    """Return the norm of the gradient over all parameters, shards on other ranks included. Shape []; all must call."""
    norm = torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
    total: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return total


def _require_same_parameters(module: nn.Module, ranks: Ranks) -> None:
    """Raise DevkitError on all ranks if they built different models from the same files."""
    own = [name for name, _ in module.named_parameters()]
    names = ranks.on_rank0_broadcast(lambda: own)
    different = next((here or there for here, there in zip_longest(own, names) if here != there), None)

    def check() -> None:
        if different is not None:
            raise DevkitError(
                f"the processes of this run build different models from the same files: some do not have {different}",
                "Install the same versions of transformers and peft on all machines.",
            )

    ranks.on_all_or_fail(check)
