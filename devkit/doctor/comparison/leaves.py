"""A report as leaves: a path, the rule of the field, and a value that can be counted."""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

from devkit.doctor.comparison.documents import ReportKind
from devkit.doctor.comparison.rules import CAPACITY, ComparisonKind, FieldRule, Grade, find_facts_rule
from devkit.doctor.verify_stages import find_check_for_stage
from devkit.facts.model import ProofStage, Verification

Leaf = tuple[str, FieldRule, Hashable]
"""Path such as `nvml.gpus[3].health.pcie_width`, its rule, its value. A tuple: a thousand reports have a million."""


class Mark(Enum):
    """What stands in a field that holds no plain value."""

    UNREAD = "not read"
    """The reading could not be taken; why is not compared, since reasons hold numbers and paths."""
    ABSENT = "absent"
    LIST = "a list"
    """A list whose entries are leaves of their own."""


_NAMES = ("index", "name", "purpose", "path", "variable", "number")
"""Fields that tell entries of a list apart, whatever their order; entries without one go by their place."""
_SHIFTING = frozenset({"pid", "id", "image_id", "uuid", "memory_bytes", "line", "at"})
"""Parts of live entries that differ between two readings of the same."""


def find_entry_keys(entries: Sequence[Any], read: Callable[[Any, str], object]) -> list[str]:
    """A key for each entry of a list of objects, unique within it. `read` takes an entry and a field's name."""
    keys: list[str] = []
    seen: dict[str, int] = {}
    for place, entry in enumerate(entries):
        named = next((value for name in _NAMES if (value := read(entry, name)) is not None), place)
        key = str(named)
        seen[key] = seen.get(key, 0) + 1
        keys.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return keys


_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


def mask_numbers(value: Hashable) -> Hashable:
    """The same without the numbers in its texts."""
    if isinstance(value, tuple):
        return tuple(mask_numbers(inner) for inner in value)
    return _NUMBERS.sub("#", value) if isinstance(value, str) else value


def to_hashable(value: object) -> Hashable:
    """A value of JSON that can be counted, without what shifts between two readings."""
    if isinstance(value, dict):
        if set(value) == {"unknown"}:
            return Mark.UNREAD
        return tuple((name, to_hashable(inner)) for name, inner in sorted(value.items()) if name not in _SHIFTING)
    if isinstance(value, list):
        return tuple(to_hashable(inner) for inner in value)
    return value


# Saved facts as leaves, straight from their JSON: a thousand reports leave no time for objects.

_Place = tuple[str, str, FieldRule]
"""A path, its pattern and its rule."""


