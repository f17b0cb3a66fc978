"""Plans for what is not torch: JAX, TensorFlow, CUDA C++, and projects that need no framework."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from devkit.compat.rules import CudaSupport, check_cuda_support, find_oldest_driver
from devkit.compat.specifiers import satisfies, satisfies_python
from devkit.compat.version_tables import CudaImage, FrameworkBuild, RowConfidence, TableRow
from devkit.facts.dependencies import Framework
from devkit.facts.values import Release
from devkit.solver.base_image import (
    doubt_image_life,
    find_image,
    find_python_tag,
    find_python_warnings,
    list_allowed_pythons,
    rank_pythons,
    validate_cuda_of_image,
    validate_requested_image,
)
from devkit.solver.candidates import GPU_REQUESTS, Objection, Problem, describe_gpu, describe_request, explain_vendor
from devkit.solver.plan import FLAGS_ORIGIN, PYTHON, Blocker, Conflict, Plan, Reason, Vendor
from devkit.text import join_words


@dataclass(frozen=True)
class _Choice:
    """A CUDA for the machines: that of an image with nvcc, or of a requirement that brings its libraries."""

    cuda: Release
    row: CudaImage | FrameworkBuild
    objections: tuple[Objection, ...]


def plan_framework(problem: Problem) -> Plan | Conflict:
    """Plan for a different framework than torch; a conflict where no CUDA runs on the machines, or none is for their GPUs."""
    framework, is_gpu = problem.request.framework, problem.vendor is Vendor.NVIDIA
    objections = tuple(_validate_image(problem))
    refused = tuple(each for each in objections if each.refuses)
    choice: _Choice | None = None
    if refused:
        return _build_conflict(problem, refused)
    if framework is Framework.CUDA:
        choice, refused = _choose(problem, _list_images(problem))
    elif framework in (Framework.JAX, Framework.TENSORFLOW) and is_gpu:
        choice, refused = _choose(problem, _list_builds(problem))
    return _build_conflict(problem, refused) if refused else _assemble(problem, choice, objections)


def _validate_image(problem: Problem) -> Iterator[Objection]:
    """Object to the requested image: its tag, its CUDA on these drivers, and its nvcc for these GPUs."""
    if problem.request.image is None:
        return
    image = find_image(problem.request.image, problem)
    yield from validate_requested_image(image, problem)
    yield from validate_cuda_of_image(image, problem)
    yield from doubt_image_life(image, problem)
    if problem.request.framework is not Framework.CUDA:
        return
    if image.cuda is not None and image.has_nvcc:
        row = image.row or problem.tables.images.cuda_images[0]
        yield from (each for each in _validate(image.cuda, row, problem, is_compiler=True) if each.rule == "A5")
    else:
        source = problem.tables.images.cuda_images[0].source[0]
        yield Objection("W1", f"{image.tag} is not known to have nvcc: not checked", source, refuses=False)


def _choose(problem: Problem, choices: Iterator[_Choice]) -> tuple[_Choice | None, tuple[Objection, ...]]:
    """Choose the first that nothing refuses; where there is none, what refuses the newest."""
    refused: tuple[Objection, ...] = ()
    for choice in choices:
        refusals = tuple(each for each in choice.objections if each.refuses)
        if not refusals:
            return choice, ()
        refused = refused or refusals
    return None, refused


def _list_images(problem: Problem) -> Iterator[_Choice]:
    """List the images with nvcc, newest first; those that are for the project's Python go before the others.

    Of a requested image the CUDA is known where the tables have it.
    """
    if problem.request.image is not None:
        image = find_image(problem.request.image, problem)
        if isinstance(image.row, CudaImage) and image.has_nvcc:
            yield _Choice(image.row.cuda, image.row, ())
        return
    wanted = Release.parse(problem.request.cuda).numbers if problem.request.cuda else ()
    constraints = problem.request.constraints_on(PYTHON)
    rows = [row for row in problem.tables.images.cuda_images if set(problem.architectures) <= set(row.machines)]
    rows = [row for row in rows if row.cuda.numbers[: len(wanted)] == wanted]
    for row in sorted(rows, key=lambda row: not all(each.is_met_by(row.python) for each in constraints)):
        cuda = Release.parse(row.cuda.minor)
        yield _Choice(row.cuda, row, tuple(_validate(cuda, row, problem, is_compiler=True)))


def _list_builds(problem: Problem) -> Iterator[_Choice]:
    """List what brings the framework its CUDA, newest first, for the releases that the project allows."""
    rows = [row for row in problem.tables.frameworks.builds if row.framework == problem.request.framework]
    wanted = Release.parse(problem.request.cuda).numbers if problem.request.cuda else ()
    # A lock that holds a plugin has its CUDA; two plugins side by side each register a GPU.
    plugins = (re.fullmatch(r"jax-cuda(\d+)-plugin", each.name) for each in problem.request.constraints)
    locked = {found[1] for found in plugins if found}
    for row in rows:
        nexts = [each for each in rows if row.flavor or each.requirement == row.requirement]
        later = [each.since for each in nexts if each.since > row.since]
        if (
            _find_python(problem, row.python)
            and row.cuda.numbers[: len(wanted)] == wanted
            and (not locked or str(row.cuda.numbers[0]) in locked)
            and _is_allowed(row, min(later, default=None), problem)
        ):
            yield _Choice(row.cuda, row, tuple(_validate(row.cuda, row, problem, is_compiler=False)))


def _is_allowed(row: FrameworkBuild, until: Release | None, problem: Problem) -> bool:
    """Return whether the project allows a release from `since` on, and before the one that the next row begins with."""
    names = (row.framework, *(f"{row.framework}{suffix}" for suffix in ("-gpu", "lib")))
    specifiers = [each.specifier for name in names for each in problem.request.constraints_on(name)]
    specifiers += [f"=={version}" for name, version in problem.request.pins if name in names]
    named = [bound for each in specifiers for bound in re.findall(r"\d+(?:\.\d+)*", each)]
    releases = [Release.parse(text) for text in (str(row.since), *named, *(f"{bound}.0.0.1" for bound in named))]
    releases = [each for each in releases if row.since <= each and (until is None or each < until)]
    return any(all(satisfies(str(release), each) for each in specifiers) for release in releases)


def _validate(cuda: Release, row: TableRow, problem: Problem, *, is_compiler: bool) -> Iterator[Objection]:
    """Object to drivers that do not run a CUDA (R4), and to GPUs that it has no code for (A1), or no compiler (A5)."""
    for machine in problem.machines if problem.vendor is Vendor.NVIDIA else ():
        support = CudaSupport.FULL
        if machine.driver is not None:
            support = check_cuda_support(
                machine.driver, cuda, platform=machine.platform, driver_says=machine.cuda, known=problem.tables
            )
        # The image of a CUDA demands a driver that runs it in full.
        if support is CudaSupport.NO or (is_compiler and support is not CudaSupport.FULL):
            floor = find_oldest_driver(cuda, platform=machine.platform, known=problem.tables)
            verb = "specify" if machine.origin == FLAGS_ORIGIN else "has"
            says = f"CUDA {cuda} needs driver {floor} or newer, but {machine.origin} {verb} driver {machine.driver}"
            yield Objection("R4", says, problem.tables.driver.branches[0].source[0])
        for name, capability in machine.gpus:
            known, gpu = problem.tables.driver.capabilities.get(capability), describe_gpu(name, capability)
            if isinstance(row, FrameworkBuild) and capability < row.capability:
                says = f"{row.requirement} needs compute capability {row.capability}; {gpu} is older"
                yield Objection.from_row(row, "A1", says)
            elif isinstance(row, FrameworkBuild) and capability in row.lacks:
                yield Objection("A1", f"the kernels of {row.requirement} fail on {gpu}", row.source[0])
            elif known and (cuda < known.first_cuda or (known.last_cuda and cuda > known.last_cuda)) and is_compiler:
                range_ = (
                    f"{known.first_cuda} to {known.last_cuda}" if known.last_cuda else f"{known.first_cuda} or newer"
                )
                yield Objection.from_row(
                    known, "A5", f"nvcc from CUDA {cuda} cannot compile for {gpu}, which requires CUDA {range_}"
                )
            elif known and known.last_cuda and cuda > known.last_cuda:
                yield Objection.from_row(
                    known, "A5", f"CUDA {cuda} has no code for {gpu}: {known.last_cuda} is the last that does"
                )


def _build_conflict(problem: Problem, refused: tuple[Objection, ...]) -> Conflict:
    blockers = tuple(Blocker(each.rule, each.says, each.source) for each in refused)
    nearest, changes = None, ""
    request = problem.request
    for changed, flag in (
        (replace(request, cuda=None), "--cuda {0.cuda}"),
        (replace(request, image=None), "--image {0.base_image}"),
        (replace(request, vendor=Vendor.CPU, cuda=None), "--vendor cpu"),
    ):
        if changed == request:
            continue
        answer = plan_framework(replace(problem, request=changed, vendor=changed.vendor or problem.vendor))
        if isinstance(answer, Plan):
            nearest, changes = answer, flag.format(answer)
            break
    return Conflict(describe_request(problem), blockers, nearest, changes, problem.tables.as_of)


def _assemble(problem: Problem, choice: _Choice | None, objections: tuple[Objection, ...]) -> Plan:
    request, framework = problem.request, problem.request.framework or Framework.NONE
    build = choice.row if choice and isinstance(choice.row, FrameworkBuild) else None
    image, python, image_row, image_because = _choose_image(problem, choice)
    gpu_request, gpu_because = GPU_REQUESTS[problem.vendor]
    sure = RowConfidence.CONFIRMED
    because = request.framework_because or "requested"
    reasons = [Reason("framework", framework.label, because, "the project", sure)]
    reasons.append(explain_vendor(problem))
    if choice is not None:
        what = "of nvcc" if build is None else "of its libraries"
        reasons.append(Reason("cuda", str(choice.cuda), what, choice.row.source[0], choice.row.confidence))
    if build is not None and not build.flavor:
        says = f"gives {framework.label} the libraries of CUDA {build.cuda}, which the driver supports"
        reasons.append(Reason("additions", build.requirement, says, build.source[0], build.confidence))
    reasons.append(
        Reason("python", python, _explain_python(problem, image_row), image_row.source[0], image_row.confidence)
    )
    reasons.append(Reason("base_image", image, image_because, image_row.source[0], image_row.confidence))
    reasons.append(Reason("gpu_request", gpu_request, gpu_because, "the vendor", sure))
    return Plan(
        vendor=problem.vendor,
        base_image=image,
        python=python,
        torch="",
        variant="",
        cuda=choice.cuda.minor if choice else None,
        torch_index="",
        packages=(),
        gpu_request=gpu_request,
        architectures=problem.architectures,
        reasons=tuple(reasons),
        warnings=tuple(_list_warnings(problem, choice, objections, python)),
        data_as_of=problem.tables.as_of,
        framework=framework,
        additions=(build.requirement,) if build and not build.flavor else (),
        capabilities=tuple(dict.fromkeys(str(capability) for _, capability in problem.gpus)),
    )


def _choose_image(problem: Problem, choice: _Choice | None) -> tuple[str, str, TableRow, str]:
    """Choose the base image and its Python: the requested one, that of nvcc, or Python's slim one."""
    images, request = problem.tables.images, problem.request
    if request.image is not None:
        image = find_image(request.image, problem)
        return (
            request.image,
            request.python or image.python or rank_pythons(problem)[0],
            image.row or images.python_images[0],
            "requested",
        )
    if choice is not None and isinstance(choice.row, CudaImage):
        row = choice.row
        because = f"its nvcc is from CUDA {row.cuda}, the newest that the driver and the GPUs support"
        return f"nvidia/cuda:{row.cuda}-devel-{row.system}", row.python, row, because
    if choice is not None and isinstance(choice.row, FrameworkBuild) and choice.row.flavor:
        # The newest image of that CUDA whose own Python the releases have wheels for.
        for cuda_row in images.cuda_images:
            is_same = cuda_row.cuda.numbers[:2] == choice.row.cuda.numbers
            if is_same and satisfies_python(cuda_row.python, choice.row.python):
                because = f"{choice.row.requirement} of these releases includes no CUDA"
                tag = f"nvidia/cuda:{cuda_row.cuda}-{choice.row.flavor}-{cuda_row.system}"
                return tag, cuda_row.python, cuda_row, because
    specifier = choice.row.python if choice and isinstance(choice.row, FrameworkBuild) else ""
    python = _find_python(problem, specifier) or request.python or rank_pythons(problem)[0]
    found = (row for row in images.python_images if row.python == python)
    slim = next((row for row in found if set(problem.architectures) <= set(row.machines)), None)
    because = "slim: it needs nothing for GPUs, and the host provides the driver"
    tag, slim = find_python_tag(python, slim, problem)
    return tag, python, slim or images.python_images[0], because


