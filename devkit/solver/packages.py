"""Packages around torch: the newest releases that fit its version, the Python, the GPUs and one another."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product

from devkit.compat.rules import CodeSupport, LibraryChoice, check_gpu_code, find_bitsandbytes_library
from devkit.compat.specifiers import satisfies, satisfies_python, split_requirement
from devkit.compat.version_tables import (
    BitsandbytesLibrary,
    BitsandbytesRelease,
    PackageRelease,
    RuntimeRequirement,
    Tables,
)
from devkit.facts.dependencies import TORCH_FAMILY
from devkit.facts.values import ComputeCapability, Release
from devkit.solver.candidates import ChosenPackage, Environment, Objection, Packages, Problem
from devkit.solver.plan import PYTHON, Constraint, Request
from devkit.text import join_words

BITSANDBYTES = "bitsandbytes"
COMPANIONS = ("transformers", "huggingface-hub", "accelerate", "peft")
"""Packages of every plan besides torch and bitsandbytes; the first keeps its newest release longest."""

_NEEDS_BITSANDBYTES = ("nf4", "llm-int8")


def choose_packages(environment: Environment, problem: Problem) -> Packages:
    """Choose the companions of a torch build, and the bitsandbytes that fits them."""
    companions = _choose_companions(environment, problem)
    return Packages(companions, _choose_bitsandbytes(environment, companions or (), problem))


def list_releases(name: str, problem: Problem) -> tuple[PackageRelease, ...]:
    """List the releases of a package to choose from, newest first: the pinned one, or all of the tables."""
    rows = tuple(row for row in problem.tables.stack.packages if row.name == name)
    pinned = dict(problem.request.pins).get(name)
    if pinned is None:
        return rows
    return tuple(row for row in rows if row.version == pinned) or (
        replace(rows[0], version=pinned, python="", requires=()),
    )


def validate_constraints(environment: Environment, problem: Problem) -> Iterator[Objection]:
    """Object where a candidate, a pin or the Python does not meet a constraint of the project's files (P2)."""
    request, python = problem.request, environment.python
    if not request.constraints:
        return
    candidate = environment.candidate
    versions = [("torch", f"{candidate.release.version}+{candidate.index.label}"), *request.pins]
    if python is not None:
        versions.append((PYTHON, python))
    unmet = [each for name, version in versions for each in request.constraints_on(name) if not each.is_met_by(version)]
    if python is None:
        unmet += request.constraints_on(PYTHON)
    for constraint in dict.fromkeys([*unmet, *_find_contradictions(problem)]):
        yield Objection("P2", str(constraint), constraint.origin)


def validate_companions(environment: Environment, problem: Problem) -> Iterator[Objection]:
    """Object where a pin does not fit (P1), and doubt what no release in the tables fits."""
    request, torch = problem.request, environment.candidate.release.version
    if environment.packages.companions is not None:
        chosen = {each.name for each in environment.packages.companions}
        missing = [name for name in COMPANIONS if name not in chosen and not _is_left_open(name, problem)]
        if missing and request.adds_packages:
            fits = f"fits torch {torch} on Python {environment.python}"
            says = f"no {join_words(missing, 'or')} in the tables {fits}: not installed, not checked"
            yield Objection("P1", says, problem.tables.stack.packages[0].source[0], refuses=False)
        return
    named = [f"{name}=={version}" for name, version in request.pins]
    with_named = f" with {', '.join(named)}" if named else ""
    says = f"no transformers, peft and accelerate fit torch {torch} on Python {environment.python}{with_named}"
    yield Objection("P1", says, problem.tables.stack.packages[0].source[0])


