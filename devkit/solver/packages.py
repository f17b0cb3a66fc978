"""Chooses bitsandbytes: a release with a library for torch's CUDA or ROCm, and code for every GPU (B1 to B4)."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from devkit.compat.rules import CodeSupport, LibraryChoice, check_gpu_code, find_bitsandbytes_library
from devkit.compat.specifiers import satisfies, satisfies_python, split_requirement
from devkit.compat.version_tables import BitsandbytesLibrary, BitsandbytesRelease, PackageRelease, TableRow
from devkit.facts.values import ComputeCapability, Release, record
from devkit.solver.base_image import choose_python
from devkit.solver.candidates import Candidate, Objection, Problem, memoize
from devkit.solver.plan import Constraint

# Speaks for the project's own files: what they ask of torch, Python and the pinned packages (P2).

PYTHON = "python"
BITSANDBYTES = "bitsandbytes"


def validate_constraints(candidate: Candidate, question: Problem) -> Iterator[Objection]:
    """Constraints of the project's files that a candidate or a wish does not meet."""
    if not question.request.constraints:
        return
    unmet = [
        *_unmet(find_constraints("torch", question), f"{candidate.release.version}+{candidate.index.label}"),
        *(
            each
            for name, version in question.request.pins
            for each in _unmet(find_constraints(name, question), version)
        ),
        *_unmet_by_python(candidate, question),
        *find_contradictions(question),
    ]
    for constraint in dict.fromkeys(unmet):
        yield Objection("P2", describe_constraint(constraint), constraint.origin)


def find_constraints(name: str, question: Problem) -> tuple[Constraint, ...]:
    """What the project's files ask of one package, or of "python"."""
    return tuple(each for each in question.request.constraints if each.name == name)


def is_allowed(constraints: Iterable[Constraint], version: str) -> bool:
    """Whether a version meets every one of the constraints."""
    return not _unmet(constraints, version)


def describe_constraint(constraint: Constraint) -> str:
    """A constraint in words: "requirements.txt:3 wants torch<2.5"."""
    return f"{constraint.origin} wants {constraint.name}{constraint.specifier}"


def find_contradictions(question: Problem) -> tuple[Constraint, ...]:
    """Constraints on one package of the tables of which each can be met, but not all at once.

    A constraint that no release of the tables meets is left to the project: the tables do not list every release.
    """
    found: list[Constraint] = []
    for name, versions in _listed(question).items():
        asked = find_constraints(name, question)
        known = [*versions, *(each.specifier.lstrip("=").strip() for each in asked if each.specifier.startswith("=="))]
        can_be_met = all(any(is_allowed([each], version) for version in known) for each in asked)
        if len(asked) > 1 and can_be_met and not any(is_allowed(asked, version) for version in known):
            found += asked
    return tuple(found)


def _listed(question: Problem) -> dict[str, list[str]]:
    """The versions that the tables list of each package around torch."""
    found: dict[str, list[str]] = {BITSANDBYTES: [row.version for row in question.tables.stack.bitsandbytes]}
    for row in question.tables.stack.packages:
        found.setdefault(row.name, []).append(row.version)
    return found


def _unmet(constraints: Iterable[Constraint], version: str) -> tuple[Constraint, ...]:
    return tuple(each for each in constraints if not satisfies(version, each.specifier))


def _unmet_by_python(candidate: Candidate, question: Problem) -> tuple[Constraint, ...]:
    """Those that leave no Python of the release, or that the wished one does not meet."""
    asked = find_constraints(PYTHON, question)
    python = choose_python(candidate, question) if asked else None
    if python is None:
        return asked
    return tuple(each for each in asked if not satisfies_python(python, each.specifier))


# Chooses the packages around torch: the newest that take its version, the Python, and each other.

COMPANIONS = ("transformers", "huggingface-hub", "accelerate", "peft")
"""Packages of every plan besides torch and bitsandbytes; the first keeps its newest release longest."""

_EXACT = ("==", "===")


@record
class ChosenPackage:
    """One package of the plan. `row` is None for a pin that the tables do not list."""

    name: str
    version: str
    row: TableRow | None
    because: str


@memoize
def choose_companions(candidate: Candidate, question: Problem) -> tuple[ChosenPackage, ...] | None:
    """The newest releases that fit torch, the Python and one another, pins first; None when nothing fits.

    A package whose constraint no release of the tables meets is left out: the project installs its own.
    """
    pins = dict(question.request.pins)
    python = choose_python(candidate, question)
    names = (*COMPANIONS, *(split_requirement(line)[0] for line in candidate.release.requires))
    choices = [list_releases(name, question) for name in names]
    for rows in product(*(choice for choice in choices if choice)):
        if _agree(rows, candidate, python, pins.get(BITSANDBYTES)):
            chosen = (_chosen(row, candidate, question) for row in rows)
            return (*chosen, *_other_pins(pins, names))
    return None


