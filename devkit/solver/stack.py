"""Chooses the packages around torch: the newest that take its version, the Python, and each other."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from devkit.compat.rows import Bitsandbytes, Package, Row
from devkit.compat.rules import CodeSupport, LibraryChoice, bitsandbytes_library, has_kernels
from devkit.solver.image import chosen_python
from devkit.solver.model import Vendor
from devkit.solver.question import Candidate, Objection, Question

COMPANIONS = ("transformers", "huggingface-hub", "accelerate", "peft")
"""Packages of every plan besides torch and bitsandbytes; the first keeps its newest release longest."""

BITSANDBYTES = "bitsandbytes"
_NEEDS_BITSANDBYTES = ("nf4", "llm-int8")


@dataclass(frozen=True)
class Chosen:
    """One package of the plan. `row` is None for a pin that the tables do not list."""

    name: str
    version: str
    row: Row | None
    because: str


def companions(candidate: Candidate, question: Question) -> tuple[Chosen, ...] | None:
    """The newest releases that fit torch, the Python and one another, pins first; None when nothing fits."""
    pins = dict(question.request.pins)
    python = chosen_python(candidate, question)
    names = (*COMPANIONS, *(_requirement(line).name for line in candidate.release.requires))
    choices = [_offers(name, pins.get(name), question) for name in names]
    for rows in product(*choices):
        if _agree(rows, candidate, python, pins.get(BITSANDBYTES)):
            return tuple(
                Chosen(row.name, row.version, row, _because(row.name, candidate, python, pins)) for row in rows
            ) + _other_pins(pins, names)
    return None


def bitsandbytes(candidate: Candidate, question: Question) -> Chosen | None:
    """The newest bitsandbytes with a library for the wheel's CUDA and code for every GPU; None when there is none."""
    pinned = dict(question.request.pins).get(BITSANDBYTES)
    rows = question.tables.stack.bitsandbytes
    if pinned is not None and all(row.version != pinned for row in rows):
        return Chosen(BITSANDBYTES, pinned, None, "asked for")
    wanted = _asked_by(companions(candidate, question) or (), BITSANDBYTES)
    for row in rows:
        if pinned in (None, row.version) and _fits(row, wanted, candidate, question):
            because = "asked for" if pinned else _bitsandbytes_because(candidate, question)
            return Chosen(BITSANDBYTES, row.version, row, because)
    return None