def validate_bitsandbytes(environment: Environment, problem: Problem) -> Iterator[Objection]:
    """Object to a missing bitsandbytes library (B1, B2): refuse where 4-bit or 8-bit was requested, else warn."""
    chosen, rows = environment.packages.bitsandbytes, problem.tables.stack.bitsandbytes
    is_required = needs_bitsandbytes(problem.request)
    if not is_required and not problem.request.adds_packages:
        return
    if chosen is not None:
        if isinstance(chosen.row, BitsandbytesRelease) and _finds_unread_library(chosen.row, environment, problem):
            says = f"whether bitsandbytes {chosen.version} has code for {_list_gpu_targets(problem)} was not checked"
            yield Objection("B1", says, chosen.row.source[0], refuses=False)
        return
    constraints = problem.request.constraints_on(BITSANDBYTES)
    if constraints and not any(all(each.is_met_by(row.version) for each in constraints) for row in rows):
        wants = " and ".join(map(str, constraints))
        says = f"{wants}: the tables have no such release, so the project's choice was not checked"
        yield Objection("B1", says, rows[0].source[0], refuses=False)
        return
    pinned = dict(problem.request.pins).get(BITSANDBYTES)
    row = next((row for row in rows if row.version == pinned), rows[0])
    candidate, torch = environment.candidate, environment.candidate.release.version
    if candidate.cuda is None and candidate.rocm is None:
        says = f"bitsandbytes {row.version} does not fit torch {torch} on this machine"
    elif candidate.cuda is not None and pinned is not None and str(candidate.cuda) not in row.cudas:
        other = find_bitsandbytes_library(candidate.cuda, row.cudas)
        override = (
            f"; BNB_CUDA_VERSION={other.cuda.replace('.', '')} makes it load a different one" if other.cuda else ""
        )
        has = ", ".join(row.cudas)
        says = f"bitsandbytes {row.version} has no library for CUDA {candidate.cuda}: it has {has}{override}"
    else:
        gpus = _list_gpu_targets(problem)
        with_code = f" with code for {gpus}" if gpus else ""
        wants = f" ({' and '.join(map(str, constraints))})" if constraints else ""
        says = f"no bitsandbytes fits torch {torch} and {candidate.built_for}{with_code}{wants}"
    yield Objection("B1", says, row.source[0], refuses=is_required and not row.is_inferred)


def needs_bitsandbytes(request: Request) -> bool:
    """Return whether the request names bitsandbytes, or a feature that only it provides."""
    return BITSANDBYTES in dict(request.pins) or any(name in request.features for name in _NEEDS_BITSANDBYTES)


def find_pin_warnings(problem: Problem) -> Iterator[str]:
    """Warn of the pins that the tables know nothing about."""
    for name, version in problem.request.pins:
        if not _is_listed(name, version, problem):
            yield f"{name}=={version} is not in the tables: it is used unchanged and was not checked"


def find_limits(
    versions: Mapping[str, str], environment: Environment, problem: Problem, *, keeps_others: bool = False
) -> Iterator[tuple[str, str]]:
    """Find what the tables know against a resolution and no metadata says: a requirement that avoids it, and why.

    These are what torch's wheel demands, what packages check at run time, and a bitsandbytes with code for the GPUs. Where
    what a package checks `keeps_others` as they are, it has to be an older one.
    """
    release = environment.candidate.release
    for line in release.requires:
        name, specifier = split_requirement(line)
        if name in versions and not satisfies(versions[name], specifier):
            yield line, _describe_demand(f"torch {release.version}", line, versions)
    for floor in _find_newest_floors(versions, problem):
        for line in floor.requires:
            name, specifier = split_requirement(line)
            known = {**versions, "torch": str(release.version)}
            if name in known and not satisfies(known[name], specifier):
                # torch is chosen by then, so the other package has to be an older one.
                older = f"{floor.name}<{_find_first_beyond(floor, name, known, problem)}"
                yield (
                    older if keeps_others or name == "torch" else line,
                    _describe_demand(f"{floor.name} {versions[floor.name]}", line, known),
                )
    rows = problem.tables.stack.bitsandbytes
    unfit = {row.version: row for row in rows if not _is_bitsandbytes_fit(row, environment, problem)}
    row = unfit.get(versions.get(BITSANDBYTES, ""))
    if row is not None:
        because = explain_bitsandbytes_rejection(row, environment, problem)
        yield BITSANDBYTES + ",".join(f"!={version}" for version in unfit), f"{BITSANDBYTES} {row.version}: {because}"


