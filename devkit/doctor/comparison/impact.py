"""What differences matter to: the doctor's checks are asked, with each field as it is and as it usually is.

Two questions, both answered by running the checks. Which of them read the field: the facts note every look at them.
And does a finding hang on it: the check is run again on the same facts with only this field as it is on a usual node.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from devkit.doctor.comparison.deviations import Deviation
from devkit.doctor.comparison.leaves import find_entry_keys
from devkit.doctor.comparison.model import OutlierFinding
from devkit.doctor.comparison.rules import ComparisonKind, Grade
from devkit.doctor.model import Check, Found, Severity
from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.doctor.runner import mark_root_causes, run_on_host_and_container
from devkit.facts.model import Facts
from devkit.facts.store import InvalidFacts, parse_facts_document
from devkit.facts.values import ComputeCapability, Release, Unknown, record

# The same document with one field as it stands in another: what would be, were it usual.

_MISSING = object()


def replace_field(document: dict[str, Any], path: str, usual: dict[str, Any]) -> dict[str, Any] | None:
    """`document` with the field at `path` as it is in `usual`, or without it where it is not there.

    Nothing is changed in place. None where the record around the field is there on neither or one side alone.
    """
    steps = _steps(usual, path) or _steps(document, path)
    if not steps:
        return None
    wanted = usual
    for step in steps:
        wanted = _inner(wanted, step)
    changed = _with(document, steps, wanted)
    return changed if isinstance(changed, dict) else None


def _steps(value: Any, path: str, own: str = "") -> tuple[str, ...]:  # noqa: ANN401 - any part of a document
    """The keys that lead to a path, empty where nothing stands there. Keys may hold dots and brackets themselves."""
    for key, name, inner in _children(value, own):
        if name == path:
            return (key,)
        if path.startswith((f"{name}.", f"{name}[")) and (rest := _steps(inner, path, name)):
            return (key, *rest)
    return ()


def _children(value: Any, own: str) -> list[tuple[str, str, Any]]:  # noqa: ANN401 - any part of a document
    if isinstance(value, dict):
        return [(key, f"{own}.{key}".removeprefix("."), inner) for key, inner in value.items()]
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        keys = find_entry_keys(value, dict.get)
        return [(key, f"{own}[{key}]", inner) for key, inner in zip(keys, value, strict=True)]
    return []


def _inner(value: Any, key: str) -> Any:  # noqa: ANN401 - any part of a document
    return {own: inner for own, _, inner in _children(value, "")}.get(key, _MISSING)


def _with(value: Any, steps: tuple[str, ...], wanted: Any) -> Any:  # noqa: ANN401 - any part of a document
    """A copy of the containers on the way with `wanted` at its end; `_MISSING` where there is no way."""
    key, *rest = steps
    inner = wanted if not rest else _with(_inner(value, key), tuple(rest), wanted)
    if inner is _MISSING and rest:
        return _MISSING
    if isinstance(value, dict):
        changed = {own: each for own, each in value.items() if own != key or inner is not _MISSING}
        return changed if inner is _MISSING else changed | {key: inner}
    if not isinstance(value, list):
        return _MISSING
    keys = find_entry_keys(value, dict.get)
    entries = [inner if own == key else each for own, each in zip(keys, value, strict=True)]
    return [each for each in (*entries, *([inner] if key not in keys else [])) if each is not _MISSING]


# Which fields a check reads: the facts as records that note each look at a field.
#
# The checks ask what kind of record they have before them, so each noting record is of a subclass of its own kind.

_LEAVES = (Release, ComputeCapability, Unknown)
_NOTES = "_notes of looks"
_PATH = "_path of this record"


def trace_reads(checks: Iterable[Check], facts: Facts) -> Mapping[str, frozenset[str]]:
    """The paths that each check reads in judging these facts, by its code. Paths are those of `facts_leaves`."""
    notes: set[str] = set()
    watched = _watched(facts, "", notes)
    found = {}
    for check in checks:
        notes.clear()
        run_on_host_and_container((check,), watched, clock=float)
        found[check.code] = frozenset(notes)
    return found


def _watched(value: Any, path: str, notes: set[str]) -> Any:  # noqa: ANN401 - what came in, with notes taken
    if isinstance(value, tuple):
        records = [is_dataclass(entry) and not isinstance(entry, _LEAVES) for entry in value]
        if not value or not all(records):
            return value
        keys = find_entry_keys(value, lambda entry, name: vars(entry).get(name))
        return tuple(_watched(entry, f"{path}[{key}]", notes) for key, entry in zip(keys, value, strict=True))
    if not is_dataclass(value) or isinstance(value, _LEAVES):
        return value
    own_kind: Any = type(value)
    kind: Any = _watching(own_kind)
    made = object.__new__(kind)
    inner = {name: _watched(own, f"{path}.{name}" if path else name, notes) for name, own in vars(value).items()}
    vars(made).update(inner)
    vars(made).update({_NOTES: notes, _PATH: path})
    return made


@cache
def _watching(kind: Any) -> type:  # noqa: ANN401 - any kind of record
    names = frozenset(field.name for field in fields(kind))

    def look(self: object, name: str) -> object:
        if name in names:
            own = object.__getattribute__(self, "__dict__")
            if _NOTES in own:  # a copy that `replace` made has none
                own[_NOTES].add(f"{own[_PATH]}.{name}".removeprefix("."))
        return object.__getattribute__(self, name)

    def equal(self: Any, other: object) -> bool:  # noqa: ANN401 - a noting record
        return isinstance(other, kind) and all(getattr(self, name) == getattr(other, name) for name in names)

    own = {"__getattribute__": look, "__eq__": equal, "__hash__": kind.__hash__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), own)


@record
class Relevance:
    """What one difference matters to; None for a live reading on which nothing hangs, which is no difference."""

    grade: Grade
    checks: tuple[str, ...]
    settles: tuple[str, ...]


@record
class NodeAssessment:
    """A node beside a usual one of its group: findings of its own, and what each of its differences matters to."""

    findings: tuple[OutlierFinding, ...]
    weighed: tuple[Relevance | None, ...]


class ImpactAnalysis:
    """Judges nodes of one group against a usual one. `undecided` are paths of which no value is usual in the group."""

    def __init__(self, usual: dict[str, Any], facts: Facts, *, undecided: AbstractSet[str], keeps_all: bool) -> None:
        self._usual = usual
        self._undecided = undecided
        self._keeps_all = keeps_all
        self.findings = find_root_findings(facts)
        self._reads = trace_reads(CHECKS, facts)

    def assess(self, document: dict[str, Any], facts: Facts, deviations: Sequence[Deviation]) -> NodeAssessment:
        """What the doctor says of a node that it does not say of the usual one, and which differences it is for."""
        own = {code: says for code, says in find_root_findings(facts).items() if code not in self.findings}
        if not own and not self._keeps_all and all(each.rule.how is ComparisonKind.LIVE for each in deviations):
            return NodeAssessment((), (None,) * len(deviations))
        reads = _joined(self._reads, trace_reads(CHECKS, facts))
        hanging = {code: self._hanging(code, document, deviations, reads[code]) for code in own}
        weighed = tuple(self._weighed(each, hanging, reads) for each in deviations)
        # What hangs on no difference may be of what half of the group has, which is told there.
        is_firm = any(each.rule.how is not ComparisonKind.LIVE for each in deviations)
        kept = {code for code in own if hanging[code] or (is_firm and not self._undecided & reads[code])}
        return NodeAssessment(tuple(OutlierFinding(code, own[code]) for code in own if code in kept), weighed)

    def _weighed(
        self, deviation: Deviation, hanging: Mapping[str, AbstractSet[str]], reads: Mapping[str, frozenset[str]]
    ) -> Relevance | None:
        checks = tuple(check.code for check in CHECKS if _reads_at(reads[check.code], deviation.path))
        settles = tuple(code for code, paths in hanging.items() if deviation.path in paths)
        if not settles and deviation.rule.how is ComparisonKind.LIVE and not self._keeps_all:
            return None
        grade = Grade.DECIDES if settles else Grade.READ if checks else Grade.NONE
        if grade is Grade.READ and deviation.rule.how in (ComparisonKind.LIVE, ComparisonKind.LEFT_OUT):
            grade = Grade.NONE
        return Relevance(max(grade, deviation.rule.grade), checks, settles)

    def _hanging(
        self, code: str, document: dict[str, Any], deviations: Sequence[Deviation], reads: frozenset[str]
    ) -> AbstractSet[str]:
        """The fields on which a finding hangs: each of them alone, or where none does, as few as do together."""
        looked_at = [each.path for each in deviations if _reads_at(reads, each.path)]
        alone = {path for path in looked_at if not self._stays(code, document, (path,))}
        if alone or self._stays(code, document, looked_at):
            return alone
        needed = looked_at
        for path in looked_at:
            fewer = [each for each in needed if each != path]
            if not self._stays(code, document, fewer):
                needed = fewer
        return set(needed)

    def _stays(self, code: str, document: dict[str, Any], paths: Sequence[str]) -> bool:
        """Whether a finding is still there when these fields are as usual."""
        changed = document
        for path in paths:
            changed = replace_field(changed, path, self._usual) or changed
        try:
            facts = parse_facts_document(changed)
        except InvalidFacts:
            return True  # the usual value does not go with the rest of this node: the question has no answer
        return _is_found(code, facts)


def find_root_findings(facts: Facts) -> dict[str, str]:
    """Code and message of every root finding of some weight."""
    found: dict[str, str] = {}
    for outcome in mark_root_causes(run_on_host_and_container(CHECKS, facts, clock=float)):
        for finding in outcome.verdict.findings if isinstance(outcome.verdict, Found) else ():
            if finding.follows_from is None and finding.severity is not Severity.NOTE:
                found.setdefault(outcome.check.code, finding.message)
    return found


def _is_found(code: str, facts: Facts) -> bool:
    (outcome,) = run_on_host_and_container((BY_CODE[code],), facts, clock=float)
    findings = outcome.verdict.findings if isinstance(outcome.verdict, Found) else ()
    return any(finding.severity is not Severity.NOTE for finding in findings)


def _joined(one: Mapping[str, frozenset[str]], other: Mapping[str, frozenset[str]]) -> Mapping[str, frozenset[str]]:
    return {code: one[code] | other[code] for code in one}


def _reads_at(paths: frozenset[str], path: str) -> bool:
    """Whether a check read this field; an entry that is there or not is read with its list."""
    return path in paths or (path.endswith("]") and _list_of(path) in paths)


def _list_of(path: str) -> str:
    """Where the list of an entry is: cdi[/etc/cdi/nvidia.yaml] stands in cdi. Keys hold no bracket of their own."""
    return path[: path.rfind("[")]