class FactsFlattener:
    """Cuts documents into leaves, and remembers the paths that it has seen."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], _Place] = {}

    def flatten(self, document: dict[str, Any]) -> list[Leaf]:
        """Every leaf of a document of facts. A record is a leaf of its own, too, with its type as the value."""
        found: list[Leaf] = []
        for name, value in document.items():
            self._value(value, self._place("", "", f".{name}"), found)
        return found

    def _place(self, path: str, pattern: str, step: str) -> _Place:
        place = self._places.get((path, step))
        if place is None:
            own = f"{path}{step}".removeprefix(".")
            shape = f"{pattern}{'[]' if step.startswith('[') else step}".removeprefix(".")
            place = self._places[path, step] = (own, shape, find_facts_rule(shape))
        return place

    def _value(self, value: object, place: _Place, found: list[Leaf]) -> None:
        """Add the leaves of one value. They are gathered in a list: generators in generators take twice the time."""
        rule = place[2]
        if rule.how is ComparisonKind.LEFT_OUT:
            found.append((place[0], rule, to_hashable(value)))
        elif isinstance(value, dict):
            self._object(value, place, found)
        elif isinstance(value, list):
            self._list(value, place, found)
        else:
            found.append((place[0], rule, value))

    def _object(self, value: dict[str, Any], place: _Place, found: list[Leaf]) -> None:
        path, pattern, rule = place
        if len(value) == 1 and "unknown" in value:
            found.append((path, rule, Mark.UNREAD))
            return
        found.append((path, rule, str(value.get("type", "present"))))
        for name, inner in value.items():
            if name != "type":
                self._value(inner, self._place(path, pattern, f".{name}"), found)

    def _list(self, value: list[Any], place: _Place, found: list[Leaf]) -> None:
        path, pattern, rule = place
        if rule.is_whole or not all(isinstance(entry, dict) for entry in value):
            whole = to_hashable(
                [entry for entry in value if not (rule.without and str(entry).startswith(rule.without))]
            )
            found.append((path, rule, mask_numbers(whole) if rule.is_blurred else whole))
            return
        found.append((path, rule, Mark.LIST))
        for key, entry in zip(find_entry_keys(value, dict.get), value, strict=True):
            self._value(entry, self._place(path, pattern, f"[{key}]"), found)


# Reports of the doctor and of proofs as leaves. What a field weighs stands in its rule: no check can be asked.

RATE_TOLERANCE = 0.1
"""Part of the usual rate by which boards of one model differ in health: their data sheets hold within a few percent."""

LOSS_ROUNDING = 1e-3
"""As `devkit verify --check` has it: what another order of adding up may bring within the few steps."""

_RATE = re.compile(r".*(_per_s|tflops)")
_LOSS = re.compile(r"(first|last)_loss|losses")
_REFERENCE = "reference"
"""The stage whose losses and hash any machine repeats on its processor."""

_NOTE = FieldRule(ComparisonKind.EQUAL)
_TIME = FieldRule(ComparisonKind.LEFT_OUT)
_HASH = FieldRule(ComparisonKind.EQUAL, grade=Grade.READ, subjects=(_REFERENCE,), is_optional=True)
_OF_MACHINE = {"environment.executable": _NOTE, "environment.cpus": _NOTE, "device.memory_bytes": CAPACITY}


def flatten_report(document: Mapping[str, Any], kind: ReportKind) -> Iterator[Leaf]:
    """Every leaf of a report. Its form was looked at by `check_form`."""
    match kind:
        case ReportKind.DOCTOR:
            yield from _of_doctor(document)
        case ReportKind.VERIFY:
            yield from _of_proof(document)
        case ReportKind.VERIFY_CHECK:
            yield from _of_check(document)
        case ReportKind.FACTS:
            raise AssertionError("facts have leaves of their own")


@cache
def _rule(
    grade: Grade, *subjects: str, how: ComparisonKind = ComparisonKind.EQUAL, tolerance: float = 0.0
) -> FieldRule:
    return FieldRule(how, tolerance=tolerance, grade=grade, subjects=subjects)


def _of_doctor(document: Mapping[str, Any]) -> Iterator[Leaf]:
    yield "taken_at", _TIME, to_hashable(document.get("taken_at"))
    for name in ("devkit", "data_as_of"):
        yield name, _rule(Grade.READ), to_hashable(document.get(name))
    for outcome in document["outcomes"]:
        code = outcome["code"]
        value, grade = _outcome(outcome)
        yield code, _rule(grade, code), value
        messages = tuple(mask_numbers(str(each.get("message", ""))) for each in outcome["findings"])
        yield f"{code}.says", _NOTE, messages or mask_numbers(str(outcome.get("reason", "")))
        yield f"{code}.ms", _TIME, to_hashable(outcome.get("ms"))


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
        yield f"{name}.says", _NOTE, mask_numbers(str(point.get("says", "")))


def _of_proof(document: Mapping[str, Any]) -> Iterator[Leaf]:
    for name, value in document.items():
        if name in ("taken_at", "conclusion", "log", "schema"):
            yield name, _TIME, to_hashable(value)
        elif name in ("inputs", "device", "environment") and isinstance(value, dict):
            for inner, reading in value.items():
                yield f"{name}.{inner}", _OF_MACHINE.get(f"{name}.{inner}", _rule(Grade.READ)), to_hashable(reading)
        elif name == "where":
            yield name, _rule(Grade.READ), to_hashable(value)
    processor = _made_on(document)
    for stage in document["stages"]:
        yield from _of_stage(stage, processor)


def _of_stage(stage: Mapping[str, Any], processor: str) -> Iterator[Leaf]:
    name, status = stage["name"], stage["status"]
    path = f"stages.{name}"
    if status == "failed":
        reason = str(stage.get("reason", ""))
        yield path, _rule(Grade.DECIDES, name, *_behind(name, reason)), f"failed: {mask_numbers(reason)}"
    else:
        yield path, _rule(Grade.READ, name), status
    yield f"{path}.ms", _TIME, to_hashable(stage.get("ms"))
    for reading, value in stage["measured"].items():
        yield from _reading(name, str(reading), value, processor)


def _behind(stage: str, reason: str) -> tuple[str, ...]:
    """The code of the check that a failed stage points to, where one is known."""
    proof = Verification("failed", "", "", "", (), ())
    code = find_check_for_stage(ProofStage(stage, "failed", reason, ()), proof).code
    return (code,) if code else ()


def _reading(stage: str, name: str, value: object, processor: str) -> Iterator[Leaf]:
    path = f"stages.{stage}.{name}"
    if name.endswith("sha256"):
        # Only the reference is made the same way everywhere, and only one kind of processor gives the same bits.
        is_same = stage == _REFERENCE
        yield f"{path} on {processor}" if is_same else path, _HASH if is_same else _TIME, to_hashable(value)
    elif _is_number(value) and _RATE.fullmatch(name):
        yield (
            path,
            _rule(Grade.DECIDES, stage, how=ComparisonKind.MEASURED, tolerance=RATE_TOLERANCE),
            to_hashable(value),
        )
    elif isinstance(value, float):
        is_loss = _LOSS.fullmatch(name) is not None
        # A loss near nothing, and an error of rounding, have no size that two machines must share.
        loss = _rule(Grade.READ, stage, how=ComparisonKind.MEASURED, tolerance=LOSS_ROUNDING)
        yield path, loss if is_loss and stage == _REFERENCE else _TIME, to_hashable(value)
    elif name.endswith("_bytes"):
        yield path, _rule(Grade.NONE, stage, how=ComparisonKind.MEASURED, tolerance=RATE_TOLERANCE), to_hashable(value)
    else:
        yield path, _rule(Grade.READ, stage), to_hashable(value)


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
