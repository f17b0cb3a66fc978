"""Whether a report agrees with itself: its hash, its verdict, its stages, each reading and each list of losses."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from devkit import __version__
from devkit.text import count_of, listed
from devkit.verify.expectations import holds
from devkit.verify.report import HASH, SCHEMA, VerificationReport, Where, digest_of
from devkit.workload.settings import Depth
from devkit.workload.stage import StageResult, StageStatus, stages_of

CHECK_SCHEMA = "devkit.verify-check/1"
BEFORE_THE_PROOF = ("build", "start")
"""What the host puts before the stages of a proof in a container."""


class Agreement(StrEnum):
    """What came of comparing. What could not be compared is never said to agree."""

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_CHECKED = "not-checked"


@dataclass(frozen=True)
class Point:
    """One thing that was compared, and the finding in words."""

    name: str
    agreement: Agreement
    says: str


def agrees(name: str, says: str) -> Point:
    """A point on which the report is right."""
    return Point(name, Agreement.AGREES, says)


def differs(name: str, says: str) -> Point:
    """A point on which the report contradicts itself, or this machine."""
    return Point(name, Agreement.DIFFERS, says)


def not_checked(name: str, says: str) -> Point:
    """A point that nothing here can decide."""
    return Point(name, Agreement.NOT_CHECKED, says)


def check_document(document: Mapping[str, Any]) -> tuple[Point, ...]:
    """Everything that the report alone can show. Raises ValueError for what is no report."""
    report = VerificationReport.from_document(document)
    return (
        _hash(document, report),
        *_summary(document, report),
        _stages(report),
        *(point for stage in report.stages for point in _stage(stage)),
        not_checked("device", "that the proof ran on this device, in this image and at this time is the report's word"),
    )


def _hash(document: Mapping[str, Any], report: VerificationReport) -> Point:
    if HASH not in document:
        if report.environment.get("devkit") == __version__:
            return differs("hash", f"the report has no hash, and devkit {__version__} writes one: somebody took it out")
        return not_checked("hash", "the report has no hash: an older devkit wrote it")
    if document[HASH] == digest_of(document):
        return agrees("hash", f"SHA-256 {str(document[HASH])[:12]}… is that of the report")
    return differs("hash", "the report was changed after it was written: its SHA-256 is another one")


def _summary(document: Mapping[str, Any], report: VerificationReport) -> Iterator[Point]:
    """Verdict and conclusion follow from the stages."""
    for name, found in (("verdict", report.verdict.value), ("conclusion", report.conclusion)):
        if document.get(name) == found:
            yield agrees(name, "follows from the stages")
        else:
            yield differs(name, f"the stages give {found!r}, not {document.get(name)!r}")


def _stages(report: VerificationReport) -> Point:
    """All stages of the depth are there, in their order, and no others."""
    names = [stage.name for stage in report.stages]
    if report.where is Where.CONTAINER:
        names = [name for name in names if name not in BEFORE_THE_PROOF]
    depth = report.inputs.get("depth")
    if depth not in tuple(Depth):
        return not_checked("stages", "the report names no depth, so nobody can tell which stages belong to it")
    wanted = [stage.name for stage in stages_of(Depth(depth))]
    if names == wanted:
        return agrees("stages", f"{count_of(len(names), 'stage')}, those of depth {depth}")
    missing = [name for name in wanted if name not in names]
    extra = [name for name in names if name not in wanted]
    parts = [f"{listed(missing)} missing"] * bool(missing) + [f"{listed(extra)} unknown"] * bool(extra)
    said = f"not those of depth {depth} in this devkit: {'; '.join(parts) or 'they stand in another order'}"
    writer = report.environment.get("devkit")
    if writer != __version__:
        return not_checked("stages", f"{said}; devkit {writer} wrote the report, this is {__version__}")
    return differs("stages", said)


def _stage(stage: StageResult) -> Iterator[Point]:
    """The status follows from the readings; lists and readings tell the same."""
    broken = [name for name, expected in stage.expected.items() if holds(_value(stage, name), expected) is False]
    if broken and stage.status is StageStatus.PASSED:
        yield differs(stage.name, f"it is called passed, though {listed(broken)} is not as expected")
    elif stage.status is StageStatus.FAILED and not broken and not stage.reason:
        yield differs(stage.name, "it is called failed, though nothing in it is wrong")
    elif stage.status is StageStatus.SKIPPED and not stage.reason:
        yield differs(stage.name, "it is called skipped, without a reason")
    yield from _losses(stage)


def _losses(stage: StageResult) -> Iterator[Point]:
    losses = stage.series.get("losses")
    if not losses:
        return
    told = {"first_loss": losses[0], "last_loss": losses[-1], "steps": len(losses)}
    wrong = [name for name, value in told.items() if name in stage.measured and stage.measured[name] != value]
    if wrong:
        yield differs(stage.name, f"{listed(wrong)} is not that of its list of losses")
    else:
        yield agrees(stage.name, f"{count_of(len(losses), 'loss', 'losses')} from {losses[0]:.4g} to {losses[-1]:.4g}")


def _value(stage: StageResult, name: str) -> object:
    return stage.measured.get(name)


def check_result(points: tuple[Point, ...]) -> Agreement:
    """Differs when any point does, else agrees."""
    return Agreement.DIFFERS if any(each.agreement is Agreement.DIFFERS for each in points) else Agreement.AGREES


def checked_document(points: tuple[Point, ...]) -> dict[str, Any]:
    """The document behind `devkit verify --check REPORT --json`."""
    return {
        "schema": CHECK_SCHEMA,
        "of": SCHEMA,
        "verdict": check_result(points).value,
        "points": [{"name": each.name, "status": each.agreement.value, "says": each.says} for each in points],
    }


def checked_text(points: tuple[Point, ...]) -> str:
    """A line for each point, and the answer as the last one."""
    widest = max(len(each.name) for each in points)
    lines = [f"{each.agreement.value:<11}  {each.name:<{widest}}  {each.says}" for each in points]
    wrong = [each.name for each in points if each.agreement is Agreement.DIFFERS]
    open_ = [each.name for each in points if each.agreement is Agreement.NOT_CHECKED]
    left = f"; not checked: {', '.join(open_)}" if open_ else ""
    answer = f"the report does not hold: {', '.join(dict.fromkeys(wrong))}" if wrong else "the report agrees"
    return "\n".join([*lines, "", f"{answer}{left}"])