def list_torch_bounds(names: Collection[str], tables: Tables) -> tuple[str, ...]:
    """List the newest torch, torchvision and torchaudio that packages run with and do not state, as constraints.

    They have to be known before torch is chosen; what else a package checks at run time is found by `find_limits`.
    """
    lines = (line for row in tables.stack.floors if row.name in names for line in row.requires)
    return tuple(dict.fromkeys(line for line in lines if re.match(rf"(?:{'|'.join(TORCH_FAMILY)})<", line)))


def list_lockstep(packages: Iterable[tuple[str, str]], tables: Tables) -> dict[str, str]:
    """List the constraints that take packages back to the release of another which they must not be newer than, and why."""
    versions = dict(packages)
    rows = (row for row in tables.stack.lockstep if row.name in versions and row.behind in versions)
    limits = ((row, f"<={versions[row.behind]}") for row in rows)
    return {
        f"{row.name}{limit}": f"{row.behind} {versions[row.behind]} does not accept a newer {row.name}"
        for row, limit in limits
        if not satisfies(versions[row.name], limit)
    }


def _find_newest_floors(versions: Mapping[str, str], problem: Problem) -> Iterator[RuntimeRequirement]:
    """Find what packages of a resolution check at run time: of each the row that its version is in."""
    for name in dict.fromkeys(row.name for row in problem.tables.stack.floors if row.name in versions):
        version = Release.parse(versions[name])
        rows = [row for row in problem.tables.stack.floors if row.name == name and row.version <= version]
        newest = max(rows, key=lambda row: row.version, default=None)
        if newest is not None and newest.version.major == version.major:
            yield newest


def _find_first_beyond(floor: RuntimeRequirement, other: str, versions: Mapping[str, str], problem: Problem) -> Release:
    """Find the oldest version from which on, up to that of `floor`, a package demands a different version of another."""
    rows = [row for row in problem.tables.stack.floors if row.name == floor.name and row.version <= floor.version]
    first = floor.version
    for row in sorted(rows, key=lambda row: row.version, reverse=True):
        demands = (split_requirement(line) for line in row.requires)
        if all(satisfies(versions[other], specifier) for name, specifier in demands if name == other):
            break
        first = row.version
    return first


def _describe_demand(who: str, line: str, versions: Mapping[str, str]) -> str:
    name = split_requirement(line)[0]
    return f"{who} runs only with {line}, but the project's packages need {name} {versions[name]}"


def explain_bitsandbytes_rejection(row: BitsandbytesRelease, environment: Environment, problem: Problem) -> str:
    """Explain what keeps a release of bitsandbytes from an environment."""
    candidate = environment.candidate
    for constraint in problem.request.constraints_on(BITSANDBYTES):
        if not constraint.is_met_by(row.version):
            return str(constraint)
    if environment.python is not None and not satisfies_python(environment.python, row.python):
        return f"needs Python {row.python}"
    if not satisfies(str(candidate.release.version), row.torch):
        return f"needs torch {row.torch}"
    if candidate.cuda is not None and str(candidate.cuda) not in row.cudas:
        return f"has no library for CUDA {candidate.cuda}"
    specifier = _limit_bitsandbytes(environment.packages.companions or ())
    if not satisfies(row.version, specifier):
        return f"the other packages require {specifier}"
    gpus = _list_gpu_targets(problem) or "this machine"
    return f"its library for {candidate.built_for} has no code for {gpus}, as far as devkit read"


