"""The report of `devkit estimate`: a model and settings on GPUs, as a value, as JSON and as text."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from devkit.errors import DevkitError
from devkit.estimate.inference import estimate_inference
from devkit.estimate.memory import Fit, GpuSpec, Interval, MemoryEstimate, MemoryPhase, Term, find_smallest_gpu
from devkit.estimate.recommend import (
    HostRequirements,
    Recommendation,
    estimate_host,
    recommend_gpu_count,
    recommend_settings,
)
from devkit.estimate.settings import (
    ALL_LINEAR,
    InferenceSettings,
    Loss,
    Method,
    Objective,
    Precision,
    Quantization,
    TrainingSettings,
    replace_bf16,
)
from devkit.estimate.shape import ModelShape
from devkit.estimate.training import estimate_training
from devkit.formats.documents import Json, build_from, encode
from devkit.text import escape_text, format_bytes, format_count, format_table, join_words, wrap_text

MAX_TERMS = 3
"""Terms that the text shows; the others are named."""

RunSettings = TrainingSettings | InferenceSettings

_VERDICTS = {Fit.FITS: "fits", Fit.TIGHT: "tight", Fit.DOES_NOT_FIT: "does not fit"}
_PHASES = {
    MemoryPhase.LOAD: "while the weights are loaded",
    MemoryPhase.LOSS: "while the loss is computed",
    MemoryPhase.BACKWARD: "in the backward pass",
    MemoryPhase.STEP: "in the optimizer's step",
    MemoryPhase.PREFILL: "while the prompt is read",
    MemoryPhase.DECODE: "while text is generated",
}


@dataclass(frozen=True, kw_only=True)
class GpuReport:
    """One GPU: whether it holds the run, and settings that it would hold."""

    name: str
    count: int
    memory_bytes: int
    memory_is_measured: bool
    verdict: Fit
    lacks_bf16: bool
    recommended: tuple[Recommendation, ...] = ()
    """Settings that fit, the fastest first, without the run's own."""
    together: Recommendation | None = None
    """The number of GPUs on which it fits, where it does not on one."""


@dataclass(frozen=True, kw_only=True)
class EstimateReport:
    """The estimate of a run with its meaning for GPUs, host and time. `smallest` is None where no GPU fits."""

    shape: ModelShape
    settings: RunSettings
    estimate: MemoryEstimate
    gpus: tuple[GpuReport, ...]
    smallest: GpuSpec | None
    host: HostRequirements | None

    @property
    def fits_somewhere(self) -> bool:
        """True if it fits on one of the GPUs, at least tightly; True without GPUs."""
        return not self.gpus or any(each.verdict is not Fit.DOES_NOT_FIT for each in self.gpus)


def build_estimate_report(shape: ModelShape, settings: RunSettings, gpus: Iterable[GpuSpec] = ()) -> EstimateReport:
    """Estimate in closed form, and judge the GPUs. Raises DevkitError for settings that make no sense."""
    host = None
    if isinstance(settings, TrainingSettings):
        estimate, host = estimate_training(shape, settings), estimate_host(shape, settings)
    else:
        estimate = estimate_inference(shape, settings)
    return EstimateReport(
        shape=shape,
        settings=settings,
        estimate=estimate,
        gpus=tuple(_judge(gpu, estimate, shape, settings) for gpu in gpus),
        smallest=find_smallest_gpu(estimate),
        host=host,
    )


def _judge(gpu: GpuSpec, estimate: MemoryEstimate, shape: ModelShape, settings: RunSettings) -> GpuReport:
    report = build_from(GpuReport, gpu, memory_is_measured=gpu.is_measured, verdict=gpu.verdict(estimate))
    if not isinstance(settings, TrainingSettings):
        return report
    better = tuple(each for each in recommend_settings(shape, settings, gpu) if each.changes)
    is_hopeless = report.verdict is Fit.DOES_NOT_FIT and not any(each.verdict is Fit.FITS for each in better)
    together = recommend_gpu_count(shape, settings, gpu) if is_hopeless else None
    return replace(report, recommended=better, together=together)


# ---- As JSON


