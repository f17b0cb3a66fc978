"""Checks a report: it must agree with itself, and its reference losses with those that this machine computes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from devkit.errors import DevkitError
from devkit.probe.host import Host
from devkit.release import __version__
from devkit.text import format_count, join_words
from devkit.verify.local_proof import prove_here
from devkit.verify.process import Progress
from devkit.verify.report import (
    HASH_FIELD,
    PROGRAM,
    REPORT_SCHEMA,
    ProofLocation,
    VerificationReport,
    hash_document,
)
from devkit.workload.proof.stages import (
    PROGRAMS,
    PROJECT_STAGES,
    Depth,
    ProofSettings,
    StageResult,
    StageStatus,
    select_stages,
)

CHECK_SCHEMA = "devkit.verify-check/1"
CONTAINER_STAGES = ("build", "start", "open")
"""Stages that the host adds before those of a proof in a container."""


class PointStatus(StrEnum):
    """The result of a comparison. A point that could not be compared never agrees."""

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_CHECKED = "not-checked"


@dataclass(frozen=True)
class ReportPoint:
    """One thing that was compared, with the result in words."""

    name: str
    status: PointStatus
    says: str


def note_agreement(name: str, says: str) -> ReportPoint:
    """Return a point on which the report is right."""
    return ReportPoint(name, PointStatus.AGREES, says)


def note_difference(name: str, says: str) -> ReportPoint:
    """Return a point on which the report contradicts itself or this machine."""
    return ReportPoint(name, PointStatus.DIFFERS, says)


def note_unchecked(name: str, says: str) -> ReportPoint:
    """Return a point that cannot be decided here."""
    return ReportPoint(name, PointStatus.NOT_CHECKED, says)


def summarize_points(points: tuple[ReportPoint, ...]) -> PointStatus:
    """Return DIFFERS if any point does, else AGREES."""
    return PointStatus.DIFFERS if any(each.status is PointStatus.DIFFERS for each in points) else PointStatus.AGREES


def build_check_document(points: tuple[ReportPoint, ...]) -> dict[str, Any]:
    """Return the document behind `devkit verify --check REPORT --json`."""
    return {
        "schema": CHECK_SCHEMA,
        "of": REPORT_SCHEMA,
        "verdict": summarize_points(points).value,
        "points": [{"name": each.name, "status": each.status.value, "says": each.says} for each in points],
    }


def format_report_check(points: tuple[ReportPoint, ...]) -> str:
    """Format one line per point, and the verdict as the last line."""
    width = max(len(each.name) for each in points)
    lines = [f"{each.status.value:<11}  {each.name:<{width}}  {each.says}" for each in points]
    wrong = dict.fromkeys(each.name for each in points if each.status is PointStatus.DIFFERS)
    unchecked = [each.name for each in points if each.status is PointStatus.NOT_CHECKED]
    verdict = f"the report does not hold: {', '.join(wrong)}" if wrong else "the report agrees"
    return "\n".join([*lines, "", verdict + (f"; not checked: {', '.join(unchecked)}" if unchecked else "")])


def check_report(document: Mapping[str, Any]) -> tuple[ReportPoint, ...]:
    """Check all that the report alone can show. Raises ValueError for what is no report."""
    report = VerificationReport.from_document(document)
    # The verdict and the conclusion follow from the stages.
    summary = [
        note_agreement(name, "follows from the stages")
        if document.get(name) == found
        else note_difference(name, f"the stages give {found!r}, not {document.get(name)!r}")
        for name, found in (("verdict", report.verdict.value), ("conclusion", report.conclusion))
    ]
    return (
        _check_hash(document, report),
        *summary,
        _check_stage_names(report),
        *(point for stage in report.stages for point in _check_stage(stage)),
        note_unchecked(
            "device", "the report alone says that the proof ran on this device, in this image and at this time"
        ),
    )


def _check_hash(document: Mapping[str, Any], report: VerificationReport) -> ReportPoint:
    if HASH_FIELD not in document:
        if report.environment.get("devkit") == __version__:
            return note_difference(
                "hash", f"the report has no hash, and devkit {__version__} writes one: it was removed"
            )
        return note_unchecked("hash", "the report has no hash: an older devkit wrote it")
    if document[HASH_FIELD] == hash_document(document):
        return note_agreement("hash", f"SHA-256 {str(document[HASH_FIELD])[:12]}… is that of the report")
    return note_difference("hash", "the report was changed after it was written: its SHA-256 is another one")


def _check_stage_names(report: VerificationReport) -> ReportPoint:
    """Compare the stages with those of the depth, order included."""
    names = [stage.name for stage in report.stages]
    if report.where is ProofLocation.CONTAINER:
        names = [name for name in names if name not in CONTAINER_STAGES]
    depth = report.inputs.get("depth")
    if depth not in tuple(Depth):
        return note_unchecked("stages", "the report names no depth, which decides what stages belong to it")
    names = [name for name in names if name not in {stage.name for stage in PROJECT_STAGES}]
    program = report.inputs.get(PROGRAM)
    wanted = [stage.name for stage in (PROGRAMS.get(program, ()) if program else select_stages(Depth(depth)))]
    if names == wanted:
        return note_agreement("stages", f"{format_count(len(names), 'stage')}, those of depth {depth}")
    missing = [name for name in wanted if name not in names]
    extra = [name for name in names if name not in wanted]
    parts = [f"{join_words(missing)} missing"] * bool(missing) + [f"{join_words(extra)} unknown"] * bool(extra)
    says = f"not those of depth {depth} in this devkit: {'; '.join(parts) or 'their order differs'}"
    writer = report.environment.get("devkit")
    if writer != __version__:
        return note_unchecked("stages", f"{says}; devkit {writer} wrote the report, this is {__version__}")
    return note_difference("stages", says)


def _check_stage(stage: StageResult) -> Iterator[ReportPoint]:
    """Compare the status with the readings, and the list of losses with the readings taken from it."""
    expectations = stage.expected.items()
    broken = [name for name, wanted in expectations if meets_expectation(stage.measured.get(name), wanted) is False]
    if broken and stage.status is StageStatus.PASSED:
        yield note_difference(stage.name, f"it is called passed, though {join_words(broken)} is not as expected")
    elif stage.status is StageStatus.FAILED and not broken and not stage.reason:
        yield note_difference(stage.name, "it is called failed, though nothing in it is wrong")
    elif stage.status is StageStatus.SKIPPED and not stage.reason:
        yield note_difference(stage.name, "it is called skipped, without a reason")
    if losses := stage.series.get("losses"):
        derived = {"first_loss": losses[0], "last_loss": losses[-1], "steps": len(losses)}
        wrong = [name for name, value in derived.items() if stage.measured.get(name, value) != value]
        count = format_count(len(losses), "loss", "losses")
        if wrong:
            yield note_difference(stage.name, f"{join_words(wrong)} is not that of its list of losses")
        else:
            yield note_agreement(stage.name, f"{count} from {losses[0]:.4g} to {losses[-1]:.4g}")


_NUMBER = r"-?\d[\d.e+-]*"
_AT_MOST = re.compile(rf"<= ({_NUMBER})")
_ABOVE = re.compile(rf"> ({_NUMBER})")
_RANGE = re.compile(rf"({_NUMBER}) to ({_NUMBER}); (?:data sheet|estimate) {_NUMBER}")
_NOT = re.compile(r"not (.+)", re.DOTALL)
_UNDECIDABLE = ("runs code for ", "loads, as a GPU is here", "bitsandbytes' own")
_NOT_JUDGED = "not judged: the row is inferred"
_ROUNDING = 1e-5
"""Limits are written with six digits."""


def meets_expectation(measured: object, expected: str) -> bool | None:
    """Return whether `measured` is as `expected`, such as "<= 0.01", "> 0", "not 0" or "396 to 1290; …".

    None means that the words of the expectation do not decide it.
    """
    if expected.startswith(_UNDECIDABLE) or expected.endswith(_NOT_JUDGED):
        return None
    try:
        number = None if isinstance(measured, bool) else float(str(measured))
    except ValueError:
        number = None
    if match := _AT_MOST.fullmatch(expected):
        limit = float(match[1])
        return number is not None and number <= limit + abs(limit) * _ROUNDING
    if match := _ABOVE.fullmatch(expected):
        return number is not None and number > float(match[1])
    if match := _RANGE.fullmatch(expected):
        # The bounds are written with three digits.
        return number is not None and float(match[1]) * 0.995 <= number <= float(match[2]) * 1.005
    if match := _NOT.fullmatch(expected):
        return str(measured) != match[1]
    return str(measured) == expected


REPEATED = "repeated"
REPEATED_STAGES = ("torch", "bitsandbytes", "libraries", "reference")
"""The reference, and the stages that import what it needs."""

LOSS_DEPENDENCIES = ("devkit", "torch", "transformers", "peft", "machine")
"""The versions that the losses depend on besides the processor; with others a difference is shown and not judged."""

REPEATED_SETTINGS = ("sentence", "seed", "rank", "alpha", "learning_rate")
MAX_LOSS_DIFFERENCE = 1e-3
"""Relative difference of losses that another processor, which adds up in another order, causes within these steps."""


def repeat_reference(
    report: VerificationReport, host: Host, *, timeout_s: float, progress: Progress
) -> tuple[ReportPoint, ...]:
    """Run the reference, the first LoRA steps on the CPU, again and compare. Where it cannot run, one point says why."""
    there = find_reference(report)
    if there is None:
        return (note_unchecked(REPEATED, "the report holds no losses that could be repeated"),)
    changed = [name for name in REPEATED_SETTINGS if report.inputs.get(name) != asdict(ProofSettings()).get(name)]
    if changed:
        writer, says = report.environment.get("devkit"), f"other inputs than this devkit's: {', '.join(changed)}"
        if writer == __version__:
            return (note_difference(REPEATED, says),)
        return (note_unchecked(REPEATED, f"{says}; devkit {writer} wrote the report"),)
    try:
        again = prove_here(host, depth=Depth.QUICK, timeout_s=timeout_s, progress=progress, only=REPEATED_STAGES)
    except DevkitError as error:
        return (note_unchecked(REPEATED, error.message),)
    here = find_reference(again)
    if here is None:
        reason = next((stage.reason for stage in again.stages if stage.name == "reference"), "")
        return (note_unchecked(REPEATED, f"the reference does not run here: {reason}"),)
    other_versions = tuple(
        f"{name} {report.environment.get(name, 'unknown')} there, {again.environment.get(name, 'unknown')} here"
        for name in LOSS_DEPENDENCIES
        if report.environment.get(name) != again.environment.get(name)
    )
    return tuple(compare_losses(there, here, other_versions))


def find_reference(report: VerificationReport) -> StageResult | None:
    """Return the reference stage if it passed and has losses."""
    for stage in report.stages:
        if stage.name == "reference" and stage.status is StageStatus.PASSED and stage.series.get("losses"):
            return stage
    return None


def compare_losses(there: StageResult, here: StageResult, other_versions: tuple[str, ...]) -> Iterator[ReportPoint]:
    """Compare the losses of the report with this machine's. `other_versions` names software whose version differs."""
    theirs, ours = there.series["losses"], here.series["losses"]
    if theirs == ours:
        yield note_agreement(REPEATED, f"all {len(ours)} losses are bitwise identical on this machine")
        if there.measured.get("adapter_sha256") == here.measured.get("adapter_sha256"):
            yield note_agreement("adapter", "the repeated adapter has the same SHA-256")
        else:
            yield note_difference("adapter", "the losses are equal, but the SHA-256 of the adapter is another one")
        return
    gap = float("inf")
    if len(theirs) == len(ours):
        gap = max(abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in zip(theirs, ours, strict=True))
    versions = ", ".join(other_versions)
    if other_versions:
        yield note_unchecked(REPEATED, f"the losses differ by {gap:.2g}, with other versions here: {versions}")
    elif gap <= MAX_LOSS_DIFFERENCE:
        yield note_agreement(
            REPEATED, f"losses differ by at most {gap:.2g}, as rounding on another processor may cause"
        )
    else:
        yield note_difference(
            REPEATED, f"the losses differ by {gap:.2g}, more than rounding causes with equal versions"
        )
