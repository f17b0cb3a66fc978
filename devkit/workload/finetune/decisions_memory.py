"""What fits: micro-batch, accumulation, checkpointing and optimizer, by the estimate against free memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from devkit.errors import DevkitError
from devkit.estimate.model import Interval, MemoryEstimate
from devkit.estimate.overhead import on_cpu
from devkit.estimate.settings import Method, Optimizer
from devkit.text import human_bytes
from devkit.workload.finetune.decisions import ASKED, Decision, Decisions, Hardware, Kind, Need
from devkit.workload.finetune.decisions_compute import EIGHT_BIT, Computing
from devkit.workload.finetune.settings import FinetuneSettings

ENOUGH_TOKENS = 1024
"""Tokens in one pass from which matrix products are bound by arithmetic: an H200 does 989e12 operations in the time
in which it reads 4.8e12 bytes, about 206 for each byte of a 16-bit weight; five times that leaves room for the rest."""

MOST_TOKENS = 16384
"""Tokens in one pass beyond which a pass only takes longer."""

MOST_TOKENS_ON_CPU = 4096


@dataclass(frozen=True)
class _Fit:
    """One way to share the work out, and what it takes; None where no estimate is to be had."""

    micro_batch: int
    checkpointing: bool
    optimizer: Optimizer
    estimate: MemoryEstimate | None = None

    @property
    def peak(self) -> Interval | None:
        """What torch's allocator holds at the peak, in bytes."""
        return self.estimate.reserved_peak_bytes if self.estimate is not None else None