def _find_python(problem: Problem, specifier: str) -> str | None:
    """Find the Python: the requested one, or the best that the project allows; None where it is not in the specifier."""
    requested = problem.request.python
    allowed = [requested] if requested else list_allowed_pythons(rank_pythons(problem), problem)
    return next((each for each in allowed if satisfies_python(each, specifier)), None)


def _explain_python(problem: Problem, image_row: TableRow) -> str:
    if problem.request.python:
        return "requested"
    if isinstance(image_row, CudaImage) or problem.request.image:
        return "the image's own"
    constraints = problem.request.constraints_on(PYTHON)
    because = "the most widely supported Python"
    return f"{because}; {' and '.join(map(str, constraints))}" if constraints else because


def _list_warnings(
    problem: Problem, choice: _Choice | None, objections: tuple[Objection, ...], python: str
) -> Iterator[str]:
    request, framework = problem.request, problem.request.framework or Framework.NONE
    title = framework.label
    yield from (note for machine in problem.machines for note in machine.notes)
    yield from (f"{each.says} ({each.rule})" for each in (*objections, *(choice.objections if choice else ())))
    if framework in (Framework.JAX, Framework.TENSORFLOW):
        if problem.vendor is Vendor.ROCM:
            yield f"{title} on AMD GPUs needs an image that includes ROCm: the plan does not add or check anything for them"
        elif problem.vendor is Vendor.NVIDIA and choice is None:
            other = f"CUDA {request.cuda}" if request.cuda else f"the project's {title}"
            wants = " and ".join(map(str, request.constraints_on(framework))) or other
            yield f"{wants}: no such {title} in the tables, so devkit did not check whether it computes on the GPU"
    if framework is Framework.CUDA and not problem.gpus:
        yield "no GPU is known, so the project chooses the CUDA architectures"
    for constraint in request.constraints_on(PYTHON):
        if not constraint.is_met_by(python):
            yield f"{constraint}; the image has {python}"
    for name, _ in request.pins:
        yield f"--pin {name} is used unchanged and was not checked"
    yield from find_python_warnings(python, problem)
    missing = [machine.origin for machine in problem.machines if machine.driver is None]
    if choice is not None and problem.vendor is Vendor.NVIDIA and missing:
        floor = find_oldest_driver(Release.parse(choice.cuda.minor), known=problem.tables)
        yield f"no driver is known for {join_words(missing)}: it needs {floor} or newer"
