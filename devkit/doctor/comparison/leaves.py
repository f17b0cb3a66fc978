"""The leaves of a document: each a path, the rule of the field, and a value that can be counted."""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    """The value of a field that holds no plain value."""

    UNREAD = "not read"
    """The fact could not be read; the reason is not compared, since reasons hold numbers and paths."""
    ABSENT = "absent"
    LIST = "a list"
    """A list whose entries are leaves of their own."""

    __hash__ = object.__hash__  # that of Enum hashes the name, a million times


_KEYS = ("index", "name", "purpose", "path", "variable", "number")
"""Fields that identify the entries of a list, in whatever order; entries without one go by their place."""
_VOLATILE = frozenset({"pid", "id", "image_id", "uuid", "memory_bytes", "line", "at"})
"""Parts of transient entries that differ between two readings of the same machine."""
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)*")


def find_entry_keys(entries: Sequence[Any], read: Callable[[Any, str], object]) -> list[str]:
    """Return a unique key for each entry of a list of objects. `read` takes an entry and a field's name."""
    keys: list[str] = []
    seen: dict[str, int] = {}
    for place, entry in enumerate(entries):
        key = str(next((value for name in _KEYS if (value := read(entry, name)) is not None), place))
        seen[key] = seen.get(key, 0) + 1
        keys.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return keys


def mask_numbers(value: Hashable) -> Hashable:
    """Return the same without the numbers in its texts."""
    if isinstance(value, tuple):
        return tuple(mask_numbers(inner) for inner in value)
    return _NUMBERS.sub("#", value) if isinstance(value, str) else value


def to_hashable(value: object) -> Hashable:
    """Return a value of JSON as one that can be counted, without its volatile parts."""
    if isinstance(value, dict):
        if "unknown" in value and "type" not in value:
            return Mark.UNREAD
        return tuple((name, to_hashable(inner)) for name, inner in sorted(value.items()) if name not in _VOLATILE)
    if isinstance(value, list):
        return tuple(to_hashable(inner) for inner in value)
    return value


@dataclass(frozen=True)
class Section:
    """The leaves of one section of the facts. `is_repeated` is true for a list that an earlier document had, too."""

    leaves: list[Leaf]
    is_repeated: bool


class _Place:
    """A field: its path, the pattern of that, its rule, and the places below it.

    Of an object, `reference` is the first that was seen, `varying` has the fields in which others differed from it, and
    `stable` the leaves of all others: machines of one fleet have most in common.
    """

    __slots__ = ("below", "path", "pattern", "reference", "rule", "stable", "varying")

    def __init__(self, path: str, pattern: str) -> None:
        self.path = path
        self.pattern = pattern
        self.rule = find_facts_rule(pattern)
        self.below: dict[str, _Place] = {}
        self.reference: dict[str, Any] = {}
        self.varying: set[str] = set()
        self.stable: Section | None = None

    def add(self, key: str, step: str) -> "_Place":
        """Add the place of a field or an entry; `step` is what it adds to the path."""
        pattern = f"{self.pattern}{'[]' if step.startswith('[') else step}".removeprefix(".")
        place = self.below[key] = _Place(f"{self.path}{step}".removeprefix("."), pattern)
        return place

    def select_varying(self, value: dict[str, Any], sections: list[Section]) -> dict[str, Any]:
        """Return the fields of an object that vary, and add the leaves of the others as a section."""
        reference = self.reference
        if not reference:
            self.reference = value
            return value
        changed = {name for name, inner in value.items() if reference.get(name, sections) != inner}
        if len(value) != len(reference):
            return value
        if self.stable is not None and changed <= self.varying:
            sections.append(self.stable)
        elif 2 * len(changed | self.varying) > len(value):
            return value
        else:
            self.varying |= changed
            leaves: list[Leaf] = []
            _add_fields({name: value[name] for name in value if name not in self.varying}, self, leaves, None)
            sections.append(Section(leaves, is_repeated=False))
            self.stable = Section(leaves, is_repeated=True)
        return {name: value[name] for name in self.varying}


_PLAIN = frozenset({str, int, float, bool, type(None)})

MIN_STABLE = 6
"""Fields of an object whose common part is worth a section."""
MAX_RECENT = 3
"""Sections of a name that are remembered: a fleet in the middle of a rollout has two of some."""


