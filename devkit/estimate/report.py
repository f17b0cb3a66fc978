"""An answer as people read it: the verdict first, then the peak, then what to change."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from devkit.errors import DevkitError
from devkit.estimate.gpus import Fit, GpuSpec, find_smallest_gpu
from devkit.estimate.memory import MemoryEstimate, MemoryPhase
from devkit.estimate.resources import UTILISATION, HostRequirements, estimate_host, estimate_seconds
from devkit.estimate.settings import (
    ALL_LINEAR,
    InferenceSettings,
    Loss,
    Method,
    Precision,
    Quantization,
    TrainingSettings,
    encode_settings,
)
from devkit.estimate.shape import ModelShape
from devkit.estimate.training import estimate_training
from devkit.facts.values import keyword_record
from devkit.text import format_bytes, format_count, format_duration, format_table, join_words, wrap_text

if TYPE_CHECKING:
    from devkit.estimate.recommend import Recommendation
    from devkit.estimate.resources import Prices
    from devkit.estimate.rules_of_thumb import RuleOfThumb

# Estimates as JSON: what commands print.


def serialize_estimate(estimate: MemoryEstimate) -> dict[str, Any]:
    """An estimate as plain values."""
    return {
        "method": estimate.method,
        "phase": estimate.phase,
        "terms": [vars(term) for term in estimate.terms],
        "overheads": [vars(term) for term in estimate.overheads],
        "phases": dict(estimate.phases),
        "allocated_peak_bytes": estimate.allocated_peak_bytes,
        "reserved_peak_bytes": vars(estimate.reserved_peak_bytes),
        "device_peak_bytes": vars(estimate.device_peak_bytes),
        "warnings": list(estimate.warnings),
    }


def serialize_shape(shape: ModelShape) -> dict[str, Any]:
    """What is told of the model."""
    return {
        "name": shape.name,
        "architecture": shape.architecture,
        "parameters": shape.parameters,
        "active_parameters": shape.active_parameters,
        "quantisable_parameters": shape.packed_weights,
        "hidden": shape.hidden,
        "layers": shape.depth,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "vocabulary": shape.vocabulary,
        "tied_embeddings": shape.is_tied,
        "note": shape.note,
    }


# Everything that one question about memory is answered with.

HOUR_S = 3600

RunSettings = TrainingSettings | InferenceSettings


@keyword_record
class TrainingDuration:
    """How long so many tokens take, and what that costs: from the best to the plainest stack."""

    tokens: int
    seconds: tuple[float, float]
    costs: tuple[tuple[str, float, float], ...]
    """Where, and the least and the most it costs, in the currency of the price file."""


@keyword_record
class GpuReport:
    """One GPU: whether it fits, what would, and for how long it would work."""

    card: GpuSpec
    verdict: Fit
    better: "tuple[Recommendation, ...]"
    """Settings that fit, the fastest first; what was asked for is not repeated among them."""
    together: "Recommendation | None"
    """With how many of them it fits, where it does not on one."""
    duration: TrainingDuration | None


@keyword_record
class EstimateReport:
    """What `devkit estimate` prints. `smallest` is None where no known card is enough."""

    shape: ModelShape
    settings: RunSettings
    estimate: MemoryEstimate
    cards: tuple[GpuReport, ...]
    smallest: GpuSpec | None
    host: HostRequirements | None
    rules: "tuple[tuple[RuleOfThumb, int | None], ...]"
    prices: "Prices | None" = None
    learned_from: str = ""
    """The file of measurements that tightened the bounds."""

    @property
    def fits_somewhere(self) -> bool:
        """Whether it fits on one of the GPUs asked about, at least if nothing goes wrong; True when none was."""
        return not self.cards or any(each.verdict is not Fit.DOES_NOT_FIT for each in self.cards)


@keyword_record
class Scenario:
    """What is asked. `tokens` is how many are to be trained on, 0 when nobody said."""

    shape: ModelShape
    settings: RunSettings
    cards: tuple[GpuSpec, ...] = ()
    tokens: int = 0
    prices: "Prices | None" = None
    rules: "tuple[RuleOfThumb, ...]" = ()


def estimate_memory(question: Scenario) -> MemoryEstimate:
    """The estimate by formulas. Raises DevkitError for settings that make no sense."""
    if isinstance(question.settings, TrainingSettings):
        return estimate_training(question.shape, question.settings)
    from devkit.estimate.inference import estimate_inference

    return estimate_inference(question.shape, question.settings)


def build_estimate_report(question: Scenario, estimate: MemoryEstimate, *, learned_from: str = "") -> EstimateReport:
    """What the estimate means for GPUs, machine, time and money."""
    settings = question.settings
    host = None
    if isinstance(settings, TrainingSettings):
        host = estimate_host(question.shape, settings, tokens=question.tokens)
    return EstimateReport(
        shape=question.shape,
        settings=settings,
        estimate=estimate,
        cards=tuple(_card_answer(question, card, estimate) for card in question.cards),
        smallest=find_smallest_gpu(estimate),
        host=host,
        rules=tuple((rule, rule.apply(question.shape, settings)) for rule in question.rules),
        prices=question.prices,
        learned_from=learned_from,
    )


def _card_answer(question: Scenario, card: GpuSpec, estimate: MemoryEstimate) -> GpuReport:
    verdict, settings = card.verdict(estimate), question.settings
    if not isinstance(settings, TrainingSettings):
        return GpuReport(card=card, verdict=verdict, better=(), together=None, duration=None)
    from devkit.estimate.recommend import recommend_gpu_count, recommend_settings

    better = tuple(choice for choice in recommend_settings(question.shape, settings, card) if choice.changes)
    is_hopeless = verdict is Fit.DOES_NOT_FIT and not any(each.verdict is Fit.FITS for each in better)
    return GpuReport(
        card=card,
        verdict=verdict,
        better=better,
        together=recommend_gpu_count(question.shape, settings, card) if is_hopeless else None,
        duration=_estimate_duration(question, card, settings) if verdict is not Fit.DOES_NOT_FIT else None,
    )


def _estimate_duration(question: Scenario, card: GpuSpec, settings: TrainingSettings) -> TrainingDuration | None:
    if not question.tokens or card.flops is None:
        return None
    least, most = estimate_seconds(question.tokens, question.shape, settings, flops=card.flops)
    priced = question.prices.for_gpu(card.name) if question.prices else ()
    gpu_hours = (least * settings.world / HOUR_S, most * settings.world / HOUR_S)
    costs = tuple((price.where, price.per_hour * gpu_hours[0], price.per_hour * gpu_hours[1]) for price in priced)
    return TrainingDuration(tokens=question.tokens, seconds=(least, most), costs=costs)


def serialize_estimate_report(found: EstimateReport) -> dict[str, Any]:
    """The answer as JSON: devkit.estimate/1."""
    shown = serialize_estimate(found.estimate)
    first = next((each.better[0] for each in found.cards if each.better), None)
    return {
        "schema": "devkit.estimate/1",
        "model": serialize_shape(found.shape),
        "settings": encode_settings(found.settings),
        **shown,
        "gpus": [_card_document(each) for each in found.cards],
        "recommended": _choice_document(first) if first else None,
        "smallest_gpu": {"name": found.smallest.name, "memory_bytes": found.smallest.memory_bytes}
        if found.smallest
        else None,
        "host": vars(found.host) if found.host else None,
        "rules": [
            {"name": rule.name, "bytes": size, "says": rule.says, "source": rule.source} for rule, size in found.rules
        ],
        "utilisation": list(UTILISATION),
        "prices": {"as_of": found.prices.as_of, "currency": found.prices.currency} if found.prices else None,
        "learned_from": found.learned_from or None,
    }


def _card_document(each: GpuReport) -> dict[str, Any]:
    return {
        "name": each.card.name,
        "count": each.card.count,
        "memory_bytes": each.card.memory_bytes,
        "memory_is_measured": each.card.is_measured,
        "verdict": each.verdict,
        "lacks_bf16": each.card.lacks_bf16,
        "recommended": _choices_document(each.better),
        "together": _choice_document(each.together) if each.together else None,
        "duration": _duration_document(each.duration) if each.duration else None,
    }


def _choices_document(found: "Iterable[Recommendation]") -> list[dict[str, Any]]:
    return [_choice_document(choice) for choice in found]


def _choice_document(choice: "Recommendation") -> dict[str, Any]:
    return {
        "changes": list(choice.changes),
        "settings": encode_settings(choice.settings),
        "device_peak_bytes": vars(choice.estimate.device_peak_bytes),
        "verdict": choice.verdict,
        "slowness": round(choice.slowness, 3),
        "costs": [{"factor": cost.factor, "says": cost.says, "source": cost.source} for cost in choice.costs],
    }


def _duration_document(duration: TrainingDuration) -> dict[str, Any]:
    return {
        "tokens": duration.tokens,
        "seconds": list(duration.seconds),
        "costs": [{"where": where, "least": least, "most": most} for where, least, most in duration.costs],
    }


MAX_TERMS = 3
_VERDICTS = {Fit.FITS: "fits", Fit.TIGHT: "tight", Fit.DOES_NOT_FIT: "does not fit"}
_MOMENTS = {
    MemoryPhase.LOAD: "while the weights are loaded",
    MemoryPhase.LOSS: "while the loss is computed",
    MemoryPhase.BACKWARD: "in the backward pass",
    MemoryPhase.STEP: "in the optimizer's step",
    MemoryPhase.PREFILL: "while the prompt is read",
    MemoryPhase.DECODE: "while text is generated",
}


def format_estimate_report(found: EstimateReport, *, width: int) -> str:
    """What is printed without --json."""
    return "\n".join(_lines(found, width))


def _lines(found: EstimateReport, width: int) -> Iterator[str]:
    for each in found.cards:
        yield from _verdict(each, found.estimate, width)
    if found.cards:
        yield ""
    yield wrap_text(format_scenario(found), width=width)
    yield wrap_text(_peak(found.estimate), width=width)
    yield from _terms(found.estimate)
    for each in found.cards:
        yield from _advice(each, found, width)
    yield from _smallest(found)
    if found.host:
        yield wrap_text(_host(found.host), width=width)
    yield from _rules(found, width)
    if found.learned_from:
        yield wrap_text(f"Bounds drawn in by the runs measured on this GPU, kept in {found.learned_from}.", width=width)
    for warning in found.estimate.warnings:
        yield wrap_text(f"Note: {warning}.", width=width, hanging="  ")


def _verdict(each: GpuReport, estimate: MemoryEstimate, width: int) -> Iterator[str]:
    card, device = each.card, each.card.peak(estimate)
    yield wrap_text(
        f"{_VERDICTS[each.verdict]}: {_card_name(card)}, {format_bytes(device.point)} of "
        f"{format_bytes(card.memory_bytes)}, at most {format_bytes(device.upper)}",
        width=width,
    )


def _card_name(card: GpuSpec) -> str:
    return card.name if card.count == 1 else f"{card.name} (one of {card.count})"


def format_scenario(found: EstimateReport) -> str:
    """The model and the settings in a line."""
    shape, settings = found.shape, found.settings
    name = f"{shape.name} ({shape.note})" if shape.note else shape.name
    if isinstance(settings, TrainingSettings):
        return f"{name}: {join_words(_training(settings), 'and')}"
    kept = "" if settings.quantisation is Quantization.NONE else f" in {settings.quantisation}"
    text = (
        f"{settings.prompt:,} tokens of prompt and {settings.new:,} new ones"
        if shape.is_decoder
        else f"{settings.prompt:,} tokens"
    )
    return f"{name}: inference{kept}, {settings.precision}, {format_count(settings.sequences, 'sequence')} of {text}"


def _training(settings: TrainingSettings) -> Iterator[str]:
    name = {Method.LORA: "LoRA", Method.QLORA: "QLoRA", Method.INT8_LORA: "LoRA on an int8 base"}.get(
        settings.method, "full fine-tuning"
    )
    if settings.method is not Method.FULL:
        what = "" if settings.targets == ALL_LINEAR else f" on {', '.join(settings.targets)}"
        name = f"{'DoRA, ' if settings.dora else ''}{name} at rank {settings.rank}{what}"
    yield name
    yield str(settings.precision)
    yield f"{settings.micro_batch} x {settings.sequence:,} tokens"
    yield "checkpointing" if settings.checkpointing else "no checkpointing"
    yield f"{settings.optimizer}"
    yield f"{settings.loss} loss" if settings.loss is not Loss.STANDARD else "whole logits"
    if settings.world > 1:
        yield f"{settings.sharding} over {settings.world} GPUs"


def _peak(estimate: MemoryEstimate) -> str:
    device, reserved = estimate.device_peak_bytes, estimate.reserved_peak_bytes
    how = "" if estimate.method == "closed form" else f" ({estimate.method})"
    return (
        f"Peak {format_bytes(estimate.allocated_peak_bytes)} of tensors {_MOMENTS[estimate.phase]}{how}; torch reserves "
        f"{format_bytes(reserved.point)}, and all in all "
        f"{format_bytes(device.point)} of the GPU are taken, at most {format_bytes(device.upper)}"
    )


def _terms(estimate: MemoryEstimate) -> Iterator[str]:
    shown, rest = estimate.terms[:MAX_TERMS], estimate.terms[MAX_TERMS:]
    rows = [(format_bytes(term.bytes), term.name, term.formula) for term in shown]
    if rest:
        size = format_bytes(sum(term.bytes for term in rest))
        rows.append((size, f"{len(rest)} more", f"--why NAME: {', '.join(term.name for term in rest)}"))
    yield format_table(rows, indent="  ")


def _advice(each: GpuReport, found: EstimateReport, width: int) -> Iterator[str]:
    if each.card.lacks_bf16 and found.settings.precision is Precision.BF16:
        yield wrap_text(f"{each.card.name} has no units for bf16: give --dtype fp16.", width=width)
    if each.duration:
        yield wrap_text(_duration(each.duration, each.card, found), width=width)
    if each.better:
        purpose = "To make it fit" if each.verdict is Fit.DOES_NOT_FIT else "Also fits"
        if each.verdict is Fit.TIGHT:
            purpose = "To be sure"
        yield f"{purpose} on {each.card.name}, fastest first:"
        for choice in each.better:
            yield wrap_text(_choice(choice), width=width, indent="  ", hanging="  ")
    if each.together:
        settings = each.together.settings
        yield wrap_text(
            f"Nothing makes it fit on one {each.card.name}; on {settings.world} of them it does: "
            f"{' '.join(each.together.changes)}",
            width=width,
        )
    elif each.verdict is Fit.DOES_NOT_FIT and not each.better and isinstance(found.settings, TrainingSettings):
        yield f"Nothing makes it fit on {each.card.name}, nor on eight of them."


def _choice(choice: "Recommendation") -> str:
    costs = "; ".join(cost.says for cost in choice.costs) or "costs nothing"
    return f"{' '.join(choice.changes)}  ({format_bytes(choice.estimate.device_peak_bytes.point)}; {costs})"


def _duration(duration: TrainingDuration, card: GpuSpec, found: EstimateReport) -> str:
    least, most = duration.seconds
    low, high = UTILISATION
    text = (
        f"{duration.tokens:,} tokens take {_time(least)} to {_time(most)} on {card.name}, at {low:.0%} to "
        f"{high:.0%} of its data sheet's rate"
    )
    if found.prices is None:
        return f"{text}."
    costs = [f"{a:,.2f} to {b:,.2f} {found.prices.currency} ({where})" for where, a, b in duration.costs]
    priced = join_words(costs, "or") if costs else "no price for it"
    return f"{text}: {priced}, by prices of {found.prices.as_of}."


def _time(seconds: float) -> str:
    return format_duration(seconds) if seconds < 7200 else f"{seconds / 3600:,.0f} h"


def _smallest(found: EstimateReport) -> Iterator[str]:
    if found.smallest is None:
        yield "No single GPU of the tables is sure to be enough."
    else:
        smallest = found.smallest
        yield f"Smallest GPU that is sure to be enough: {smallest.name} ({format_bytes(smallest.memory_bytes)})"


def _host(host: HostRequirements) -> str:
    return (
        f"The machine needs {format_bytes(host.memory_bytes)} of memory for each GPU, {format_bytes(host.disk_bytes)} of "
        f"disk, {host.cores} cores for each GPU, {host.workers} of them to prepare data."
    )


def _rules(found: EstimateReport, width: int) -> Iterator[str]:
    expected = found.estimate.device_peak_bytes.point
    for rule, size in found.rules:
        if size is None:
            yield wrap_text(f"{rule.name} says nothing about this.", width=width)
        else:
            times = size / expected
            yield wrap_text(
                f"{rule.name} says {format_bytes(size)}, {times:.2f} times this estimate: {rule.says}",
                width=width,
                hanging="  ",
            )


def format_term(estimate: MemoryEstimate, name: str, *, width: int) -> str:
    """One term: what it is made of, and who says so. Raises DevkitError for a name that no term has."""
    every = (*estimate.terms, *estimate.overheads)
    found = [term for term in every if term.name.lower() == name.lower()]
    if not found:
        raise DevkitError(f"the peak has no term {name!r}", f"It has: {', '.join(term.name for term in every)}.")
    lines = []
    for term in found:
        lines += [
            f"{term.name}: {format_bytes(term.bytes)}",
            wrap_text(term.formula, width=width, indent="  "),
            f"  {term.source}",
        ]
    return "\n".join(lines)