@dataclass(frozen=True, kw_only=True)
class EstimateDocument:
    """Printed by devkit estimate --json."""

    schema: Literal["devkit.estimate/1"] = "devkit.estimate/1"
    model: Mapping[str, Any]
    settings: RunSettings
    method: str
    phase: str
    terms: tuple[Term, ...]
    overheads: tuple[Term, ...]
    phases: Mapping[str, int]
    allocated_peak_bytes: int
    reserved_peak_bytes: Interval
    device_peak_bytes: Interval
    warnings: tuple[str, ...]
    gpus: tuple[GpuReport, ...]
    recommended: Recommendation | None
    smallest_gpu: Mapping[str, Any] | None
    host: HostRequirements | None


def serialize_estimate_report(report: EstimateReport) -> Json:
    """Serialize a report for JSON: devkit.estimate/1."""
    shape, smallest = report.shape, report.smallest
    built = build_from(
        EstimateDocument,
        report.estimate,
        model={
            "name": shape.name,
            "architecture": shape.architecture,
            "parameters": shape.parameters,
            "active_parameters": shape.active_parameters,
            "quantizable_parameters": shape.packed_weights,
            "hidden": shape.hidden,
            "layers": shape.depth,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "vocabulary": shape.vocabulary,
            "tied_embeddings": shape.is_tied,
            "note": shape.note,
        },
        settings=report.settings,
        phases=dict(report.estimate.phases),
        gpus=report.gpus,
        recommended=next((each.recommended[0] for each in report.gpus if each.recommended), None),
        smallest_gpu={"name": smallest.name, "memory_bytes": smallest.memory_bytes} if smallest else None,
        host=report.host,
    )
    return encode(built)


# ---- As text: the verdict first, then the peak, then what to change.


def format_estimate_report(report: EstimateReport, *, width: int) -> str:
    """Format a report, folded to `width` columns."""
    return escape_text("\n".join(_list_lines(report, width)))


def describe_fit(each: GpuReport, report: EstimateReport) -> tuple[str, str, str]:
    """Describe the verdict on a GPU, its name, and the peak beside its memory."""
    device, verdict = report.estimate.device_peak_bytes, _VERDICTS[each.verdict]
    if each.lacks_bf16 and report.settings.precision is Precision.BF16 and each.verdict is not Fit.DOES_NOT_FIT:
        verdict = f"{verdict} with --dtype {replace_bf16(report.settings)}, because the GPU has no bf16 hardware"
    peak = f"{format_bytes(device.point)} of {format_bytes(each.memory_bytes)}, at most {format_bytes(device.upper)}"
    return verdict, each.name if each.count == 1 else f"{each.name} (one of {each.count})", peak


def _list_lines(report: EstimateReport, width: int) -> Iterator[str]:
    estimate = report.estimate
    for each in report.gpus:
        verdict, name, peak = describe_fit(each, report)
        yield wrap_text(f"{verdict}: {name}, {peak}", width=width)
    if report.gpus:
        yield ""
    yield wrap_text(format_scenario(report), width=width)
    device, reserved = estimate.device_peak_bytes, estimate.reserved_peak_bytes
    yield wrap_text(
        f"Peak {format_bytes(estimate.allocated_peak_bytes)} of tensors {_PHASES[estimate.phase]}; torch reserves "
        f"{format_bytes(reserved.point)}, and in total {format_bytes(device.point)} of the GPU's memory is used, at most "
        f"{format_bytes(device.upper)}",
        width=width,
    )
    shown, rest = estimate.terms[:MAX_TERMS], estimate.terms[MAX_TERMS:]
    rows = [(format_bytes(term.bytes), term.name, term.formula) for term in shown]
    if rest:
        size = format_bytes(sum(term.bytes for term in rest))
        rows.append((size, f"{len(rest)} more", f"--why NAME: {'; '.join(term.name for term in rest)}"))
    yield format_table(rows, indent="  ", width=width)
    for each in report.gpus:
        yield from _list_advice(each, report, width)
    yield from _list_needs(report, width)
    for warning in estimate.warnings:
        yield wrap_text(f"Note: {warning}.", width=width, hanging="  ")


