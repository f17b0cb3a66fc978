"""Chooses the packages around torch: the newest that take its version, the Python, and each other."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from devkit.compat.rows import Package, Row
from devkit.compat.specifiers import meets, meets_python, requirement_parts
from devkit.facts.record import record
from devkit.solver import constraints
from devkit.solver.constraints import BITSANDBYTES
from devkit.solver.image import chosen_python
from devkit.solver.model import Constraint
from devkit.solver.question import Candidate, Objection, Question, once

COMPANIONS = ("transformers", "huggingface-hub", "accelerate", "peft")
"""Packages of every plan besides torch and bitsandbytes; the first keeps its newest release longest."""

_EXACT = ("==", "===")


@record
class Chosen:
    """One package of the plan. `row` is None for a pin that the tables do not list."""

    name: str
    version: str
    row: Row | None
    because: str


@once
def companions(candidate: Candidate, question: Question) -> tuple[Chosen, ...] | None:
    """The newest releases that fit torch, the Python and one another, pins first; None when nothing fits.

    A package whose constraint no release of the tables meets is left out: the project installs its own.
    """
    pins = dict(question.request.pins)
    python = chosen_python(candidate, question)
    names = (*COMPANIONS, *(requirement_parts(line)[0] for line in candidate.release.requires))
    choices = [offers(name, question) for name in names]
    for rows in product(*(choice for choice in choices if choice)):
        if _agree(rows, candidate, python, pins.get(BITSANDBYTES)):
            chosen = (_chosen(row, candidate, question) for row in rows)
            return (*chosen, *_other_pins(pins, names))
    return None


def offers(name: str, question: Question) -> tuple[Package, ...]:
    """The releases of a package to choose among, newest first: the pinned one, else those that the project allows."""
    rows = tuple(row for row in question.tables.stack.packages if row.name == name)
    asked = constraints.of(name, question)
    exact = dict(question.request.pins).get(name) or _exact(asked)
    if exact is not None:
        return tuple(row for row in rows if row.version == exact) or (
            replace(rows[0], version=exact, python="", requires=()),
        )
    return tuple(row for row in rows if constraints.allows(asked, row.version))


def packages(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """Packages that no release fits, or whose pin does not."""
    if companions(candidate, question) is None:
        wishes = [f"{name}=={version}" for name, version in question.request.pins]
        wishes += [
            f"{each.name}{each.specifier} ({each.origin})"
            for each in question.request.constraints
            if each.name in COMPANIONS
        ]
        python = chosen_python(candidate, question)
        with_wishes = f" with {', '.join(wishes)}" if wishes else ""
        torch = candidate.release.version
        says = f"no transformers, peft and accelerate fit torch {torch} on Python {python}{with_wishes}"
        yield Objection("P1", says, question.tables.stack.packages[0].source[0])


def pin_warnings(question: Question) -> Iterator[str]:
    """Pins and constraints that the tables know nothing about."""
    known = {(row.name, row.version) for row in question.tables.stack.packages}
    known |= {(BITSANDBYTES, row.version) for row in question.tables.stack.bitsandbytes}
    for name, version in question.request.pins:
        if (name, version) not in known:
            yield f"{name}=={version} is not in the tables: taken as it is, not checked"
    for name in COMPANIONS:
        asked = constraints.of(name, question)
        if asked and not offers(name, question):
            wants = " and ".join(constraints.spoken(each) for each in asked)
            yield f"{wants}: no release in the tables is one, so {name} is left to the project, not checked"


def asked_by(chosen: tuple[Chosen, ...], name: str) -> str:
    """What the chosen packages together ask of another one, as one specifier."""
    lines = [line for each in chosen if isinstance(each.row, Package) for line in each.row.requires]
    needs = [requirement_parts(line) for line in lines]
    return ",".join(specifier for needed, specifier in needs if needed == name)


def _exact(asked: tuple[Constraint, ...]) -> str | None:
    """The version that a constraint names, where one names just one."""
    for each in asked:
        if each.specifier.startswith(_EXACT) and "," not in each.specifier and "*" not in each.specifier:
            return each.specifier.lstrip("=").strip()
    return None


def _agree(rows: tuple[Package, ...], candidate: Candidate, python: str | None, bnb: str | None) -> bool:
    versions = {row.name: row.version for row in rows} | {"torch": str(candidate.release.version)}
    if bnb is not None:
        versions[BITSANDBYTES] = bnb
    takes_python = python is None or all(meets_python(python, row.python) for row in rows)
    lines = [*candidate.release.requires, *(line for row in rows for line in row.requires)]
    needs = [requirement_parts(line) for line in lines]
    return takes_python and all(meets(versions[name], specifier) for name, specifier in needs if name in versions)


def _chosen(row: Package, candidate: Candidate, question: Question) -> Chosen:
    listed = any(row.name == known.name and row.version == known.version for known in question.tables.stack.packages)
    if row.name in dict(question.request.pins):
        because = "asked for"
    elif asked := constraints.of(row.name, question):
        because = f"{' and '.join(constraints.spoken(each) for each in asked)}"
    else:
        python = chosen_python(candidate, question)
        because = f"newest release that fits torch {candidate.release.version}, Python {python} and the others"
    return Chosen(row.name, row.version, row if listed else None, because)


def _other_pins(pins: dict[str, str], names: tuple[str, ...]) -> tuple[Chosen, ...]:
    """Pins of packages that the plan would not hold by itself: kept as they are."""
    others = {name: version for name, version in pins.items() if name not in (*names, BITSANDBYTES)}
    return tuple(Chosen(name, version, None, "asked for") for name, version in others.items())
