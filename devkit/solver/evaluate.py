"""Evaluation of candidates: settle the environment of each, put it through the rules, and plan the one that won."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from devkit.compat.rules import CudaSupport
from devkit.compat.version_tables import RowConfidence, TableRow
from devkit.facts.values import Release
from devkit.solver import base_image, gpu_support, packages
from devkit.solver.candidates import (
    GPU_REQUESTS,
    SUPPORT_ORDER,
    BaseImage,
    Candidate,
    ChosenPackage,
    Environment,
    Objection,
    Problem,
    explain_vendor,
    find_nearest_release,
)
from devkit.solver.gpu_support import (
    find_compile_target,
    find_driver_warnings,
    find_feature_warnings,
    find_rocm_warnings,
    find_toolkit_warnings,
)
from devkit.solver.packages import find_pin_warnings
from devkit.solver.plan import PYTHON, Plan, Reason, Vendor

Validator = Callable[[Environment, Problem], Iterator[Objection]]

VALIDATORS: tuple[Validator, ...] = (
    packages.validate_constraints,
    base_image.validate_image_tag,
    base_image.validate_python_wheel,
    base_image.validate_image_system,
    lambda environment, problem: base_image.doubt_image_life(environment.image, problem),
    gpu_support.validate_published,
    gpu_support.validate_gpu_code,
    gpu_support.validate_driver,
    lambda environment, problem: base_image.validate_cuda_of_image(environment.image, problem),
    packages.validate_companions,
    packages.validate_bitsandbytes,
    gpu_support.validate_features,
)
"""From "does it exist" to "can it do what was requested": the first that refuses is the root cause to report."""


@dataclass(frozen=True)
class Evaluation:
    """An environment with the objections to it. `passed` counts the validators before the one that refused it."""

    environment: Environment
    objections: tuple[Objection, ...]
    passed: int

    @property
    def candidate(self) -> Candidate:
        """The torch build."""
        return self.environment.candidate

    @property
    def refusals(self) -> tuple[Objection, ...]:
        """The objections that rule the candidate out."""
        return tuple(objection for objection in self.objections if objection.refuses)

    @property
    def doubts(self) -> tuple[Objection, ...]:
        """The objections that only warn."""
        return tuple(objection for objection in self.objections if not objection.refuses)

    @property
    def preference_key(self) -> tuple[object, ...]:
        """Sort key among candidates that nothing refuses, best first (W5).

        Fewest doubts, no forward compatibility, the newest torch, full support before minor version compatibility, the
        variant that plain pip would install, the newest CUDA.
        """
        candidate, support = self.candidate, self.environment.support
        return (
            len(self.doubts),
            support is CudaSupport.FORWARD,
            _newest_first(candidate.release.version),
            SUPPORT_ORDER.index(support),
            candidate.index.label != candidate.release.default_variant,
            _newest_first(candidate.cuda or Release.parse("0")),
        )


def evaluate_candidate(candidate: Candidate, problem: Problem) -> Evaluation:
    """Settle a candidate's environment, and validate it up to the first rule that refuses it."""
    support = gpu_support.find_cuda_support(candidate, problem)
    environment = Environment(candidate, support, None, None)
    image, python = base_image.choose_image_and_python(candidate, problem, environment.support)
    environment = replace(environment, image=image, python=python)
    objections: list[Objection] = []
    for passed, validate in enumerate(VALIDATORS):
        if validate is packages.validate_companions:
            # Choosing packages is most of the work: only for what the hardware runs.
            environment = replace(environment, packages=packages.choose_packages(environment, problem))
        found = list(validate(environment, problem))
        objections += found
        if any(objection.refuses for objection in found):
            return Evaluation(environment, tuple(objections), passed)
    return Evaluation(environment, tuple(objections), len(VALIDATORS))


def _newest_first(release: Release) -> tuple[int, ...]:
    return tuple(-number for number in (*release.numbers, 0, 0)[:3])


def assemble_plan(winner: Evaluation, rejected: tuple[Evaluation, ...], problem: Problem) -> Plan:
    """Assemble the plan of the winner. `rejected` are the others, newest first, to say why they were not chosen."""
    environment, candidate = winner.environment, winner.candidate
    image, python, packages = environment.image, environment.python, environment.packages
    if image is None or python is None or packages.companions is None:
        raise ValueError("a candidate without image, Python or packages was not refused")
    chosen = (*packages.companions, *((packages.bitsandbytes,) if packages.bitsandbytes else ()))
    torch = str(candidate.release.version)
    capabilities = {capability for _, capability in problem.gpus}
    if cuda := candidate.cuda:
        capabilities = {find_compile_target(cuda, each, problem) or each for each in capabilities}
    return Plan(
        vendor=problem.vendor,
        base_image=image.tag,
        python=python,
        torch=torch,
        variant=candidate.index.label,
        cuda=str(cuda) if cuda else None,
        torch_index=candidate.index.url,
        packages=(("torch", torch), *((each.name, each.version) for each in chosen)),
        gpu_request=GPU_REQUESTS[problem.vendor][0],
        architectures=problem.architectures,
        reasons=tuple(_list_reasons(winner, rejected, problem, image, python, chosen)),
        warnings=tuple(dict.fromkeys(_list_warnings(winner, problem, image, python))),
        data_as_of=problem.tables.as_of,
        rocm=str(candidate.rocm) if candidate.rocm else None,
        capabilities=tuple(map(str, sorted(capabilities))),
    )


