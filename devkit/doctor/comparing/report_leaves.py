"""Reports of the doctor and of proofs as leaves. What a field weighs stands in its rule: no check can be asked."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from devkit.doctor.comparing.kinds import Kind
from devkit.doctor.comparing.leaves import Leaf, Mark, blurred, frozen
from devkit.doctor.comparing.rules import CAPACITY, Grade, How, Rule
from devkit.doctor.proof_codes import behind
from devkit.facts.model import ProofStage, Verification

RATE_TOLERANCE = 0.1
"""Part of the usual rate by which boards of one model differ in health: their data sheets hold within a few percent."""

LOSS_ROUNDING = 1e-3
"""As `devkit verify --check` has it: what another order of adding up may bring within the few steps."""

_RATE = re.compile(r".*(_per_s|tflops)")
_LOSS = re.compile(r"(first|last)_loss|losses")
_REFERENCE = "reference"
"""The stage whose losses and hash any machine repeats on its processor."""

_NOTE = Rule(How.EQUAL)
_TIME = Rule(How.LEFT_OUT)
_HASH = Rule(How.EQUAL, grade=Grade.READ, subjects=(_REFERENCE,), is_optional=True)
_OF_MACHINE = {"environment.executable": _NOTE, "environment.cpus": _NOTE, "device.memory_bytes": CAPACITY}


def leaves_of(document: Mapping[str, Any], kind: Kind) -> Iterator[Leaf]:
    """Every leaf of a report. Its form was looked at by `check_form`."""
    match kind:
        case Kind.DOCTOR:
            yield from _of_doctor(document)
        case Kind.VERIFY:
            yield from _of_proof(document)
        case Kind.VERIFY_CHECK:
            yield from _of_check(document)
        case Kind.FACTS:
            raise AssertionError("facts have leaves of their own")


@cache
def _rule(grade: Grade, *subjects: str, how: How = How.EQUAL, tolerance: float = 0.0) -> Rule:
    return Rule(how, tolerance=tolerance, grade=grade, subjects=subjects)


def _of_doctor(document: Mapping[str, Any]) -> Iterator[Leaf]:
    yield "taken_at", _TIME, frozen(document.get("taken_at"))
    for name in ("devkit", "data_as_of"):
        yield name, _rule(Grade.READ), frozen(document.get(name))
    for outcome in document["outcomes"]:
        code = outcome["code"]
        value, grade = _outcome(outcome)
        yield code, _rule(grade, code), value
        messages = tuple(blurred(str(each.get("message", ""))) for each in outcome["findings"])
        yield f"{code}.says", _NOTE, messages or blurred(str(outcome.get("reason", "")))
        yield f"{code}.ms", _TIME, frozen(outcome.get("ms"))


def _outcome(outcome: Mapping[str, Any]) -> tuple[str, Grade]:
    """The status with the worst severity, and what it weighs: a finding that follows from another weighs less."""
    if outcome["status"] != "found":
        return outcome["status"], Grade.DECIDES if outcome["status"] == "crashed" else Grade.NONE
    severities = [str(each.get("severity")) for each in outcome["findings"]]
    worst = next((name for name in ("error", "warning") if name in severities), "note")
    causes = sorted({str(each["follows_from"]) for each in outcome["findings"] if each.get("follows_from")})
    is_root = any(not each.get("follows_from") for each in outcome["findings"])
    if worst == "note":
        return "found: note", Grade.NONE
    return (f"found: {worst}", Grade.DECIDES) if is_root else (f"found: {worst}, by {causes[0]}", Grade.READ)


def _of_check(document: Mapping[str, Any]) -> Iterator[Leaf]:
    for point in document["points"]:
        name, status = point["name"], point["status"]
        grade = Grade.DECIDES if status == "differs" else Grade.NONE
        yield name, _rule(grade, name), status
        yield f"{name}.says", _NOTE, blurred(str(point.get("says", "")))


def _of_proof(document: Mapping[str, Any]) -> Iterator[Leaf]:
    for name, value in document.items():
        if name in ("taken_at", "conclusion", "log", "schema"):
            yield name, _TIME, frozen(value)
        elif name in ("inputs", "device", "environment") and isinstance(value, dict):
            for inner, reading in value.items():
                yield f"{name}.{inner}", _OF_MACHINE.get(f"{name}.{inner}", _rule(Grade.READ)), frozen(reading)
        elif name == "where":
            yield name, _rule(Grade.READ), frozen(value)
    processor = _made_on(document)
    for stage in document["stages"]:
        yield from _of_stage(stage, processor)


def _of_stage(stage: Mapping[str, Any], processor: str) -> Iterator[Leaf]:
    name, status = stage["name"], stage["status"]
    path = f"stages.{name}"
    if status == "failed":
        reason = str(stage.get("reason", ""))
        yield path, _rule(Grade.DECIDES, name, *_behind(name, reason)), f"failed: {blurred(reason)}"
    else:
        yield path, _rule(Grade.READ, name), status
    yield f"{path}.ms", _TIME, frozen(stage.get("ms"))
    for reading, value in stage["measured"].items():
        yield from _reading(name, str(reading), value, processor)


def _behind(stage: str, reason: str) -> tuple[str, ...]:
    """The code of the check that a failed stage points to, where one is known."""
    proof = Verification("failed", "", "", "", (), ())
    code = behind(ProofStage(stage, "failed", reason, ()), proof).code
    return (code,) if code else ()


def _reading(stage: str, name: str, value: object, processor: str) -> Iterator[Leaf]:
    path = f"stages.{stage}.{name}"
    if name.endswith("sha256"):
        # Only the reference is made the same way everywhere, and only one kind of processor gives the same bits.
        is_same = stage == _REFERENCE
        yield f"{path} on {processor}" if is_same else path, _HASH if is_same else _TIME, frozen(value)
    elif _is_number(value) and _RATE.fullmatch(name):
        yield path, _rule(Grade.DECIDES, stage, how=How.MEASURED, tolerance=RATE_TOLERANCE), frozen(value)
    elif isinstance(value, float):
        is_loss = _LOSS.fullmatch(name) is not None
        # A loss near nothing, and an error of rounding, have no size that two machines must share.
        loss = _rule(Grade.READ, stage, how=How.MEASURED, tolerance=LOSS_ROUNDING)
        yield path, loss if is_loss and stage == _REFERENCE else _TIME, frozen(value)
    elif name.endswith("_bytes"):
        yield path, _rule(Grade.NONE, stage, how=How.MEASURED, tolerance=RATE_TOLERANCE), frozen(value)
    else:
        yield path, _rule(Grade.READ, stage), frozen(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _made_on(document: Mapping[str, Any]) -> str:
    """What the reference's bits depend on: processor, instructions and versions."""
    reference = next((stage for stage in document["stages"] if stage["name"] == _REFERENCE), None)
    if reference is None:
        return Mark.ABSENT.value
    software = document["environment"]
    words = [reference["measured"].get(name, "") for name in ("processor", "instructions")]
    words += [f"{name} {software.get(name, '')}" for name in ("torch", "transformers", "peft")]
    return ", ".join(str(word) for word in words if word)
