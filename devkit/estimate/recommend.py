"""Recommended settings: those that fit on a GPU, the fastest first, with the cost of each."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from devkit.estimate.gpus import Fit, GpuSpec
from devkit.estimate.memory import Interval
from devkit.estimate.resources import Slowdown, compute_slowness, find_slowdowns
from devkit.estimate.settings import Loss, Method, Optimizer, Precision, Sharding, TrainingSettings
from devkit.estimate.shape import ModelShape
from devkit.estimate.training import estimate_training

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