def fitted(settings: FinetuneSettings, hardware: Hardware, computing: Computing, need: Need | None) -> Decisions:
    """The decisions with everything that memory decides. Raises DevkitError where a batch cannot be shared out."""
    rows = _rows(settings, hardware)
    draft = _draft(settings, computing)
    tried = [_estimated(fit, draft, settings, hardware, need) for fit in _candidates(settings, hardware, rows)]
    fit = next((each for each in tried if _fits(each, hardware)), tried[-1])
    accumulation = -(-rows // fit.micro_batch)
    computing.reasons.extend(_reasons(settings, hardware, fit, rows, accumulation))
    warnings = [*computing.warnings, *_too_little(fit, hardware, settings)]
    return replace(
        draft,
        micro_batch=fit.micro_batch,
        accumulation=accumulation,
        checkpointing=fit.checkpointing,
        optimizer=fit.optimizer,
        estimate=fit.estimate,
        reasons=tuple(computing.reasons),
        warnings=tuple(warnings),
    )


def _rows(settings: FinetuneSettings, hardware: Hardware) -> int:
    """How many rows of a batch one process learns from."""
    if settings.batch < hardware.world:
        raise DevkitError(
            f"--batch {settings.batch} cannot be shared by {hardware.world} processes",
            f"Give --batch {hardware.world} or more.",
        )
    return -(-settings.batch // hardware.world)


def _draft(settings: FinetuneSettings, computing: Computing) -> Decisions:
    return Decisions(
        precision=computing.precision,
        adapter_precision=computing.adapter_precision,
        attention=computing.attention,
        packing=computing.packing,
        checkpointing=bool(settings.checkpointing),
        micro_batch=1,
        accumulation=1,
        optimizer=settings.optimizer or Optimizer.ADAMW,
        loss=computing.loss,
        compile=computing.compile,
        sharding=computing.sharding,
        learning_rate=computing.learning_rate,
        estimate=None,
        reasons=(),
    )


def _candidates(settings: FinetuneSettings, hardware: Hardware, rows: int) -> Iterator[_Fit]:
    """Every way that the settings leave open, the fastest first.

    Recomputing costs a third of the time, so it comes after every pass that is large enough without it; states in
    8 bits come last, because they change what is learned.
    """
    sizes = _sizes(settings, hardware, rows)
    large = [size for size in sizes if size * settings.sequence >= ENOUGH_TOKENS] or sizes[:1]
    small = [size for size in sizes if size not in large]
    for optimizer in _optimizers(settings, hardware):
        for checkpointing, some in ((False, large), (True, sizes), (False, small)):
            if settings.checkpointing in (None, checkpointing):
                yield from (_Fit(size, checkpointing, optimizer) for size in some)
    # Nothing fits: what takes least is what is tried.
    yield _Fit(sizes[-1], settings.checkpointing is not False, _optimizers(settings, hardware)[-1])


def _sizes(settings: FinetuneSettings, hardware: Hardware, rows: int) -> list[int]:
    """Micro-batches worth trying, largest first: those that share `rows` out evenly, or the one that was asked for."""
    if settings.micro_batch is not None:
        return [min(settings.micro_batch, rows)]
    most = MOST_TOKENS if hardware.is_gpu else MOST_TOKENS_ON_CPU
    largest = max(1, most // settings.sequence)
    return [size for size in range(min(rows, largest), 0, -1) if rows % size == 0]


def _optimizers(settings: FinetuneSettings, hardware: Hardware) -> list[Optimizer]:
    if settings.optimizer is not None:
        return [settings.optimizer]
    can_shrink = settings.method is Method.FULL and hardware.kind is Kind.CUDA and "bitsandbytes" in hardware.packages
    return [Optimizer.ADAMW, Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT] if can_shrink else [Optimizer.ADAMW]


def _estimated(fit: _Fit, draft: Decisions, settings: FinetuneSettings, hardware: Hardware, need: Need | None) -> _Fit:
    if need is None:
        return fit
    tried = replace(draft, micro_batch=fit.micro_batch, checkpointing=fit.checkpointing, optimizer=fit.optimizer)
    estimate = need(tried.training(settings, world=hardware.world))
    return replace(fit, estimate=estimate if hardware.is_gpu else on_cpu(estimate))


def _fits(fit: _Fit, hardware: Hardware) -> bool:
    """Without an estimate only one row at a time, computed again in the backward pass, is sure to be the least."""
    return fit.peak.upper <= hardware.free_bytes if fit.peak is not None else not hardware.is_gpu


def _reasons(
    settings: FinetuneSettings, hardware: Hardware, fit: _Fit, rows: int, accumulation: int
) -> Iterator[Decision]:
    room = _room(fit, hardware)
    if settings.optimizer is not None:
        yield Decision("optimizer", fit.optimizer, ASKED)
    elif fit.optimizer in EIGHT_BIT:
        yield Decision("optimizer", fit.optimizer, "its states in fp32 or bf16 would not fit")
    elif settings.method is Method.FULL:
        yield Decision("optimizer", fit.optimizer, "fused: one pass over memory and no copy of the weights")
    else:
        yield Decision("optimizer", fit.optimizer, "computed in fp32, so that small steps are not rounded away")
    if settings.checkpointing is not None:
        yield Decision("checkpointing", "yes" if fit.checkpointing else "no", ASKED)
    elif fit.checkpointing:
        yield Decision("checkpointing", "yes", f"without it there is no room; {room}")
    else:
        yield Decision("checkpointing", "no", f"everything fits without computing twice; {room}")
    fits = "the largest useful one that fits" if _fits(fit, hardware) else "the least there is"
    because = ASKED if settings.micro_batch is not None else f"{fits}; {room}"
    yield Decision("micro_batch", f"{fit.micro_batch}", because)
    shared = f" by each of {hardware.world} processes" if hardware.world > 1 else ""
    yield Decision("accumulation", f"{accumulation}", f"{rows} rows a step{shared}, {fit.micro_batch} in one pass")


def _room(fit: _Fit, hardware: Hardware) -> str:
    free = human_bytes(hardware.free_bytes)
    if fit.peak is None:
        return f"{free} free, and no estimate for this model"
    return f"about {human_bytes(fit.peak.point)}, at most {human_bytes(fit.peak.upper)}, of {free} free"


def _too_little(fit: _Fit, hardware: Hardware, settings: FinetuneSettings) -> Iterator[str]:
    if fit.peak is None or fit.peak.upper <= hardware.free_bytes:
        return
    word = "may not" if fit.peak.point <= hardware.free_bytes else "will probably not"
    smaller = "--method qlora" if settings.method in (Method.LORA, Method.FULL) else "a smaller model"
    yield f"this {word} fit: {_room(fit, hardware)}. Shorten --sequence, or use {smaller}"