def _list_reasons(
    winner: Evaluation,
    rejected: tuple[Evaluation, ...],
    problem: Problem,
    image: BaseImage,
    python: str,
    chosen: tuple[ChosenPackage, ...],
) -> Iterator[Reason]:
    candidate = winner.candidate
    release, index = candidate.release, candidate.index
    yield explain_vendor(problem)
    published = problem.tables.rocm.releases.get(release.version) if candidate.rocm else None
    yield _from_rows("torch", str(release.version), _explain_torch(winner, rejected, problem), published or release)
    if candidate.cuda is not None:
        yield _from_rows("cuda", str(candidate.cuda), _explain_cuda(winner, problem), *(candidate.wheels or (index,)))
    if candidate.rocm is not None:
        yield _from_rows("rocm", str(candidate.rocm), "the wheel is built with it and includes it", index)
    is_cpu = problem.vendor is Vendor.CPU
    built = "for the CPU, without gigabytes of CUDA libraries" if is_cpu else f"for {candidate.built_for}"
    yield _from_rows("torch_index", index.url, f"torch {built}", index)
    python_row = next((row for row in problem.tables.stack.pythons if row.version == python), release)
    yield _from_rows("python", python, _explain_python(problem, image), python_row)
    image_row = image.row or problem.tables.images.python_images[0]
    yield _from_tables("base_image", image.tag, _explain_image(winner, problem, image), image_row, is_listed=image.row)
    for each in chosen:
        row = each.row or problem.tables.stack.packages[0]
        yield _from_tables(each.name, each.version, each.because, row, is_listed=each.row)
    gpu_request, because = GPU_REQUESTS[problem.vendor]
    yield Reason("gpu_request", gpu_request, because, "the vendor", RowConfidence.CONFIRMED)


def _explain_torch(winner: Evaluation, rejected: tuple[Evaluation, ...], problem: Problem) -> str:
    gpus = ", ".join(problem.gpu_names)
    because = f"newest release that supports {gpus}" if gpus else "newest release"
    if winner.doubts and gpus:
        because = f"the safest choice for {gpus}; see the warnings"
    if problem.request.torch:
        because = "requested"
    newer = (each for each in rejected if each.candidate.release.version > winner.candidate.release.version)
    refused = next((each for each in newer if each.refusals), None)
    if refused is None:
        return because
    return f"{because}; not {refused.candidate.release.version}: {refused.refusals[0].says}"


def _explain_cuda(winner: Evaluation, problem: Problem) -> str:
    drivers = dict.fromkeys(str(machine.driver) for machine in problem.machines if machine.driver is not None)
    if not drivers:
        return "the wheel is built with it, so the driver must run it"
    runs = f"driver {', '.join(drivers)} runs CUDA {winner.candidate.cuda}"
    match winner.environment.support:
        case CudaSupport.FULL:
            return f"{runs} in full (R1)"
        case CudaSupport.MINOR:
            return f"{runs} by minor version compatibility (R2)"
        case CudaSupport.FORWARD:
            return f"{runs} by forward compatibility (R5)"
        case CudaSupport.NO:
            raise ValueError("a candidate that no driver runs was not refused")


def _explain_python(problem: Problem, image: BaseImage) -> str:
    if problem.request.python:
        return "requested"
    if problem.request.image or image.cuda is not None:
        return f"the Python of {image.tag}"
    because = "the most widely supported Python version with all wheels"
    constraints = problem.request.constraints_on(PYTHON)
    return f"{because}; {' and '.join(map(str, constraints))}" if constraints else because


def _explain_image(winner: Evaluation, problem: Problem, image: BaseImage) -> str:
    candidate = winner.candidate
    if problem.request.image:
        return "requested"
    if image.cuda is not None:
        return f"it has the cuda-compat libraries that the driver needs to run CUDA {candidate.cuda}"
    if candidate.cuda is not None or candidate.rocm is not None:
        return f"slim: the torch wheel includes {'CUDA' if candidate.cuda else 'ROCm'}"
    return "slim: torch for the CPU does not need anything else"


def _from_rows(field: str, value: str, because: str, *rows: TableRow) -> Reason:
    """Build a reason that is as sure as the least sure of its rows."""
    order = tuple(RowConfidence)
    confidence = max((row.confidence for row in rows), key=order.index)
    return Reason(field, value, because, rows[0].source[0], confidence)


def _from_tables(field: str, value: str, because: str, row: TableRow, *, is_listed: object) -> Reason:
    """Build a reason from one row; a value that the tables do not list is inferred from another."""
    return Reason(field, value, because, row.source[0], row.confidence if is_listed else RowConfidence.INFERRED)


def _list_warnings(winner: Evaluation, problem: Problem, image: BaseImage, python: str) -> Iterator[str]:
    release = winner.candidate.release
    if release.is_inferred:
        nearest = find_nearest_release(release.version, problem.tables).version
        yield f"torch {release.version} is not in the tables: it is treated like {nearest} and not checked"
    yield from (f"{objection.says} ({objection.rule})" for objection in winner.doubts)
    yield from (note for machine in problem.request.machines for note in machine.notes)
    yield from find_driver_warnings(winner.environment, problem)
    if problem.vendor is Vendor.NVIDIA and not problem.gpus:
        yield "no GPU is known, so the wheel's code for it was not checked"
    for wheel in winner.candidate.wheels:
        if wheel.is_inferred:
            yield f"the GPU code of {winner.candidate} for {wheel.machine} is inferred, not read from the wheel"
    if image.row is None:
        yield f"{image.tag} is not in the tables, so its Python and C library were not checked"
    yield from base_image.find_python_warnings(python, problem)
    yield from find_pin_warnings(problem)
    yield from find_feature_warnings(problem)
    yield from find_rocm_warnings(problem)
    yield from find_toolkit_warnings(problem)
