"""Which settings fit on a GPU, the fastest first, and what each of them costs."""

from collections.abc import Iterator
from dataclasses import replace

from devkit.estimate.gpus import Fit, GpuSpec
from devkit.estimate.memory import MemoryEstimate
from devkit.estimate.resources import Slowdown, compute_slowness, find_slowdowns
from devkit.estimate.settings import Loss, Method, Optimizer, Precision, Sharding, TrainingSettings
from devkit.estimate.shape import ModelShape
from devkit.estimate.training import estimate_training
from devkit.facts.values import keyword_record

MAX_MICRO_BATCH = 64
GPU_COUNTS = (1, 2, 4, 8)


@keyword_record
class Recommendation:
    """Settings that fit. `slowness` is relative to the fastest way to train this model the same way."""

    settings: TrainingSettings
    estimate: MemoryEstimate
    verdict: Fit
    slowness: float
    costs: tuple[Slowdown, ...]
    changes: tuple[str, ...]
    """What differs from the settings that were asked for."""


def recommend_settings(
    shape: ModelShape, wanted: TrainingSettings, card: GpuSpec, *, count: int = 3
) -> tuple[Recommendation, ...]:
    """The fastest settings that fit for certain; where none do, those that are tight.

    The sequence and what the user trains for stay: only how it is done changes. A LoRA becomes a QLoRA only where no
    other change makes it fit: 4-bit weights are slower, and rounded.
    """
    found: list[Recommendation] = []
    for method in _methods(wanted):
        found = found or list(_candidates(shape, wanted, card, method))
    surest = [choice for choice in found if choice.verdict is Fit.FITS] or found
    ranked = sorted(surest, key=lambda choice: (choice.slowness, len(choice.changes)))
    return tuple(_distinct(ranked))[:count]


def recommend_gpu_count(shape: ModelShape, wanted: TrainingSettings, card: GpuSpec) -> Recommendation | None:
    """The fewest of these GPUs on which it fits, with everything shared out; None where eight are too few."""
    for world in GPU_COUNTS[1:]:
        together = replace(wanted, world=world, sharding=Sharding.ZERO3, micro_batch=1)
        fitting = recommend_settings(shape, together, card, count=1)
        if fitting and fitting[0].verdict is Fit.FITS:
            return replace(fitting[0], changes=tuple(_changes(wanted, fitting[0].settings)))
    return None


def _distinct(ranked: list[Recommendation]) -> Iterator[Recommendation]:
    """The best of each way to keep the base and to go backward: others differ in the number of rows alone."""
    seen = set()
    for choice in ranked:
        settings = choice.settings
        way = (settings.method, settings.checkpointing)
        if way not in seen:
            seen.add(way)
            yield choice


def _candidates(shape: ModelShape, wanted: TrainingSettings, card: GpuSpec, method: Method) -> Iterator[Recommendation]:
    for checkpointing in (False, True):
        for optimizer in _optimizers(wanted, method):
            changed = replace(
                wanted,
                method=method,
                checkpointing=checkpointing,
                optimizer=optimizer,
                loss=Loss.CHUNKED if wanted.loss is Loss.STANDARD else wanted.loss,
                adapter_precision=_adapter_precision(wanted),
                upcast=False,
            )
            choice = _most_rows(shape, wanted, changed, card)
            if choice is not None:
                yield choice
                break


def _methods(wanted: TrainingSettings) -> tuple[Method, ...]:
    return (wanted.method, Method.QLORA) if wanted.method is Method.LORA else (wanted.method,)


def _optimizers(wanted: TrainingSettings, method: Method) -> tuple[Optimizer, ...]:
    """Adapters have so little state that its size does not matter."""
    if method is not Method.FULL:
        return (wanted.optimizer,)
    return tuple(dict.fromkeys((wanted.optimizer, Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT)))


def _adapter_precision(wanted: TrainingSettings) -> Precision:
    """bf16 adapters train as they are; fp16 ones need fp32. Full fine-tuning has none."""
    if wanted.method is Method.FULL:
        return wanted.adapter_precision
    return Precision.FP32 if wanted.precision is Precision.FP16 else wanted.precision


def _most_rows(
    shape: ModelShape, wanted: TrainingSettings, changed: TrainingSettings, card: GpuSpec
) -> Recommendation | None:
    """With as many rows as fit, up to what keeps the GPU busy, but never fewer than one."""
    best = None
    rows = 1
    while rows <= MAX_MICRO_BATCH:
        settings = replace(changed, micro_batch=rows)
        estimate = estimate_training(shape, settings)
        verdict = card.verdict(estimate)
        if verdict is Fit.DOES_NOT_FIT or (best is not None and verdict is Fit.TIGHT):
            break
        best = _choice(wanted, settings, estimate, verdict)
        if rows * settings.sequence >= 8192:
            break
        rows *= 2
    return best


def _choice(
    wanted: TrainingSettings, settings: TrainingSettings, estimate: MemoryEstimate, verdict: Fit
) -> Recommendation:
    return Recommendation(
        settings=settings,
        estimate=estimate,
        verdict=verdict,
        slowness=compute_slowness(settings),
        costs=find_slowdowns(settings),
        changes=tuple(_changes(wanted, settings)),
    )


def _changes(wanted: TrainingSettings, settings: TrainingSettings) -> Iterator[str]:
    """The flags that make these settings of the ones asked for."""
    flags = {
        f"--method {settings.method}": settings.method is not wanted.method,
        f"--micro-batch {settings.micro_batch}": settings.micro_batch != wanted.micro_batch,
        "--checkpointing": settings.checkpointing and not wanted.checkpointing,
        "--no-checkpointing": wanted.checkpointing and not settings.checkpointing,
        f"--optimizer {settings.optimizer}": settings.optimizer is not wanted.optimizer,
        f"--loss {settings.loss}": settings.loss is not wanted.loss,
        f"--adapter-dtype {settings.adapter_precision}": settings.adapter_precision is not wanted.adapter_precision,
        "--no-kbit-upcast": settings.upcast != wanted.upcast,
        f"--world {settings.world} --sharding {settings.sharding}": settings.world != wanted.world,
    }
    return (flag for flag, differs in flags.items() if differs)