class FactsFlattener:
    """Flattens saved facts straight from their JSON, and remembers the paths that it has seen.

    Ten thousand reports leave no time for objects. Machines of one fleet have most sections in common: a section that is
    equal to one of the last few is the same list of leaves, so that whoever counts them recognizes it.
    """

    def __init__(self) -> None:
        self._root = _Place("", "")
        self._recent: dict[str, list[tuple[object, list[Section]]]] = {}

    def flatten_sections(self, document: dict[str, Any]) -> list[Section]:
        """Return the leaves of each section of a document of facts."""
        found: list[Section] = []
        for name, value in document.items():
            recent = self._recent.setdefault(name, [])
            known = next((parts for own, parts in recent if own == value), None)
            if known is None:
                own: list[Leaf] = []
                parts = [Section(own, is_repeated=False)]
                _add_leaves(value, self._find_section(name), own, parts)
                recent[MAX_RECENT - 1 :] = []
                recent.insert(0, (value, [Section(each.leaves, is_repeated=True) for each in parts]))
                found += parts
            else:
                found += known
        return found

    def flatten(self, document: dict[str, Any]) -> list[Leaf]:
        """Return every leaf of a document of facts. A record is a leaf of its own, too, with its type as the value."""
        found: list[Leaf] = []
        for name, value in document.items():
            _add_leaves(value, self._find_section(name), found, None)
        return found

    def _find_section(self, name: str) -> _Place:
        return self._root.below.get(name) or self._root.add(name, f".{name}")


def _add_leaves(value: object, place: _Place, found: list[Leaf], sections: list[Section] | None) -> None:
    """Add the leaves of one value to a list, those in common with others as `sections` where these are collected.

    Generators in generators take twice the time.
    """
    path, rule = place.path, place.rule
    if rule.kind is ComparisonKind.IGNORED:
        found.append((path, rule, to_hashable(value)))
    elif isinstance(value, dict):
        if "unknown" in value and "type" not in value:
            found.append((path, rule, Mark.UNREAD))
            return
        found.append((path, rule, str(value.get("type", "present"))))
        _add_fields(value, place, found, sections)
    elif not isinstance(value, list):
        if rule.idle_value is None or value != rule.idle_value:
            found.append((path, rule, value))
    elif rule.is_whole or not all(isinstance(entry, dict) for entry in value):
        prefix = rule.ignored_prefix
        whole = to_hashable([entry for entry in value if not (prefix and str(entry).startswith(prefix))])
        found.append((path, rule, mask_numbers(whole) if rule.masks_numbers else whole))
    else:
        found.append((path, rule, Mark.LIST))
        for key, entry in zip(find_entry_keys(value, dict.get), value, strict=True):
            _add_leaves(entry, place.below.get(key) or place.add(key, f"[{key}]"), found, sections)


def _add_fields(value: dict[str, Any], place: _Place, found: list[Leaf], sections: list[Section] | None) -> None:
    """Add the leaves of an object's fields. Most are plain: a call for each would take half of the time."""
    if sections is not None and len(value) >= MIN_STABLE:
        value = place.select_varying(value, sections)
    below = place.below
    for name, inner in value.items():
        if name == "type":
            continue
        own = below.get(name) or place.add(name, f".{name}")
        if inner.__class__ not in _PLAIN:
            _add_leaves(inner, own, found, sections)
        elif (rule := own.rule).idle_value is None or inner != rule.idle_value:
            found.append((own.path, rule, inner))


RATE_TOLERANCE = 0.1
"""Part of the usual rate by which healthy boards of one model differ: their data sheets hold within a few percent."""
LOSS_TOLERANCE = 1e-3
"""The effect of another order of summation within the few steps."""

_RATE = re.compile(r".*(_per_s|tflops)")
_LOSS = re.compile(r"(first|last)_loss|losses")
_REFERENCE = "reference"
"""The stage whose losses and hash any machine reproduces on its processor."""


@cache
def _make_rule(
    grade: Grade, *subjects: str, kind: ComparisonKind = ComparisonKind.EQUAL, tolerance: float = 0.0
) -> FieldRule:
    return FieldRule(kind, relative_tolerance=tolerance, grade=grade, subjects=subjects)


_NOTE = FieldRule(ComparisonKind.EQUAL)
_IGNORED = FieldRule(ComparisonKind.IGNORED)
_HASH = FieldRule(ComparisonKind.EQUAL, grade=Grade.READ, subjects=(_REFERENCE,), is_optional=True)
_OF_MACHINE = {"environment.executable": _NOTE, "environment.cpus": _NOTE, "device.memory_bytes": CAPACITY}