def _choose_companions(environment: Environment, problem: Problem) -> tuple[ChosenPackage, ...] | None:
    """Choose the newest releases that fit torch, the Python and one another, pins first; None when nothing fits.

    A project that says itself what it needs gets the request's pins alone, and they have to fit. A package that no
    release of the tables fits is left out, unless one is pinned: they do not list them all.
    """
    pins, release = dict(problem.request.pins), environment.candidate.release
    names = tuple(name for name, version in pins.items() if name != BITSANDBYTES and _is_listed(name, version, problem))
    if problem.request.adds_packages:
        wanted = (*COMPANIONS, *(split_requirement(line)[0] for line in release.requires))
        names = tuple(name for name in wanted if not _is_left_open(name, problem))
    python = environment.python
    fitting = [
        [row for row in list_releases(name, problem) if python is None or satisfies_python(python, row.python)]
        for name in names
    ]
    choices = [(*rows, *(() if name in pins else (None,))) for name, rows in zip(names, fitting, strict=True)]
    combinations = (tuple(filter(None, rows)) for rows in sorted(product(*choices), key=lambda rows: rows.count(None)))
    rows = next((rows for rows in combinations if _fit_together(rows, environment, pins.get(BITSANDBYTES))), None)
    if rows is None:
        return None
    because = f"newest release that fits torch {release.version}, Python {environment.python} and the others"
    found = []
    for row in rows:
        known = row if _is_listed(row.name, row.version, problem) else None
        found.append(ChosenPackage(row.name, row.version, known, "requested" if row.name in pins else because))
    others = (pin for pin in pins.items() if pin[0] not in (*names, BITSANDBYTES))
    return (*found, *(ChosenPackage(name, version, None, "requested") for name, version in others))


def _is_listed(name: str, version: str, problem: Problem) -> bool:
    stack = problem.tables.stack
    if name == BITSANDBYTES:
        return any(row.version == version for row in stack.bitsandbytes)
    return any((row.name, row.version) == (name, version) for row in stack.packages)


def _is_left_open(name: str, problem: Problem) -> bool:
    """Return whether another package is to choose the release: what a pin outside the tables needs is unknown."""
    pins = problem.request.pins
    is_open = any(each in COMPANIONS and not _is_listed(each, version, problem) for each, version in pins)
    return name == "huggingface-hub" and is_open and name not in dict(pins)


def _fit_together(rows: tuple[PackageRelease, ...], environment: Environment, bitsandbytes: str | None) -> bool:
    release = environment.candidate.release
    versions = {row.name: row.version for row in rows} | {"torch": str(release.version)}
    if bitsandbytes is not None:
        versions[BITSANDBYTES] = bitsandbytes
    needs = map(split_requirement, (*release.requires, *(line for row in rows for line in row.requires)))
    return all(satisfies(versions[name], specifier) for name, specifier in needs if name in versions)


def _choose_bitsandbytes(
    environment: Environment, companions: tuple[ChosenPackage, ...], problem: Problem
) -> ChosenPackage | None:
    """Choose the newest bitsandbytes with a library for the build and code for every GPU; None when there is none."""
    if not problem.request.adds_packages and not needs_bitsandbytes(problem.request):
        return None
    constraints = problem.request.constraints_on(BITSANDBYTES)
    exact = (each.specifier[2:] for each in constraints if re.fullmatch(r"==[^,*]+", each.specifier))
    pinned = dict(problem.request.pins).get(BITSANDBYTES) or next(exact, None)
    rows = problem.tables.stack.bitsandbytes
    if pinned is not None and all(row.version != pinned for row in rows):
        return ChosenPackage(BITSANDBYTES, pinned, None, "requested")
    # The newest whose code for these GPUs was read goes before a newer one of which it was not.
    rows = tuple(sorted(rows, key=lambda row: _finds_unread_library(row, environment, problem)))
    specifier = _limit_bitsandbytes(companions)
    for row in rows:
        is_allowed = pinned in (None, row.version) and all(each.is_met_by(row.version) for each in constraints)
        if is_allowed and satisfies(row.version, specifier) and _is_bitsandbytes_fit(row, environment, problem):
            candidate, gpus = environment.candidate, _list_gpu_targets(problem)
            because = (
                f"newest release with a library for {candidate.built_for}{f' with code for {gpus}' if gpus else ''}"
            )
            if candidate.cuda is None and candidate.rocm is None:
                because = f"newest release that fits torch {candidate.release.version} and runs on the CPU"
            return ChosenPackage(BITSANDBYTES, row.version, row, "requested" if pinned else because)
    return None


