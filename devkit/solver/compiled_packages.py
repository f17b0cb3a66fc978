"""Packages that compile code against torch: whether they can here, with which nvcc, and what that costs."""

import math
from collections.abc import Iterator
from dataclasses import replace

from devkit.compat.specifiers import satisfies, split_requirement
from devkit.compat.version_tables import CompiledPackage as PackageRow
from devkit.compat.version_tables import PrebuiltWheel, RowConfidence
from devkit.facts.dependencies import (
    Dependencies,
    LocalBuild,
    PackageRequirement,
    RequirementRole,
    Resolved,
    SourceBuild,
)
from devkit.facts.values import Release
from devkit.solver.base_image import find_image
from devkit.solver.candidates import Problem
from devkit.solver.gpu_support import NVCC
from devkit.solver.plan import FROM_WHEELS, CompiledPackage, CompileMode, Constraint, Plan, Reason, Vendor
from devkit.solver.project import does_apply
from devkit.text import format_count, join_words

_DEFAULT_JOB_GB = 4


def list_compile_limits(dependencies: Dependencies, problem: Problem) -> tuple[Constraint, ...]:
    """List the limits on torch beyond which a package of the project does not compile; none where torch is requested."""
    if problem.request.torch or problem.vendor is not Vendor.NVIDIA:
        return ()
    rows, headers = problem.tables.compiled.packages, problem.tables.compiled.headers
    names = {need.name for need in _list_needs(dependencies, problem.architectures, problem.request.python)}
    found = [(f"{name} {rows[name].version}", rows[name].cxx) for name in sorted(names & rows.keys())]
    found += [(build.origin, build.cxx) for build in _list_builds(dependencies)]
    return tuple(Constraint("torch", headers[cxx].torch, f"{who} (C++{cxx})") for who, cxx in found if cxx in headers)


def add_compiled_packages(plan: Plan, dependencies: Dependencies, problem: Problem) -> Plan:
    """Add to the plan what compiles against torch, and where nvcc comes from; done again, by what uv resolved since."""
    plan = replace(
        plan,
        nvcc=_find_nvcc(plan, problem),
        warnings=tuple(each for each in plan.warnings if each not in _list_left_out(plan)),
    )
    needs = {need.name: need for need in _list_needs(dependencies, plan.architectures, plan.python)}
    built = plan.resolution.from_source if isinstance(plan.resolution, Resolved) else ()
    read = plan.resolution.builds if isinstance(plan.resolution, Resolved) else ()
    builds = {each.package: each for each in read if each.modules}
    unisolated = {name: each for name, each in needs.items() if each.unisolated_by and (each.url or name in built)}
    rows = {name: _assume_row(name, each.unisolated_by) for name, each in unisolated.items()}
    rows |= {name: _read_row(each) for name, each in builds.items()} | problem.tables.compiled.packages
    # The lock's own wheel is installed as the lock says it.
    locked = {need.name for need in dependencies.needs if need.role is RequirementRole.CONSTRAINT and need.url}
    names = sorted(((needs.keys() | plan.resolved.keys()) & rows.keys()) - locked)
    found = [
        each
        for name in names
        if (each := _plan_requirement(rows[name], needs.get(name), builds.get(name), plan, problem))
    ]
    found += [_plan_local_build(build, rows.get(build.name), plan) for build in _list_builds(dependencies)]
    absent = plan.resolution.absent if isinstance(plan.resolution, Resolved) else ()
    for name in absent:
        required = f"{needs[name].origin} requires it, but " if name in needs else ""
        says = f"{required}the package index does not have it for Linux"
        found.append(CompiledPackage(name, CompileMode.LEFT_OUT, says, "uv"))
    compiles = any(each.mode in (CompileMode.COMPILED, CompileMode.AT_USE) and each.uses_torch for each in found)
    own_build = dependencies.cuda_build if plan.torch else ""
    is_wanted = NVCC in problem.request.features or bool(own_build)
    missing = f"no nvcc of CUDA {plan.cuda} is known for {plan.base_image}, and the image has none"
    lacks_nvcc = is_wanted and plan.cuda and not plan.nvcc
    plan = replace(plan, compiled=tuple(found), nvcc=plan.nvcc if compiles or is_wanted else "")
    warnings = (*plan.warnings, *_list_left_out(plan), *((missing,) if lacks_nvcc else ()))
    reasons = [each for each in plan.reasons if each.field != NVCC]
    if plan.nvcc and own_build:
        because = f"{own_build} has nvcc compile"
        reasons.append(Reason(NVCC, f"CUDA {plan.cuda}", because, own_build.partition(":")[0], RowConfidence.CONFIRMED))
    return replace(plan, reasons=tuple(reasons), warnings=tuple(dict.fromkeys(warnings)))


