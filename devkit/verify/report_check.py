"""Whether a report agrees with itself: its hash, its verdict, its stages, each reading and each list of losses."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from devkit import __version__
from devkit.errors import DevkitError
from devkit.probe.host import Host
from devkit.text import format_count, join_words
from devkit.verify.local_proof import Progress, prove_here
from devkit.verify.report import HASH_FIELD, REPORT_SCHEMA, ProofLocation, VerificationReport, hash_document
from devkit.workload.proof.stages import Depth, ProofSettings, StageResult, StageStatus, select_stages

# Whether a reading is what its words ask for, as a report has them: "<= 0.01", "> 0", "not 0", "396 to 1290; …".

_NUMBER = r"-?\d[\d.e+-]*"
_AT_MOST = re.compile(rf"<= ({_NUMBER})")
_ABOVE = re.compile(rf"> ({_NUMBER})")
_RANGE = re.compile(rf"({_NUMBER}) to ({_NUMBER}); (?:data sheet|estimate) {_NUMBER}")
_NOT = re.compile(r"not (.+)", re.DOTALL)
_IN_WORDS = ("runs code for ", "loads, as a GPU is here", "bitsandbytes' own")
_NOT_JUDGED = "not judged"
_ROUNDING = 1e-5
"""Limits are written with six digits."""


def meets_expectation(measured: object, expected: str) -> bool | None:
    """Whether `measured` is as `expected`; None where the words say what no reader of them can decide."""
    if expected.startswith(_IN_WORDS) or expected.endswith(f"{_NOT_JUDGED}: the row is inferred"):
        return None
    number = _number(measured)
    if found := _AT_MOST.fullmatch(expected):
        return number is not None and number <= _up(float(found[1]))
    if found := _ABOVE.fullmatch(expected):
        return number is not None and number > float(found[1])
    if found := _RANGE.fullmatch(expected):
        # The least is written with three digits.
        return number is not None and float(found[1]) * 0.995 <= number <= float(found[2]) * 1.005
    if found := _NOT.fullmatch(expected):
        return str(measured) != found[1]
    return str(measured) == expected


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _up(limit: float) -> float:
    return limit + abs(limit) * _ROUNDING


CHECK_SCHEMA = "devkit.verify-check/1"
CONTAINER_STAGES = ("build", "start")
"""What the host puts before the stages of a proof in a container."""


class PointStatus(StrEnum):
    """What came of comparing. What could not be compared is never said to agree."""

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_CHECKED = "not-checked"


@dataclass(frozen=True)
class ReportPoint:
    """One thing that was compared, and the finding in words."""

    name: str
    agreement: PointStatus
    says: str


def note_agreement(name: str, says: str) -> ReportPoint:
    """A point on which the report is right."""
    return ReportPoint(name, PointStatus.AGREES, says)


def note_difference(name: str, says: str) -> ReportPoint:
    """A point on which the report contradicts itself, or this machine."""
    return ReportPoint(name, PointStatus.DIFFERS, says)


def note_unchecked(name: str, says: str) -> ReportPoint:
    """A point that nothing here can decide."""
    return ReportPoint(name, PointStatus.NOT_CHECKED, says)


def check_report(document: Mapping[str, Any]) -> tuple[ReportPoint, ...]:
    """Everything that the report alone can show. Raises ValueError for what is no report."""
    report = VerificationReport.from_document(document)
    return (
        _hash(document, report),
        *_summary(document, report),
        _stages(report),
        *(point for stage in report.stages for point in _stage(stage)),
        note_unchecked(
            "device", "that the proof ran on this device, in this image and at this time is the report's word"
        ),
    )


def _hash(document: Mapping[str, Any], report: VerificationReport) -> ReportPoint:
    if HASH_FIELD not in document:
        if report.environment.get("devkit") == __version__:
            return note_difference(
                "hash", f"the report has no hash, and devkit {__version__} writes one: somebody took it out"
            )
        return note_unchecked("hash", "the report has no hash: an older devkit wrote it")
    if document[HASH_FIELD] == hash_document(document):
        return note_agreement("hash", f"SHA-256 {str(document[HASH_FIELD])[:12]}… is that of the report")
    return note_difference("hash", "the report was changed after it was written: its SHA-256 is another one")


def _summary(document: Mapping[str, Any], report: VerificationReport) -> Iterator[ReportPoint]:
    """Verdict and conclusion follow from the stages."""
    for name, found in (("verdict", report.verdict.value), ("conclusion", report.conclusion)):
        if document.get(name) == found:
            yield note_agreement(name, "follows from the stages")
        else:
            yield note_difference(name, f"the stages give {found!r}, not {document.get(name)!r}")


def _stages(report: VerificationReport) -> ReportPoint:
    """All stages of the depth are there, in their order, and no others."""
    names = [stage.name for stage in report.stages]
    if report.where is ProofLocation.CONTAINER:
        names = [name for name in names if name not in CONTAINER_STAGES]
    depth = report.inputs.get("depth")
    if depth not in tuple(Depth):
        return note_unchecked("stages", "the report names no depth, so nobody can tell which stages belong to it")
    wanted = [stage.name for stage in select_stages(Depth(depth))]
    if names == wanted:
        return note_agreement("stages", f"{format_count(len(names), 'stage')}, those of depth {depth}")
    missing = [name for name in wanted if name not in names]
    extra = [name for name in names if name not in wanted]
    parts = [f"{join_words(missing)} missing"] * bool(missing) + [f"{join_words(extra)} unknown"] * bool(extra)
    said = f"not those of depth {depth} in this devkit: {'; '.join(parts) or 'they stand in another order'}"
    writer = report.environment.get("devkit")
    if writer != __version__:
        return note_unchecked("stages", f"{said}; devkit {writer} wrote the report, this is {__version__}")
    return note_difference("stages", said)


def _stage(stage: StageResult) -> Iterator[ReportPoint]:
    """The status follows from the readings; lists and readings tell the same."""
    broken = [
        name for name, expected in stage.expected.items() if meets_expectation(_value(stage, name), expected) is False
    ]
    if broken and stage.status is StageStatus.PASSED:
        yield note_difference(stage.name, f"it is called passed, though {join_words(broken)} is not as expected")
    elif stage.status is StageStatus.FAILED and not broken and not stage.reason:
        yield note_difference(stage.name, "it is called failed, though nothing in it is wrong")
    elif stage.status is StageStatus.SKIPPED and not stage.reason:
        yield note_difference(stage.name, "it is called skipped, without a reason")
    yield from _losses(stage)


def _losses(stage: StageResult) -> Iterator[ReportPoint]:
    losses = stage.series.get("losses")
    if not losses:
        return
    told = {"first_loss": losses[0], "last_loss": losses[-1], "steps": len(losses)}
    wrong = [name for name, value in told.items() if name in stage.measured and stage.measured[name] != value]
    if wrong:
        yield note_difference(stage.name, f"{join_words(wrong)} is not that of its list of losses")
    else:
        yield note_agreement(
            stage.name, f"{format_count(len(losses), 'loss', 'losses')} from {losses[0]:.4g} to {losses[-1]:.4g}"
        )


def _value(stage: StageResult, name: str) -> object:
    return stage.measured.get(name)


def summarize_points(points: tuple[ReportPoint, ...]) -> PointStatus:
    """Differs when any point does, else agrees."""
    return PointStatus.DIFFERS if any(each.agreement is PointStatus.DIFFERS for each in points) else PointStatus.AGREES


def build_check_document(points: tuple[ReportPoint, ...]) -> dict[str, Any]:
    """The document behind `devkit verify --check REPORT --json`."""
    return {
        "schema": CHECK_SCHEMA,
        "of": REPORT_SCHEMA,
        "verdict": summarize_points(points).value,
        "points": [{"name": each.name, "status": each.agreement.value, "says": each.says} for each in points],
    }


def format_report_check(points: tuple[ReportPoint, ...]) -> str:
    """A line for each point, and the answer as the last one."""
    widest = max(len(each.name) for each in points)
    lines = [f"{each.agreement.value:<11}  {each.name:<{widest}}  {each.says}" for each in points]
    wrong = [each.name for each in points if each.agreement is PointStatus.DIFFERS]
    open_ = [each.name for each in points if each.agreement is PointStatus.NOT_CHECKED]
    left = f"; not checked: {', '.join(open_)}" if open_ else ""
    answer = f"the report does not hold: {', '.join(dict.fromkeys(wrong))}" if wrong else "the report agrees"
    return "\n".join([*lines, "", f"{answer}{left}"])


# The part of a report that any machine can repeat: the first LoRA steps on the CPU.

REPEATED = "repeated"
REPEATED_STAGES = ("torch", "bitsandbytes", "libraries", "reference")
"""The reference, and what must be imported before it."""

LOSS_DEPENDENCIES = ("devkit", "torch", "transformers", "peft", "machine")
"""What the losses depend on besides the processor; with others they are shown and not judged."""

REPEATED_SETTINGS = ("sentence", "seed", "rank", "alpha", "learning_rate")
MAX_LOSS_DIFFERENCE = 1e-3
"""Relative difference of losses that other instructions, adding up in another order, may bring within the few steps."""


def repeat_reference(
    report: VerificationReport, host: Host, *, timeout_s: float, progress: Progress
) -> tuple[ReportPoint, ...]:
    """Run the reference here, and compare. Where it cannot run, one point says why."""
    there = find_reference(report)
    if there is None:
        return (note_unchecked(REPEATED, "the report holds no losses that could be repeated"),)
    changed = [name for name in REPEATED_SETTINGS if report.inputs.get(name) != asdict(ProofSettings()).get(name)]
    if changed:
        return (_other_inputs(report, changed),)
    try:
        again = prove_here(host, depth=Depth.QUICK, timeout_s=timeout_s, progress=progress, only=REPEATED_STAGES)
    except DevkitError as error:
        return (note_unchecked(REPEATED, error.message),)
    here = find_reference(again)
    if here is None:
        reason = next((stage.reason for stage in again.stages if stage.name == "reference"), "")
        return (note_unchecked(REPEATED, f"the reference does not run here: {reason}"),)
    return tuple(compare_losses(there, here, _differing(report.environment, again.environment)))


def find_reference(report: VerificationReport) -> StageResult | None:
    """The reference where it passed."""
    found = (stage for stage in report.stages if stage.name == "reference" and stage.status is StageStatus.PASSED)
    return next((stage for stage in found if stage.series.get("losses")), None)


def compare_losses(there: StageResult, here: StageResult, other: tuple[str, ...]) -> Iterator[ReportPoint]:
    """The losses of the report against those of this machine. `other` names software of another version."""
    theirs, ours = there.series["losses"], here.series["losses"]
    if theirs == ours:
        yield note_agreement(REPEATED, f"all {len(ours)} losses are equal to the bit on this machine")
        yield _adapter(there, here)
        return
    gap = _largest_gap(theirs, ours)
    if other:
        yield note_unchecked(REPEATED, f"the losses differ by {gap:.2g}, with other versions here: {', '.join(other)}")
    elif gap <= MAX_LOSS_DIFFERENCE:
        yield note_agreement(REPEATED, f"losses differ by {gap:.2g} at most, as the rounding of another processor may")
    else:
        yield note_difference(
            REPEATED, f"the losses differ by {gap:.2g}, more than rounding brings with the same versions"
        )


def _adapter(there: StageResult, here: StageResult) -> ReportPoint:
    if there.measured.get("adapter_sha256") == here.measured.get("adapter_sha256"):
        return note_agreement("adapter", "the repeated adapter has the same SHA-256")
    return note_difference("adapter", "the losses are equal, and yet the SHA-256 of the adapter is another one")


def _other_inputs(report: VerificationReport, changed: list[str]) -> ReportPoint:
    own = report.environment.get("devkit")
    said = f"other inputs than this devkit's: {', '.join(changed)}"
    return (
        note_difference(REPEATED, said)
        if own == __version__
        else note_unchecked(REPEATED, f"{said}; devkit {own} wrote the report")
    )


def _differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{name} {there.get(name, 'unknown')} there, {here.get(name, 'unknown')} here"
        for name in LOSS_DEPENDENCIES
        if there.get(name) != here.get(name)
    )


def _largest_gap(left: list[float], right: list[float]) -> float:
    """Relative, over all steps; infinite where there are more of one than of the other."""
    if len(left) != len(right):
        return float("inf")
    return max(abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in zip(left, right, strict=True))
