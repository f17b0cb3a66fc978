"""An answer as people read it: the verdict first, then the peak, then what to change."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from devkit.errors import DevkitError
from devkit.estimate.answer import Answer, CardAnswer, Duration
from devkit.estimate.cards import Card, Verdict
from devkit.estimate.host import HostNeeds
from devkit.estimate.model import MemoryEstimate, Phase
from devkit.estimate.settings import ALL_LINEAR, Loss, Method, Precision, Quantisation, TrainingSettings
from devkit.estimate.speed import UTILISATION
from devkit.text import count_of, human_bytes, human_seconds, listed, table, wrapped

if TYPE_CHECKING:
    from devkit.estimate.search import Choice

MOST_TERMS = 3
_VERDICTS = {Verdict.FITS: "fits", Verdict.TIGHT: "tight", Verdict.DOES_NOT_FIT: "does not fit"}
_MOMENTS = {
    Phase.LOAD: "while the weights are loaded",
    Phase.LOSS: "while the loss is computed",
    Phase.BACKWARD: "in the backward pass",
    Phase.STEP: "in the optimizer's step",
    Phase.PREFILL: "while the prompt is read",
    Phase.DECODE: "while text is generated",
}


def answer_text(found: Answer, *, width: int) -> str:
    """What is printed without --json."""
    return "\n".join(_lines(found, width))


def _lines(found: Answer, width: int) -> Iterator[str]:
    for each in found.cards:
        yield from _verdict(each, found.estimate, width)
    if found.cards:
        yield ""
    yield wrapped(question_text(found), width=width)
    yield wrapped(_peak(found.estimate), width=width)
    yield from _terms(found.estimate)
    for each in found.cards:
        yield from _advice(each, found, width)
    yield from _smallest(found)
    if found.host:
        yield wrapped(_host(found.host), width=width)
    yield from _rules(found, width)
    if found.learned_from:
        yield wrapped(f"Bounds drawn in by the runs measured on this GPU, kept in {found.learned_from}.", width=width)
    for warning in found.estimate.warnings:
        yield wrapped(f"Note: {warning}.", width=width, hanging="  ")


def _verdict(each: CardAnswer, estimate: MemoryEstimate, width: int) -> Iterator[str]:
    card, device = each.card, each.card.peak(estimate)
    yield wrapped(
        f"{_VERDICTS[each.verdict]}: {_card_name(card)}, {human_bytes(device.point)} of "
        f"{human_bytes(card.memory_bytes)}, at most {human_bytes(device.upper)}",
        width=width,
    )


def _card_name(card: Card) -> str:
    return card.name if card.count == 1 else f"{card.name} (one of {card.count})"


def question_text(found: Answer) -> str:
    """The model and the settings in a line."""
    shape, settings = found.shape, found.settings
    name = f"{shape.name} ({shape.note})" if shape.note else shape.name
    if isinstance(settings, TrainingSettings):
        return f"{name}: {listed(_training(settings), 'and')}"
    kept = "" if settings.quantisation is Quantisation.NONE else f" in {settings.quantisation}"
    text = (
        f"{settings.prompt:,} tokens of prompt and {settings.new:,} new ones"
        if shape.is_decoder
        else f"{settings.prompt:,} tokens"
    )
    return f"{name}: inference{kept}, {settings.precision}, {count_of(settings.sequences, 'sequence')} of {text}"


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
        f"Peak {human_bytes(estimate.allocated_peak_bytes)} of tensors {_MOMENTS[estimate.phase]}{how}; torch reserves "
        f"{human_bytes(reserved.point)}, and all in all "
        f"{human_bytes(device.point)} of the GPU are taken, at most {human_bytes(device.upper)}"
    )


def _terms(estimate: MemoryEstimate) -> Iterator[str]:
    shown, rest = estimate.terms[:MOST_TERMS], estimate.terms[MOST_TERMS:]
    rows = [(human_bytes(term.bytes), term.name, term.formula) for term in shown]
    if rest:
        size = human_bytes(sum(term.bytes for term in rest))
        rows.append((size, f"{len(rest)} more", f"--why NAME: {', '.join(term.name for term in rest)}"))
    yield table(rows, indent="  ")


def _advice(each: CardAnswer, found: Answer, width: int) -> Iterator[str]:
    if each.card.lacks_bf16 and found.settings.precision is Precision.BF16:
        yield wrapped(f"{each.card.name} has no units for bf16: give --dtype fp16.", width=width)
    if each.duration:
        yield wrapped(_duration(each.duration, each.card, found), width=width)
    if each.better:
        purpose = "To make it fit" if each.verdict is Verdict.DOES_NOT_FIT else "Also fits"
        if each.verdict is Verdict.TIGHT:
            purpose = "To be sure"
        yield f"{purpose} on {each.card.name}, fastest first:"
        for choice in each.better:
            yield wrapped(_choice(choice), width=width, indent="  ", hanging="  ")
    if each.together:
        settings = each.together.settings
        yield wrapped(
            f"Nothing makes it fit on one {each.card.name}; on {settings.world} of them it does: "
            f"{' '.join(each.together.changes)}",
            width=width,
        )
    elif each.verdict is Verdict.DOES_NOT_FIT and not each.better and isinstance(found.settings, TrainingSettings):
        yield f"Nothing makes it fit on {each.card.name}, nor on eight of them."


def _choice(choice: "Choice") -> str:
    costs = "; ".join(cost.says for cost in choice.costs) or "costs nothing"
    return f"{' '.join(choice.changes)}  ({human_bytes(choice.estimate.device_peak_bytes.point)}; {costs})"


def _duration(duration: Duration, card: Card, found: Answer) -> str:
    least, most = duration.seconds
    low, high = UTILISATION
    text = (
        f"{duration.tokens:,} tokens take {_time(least)} to {_time(most)} on {card.name}, at {low:.0%} to "
        f"{high:.0%} of its data sheet's rate"
    )
    if found.prices is None:
        return f"{text}."
    costs = [f"{a:,.2f} to {b:,.2f} {found.prices.currency} ({where})" for where, a, b in duration.costs]
    priced = listed(costs, "or") if costs else "no price for it"
    return f"{text}: {priced}, by prices of {found.prices.as_of}."


def _time(seconds: float) -> str:
    return human_seconds(seconds) if seconds < 7200 else f"{seconds / 3600:,.0f} h"


def _smallest(found: Answer) -> Iterator[str]:
    if found.smallest is None:
        yield "No single GPU of the tables is sure to be enough."
    else:
        smallest = found.smallest
        yield f"Smallest GPU that is sure to be enough: {smallest.name} ({human_bytes(smallest.memory_bytes)})"


def _host(host: HostNeeds) -> str:
    return (
        f"The machine needs {human_bytes(host.memory_bytes)} of memory for each GPU, {human_bytes(host.disk_bytes)} of "
        f"disk, {host.cores} cores for each GPU, {host.workers} of them to prepare data."
    )


def _rules(found: Answer, width: int) -> Iterator[str]:
    expected = found.estimate.device_peak_bytes.point
    for rule, size in found.rules:
        if size is None:
            yield wrapped(f"{rule.name} says nothing about this.", width=width)
        else:
            times = size / expected
            yield wrapped(
                f"{rule.name} says {human_bytes(size)}, {times:.2f} times this estimate: {rule.says}",
                width=width,
                hanging="  ",
            )


def why_text(estimate: MemoryEstimate, name: str, *, width: int) -> str:
    """One term: what it is made of, and who says so. Raises DevkitError for a name that no term has."""
    every = (*estimate.terms, *estimate.overheads)
    found = [term for term in every if term.name.lower() == name.lower()]
    if not found:
        raise DevkitError(f"the peak has no term {name!r}", f"It has: {', '.join(term.name for term in every)}.")
    lines = []
    for term in found:
        lines += [
            f"{term.name}: {human_bytes(term.bytes)}",
            wrapped(term.formula, width=width, indent="  "),
            f"  {term.source}",
        ]
    return "\n".join(lines)