def _list_left_out(plan: Plan) -> list[str]:
    return [
        f"{each.name} is not installed: {each.because}" for each in plan.compiled if each.mode is CompileMode.LEFT_OUT
    ]


def list_compile_costs(plan: Plan, *, cores: int, memory_gb: int) -> Iterator[str]:
    """List in words what compiles, when, and how long it takes with so many cores and so much memory."""
    yield from (f"nvcc of {each.value} is in the image: {each.because}" for each in plan.reasons if each.field == NVCC)
    for each in plan.compiled:
        if each.mode is CompileMode.WHEEL:
            yield f"{each.name} comes as a wheel: {each.because}"
        elif each.mode is CompileMode.AT_USE:
            yield f"{each.name} compiles when it is first used: {each.because}"
        elif each.mode is CompileMode.COMPILED:
            jobs = max(1, min(cores, memory_gb // each.job_gb))
            limits = f"{format_count(jobs, 'job')} of up to {each.job_gb} GB"
            time = f"about {format_count(math.ceil(each.core_minutes / jobs), 'minute')}" if each.core_minutes else ""
            when = "when the container is created" if each.path else "while the image is built"
            cost = f"{time} here with {limits}" if time else f"its duration is unknown; it uses {limits} here"
            yield f"{each.name} compiles {when}, {cost}: {each.because}"


def _list_needs(
    dependencies: Dependencies, architectures: tuple[str, ...], python: str | None
) -> Iterator[PackageRequirement]:
    for need in dependencies.needs:
        if need.role is not RequirementRole.CONSTRAINT and does_apply(need, architectures, python):
            yield need


def _list_builds(dependencies: Dependencies) -> Iterator[LocalBuild]:
    """List the packages among the project's files that are installed and compile against torch."""
    installed = {each.place for each in dependencies.local} | ({"."} if dependencies.builds_itself else set())
    return (build for build in dependencies.builds if build.needs_torch and build.path in installed)


def _find_nvcc(plan: Plan, problem: Problem) -> str:
    """Find where nvcc of torch's CUDA comes from: the base image, packages of the index, or another image; "" for nowhere.

    From an image only the compiler is copied, so what the image demands of the driver does not matter.
    """
    if plan.cuda is None:
        return ""
    cuda = Release.parse(plan.cuda)
    base = find_image(plan.base_image, problem)
    if base.has_nvcc and base.cuda is not None and base.cuda.numbers[:2] == cuda.numbers[:2]:
        return plan.base_image
    if all(cuda >= row.since_cuda for row in problem.tables.compiled.toolkit):
        return FROM_WHEELS
    for row in problem.tables.images.cuda_images:
        is_built = set(plan.architectures) <= set(row.machines)
        runs = base.glibc is None or row.glibc <= base.glibc
        if row.cuda.numbers[:2] == cuda.numbers[:2] and is_built and runs:
            return f"nvidia/cuda:{row.cuda}-devel-{row.system}"
    return ""


def _plan_requirement(
    row: PackageRow, need: PackageRequirement | None, build: SourceBuild | None, plan: Plan, problem: Problem
) -> CompiledPackage | None:
    """Plan one package of the table; None for one that installs like any other."""
    name = row.package
    version = plan.resolved.get(name) or (need.specifier.removeprefix("==") if need else "")
    because = "the package index has no wheel for it"
    if build is not None:
        takes = join_words([each.name for each in build.modules])
        because += f", and its build takes {takes} ({build.modules[0].origin})"
    if need and need.unisolated_by:
        because = f"{need.unisolated_by} builds it without isolation"
    found = CompiledPackage(
        name=name,
        mode=CompileMode.COMPILED,
        because=because,
        source=row.source[0],
        core_minutes=row.core_minutes * max(1, len(plan.capabilities)),
        job_gb=row.job_gb,
        requires=row.requires,
        variables=tuple(_fill(variable, plan.capabilities) for variable in row.variables if plan.cuda),
        uses_torch=build is None or "torch" in [each.name for each in build.modules],
    )
    if row.is_at_use:
        return replace(found, mode=CompileMode.AT_USE, because="its operators are then compiled") if plan.nvcc else None
    wheels = [each for each in problem.tables.compiled.wheels if each.package == name and _is_allowed(each, need)]
    base = find_image(plan.base_image, problem)
    # The version that uv chose, as of a day perhaps, goes before newer ones.
    for wheel in sorted(wheels, key=lambda each: each.version != version):
        if _serves(wheel, plan, glibc=base.glibc):
            torch, python = _find_minor(plan.torch), plan.python.replace(".", "")
            url = wheel.url.format(torch=torch, python=python, machine=plan.architectures[0])
            # A wheel may be somebody else's than the authors': whose it is stands in its address.
            place = wheel.url.removeprefix("https://").partition("/releases/")[0].partition("/whl/")[0]
            because = f"{wheel.version} is published for torch {torch} and CUDA {wheel.cuda} by {place}"
            return replace(found, mode=CompileMode.WHEEL, because=because, url=url)
    is_built = isinstance(plan.resolution, Resolved) and name in plan.resolution.from_source
    if row.has_wheels and not is_built:
        return None
    left_out, headers = "", problem.tables.compiled.headers.get(row.cxx)
    # What is known of the releases up to the row's holds for one that is not known, too.
    is_covered = not version or not row.version or satisfies(version, f"<={row.version}")
    if row.needs_cuda and plan.cuda is None:
        left_out = "it compiles only with CUDA's nvcc, but this plan has no CUDA"
    elif row.needs_cuda and not plan.nvcc:
        left_out = f"no nvcc of CUDA {plan.cuda} is known for {plan.base_image}"
    elif headers and not satisfies(plan.torch, headers.torch) and is_covered:
        left_out = f"{row.version} compiles as C++{row.cxx}, which the headers of torch {plan.torch} do not support"
    if left_out:
        return replace(found, mode=CompileMode.LEFT_OUT, because=left_out)
    if wheels and plan.cuda:
        newest = max((minor for wheel in wheels for minor in wheel.torch), key=Release.parse)
        found = replace(found, because=f"{found.because}; --torch {newest} has one published elsewhere")
    return found


def _read_row(build: SourceBuild) -> PackageRow:
    """Return what the build files of a package say: it is built without isolation, beside what it imports."""
    row = _assume_row(build.package, build.modules[0].origin)
    lines = (*build.requires, *(each.name for each in build.modules))
    return replace(row, requires=tuple(line for line in lines if split_requirement(line)[0] != "torch"))


def _assume_row(name: str, source: str) -> PackageRow:
    """Assume of a package that is built without isolation that it takes torch, and nothing else."""
    return PackageRow(
        package=name,
        needs_cuda=False,
        job_gb=_DEFAULT_JOB_GB,
        source=(source,),
        checked="",
        confidence=RowConfidence.INFERRED,
    )


def _plan_local_build(build: LocalBuild, row: PackageRow | None, plan: Plan) -> CompiledPackage:
    """Plan a package among the project's own files."""
    is_project = build.path == "."
    found = CompiledPackage(
        name=build.name or ("the project" if is_project else build.path),
        mode=CompileMode.COMPILED,
        because=f"its build imports torch ({build.origin})"
        if build.origin != ".gitmodules"
        else "it is a git submodule",
        source=build.origin,
        path=build.path,
        core_minutes=(row.core_minutes if row else 0) * max(1, len(plan.capabilities)),
        job_gb=row.job_gb if row else _DEFAULT_JOB_GB,
        requires=(*build.requires, *(row.requires if row else ())),
        variables=tuple(_fill(variable, plan.capabilities) for variable in row.variables) if row and plan.cuda else (),
    )
    if plan.cuda is not None or row is None or not row.needs_cuda:
        return found
    if row.without_cuda:
        return replace(
            found, variables=(row.without_cuda,), because=f"{found.because}; without CUDA, by {row.without_cuda}"
        )
    return replace(
        found, mode=CompileMode.LEFT_OUT, because="it compiles only with CUDA's nvcc, but this plan has no CUDA"
    )


def _is_allowed(wheel: PrebuiltWheel, need: PackageRequirement | None) -> bool:
    return need is None or (not need.url and (not need.specifier or satisfies(wheel.version, need.specifier)))


def _serves(wheel: PrebuiltWheel, plan: Plan, *, glibc: Release | None) -> bool:
    return (
        plan.cuda is not None
        and f"{plan.cuda}.".startswith(f"{wheel.cuda}.")
        and (wheel.glibc is None or glibc is None or glibc >= wheel.glibc)
        and _find_minor(plan.torch) in wheel.torch
        and plan.python in wheel.pythons
        and len(plan.architectures) == 1
        and plan.architectures[0] in wheel.machines
    )


def _find_minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _fill(variable: str, capabilities: tuple[str, ...]) -> str:
    """Fill in the GPUs to compile for, in the ways that packages write them."""
    majors = dict.fromkeys(f"{each.partition('.')[0]}0" for each in capabilities)
    numbers = (each.replace(".", "") for each in capabilities)
    return variable.format(archs=";".join(capabilities), numbers=";".join(numbers), majors=";".join(majors))
