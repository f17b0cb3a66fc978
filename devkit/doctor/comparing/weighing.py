"""What differences matter to: the doctor's checks are asked, with each field as it is and as it usually is.

Two questions, both answered by running the checks. Which of them read the field: the facts note every look at them.
And does a finding hang on it: the check is run again on the same facts with only this field as it is on a usual node.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from devkit.doctor.cascade import cascade
from devkit.doctor.comparing.comparison import OwnFinding
from devkit.doctor.comparing.deviations import Deviation
from devkit.doctor.comparing.rules import Grade, How
from devkit.doctor.comparing.swapping import swapped
from devkit.doctor.comparing.watched import reads_of
from devkit.doctor.model import Found, Severity
from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.doctor.sides import judge
from devkit.facts.model import Facts
from devkit.facts.record import record
from devkit.facts.store import WrongFacts, from_document


@record
class Weighed:
    """What one difference matters to; None for a live reading on which nothing hangs, which is no difference."""

    grade: Grade
    checks: tuple[str, ...]
    settles: tuple[str, ...]


@record
class Judged:
    """A node beside a usual one of its group: findings of its own, and what each of its differences matters to."""

    findings: tuple[OwnFinding, ...]
    weighed: tuple[Weighed | None, ...]


class Weighing:
    """Judges nodes of one group against a usual one. `undecided` are paths of which no value is usual in the group."""

    def __init__(self, usual: dict[str, Any], facts: Facts, *, undecided: AbstractSet[str], keeps_all: bool) -> None:
        self._usual = usual
        self._undecided = undecided
        self._keeps_all = keeps_all
        self.findings = found_on(facts)
        self._reads = reads_of(CHECKS, facts)

    def judged(self, document: dict[str, Any], facts: Facts, deviations: Sequence[Deviation]) -> Judged:
        """What the doctor says of a node that it does not say of the usual one, and which differences it is for."""
        own = {code: says for code, says in found_on(facts).items() if code not in self.findings}
        if not own and not self._keeps_all and all(each.rule.how is How.LIVE for each in deviations):
            return Judged((), (None,) * len(deviations))
        reads = _joined(self._reads, reads_of(CHECKS, facts))
        hanging = {code: self._hanging(code, document, deviations, reads[code]) for code in own}
        weighed = tuple(self._weighed(each, hanging, reads) for each in deviations)
        # What hangs on no difference may be of what half of the group has, which is told there.
        is_firm = any(each.rule.how is not How.LIVE for each in deviations)
        kept = {code for code in own if hanging[code] or (is_firm and not self._undecided & reads[code])}
        return Judged(tuple(OwnFinding(code, own[code]) for code in own if code in kept), weighed)

    def _weighed(
        self, deviation: Deviation, hanging: Mapping[str, AbstractSet[str]], reads: Mapping[str, frozenset[str]]
    ) -> Weighed | None:
        checks = tuple(check.code for check in CHECKS if _reads_at(reads[check.code], deviation.path))
        settles = tuple(code for code, paths in hanging.items() if deviation.path in paths)
        if not settles and deviation.rule.how is How.LIVE and not self._keeps_all:
            return None
        grade = Grade.DECIDES if settles else Grade.READ if checks else Grade.NONE
        if grade is Grade.READ and deviation.rule.how in (How.LIVE, How.LEFT_OUT):
            grade = Grade.NONE
        return Weighed(max(grade, deviation.rule.grade), checks, settles)

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
            changed = swapped(changed, path, self._usual) or changed
        try:
            facts = from_document(changed)
        except WrongFacts:
            return True  # the usual value does not go with the rest of this node: the question has no answer
        return _is_found(code, facts)


def found_on(facts: Facts) -> dict[str, str]:
    """Code and message of every root finding of some weight."""
    found: dict[str, str] = {}
    for outcome in cascade(judge(CHECKS, facts, clock=float)):
        for finding in outcome.verdict.findings if isinstance(outcome.verdict, Found) else ():
            if finding.follows_from is None and finding.severity is not Severity.NOTE:
                found.setdefault(outcome.check.code, finding.message)
    return found


def _is_found(code: str, facts: Facts) -> bool:
    (outcome,) = judge((BY_CODE[code],), facts, clock=float)
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
