"""Recommended settings: those that fit on a GPU, the fastest first, with the cost of each, and what a run needs beside the GPU."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from devkit.estimate.memory import GIB, Fit, GpuSpec, Interval
from devkit.estimate.settings import Loss, Method, Optimizer, Precision, Sharding, TrainingSettings
from devkit.estimate.shape import ModelShape
from devkit.estimate.training import (
    OPTIMIZERS_8BIT,
    PAGED_OPTIMIZERS,
    compute_optimizer_terms,
    count_trained_parameters,
    estimate_training,
)

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
    has_wide_adapters = settings.method is not Method.FULL and settings.adapter_precision is Precision.FP32
    costs = (
        (settings.method is Method.QLORA, QLORA_SLOWDOWN),
        (settings.method is Method.INT8_LORA, INT8_SLOWDOWN),
        (settings.checkpointing, CHECKPOINTING_SLOWDOWN),
        (has_wide_adapters and settings.precision is not Precision.FP32, FP32_ADAPTERS_SLOWDOWN),
        (settings.optimizer in OPTIMIZERS_8BIT, OPTIMIZER_8BIT_SLOWDOWN),
        (settings.optimizer in PAGED_OPTIMIZERS, PAGED_OPTIMIZER_SLOWDOWN),
        (settings.loss is Loss.STANDARD, STANDARD_LOSS_SLOWDOWN),
        (settings.sharding is Sharding.ZERO2, ZERO2_SLOWDOWN),
        (settings.sharding is Sharding.ZERO3, ZERO3_SLOWDOWN),
    )
    return tuple(cost for is_paid, cost in costs if is_paid)


def compute_slowness(settings: TrainingSettings) -> float:
    """Compute how many times longer a token takes than with the fastest settings; only for ranking."""
    factor = math.prod((each.factor for each in find_slowdowns(settings)), start=1.0)
    tokens = settings.micro_batch * settings.sequence
    return round(factor * max(1.0, math.sqrt(ENOUGH_TOKENS / tokens)), 3)


MAX_MICRO_BATCH = 64
ENOUGH_TOKENS_IN_PASS = 8192
"""Tokens in a micro-batch from which a larger one is hardly faster."""
GPU_COUNTS = (2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Settings that fit. `slowness` is relative to the fastest way to train this model by the same method."""

    changes: tuple[str, ...]
    """The flags that make these settings of the requested ones."""
    settings: TrainingSettings
    device_peak_bytes: Interval
    verdict: Fit
    slowness: float
    costs: tuple[Slowdown, ...]


def recommend_settings(
    shape: ModelShape, requested: TrainingSettings, gpu: GpuSpec, *, count: int = 3
) -> tuple[Recommendation, ...]:
    """Recommend the fastest settings that are certain to fit; if none are, those that fit tightly.

    The sequence length and the purpose of the training stay: only how it is done changes. LoRA becomes QLoRA only where
    no other change is certain to fit: 4-bit weights are slower, and rounded.
    """
    methods = (requested.method, Method.QLORA) if requested.method is Method.LORA else (requested.method,)
    found: list[Recommendation] = []
    for method in methods:
        if not any(each.verdict is Fit.FITS for each in found):
            found += _list_fitting(shape, requested, gpu, method)
    surest = [each for each in found if each.verdict is Fit.FITS] or found
    best: dict[tuple[Method, bool], Recommendation] = {}
    for each in sorted(surest, key=lambda each: (each.slowness, len(each.changes))):
        # The best of each method with and without checkpointing: others differ in the micro-batch alone.
        best.setdefault((each.settings.method, each.settings.checkpointing), each)
    return tuple(best.values())[:count]


def recommend_gpu_count(shape: ModelShape, requested: TrainingSettings, gpu: GpuSpec) -> Recommendation | None:
    """Recommend the fewest of these GPUs on which it fits, fully sharded; None where eight are too few."""
    for world in GPU_COUNTS:
        sharded = replace(requested, world=world, sharding=Sharding.ZERO3, micro_batch=1)
        fitting = recommend_settings(shape, sharded, gpu, count=1)
        if fitting and fitting[0].verdict is Fit.FITS:
            return replace(fitting[0], changes=_list_changes(requested, fitting[0].settings))
    return None


def _list_fitting(
    shape: ModelShape, requested: TrainingSettings, gpu: GpuSpec, method: Method
) -> Iterator[Recommendation]:
    """List settings that fit with and without checkpointing, by the first optimizer with which they do."""
    adapter_precision, optimizers = requested.adapter_precision, [requested.optimizer]
    if requested.method is not Method.FULL:
        # bf16 adapters train as they are; fp16 ones need fp32.
        is_fp16 = requested.precision is Precision.FP16
        adapter_precision = Precision.FP32 if is_fp16 else requested.precision
    if method is Method.FULL and requested.sharding is Sharding.DDP:
        # Adapters have so little optimizer state that its size does not matter.
        optimizers += [Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT]
    for checkpointing in (False, True):
        for optimizer in dict.fromkeys(optimizers):
            changed = replace(
                requested,
                method=method,
                checkpointing=checkpointing,
                optimizer=optimizer,
                loss=Loss.CHUNKED if requested.loss is Loss.STANDARD else requested.loss,
                adapter_precision=adapter_precision,
                upcast=False,
            )
            found = _find_largest_micro_batch(shape, requested, changed, gpu)
            if found is not None:
                yield found
                break


def _find_largest_micro_batch(
    shape: ModelShape, requested: TrainingSettings, changed: TrainingSettings, gpu: GpuSpec
) -> Recommendation | None:
    """Find the largest micro-batch that fits, up to what keeps the GPU busy; None where one row does not fit."""
    best, rows = None, 1
    while rows <= MAX_MICRO_BATCH:
        settings = replace(changed, micro_batch=rows)
        estimate = estimate_training(shape, settings)
        verdict = gpu.verdict(estimate)
        if verdict is Fit.DOES_NOT_FIT or (best is not None and verdict is Fit.TIGHT):
            break
        best = Recommendation(
            settings=settings,
            device_peak_bytes=estimate.device_peak_bytes,
            verdict=verdict,
            slowness=compute_slowness(settings),
            costs=find_slowdowns(settings),
            changes=_list_changes(requested, settings),
        )
        if rows * settings.sequence >= ENOUGH_TOKENS_IN_PASS:
            break
        rows *= 2
    return best


def _list_changes(requested: TrainingSettings, settings: TrainingSettings) -> tuple[str, ...]:
    """List the flags that make these settings of the requested ones."""
    flags = {
        f"--method {settings.method}": settings.method is not requested.method,
        f"--micro-batch {settings.micro_batch}": settings.micro_batch != requested.micro_batch,
        "--checkpointing": settings.checkpointing and not requested.checkpointing,
        "--no-checkpointing": requested.checkpointing and not settings.checkpointing,
        f"--optimizer {settings.optimizer}": settings.optimizer is not requested.optimizer,
        f"--set loss={settings.loss}": settings.loss is not requested.loss,
        f"--adapter-dtype {settings.adapter_precision}": settings.adapter_precision is not requested.adapter_precision,
        "--set upcast=false": settings.upcast != requested.upcast,
        f"--world {settings.world} --sharding {settings.sharding}": settings.world != requested.world,
    }
    return tuple(flag for flag, differs in flags.items() if differs)
