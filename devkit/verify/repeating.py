"""The part of a report that any machine can repeat: the first LoRA steps on the CPU."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from devkit import __version__
from devkit.errors import DevkitError
from devkit.probe.host import Host
from devkit.verify.checking import Point, agrees, differs, not_checked
from devkit.verify.here import Progress, prove_here
from devkit.verify.report import VerificationReport
from devkit.workload.settings import Depth, ProofSettings
from devkit.workload.stage import StageResult, StageStatus

NAME = "repeated"
STAGES = ("torch", "bitsandbytes", "libraries", "reference")
"""The reference, and what must be imported before it."""

DECISIVE = ("devkit", "torch", "transformers", "peft", "machine")
"""What the losses depend on besides the processor; with others they are shown and not judged."""

INPUTS = ("sentence", "seed", "rank", "alpha", "learning_rate")
ROUNDING = 1e-3
"""Relative difference of losses that other instructions, adding up in another order, may bring within the few steps."""


def check_repeated(
    report: VerificationReport, host: Host, *, timeout_s: float, progress: Progress
) -> tuple[Point, ...]:
    """Run the reference here, and compare. Where it cannot run, one point says why."""
    there = reference_of(report)
    if there is None:
        return (not_checked(NAME, "the report holds no losses that could be repeated"),)
    changed = [name for name in INPUTS if report.inputs.get(name) != asdict(ProofSettings()).get(name)]
    if changed:
        return (_other_inputs(report, changed),)
    try:
        again = prove_here(host, depth=Depth.QUICK, timeout_s=timeout_s, progress=progress, only=STAGES)
    except DevkitError as error:
        return (not_checked(NAME, error.message),)
    here = reference_of(again)
    if here is None:
        reason = next((stage.reason for stage in again.stages if stage.name == "reference"), "")
        return (not_checked(NAME, f"the reference does not run here: {reason}"),)
    return tuple(compared(there, here, _differing(report.environment, again.environment)))


def reference_of(report: VerificationReport) -> StageResult | None:
    """The reference where it passed."""
    found = (stage for stage in report.stages if stage.name == "reference" and stage.status is StageStatus.PASSED)
    return next((stage for stage in found if stage.series.get("losses")), None)


def compared(there: StageResult, here: StageResult, other: tuple[str, ...]) -> Iterator[Point]:
    """The losses of the report against those of this machine. `other` names software of another version."""
    theirs, ours = there.series["losses"], here.series["losses"]
    if theirs == ours:
        yield agrees(NAME, f"all {len(ours)} losses are equal to the bit on this machine")
        yield _adapter(there, here)
        return
    gap = _largest_gap(theirs, ours)
    if other:
        yield not_checked(NAME, f"the losses differ by {gap:.2g}, with other versions here: {', '.join(other)}")
    elif gap <= ROUNDING:
        yield agrees(NAME, f"losses differ by {gap:.2g} at most, as the rounding of another processor may")
    else:
        yield differs(NAME, f"the losses differ by {gap:.2g}, more than rounding brings with the same versions")


def _adapter(there: StageResult, here: StageResult) -> Point:
    if there.measured.get("adapter_sha256") == here.measured.get("adapter_sha256"):
        return agrees("adapter", "the repeated adapter has the same SHA-256")
    return differs("adapter", "the losses are equal, and yet the SHA-256 of the adapter is another one")


def _other_inputs(report: VerificationReport, changed: list[str]) -> Point:
    own = report.environment.get("devkit")
    said = f"other inputs than this devkit's: {', '.join(changed)}"
    return differs(NAME, said) if own == __version__ else not_checked(NAME, f"{said}; devkit {own} wrote the report")


def _differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{name} {there.get(name, 'unknown')} there, {here.get(name, 'unknown')} here"
        for name in DECISIVE
        if there.get(name) != here.get(name)
    )


def _largest_gap(left: list[float], right: list[float]) -> float:
    """Relative, over all steps; infinite where there are more of one than of the other."""
    if len(left) != len(right):
        return float("inf")
    return max(abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in zip(left, right, strict=True))
