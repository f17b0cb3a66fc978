"""Speaks for the project's own files: what they ask of torch, Python and the pinned packages (P2)."""

from collections.abc import Iterable, Iterator

from devkit.compat.specifiers import meets, meets_python
from devkit.solver.image import chosen_python
from devkit.solver.model import Constraint
from devkit.solver.question import Candidate, Objection, Question

PYTHON = "python"
BITSANDBYTES = "bitsandbytes"


def project(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """Constraints of the project's files that a candidate or a wish does not meet."""
    if not question.request.constraints:
        return
    unmet = [
        *_unmet(of("torch", question), f"{candidate.release.version}+{candidate.index.label}"),
        *(each for name, version in question.request.pins for each in _unmet(of(name, question), version)),
        *_unmet_by_python(candidate, question),
        *contradicting(question),
    ]
    for constraint in dict.fromkeys(unmet):
        yield Objection("P2", spoken(constraint), constraint.origin)


def of(name: str, question: Question) -> tuple[Constraint, ...]:
    """What the project's files ask of one package, or of "python"."""
    return tuple(each for each in question.request.constraints if each.name == name)


def allows(constraints: Iterable[Constraint], version: str) -> bool:
    """Whether a version meets every one of the constraints."""
    return not _unmet(constraints, version)


def spoken(constraint: Constraint) -> str:
    """A constraint in words: "requirements.txt:3 wants torch<2.5"."""
    return f"{constraint.origin} wants {constraint.name}{constraint.specifier}"


def contradicting(question: Question) -> tuple[Constraint, ...]:
    """Constraints on one package of the tables of which each can be met, but not all at once.

    A constraint that no release of the tables meets is left to the project: the tables do not list every release.
    """
    found: list[Constraint] = []
    for name, versions in _listed(question).items():
        asked = of(name, question)
        known = [*versions, *(each.specifier.lstrip("=").strip() for each in asked if each.specifier.startswith("=="))]
        can_be_met = all(any(allows([each], version) for version in known) for each in asked)
        if len(asked) > 1 and can_be_met and not any(allows(asked, version) for version in known):
            found += asked
    return tuple(found)


def _listed(question: Question) -> dict[str, list[str]]:
    """The versions that the tables list of each package around torch."""
    found: dict[str, list[str]] = {BITSANDBYTES: [row.version for row in question.tables.stack.bitsandbytes]}
    for row in question.tables.stack.packages:
        found.setdefault(row.name, []).append(row.version)
    return found


def _unmet(constraints: Iterable[Constraint], version: str) -> tuple[Constraint, ...]:
    return tuple(each for each in constraints if not meets(version, each.specifier))


def _unmet_by_python(candidate: Candidate, question: Question) -> tuple[Constraint, ...]:
    """Those that leave no Python of the release, or that the wished one does not meet."""
    asked = of(PYTHON, question)
    python = chosen_python(candidate, question) if asked else None
    if python is None:
        return asked
    return tuple(each for each in asked if not meets_python(python, each.specifier))