def list_releases(name: str, question: Problem) -> tuple[PackageRelease, ...]:
    """The releases of a package to choose among, newest first: the pinned one, else those that the project allows."""
    rows = tuple(row for row in question.tables.stack.packages if row.name == name)
    asked = find_constraints(name, question)
    exact = dict(question.request.pins).get(name) or _exact(asked)
    if exact is not None:
        return tuple(row for row in rows if row.version == exact) or (
            replace(rows[0], version=exact, python="", requires=()),
        )
    return tuple(row for row in rows if is_allowed(asked, row.version))


def validate_packages(candidate: Candidate, question: Problem) -> Iterator[Objection]:
    """Packages that no release fits, or whose pin does not."""
    if choose_companions(candidate, question) is None:
        wishes = [f"{name}=={version}" for name, version in question.request.pins]
        wishes += [
            f"{each.name}{each.specifier} ({each.origin})"
            for each in question.request.constraints
            if each.name in COMPANIONS
        ]
        python = choose_python(candidate, question)
        with_wishes = f" with {', '.join(wishes)}" if wishes else ""
        torch = candidate.release.version
        says = f"no transformers, peft and accelerate fit torch {torch} on Python {python}{with_wishes}"
        yield Objection("P1", says, question.tables.stack.packages[0].source[0])


def find_pin_warnings(question: Problem) -> Iterator[str]:
    """Pins and constraints that the tables know nothing about."""
    known = {(row.name, row.version) for row in question.tables.stack.packages}
    known |= {(BITSANDBYTES, row.version) for row in question.tables.stack.bitsandbytes}
    for name, version in question.request.pins:
        if (name, version) not in known:
            yield f"{name}=={version} is not in the tables: taken as it is, not checked"
    for name in COMPANIONS:
        asked = find_constraints(name, question)
        if asked and not list_releases(name, question):
            wants = " and ".join(describe_constraint(each) for each in asked)
            yield f"{wants}: no release in the tables is one, so {name} is left to the project, not checked"


def combine_specifiers(chosen: tuple[ChosenPackage, ...], name: str) -> str:
    """What the chosen packages together ask of another one, as one specifier."""
    lines = [line for each in chosen if isinstance(each.row, PackageRelease) for line in each.row.requires]
    needs = [split_requirement(line) for line in lines]
    return ",".join(specifier for needed, specifier in needs if needed == name)


def _exact(asked: tuple[Constraint, ...]) -> str | None:
    """The version that a constraint names, where one names just one."""
    for each in asked:
        if each.specifier.startswith(_EXACT) and "," not in each.specifier and "*" not in each.specifier:
            return each.specifier.lstrip("=").strip()
    return None


def _agree(rows: tuple[PackageRelease, ...], candidate: Candidate, python: str | None, bnb: str | None) -> bool:
    versions = {row.name: row.version for row in rows} | {"torch": str(candidate.release.version)}
    if bnb is not None:
        versions[BITSANDBYTES] = bnb
    takes_python = python is None or all(satisfies_python(python, row.python) for row in rows)
    lines = [*candidate.release.requires, *(line for row in rows for line in row.requires)]
    needs = [split_requirement(line) for line in lines]
    return takes_python and all(satisfies(versions[name], specifier) for name, specifier in needs if name in versions)


def _chosen(row: PackageRelease, candidate: Candidate, question: Problem) -> ChosenPackage:
    listed = any(row.name == known.name and row.version == known.version for known in question.tables.stack.packages)
    if row.name in dict(question.request.pins):
        because = "asked for"
    elif asked := find_constraints(row.name, question):
        because = f"{' and '.join(describe_constraint(each) for each in asked)}"
    else:
        python = choose_python(candidate, question)
        because = f"newest release that fits torch {candidate.release.version}, Python {python} and the others"
    return ChosenPackage(row.name, row.version, row if listed else None, because)


def _other_pins(pins: dict[str, str], names: tuple[str, ...]) -> tuple[ChosenPackage, ...]:
    """Pins of packages that the plan would not hold by itself: kept as they are."""
    others = {name: version for name, version in pins.items() if name not in (*names, BITSANDBYTES)}
    return tuple(ChosenPackage(name, version, None, "asked for") for name, version in others.items())


_NEEDS_BITSANDBYTES = ("nf4", "llm-int8")


@memoize
def choose_bitsandbytes(candidate: Candidate, question: Problem) -> ChosenPackage | None:
    """The newest bitsandbytes with a library for the build and code for every GPU; None when there is none."""
    pinned = dict(question.request.pins).get(BITSANDBYTES)
    rows = question.tables.stack.bitsandbytes
    if pinned is not None and all(row.version != pinned for row in rows):
        return ChosenPackage(BITSANDBYTES, pinned, None, "asked for")
    wanted = combine_specifiers(choose_companions(candidate, question) or (), BITSANDBYTES)
    asked = find_constraints(BITSANDBYTES, question)
    for row in rows:
        may_be_chosen = pinned in (None, row.version) and is_allowed(asked, row.version)
        if may_be_chosen and _fits(row, wanted, candidate, question):
            because = "asked for" if pinned else _explain_bitsandbytes_choice(candidate, question)
            return ChosenPackage(BITSANDBYTES, row.version, row, because)
    return None


