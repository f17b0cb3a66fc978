"""The impact of differences: which checks read a field, and whether it causes a finding.

Both questions are answered by running the checks. The facts note every access to them, which tells the checks that read
a field. And a check is run again on the same facts with only this field as it is on a usual node: where its finding
disappears, the field causes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
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
from devkit.facts.values import ComputeCapability, Release, Unknown

_MISSING = object()
_LEAVES = (Release, ComputeCapability, Unknown)
_READS = "_reads of fields"
_PATH = "_path of this record"


def replace_field(document: dict[str, Any], path: str, usual: dict[str, Any]) -> dict[str, Any] | None:
    """Return a copy of `document` with the field at `path` as in `usual`, or without it where it is absent there.

    None where the record around the field exists in neither or only one of them.
    """
    steps = _find_steps(usual, path) or _find_steps(document, path)
    if not steps:
        return None
    wanted = usual
    for step in steps:
        wanted = _get_inner(wanted, step)
    changed = _replace(document, steps, wanted)
    return changed if isinstance(changed, dict) else None


def _find_steps(value: Any, path: str, own: str = "") -> tuple[str, ...]:  # noqa: ANN401 - any part of a document
    """Return the keys that lead to a path, none where nothing is there. Keys may hold dots and brackets themselves."""
    for key, name, inner in _list_children(value, own):
        if name == path:
            return (key,)
        if path.startswith((f"{name}.", f"{name}[")) and (rest := _find_steps(inner, path, name)):
            return (key, *rest)
    return ()


def _list_children(value: Any, own: str) -> list[tuple[str, str, Any]]:  # noqa: ANN401 - any part of a document
    if isinstance(value, dict):
        return [(key, f"{own}.{key}".removeprefix("."), inner) for key, inner in value.items()]
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        keys = find_entry_keys(value, dict.get)
        return [(key, f"{own}[{key}]", inner) for key, inner in zip(keys, value, strict=True)]
    return []


def _get_inner(value: Any, key: str) -> Any:  # noqa: ANN401 - any part of a document
    return {own: inner for own, _, inner in _list_children(value, "")}.get(key, _MISSING)


def _replace(value: Any, steps: tuple[str, ...], wanted: Any) -> Any:  # noqa: ANN401 - any part of a document
    """Copy the containers along a path, with `wanted` at its end; `_MISSING` where the path does not exist."""
    key, *rest = steps
    inner = wanted if not rest else _replace(_get_inner(value, key), tuple(rest), wanted)
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


def trace_reads(checks: Iterable[Check], facts: Facts) -> Mapping[str, frozenset[str]]:
    """Return the paths that each check reads when it runs on these facts, by its code, as `FactsFlattener` has them."""
    reads: set[str] = set()
    traced = trace_facts(facts, "", reads)
    found = {}
    for check in checks:
        reads.clear()
        run_on_host_and_container((check,), traced, clock=float)
        found[check.code] = frozenset(reads)
    return found


def trace_facts(value: Any, path: str, reads: set[str]) -> Any:  # noqa: ANN401 - what came in, traced
    """Return equal facts whose records add each field that is read to `reads`.

    Checks test the type of a record, so each traced record is of a subclass of its own type.
    """
    if isinstance(value, tuple):
        records = [is_dataclass(entry) and not isinstance(entry, _LEAVES) for entry in value]
        if not value or not all(records):
            return value
        keys = find_entry_keys(value, lambda entry, name: vars(entry).get(name))
        return tuple(trace_facts(entry, f"{path}[{key}]", reads) for key, entry in zip(keys, value, strict=True))
    if not is_dataclass(value) or isinstance(value, _LEAVES):
        return value
    own_type: Any = type(value)
    traced = object.__new__(_make_traced_type(own_type))
    inner = {name: trace_facts(own, f"{path}.{name}" if path else name, reads) for name, own in vars(value).items()}
    vars(traced).update({**inner, _READS: reads, _PATH: path})
    return traced


@cache
def _make_traced_type(own_type: Any) -> Any:  # noqa: ANN401 - any type of record
    names = frozenset(field.name for field in fields(own_type))

    def read(self: object, name: str) -> object:
        if name in names:
            own = object.__getattribute__(self, "__dict__")
            if _READS in own:  # a copy that `replace` made has none
                own[_READS].add(f"{own[_PATH]}.{name}".removeprefix("."))
        return object.__getattribute__(self, name)

    def equal(self: Any, other: object) -> bool:  # noqa: ANN401 - a traced record
        return isinstance(other, own_type) and all(getattr(self, name) == getattr(other, name) for name in names)

    own = {
        "__getattribute__": read,
        "__eq__": equal,
        "__hash__": own_type.__hash__,
        "__qualname__": own_type.__qualname__,
    }
    return type(own_type.__name__, (own_type,), own)


@dataclass(frozen=True)
class Relevance:
    """The relevance of one difference: the checks that read the field, and those whose finding it causes."""

    grade: Grade
    checks: tuple[str, ...]
    settles: tuple[str, ...]


@dataclass(frozen=True)
class NodeAssessment:
    """A node compared with a usual one of its group: findings of its own, and the relevance of each of its deviations.

    The relevance is None for a transient deviation that causes nothing, which is no difference.
    """

    findings: tuple[OutlierFinding, ...]
    relevance: tuple[Relevance | None, ...]


class ImpactAnalysis:
    """The assessment of nodes of one group against a usual one.

    Args:
        usual: The document of the usual node.
        facts: The same as facts.
        undecided: Paths without a majority in the group.
        keeps_all: Whether transient deviations that cause nothing are kept.
    """

    def __init__(self, usual: dict[str, Any], facts: Facts, *, undecided: AbstractSet[str], keeps_all: bool) -> None:
        self._usual = usual
        self._undecided = undecided
        self._keeps_all = keeps_all
        self.findings = find_root_findings(facts)
        self._reads = trace_reads(CHECKS, facts)

    def assess(self, document: dict[str, Any], facts: Facts, deviations: Sequence[Deviation]) -> NodeAssessment:
        """Return the findings of a node that the usual one does not have, and the relevance of its deviations."""
        own = {code: message for code, message in find_root_findings(facts).items() if code not in self.findings}
        is_transient = all(each.rule.is_transient for each in deviations)
        if not own and not self._keeps_all and is_transient:
            return NodeAssessment((), (None,) * len(deviations))
        there = trace_reads(CHECKS, facts)
        reads = {code: self._reads[code] | there[code] for code in self._reads}
        causes = {code: self._find_causes(code, document, deviations, reads[code]) for code in own}
        relevance = tuple(self._rate(each, causes, reads) for each in deviations)
        # A finding without a cause may come from a field without a majority, which is reported on its own.
        kept = [
            OutlierFinding(code, message)
            for code, message in own.items()
            if causes[code] or (not is_transient and not self._undecided & reads[code])
        ]
        return NodeAssessment(tuple(kept), relevance)

    def _rate(
        self, deviation: Deviation, causes: Mapping[str, AbstractSet[str]], reads: Mapping[str, frozenset[str]]
    ) -> Relevance | None:
        checks = tuple(check.code for check in CHECKS if _is_read(deviation.path, reads[check.code]))
        settles = tuple(code for code, paths in causes.items() if deviation.path in paths)
        rule = deviation.rule
        if not settles and rule.is_transient and not self._keeps_all:
            return None
        grade = Grade.DECIDES if settles else Grade.READ if checks else Grade.NONE
        if grade is Grade.READ and rule.kind in (ComparisonKind.TRANSIENT, ComparisonKind.IGNORED):
            grade = Grade.NONE
        return Relevance(max(grade, rule.grade), checks, settles)

    def _find_causes(
        self, code: str, document: dict[str, Any], deviations: Sequence[Deviation], reads: frozenset[str]
    ) -> AbstractSet[str]:
        """Return the fields that cause a finding: each of them alone, or else as few as do together."""
        read = [each.path for each in deviations if _is_read(each.path, reads)]
        alone = {path for path in read if not self._remains(code, document, (path,))}
        if alone or self._remains(code, document, read):
            return alone
        needed = read
        for path in read:
            fewer = [each for each in needed if each != path]
            if not self._remains(code, document, fewer):
                needed = fewer
        return set(needed)

    def _remains(self, code: str, document: dict[str, Any], paths: Sequence[str]) -> bool:
        """Return True if a finding is still there when these fields are as usual."""
        changed = document
        for path in paths:
            changed = replace_field(changed, path, self._usual) or changed
        try:
            facts = parse_facts_document(changed)
        except InvalidFacts:
            return True  # the usual value does not fit the rest of this node: the question has no answer
        (outcome,) = run_on_host_and_container((BY_CODE[code],), facts, clock=float)
        findings = outcome.verdict.findings if isinstance(outcome.verdict, Found) else ()
        return any(finding.severity is not Severity.NOTE for finding in findings)


def find_root_findings(facts: Facts) -> dict[str, str]:
    """Return code and message of every root finding that is more than a note."""
    found: dict[str, str] = {}
    for outcome in mark_root_causes(run_on_host_and_container(CHECKS, facts, clock=float)):
        for finding in outcome.verdict.findings if isinstance(outcome.verdict, Found) else ():
            if finding.follows_from is None and finding.severity is not Severity.NOTE:
                found.setdefault(outcome.check.code, finding.message)
    return found


def _is_read(path: str, reads: frozenset[str]) -> bool:
    """Return True if a field was read; an entry that is present or absent is read with its list."""
    return path in reads or (path.endswith("]") and path[: path.rfind("[")] in reads)