def packages(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """Packages that no release fits, or whose pin does not."""
    if companions(candidate, question) is None:
        pins = [f"{name}=={version}" for name, version in question.request.pins]
        python = chosen_python(candidate, question)
        with_pins = f" with {', '.join(pins)}" if pins else ""
        torch = candidate.release.version
        says = f"no transformers, peft and accelerate fit torch {torch} on Python {python}{with_pins}"
        yield Objection("P1", says, question.tables.stack.packages[0].source[0])


def library(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """A missing bitsandbytes library (B1, B2); it refuses where 4-bit or 8-bit work was asked for, else it warns."""
    if bitsandbytes(candidate, question) is not None:
        return
    pinned = dict(question.request.pins).get(BITSANDBYTES)
    rows = question.tables.stack.bitsandbytes
    row = next((row for row in rows if row.version == pinned), rows[0])
    wanted = pinned is not None or any(name in question.request.features for name in _NEEDS_BITSANDBYTES)
    says = _missing_library(row, candidate, question)
    yield Objection("B1", says, row.source[0], refuses=wanted and not row.is_inferred)


def features(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """Features that a GPU of the plan does not have."""
    for name in question.request.features:
        row = question.tables.stack.features[name]
        for gpu, capability in question.gpus:
            if capability < row.capability:
                says = f"{row.title} needs compute capability {row.capability}; {gpu} has {capability}"
                yield Objection.by(row, "F1", says)


def feature_warnings(question: Question) -> Iterator[str]:
    """What a plan must say about the features it was asked for."""
    for name in question.request.features:
        row = question.tables.stack.features[name]
        if question.vendor is Vendor.CPU:
            yield f"{row.title} was asked for; on the CPU that is not checked"
        elif row.note:
            yield f"{row.title}: {row.note}"


def pin_warnings(question: Question) -> Iterator[str]:
    """Pins that the tables know nothing about."""
    known = {(row.name, row.version) for row in question.tables.stack.packages}
    known |= {(BITSANDBYTES, row.version) for row in question.tables.stack.bitsandbytes}
    for name, version in question.request.pins:
        if (name, version) not in known:
            yield f"{name}=={version} is not in the tables: taken as it is, not checked"


def _offers(name: str, pinned: str | None, question: Question) -> tuple[Package, ...]:
    rows = tuple(row for row in question.tables.stack.packages if row.name == name)
    if pinned is None:
        return rows
    listed = tuple(row for row in rows if row.version == pinned)
    return listed or (replace(rows[0], version=pinned, python="", requires=()),)


def _agree(rows: tuple[Package, ...], candidate: Candidate, python: str | None, bnb: str | None) -> bool:
    versions = {row.name: row.version for row in rows} | {"torch": str(candidate.release.version)}
    if bnb is not None:
        versions[BITSANDBYTES] = bnb
    takes_python = all(_meets(python, row.python) for row in rows)
    lines = [*candidate.release.requires, *(line for row in rows for line in row.requires)]
    needs = [_requirement(line) for line in lines]
    return takes_python and all(_meets(versions.get(need.name), str(need.specifier)) for need in needs)


@cache
def _requirement(line: str) -> Requirement:
    return Requirement(line)


@cache
def _meets(version: str | None, specifier: str) -> bool:
    """Whether a version meets a specifier; an unknown or unreadable one is not held against it."""
    try:
        return version is None or SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def _asked_by(chosen: tuple[Chosen, ...], name: str) -> str:
    """What the chosen packages together ask of another one."""
    lines = [line for each in chosen if isinstance(each.row, Package) for line in each.row.requires]
    needs = [_requirement(line) for line in lines]
    return ",".join(str(need.specifier) for need in needs if need.name == name)


def _fits(row: Bitsandbytes, wanted: str, candidate: Candidate, question: Question) -> bool:
    python, torch = chosen_python(candidate, question), str(candidate.release.version)
    takes_both = _meets(python, row.python) and _meets(torch, row.torch)
    if not takes_both or not _meets(row.version, wanted):
        return False
    if candidate.cuda is None:
        return row.cpu and (row.aarch64 or question.architectures == ("x86_64",))
    return _has_library(row, candidate, question)


def _has_library(row: Bitsandbytes, candidate: Candidate, question: Question) -> bool:
    cuda = candidate.cuda
    if cuda is None or bitsandbytes_library(cuda, row.cudas).choice is not LibraryChoice.EXACT:
        return False
    if not question.gpus:
        return True
    code = [
        library
        for library in question.tables.stack.libraries
        if library.version == row.version and str(cuda) in library.cudas
    ]
    return all(
        any(
            library.machine == machine.machine
            and has_kernels(capability, library.sass, library.ptx) is not CodeSupport.NONE
            for library in code
        )
        for machine in question.machines
        for _, capability in machine.gpus
    )


def _missing_library(row: Bitsandbytes, candidate: Candidate, question: Question) -> str:
    if candidate.cuda is None:
        return f"bitsandbytes {row.version} does not fit torch {candidate.release.version} on this machine"
    gpus = ", ".join(dict.fromkeys(str(capability) for _, capability in question.gpus))
    for_gpus = f" with code for {gpus}" if gpus else ""
    if str(candidate.cuda) not in row.cudas:
        return f"bitsandbytes {row.version} has no library for CUDA {candidate.cuda}: it has {', '.join(row.cudas)}"
    return f"no bitsandbytes fits torch {candidate.release.version} and CUDA {candidate.cuda}{for_gpus}"


def _because(name: str, candidate: Candidate, python: str | None, pins: dict[str, str]) -> str:
    if name in pins:
        return "asked for"
    return f"newest release that fits torch {candidate.release.version}, Python {python} and the others"


def _bitsandbytes_because(candidate: Candidate, question: Question) -> str:
    if candidate.cuda is None:
        return f"newest release that fits torch {candidate.release.version} and runs on the CPU"
    served = ", ".join(dict.fromkeys(str(capability) for _, capability in question.gpus))
    code = f" with code for {served}" if served else ""
    return f"newest release with a library for CUDA {candidate.cuda}{code}"


def _other_pins(pins: dict[str, str], names: tuple[str, ...]) -> tuple[Chosen, ...]:
    """Pins of packages that the plan would not hold by itself: kept as they are."""
    others = {name: version for name, version in pins.items() if name not in (*names, BITSANDBYTES)}
    return tuple(Chosen(name, version, None, "asked for") for name, version in others.items())
