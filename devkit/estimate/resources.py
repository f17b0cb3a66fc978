"""Resources of a run beside GPU memory: host memory, disk and cores, and time by settings."""

import math
from dataclasses import dataclass

from devkit.estimate.gpus import GIB
from devkit.estimate.settings import Loss, Method, Optimizer, Precision, Sharding, TrainingSettings
from devkit.estimate.shape import ModelShape
from devkit.estimate.training import PAGED_OPTIMIZERS, compute_optimizer_terms, count_trained_parameters

PROCESS_BYTES = 6 * GIB
"""A Python process with torch and a CUDA context."""
WORKER_BYTES = 1 * GIB
"""A process that prepares data."""
SHARD_BYTES = 5 * 10**9
"""Largest file of a model that transformers writes by default; loading holds one at a time."""
WORKERS = 4
CORES_PER_GPU = 8
"""From the University of Virginia's course on language models; four feed data, the rest the GPU."""
CHECKPOINTS = 3
"""The newest two and the one being written."""


@dataclass(frozen=True, kw_only=True)
class HostRequirements:
    """The requirements for one GPU; each rank on a machine needs as much, the files on disk are needed once."""

    memory_bytes: int
    comfortable_memory_bytes: int
    """With the whole model in the page cache, so that a second start reads nothing from disk."""
    disk_bytes: int
    model_bytes: int
    checkpoint_bytes: int
    cores: int
    workers: int


def estimate_host(shape: ModelShape, settings: TrainingSettings) -> HostRequirements:
    """Estimate what training requires of the machine."""
    model = shape.parameters * settings.precision.bytes
    trained = count_trained_parameters(shape, settings)
    state = sum(term.bytes for term in compute_optimizer_terms(trained, settings))
    paged = state if settings.optimizer in PAGED_OPTIMIZERS else 0
    memory = PROCESS_BYTES + WORKERS * WORKER_BYTES + min(model, SHARD_BYTES) + paged
    checkpoint = trained.bytes + state
    return HostRequirements(
        memory_bytes=memory,
        comfortable_memory_bytes=memory + max(0, model - SHARD_BYTES),
        disk_bytes=model + CHECKPOINTS * checkpoint,
        model_bytes=model,
        checkpoint_bytes=checkpoint,
        cores=CORES_PER_GPU,
        workers=WORKERS,
    )


ENOUGH_TOKENS = 1024
"""Tokens in one pass from which matrix products keep a GPU busy: compute over bandwidth is about 200 operations for
each byte; five times that leaves time for everything else."""


@dataclass(frozen=True)
class Slowdown:
    """The cost of a setting: how many times longer a step takes, in words, and where that was measured."""

    factor: float
    says: str
    source: str


_TORCHTUNE = "https://github.com/pytorch/torchtune"
_SWIFT = "https://github.com/modelscope/ms-swift"
CHECKPOINTING_SLOWDOWN = Slowdown(1.3, "checkpointing computes every layer twice: about 30% slower", _SWIFT)
QLORA_SLOWDOWN = Slowdown(1.28, "4-bit weights are unpacked in every pass: about 28% slower", _TORCHTUNE)
INT8_SLOWDOWN = Slowdown(
    1.6, "8-bit products with separate outliers: slower than 4-bit", "https://arxiv.org/abs/2208.07339"
)
FP32_ADAPTERS_SLOWDOWN = Slowdown(
    1.1, "fp32 adapters cast their input in every layer", "https://github.com/huggingface/peft"
)
OPTIMIZER_8BIT_SLOWDOWN = Slowdown(
    1.02, "8-bit optimizer state: rounded, and slightly slower steps", "https://arxiv.org/abs/2110.02861"
)
PAGED_OPTIMIZER_SLOWDOWN = Slowdown(
    1.05, "paged optimizer state: may wait for host memory", "https://arxiv.org/abs/2305.14314"
)
STANDARD_LOSS_SLOWDOWN = Slowdown(1.02, "full logits are written and read several times", _TORCHTUNE)
ZERO3_SLOWDOWN = Slowdown(1.2, "every pass fetches every layer from the other GPUs", "https://arxiv.org/abs/2304.11277")
ZERO2_SLOWDOWN = Slowdown(1.05, "gradients are sharded after every pass", "https://arxiv.org/abs/1910.02054")


def find_slowdowns(settings: TrainingSettings) -> tuple[Slowdown, ...]:
    """Find what slows these settings down against the fastest ones for the same training."""
    by_optimizer = {
        Optimizer.ADAMW_8BIT: (OPTIMIZER_8BIT_SLOWDOWN,),
        Optimizer.PAGED_ADAMW: (PAGED_OPTIMIZER_SLOWDOWN,),
        Optimizer.PAGED_ADAMW_8BIT: (OPTIMIZER_8BIT_SLOWDOWN, PAGED_OPTIMIZER_SLOWDOWN),
    }
    by_method = {Method.QLORA: (QLORA_SLOWDOWN,), Method.INT8_LORA: (INT8_SLOWDOWN,)}
    by_sharding = {Sharding.ZERO2: (ZERO2_SLOWDOWN,), Sharding.ZERO3: (ZERO3_SLOWDOWN,)}
    has_wide_adapters = settings.method is not Method.FULL and settings.adapter_precision is Precision.FP32
    return (
        *by_method.get(settings.method, ()),
        *((CHECKPOINTING_SLOWDOWN,) if settings.checkpointing else ()),
        *((FP32_ADAPTERS_SLOWDOWN,) if has_wide_adapters and settings.precision is not Precision.FP32 else ()),
        *by_optimizer.get(settings.optimizer, ()),
        *((STANDARD_LOSS_SLOWDOWN,) if settings.loss is Loss.STANDARD else ()),
        *by_sharding.get(settings.sharding, ()),
    )


def compute_slowness(settings: TrainingSettings) -> float:
    """Compute how many times longer a token takes than with the fastest settings; only for ranking."""
    factor = math.prod((each.factor for each in find_slowdowns(settings)), start=1.0)
    tokens = settings.micro_batch * settings.sequence
    return round(factor * max(1.0, math.sqrt(ENOUGH_TOKENS / tokens)), 3)