def _is_bitsandbytes_fit(row: BitsandbytesRelease, environment: Environment, problem: Problem) -> bool:
    candidate, python = environment.candidate, environment.python
    if python is not None and not satisfies_python(python, row.python):
        return False
    if not satisfies(str(candidate.release.version), row.torch):
        return False
    if candidate.cuda is not None:
        if find_bitsandbytes_library(candidate.cuda, row.cudas).choice is not LibraryChoice.EXACT:
            return False
        return all(
            not libraries or any(check_gpu_code(gpu, each.sass, each.ptx) is not CodeSupport.NONE for each in libraries)
            for gpu, libraries in _list_libraries(row, environment, problem)
        )
    if candidate.rocm is not None:
        on_rocm = problem.tables.rocm.libraries
        found = [each for each in on_rocm if each.version == row.version and str(candidate.rocm) in each.rocms]
        return bool(found) and all(any(target in each.targets for each in found) for _, target in problem.amd_gpus)
    return row.cpu and (row.aarch64 or problem.architectures == ("x86_64",))


def _list_libraries(
    row: BitsandbytesRelease, environment: Environment, problem: Problem
) -> Iterator[tuple[ComputeCapability, list[BitsandbytesLibrary]]]:
    """List every GPU with the libraries that a release would load there; none where they were not read."""
    cuda = str(environment.candidate.cuda)
    of_release = [each for each in problem.tables.stack.libraries if each.version == row.version and cuda in each.cudas]
    for machine in problem.machines:
        libraries = [each for each in of_release if each.machine == machine.machine]
        yield from ((capability, libraries) for _, capability in machine.gpus)


def _finds_unread_library(row: BitsandbytesRelease, environment: Environment, problem: Problem) -> bool:
    is_cuda = environment.candidate.cuda is not None
    return is_cuda and not all(libraries for _, libraries in _list_libraries(row, environment, problem))


def _list_gpu_targets(problem: Problem) -> str:
    capabilities = [str(capability) for _, capability in problem.gpus]
    return ", ".join(dict.fromkeys([*capabilities, *(target for _, target in problem.amd_gpus)]))


def _limit_bitsandbytes(packages: tuple[ChosenPackage, ...]) -> str:
    """Combine what the chosen packages require of bitsandbytes, as one specifier."""
    lines = [line for each in packages if isinstance(each.row, PackageRelease) for line in each.row.requires]
    return ",".join(specifier for needed, specifier in map(split_requirement, lines) if needed == BITSANDBYTES)


def _find_contradictions(problem: Problem) -> tuple[Constraint, ...]:
    """Find constraints on one package of the tables that no version meets all at once, whether it is known or not."""
    found: list[Constraint] = []
    for name in (BITSANDBYTES, *dict.fromkeys(row.name for row in problem.tables.stack.packages)):
        constraints = problem.request.constraints_on(name)
        bounds = [bound for each in constraints for bound in re.findall(r"\d+(?:\.\d+)*", each.specifier)]
        # Between two bounds every version is as good as the other: one just above each, and one below all.
        versions = ["0", *bounds, *(f"{bound}.0.0.1" for bound in bounds)]
        if len(constraints) > 1 and not any(all(each.is_met_by(one) for each in constraints) for one in versions):
            found += constraints
    return tuple(found)