def validate_bitsandbytes(candidate: Candidate, question: Problem) -> Iterator[Objection]:
    """A missing bitsandbytes library (B1, B2); it refuses where 4-bit or 8-bit work was asked for, else it warns."""
    if choose_bitsandbytes(candidate, question) is not None:
        return
    pinned = dict(question.request.pins).get(BITSANDBYTES)
    rows = question.tables.stack.bitsandbytes
    row = next((row for row in rows if row.version == pinned), rows[0])
    wanted = pinned is not None or any(name in question.request.features for name in _NEEDS_BITSANDBYTES)
    says = _missing_library(row, candidate, question, is_pinned=pinned is not None)
    yield Objection("B1", says, row.source[0], refuses=wanted and not row.is_inferred)


def explain_bitsandbytes_rejection(row: BitsandbytesRelease, candidate: Candidate, question: Problem) -> str:
    """What keeps a release of bitsandbytes from a build on these machines."""
    python = choose_python(candidate, question)
    for asked in find_constraints(BITSANDBYTES, question):
        if not is_allowed([asked], row.version):
            return describe_constraint(asked)
    if python is not None and not satisfies_python(python, row.python):
        return f"needs Python {row.python}"
    if not satisfies(str(candidate.release.version), row.torch):
        return f"needs torch {row.torch}"
    if candidate.cuda is not None and str(candidate.cuda) not in row.cudas:
        return f"has no library for CUDA {candidate.cuda}"
    wanted = combine_specifiers(choose_companions(candidate, question) or (), BITSANDBYTES)
    if not satisfies(row.version, wanted):
        return f"the other packages ask for {wanted}"
    return (
        f"its library for {candidate.built_for} has no code for {_served(question) or 'this machine'}, as far as read"
    )


def _fits(row: BitsandbytesRelease, wanted: str, candidate: Candidate, question: Problem) -> bool:
    python, torch = choose_python(candidate, question), str(candidate.release.version)
    takes_both = (python is None or satisfies_python(python, row.python)) and satisfies(torch, row.torch)
    if not takes_both or not satisfies(row.version, wanted):
        return False
    if candidate.cuda is not None:
        return _has_library(row, candidate.cuda, question)
    if candidate.rocm is not None:
        return _has_rocm_library(row, candidate.rocm, question)
    return row.cpu and (row.aarch64 or question.architectures == ("x86_64",))


def _has_library(row: BitsandbytesRelease, cuda: Release, question: Problem) -> bool:
    if find_bitsandbytes_library(cuda, row.cudas).choice is not LibraryChoice.EXACT:
        return False
    code = [each for each in question.tables.stack.libraries if each.version == row.version and str(cuda) in each.cudas]
    return all(
        any(_serves(each, machine.machine, capability) for each in code)
        for machine in question.machines
        for _, capability in machine.gpus
    )


def _serves(library: BitsandbytesLibrary, machine: str, capability: ComputeCapability) -> bool:
    has_code = check_gpu_code(capability, library.sass, library.ptx) is not CodeSupport.NONE
    return library.machine == machine and has_code


def _has_rocm_library(row: BitsandbytesRelease, rocm: Release, question: Problem) -> bool:
    libraries = [
        each for each in question.tables.rocm.libraries if each.version == row.version and str(rocm) in each.rocms
    ]
    return bool(libraries) and all(any(target in each.targets for each in libraries) for _, target in question.amd_gpus)


def _missing_library(row: BitsandbytesRelease, candidate: Candidate, question: Problem, *, is_pinned: bool) -> str:
    if candidate.cuda is None and candidate.rocm is None:
        return f"bitsandbytes {row.version} does not fit torch {candidate.release.version} on this machine"
    if candidate.cuda is not None and is_pinned and str(candidate.cuda) not in row.cudas:
        other = find_bitsandbytes_library(candidate.cuda, row.cudas)
        override = f"; BNB_CUDA_VERSION={other.cuda.replace('.', '')} makes it load another" if other.cuda else ""
        has = ", ".join(row.cudas)
        return f"bitsandbytes {row.version} has no library for CUDA {candidate.cuda}: it has {has}{override}"
    asked = find_constraints(BITSANDBYTES, question)
    wants = f" ({' and '.join(describe_constraint(each) for each in asked)})" if asked else ""
    code = f" with code for {served}" if (served := _served(question)) else ""
    return f"no bitsandbytes fits torch {candidate.release.version} and {candidate.built_for}{code}{wants}"


def _served(question: Problem) -> str:
    capabilities = [str(capability) for _, capability in question.gpus]
    return ", ".join(dict.fromkeys([*capabilities, *(target for _, target in question.amd_gpus)]))


def _explain_bitsandbytes_choice(candidate: Candidate, question: Problem) -> str:
    if candidate.cuda is None and candidate.rocm is None:
        return f"newest release that fits torch {candidate.release.version} and runs on the CPU"
    code = f" with code for {served}" if (served := _served(question)) else ""
    return f"newest release with a library for {candidate.built_for}{code}"