def _list_needs(report: EstimateReport, width: int) -> Iterator[str]:
    """List the smallest GPU and the host's needs."""
    smallest, host = report.smallest, report.host
    if smallest is None:
        yield "No single GPU in the tables is guaranteed to be enough."
    else:
        memory = format_bytes(smallest.memory_bytes)
        yield wrap_text(f"The smallest GPU guaranteed to be enough is the {smallest.name} ({memory})", width=width)
    if host:
        yield wrap_text(
            f"The machine needs {format_bytes(host.memory_bytes)} of memory for each GPU, "
            f"{format_bytes(host.checkpoint_bytes)} more to save a checkpoint, {format_bytes(host.disk_bytes)} of disk, "
            f"{host.cores} cores for each GPU, {host.workers} of them to prepare "
            "data.",
            width=width,
        )


def _list_advice(each: GpuReport, report: EstimateReport, width: int) -> Iterator[str]:
    name = each.name
    if each.recommended:
        purpose = {Fit.FITS: "Also fits", Fit.TIGHT: "To be sure", Fit.DOES_NOT_FIT: "To make it fit"}[each.verdict]
        yield wrap_text(f"{purpose} on {name}, fastest first:", width=width)
    for choice in each.recommended:
        costs = "; ".join(cost.says for cost in choice.costs) or "costs nothing"
        peak = format_bytes(choice.device_peak_bytes.point)
        yield wrap_text(f"{' '.join(choice.changes)}  ({peak}; {costs})", width=width, indent="  ", hanging="  ")
    if each.together:
        settings = each.together.settings
        yield wrap_text(
            f"Nothing makes it fit on one {name}, but {settings.world} of them hold it with: "
            f"{' '.join(each.together.changes)}",
            width=width,
        )
    elif each.verdict is Fit.DOES_NOT_FIT and not each.recommended and isinstance(report.settings, TrainingSettings):
        yield f"Nothing makes it fit on {name}, not even on eight of them."


def format_scenario(report: EstimateReport) -> str:
    """Format the model and the settings in a line."""
    shape, settings = report.shape, report.settings
    name = f"{shape.name} ({shape.note})" if shape.note else shape.name
    if isinstance(settings, TrainingSettings):
        return f"{name}: {join_words(_list_training_settings(settings))}"
    quantized = "" if settings.quantization is Quantization.NONE else f" in {settings.quantization}"
    tokens = f"{settings.prompt:,} tokens"
    if shape.is_decoder:
        tokens = f"{settings.prompt:,} prompt tokens and {settings.new:,} new tokens"
    sequences = "1 sequence" if settings.sequences == 1 else f"{settings.sequences} sequences, each"
    return f"{name}: inference{quantized}, {settings.precision}, {sequences} with {tokens}"


def _list_training_settings(settings: TrainingSettings) -> Iterator[str]:
    names = {Method.LORA: "LoRA", Method.QLORA: "QLoRA", Method.INT8_LORA: "LoRA on an int8 base"}
    name = names.get(settings.method, "full fine-tuning")
    if settings.method is not Method.FULL:
        targets = "" if settings.targets == ALL_LINEAR else f" on {', '.join(settings.targets)}"
        name = f"{'DoRA, ' if settings.dora else ''}{name} at rank {settings.rank}{targets}"
    yield name
    yield str(settings.precision)
    rows = str(settings.micro_batch)
    if settings.objective is not Objective.SFT:
        yield f"objective {settings.objective}"
        rows = format_count(settings.micro_batch, "pair" if settings.objective.is_paired else "completion")
    yield f"{rows} x {settings.sequence:,} tokens"
    yield "checkpointing" if settings.checkpointing else "no checkpointing"
    yield f"{settings.optimizer}"
    yield f"{settings.loss} loss" if settings.loss is not Loss.STANDARD else "whole logits"
    if settings.world > 1:
        yield f"{settings.sharding} over {settings.world} GPUs"


def format_term(estimate: MemoryEstimate, name: str, *, width: int) -> str:
    """Format one term with its formula and source. Raises DevkitError for a name that no term has."""
    terms = (*estimate.terms, *estimate.overheads)
    found = [term for term in terms if term.name.lower() == name.lower()]
    if not found:
        known = "; ".join(term.name for term in terms)
        raise DevkitError(f"the peak does not have a term {name!r}", f"It has: {known}.")
    return "\n".join(
        f"{term.name}: {format_bytes(term.bytes)}\n{wrap_text(term.formula, width=width, indent='  ')}\n  {term.source}"
        for term in found
    )