def flatten_report(document: Mapping[str, Any], kind: ReportKind) -> Iterator[Leaf]:
    """Yield every leaf of a report that `validate_form` accepts. Its rules say how relevant a field is."""
    match kind:
        case ReportKind.DOCTOR:
            yield "taken_at", _IGNORED, to_hashable(document.get("taken_at"))
            for name in ("devkit", "data_as_of"):
                yield name, _make_rule(Grade.READ), to_hashable(document.get(name))
            for outcome in document["outcomes"]:
                code = outcome["code"]
                value, grade = _grade_outcome(outcome)
                yield code, _make_rule(grade, code), value
                messages = tuple(mask_numbers(str(each.get("message", ""))) for each in outcome["findings"])
                yield f"{code}.says", _NOTE, messages or mask_numbers(str(outcome.get("reason", "")))
                yield f"{code}.ms", _IGNORED, to_hashable(outcome.get("ms"))
        case ReportKind.VERIFY:
            yield from _flatten_proof(document)
        case ReportKind.FACTS:
            raise AssertionError("facts have leaves of their own")


def _grade_outcome(outcome: Mapping[str, Any]) -> tuple[str, Grade]:
    """Return the status with the worst severity, and its grade: a finding that follows from another has a lower one."""
    if outcome["status"] != "found":
        return outcome["status"], Grade.DECIDES if outcome["status"] == "crashed" else Grade.NONE
    severities = [str(each.get("severity")) for each in outcome["findings"]]
    worst = next((name for name in ("error", "warning") if name in severities), "note")
    if worst == "note":
        return "found: note", Grade.NONE
    if any(not each.get("follows_from") for each in outcome["findings"]):
        return f"found: {worst}", Grade.DECIDES
    return f"found: {worst}, by {min(str(each['follows_from']) for each in outcome['findings'])}", Grade.READ


def _flatten_proof(document: Mapping[str, Any]) -> Iterator[Leaf]:
    for name, value in document.items():
        if name in ("taken_at", "conclusion", "log", "schema"):
            yield name, _IGNORED, to_hashable(value)
        elif name in ("inputs", "device", "environment") and isinstance(value, dict):
            for inner, reading in value.items():
                rule = _OF_MACHINE.get(f"{name}.{inner}", _make_rule(Grade.READ))
                yield f"{name}.{inner}", rule, to_hashable(reading)
        elif name == "where":
            yield name, _make_rule(Grade.READ), to_hashable(value)
    platform = _describe_reference_platform(document)
    for stage in document["stages"]:
        name, status, path = stage["name"], stage["status"], f"stages.{stage['name']}"
        if status == "failed":
            reason = str(stage.get("reason", ""))
            proof = Verification("failed", "", "", "", (), ())
            code = find_check_for_stage(ProofStage(name, "failed", reason, ()), proof).code
            yield path, _make_rule(Grade.DECIDES, name, *([code] if code else [])), f"failed: {mask_numbers(reason)}"
        else:
            yield path, _make_rule(Grade.READ, name), status
        yield f"{path}.ms", _IGNORED, to_hashable(stage.get("ms"))
        for reading, value in stage["measured"].items():
            yield _flatten_reading(name, str(reading), value, platform)


def _describe_reference_platform(document: Mapping[str, Any]) -> str:
    """Return what the bits of the reference stage depend on: processor, instructions and versions."""
    reference = next((stage for stage in document["stages"] if stage["name"] == _REFERENCE), None)
    if reference is None:
        return Mark.ABSENT.value
    software = document["environment"]
    words = [reference["measured"].get(name, "") for name in ("processor", "instructions")]
    words += [f"{name} {software.get(name, '')}" for name in ("torch", "transformers", "peft")]
    return ", ".join(str(word) for word in words if word)


def _flatten_reading(stage: str, name: str, value: object, platform: str) -> Leaf:
    path = f"stages.{stage}.{name}"
    is_reference = stage == _REFERENCE
    if name.endswith("sha256"):
        # Only the reference is computed the same way everywhere, and only on the same platform with the same bits.
        return (
            (f"{path} on {platform}", _HASH, to_hashable(value))
            if is_reference
            else (path, _IGNORED, to_hashable(value))
        )
    if isinstance(value, int | float) and not isinstance(value, bool) and _RATE.fullmatch(name):
        rule = _make_rule(Grade.DECIDES, stage, kind=ComparisonKind.MEASURED, tolerance=RATE_TOLERANCE)
    elif isinstance(value, float):
        # A loss near zero, and a rounding error, have no size that two machines must share.
        loss = _make_rule(Grade.READ, stage, kind=ComparisonKind.MEASURED, tolerance=LOSS_TOLERANCE)
        rule = loss if is_reference and _LOSS.fullmatch(name) else _IGNORED
    elif name.endswith("_bytes"):
        rule = _make_rule(Grade.NONE, stage, kind=ComparisonKind.MEASURED, tolerance=RATE_TOLERANCE)
    else:
        rule = _make_rule(Grade.READ, stage)
    return path, rule, to_hashable(value)
