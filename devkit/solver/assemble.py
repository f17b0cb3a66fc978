"""Turns the candidate that won into a plan, with a reason beside every choice."""

from collections.abc import Iterator

from devkit.compat.rules import CudaSupport
from devkit.compat.version_tables import Confidence, PythonVersion, TableRow
from devkit.solver import base_image, evaluate, gpu_support, packages
from devkit.solver.base_image import NVCC, BaseImage
from devkit.solver.candidates import Candidate, Problem
from devkit.solver.evaluate import Evaluation
from devkit.solver.plan import Plan, Reason, Vendor

_GPU_REQUESTS = {
    Vendor.NVIDIA: ("all", "every GPU of the host is for the container"),
    Vendor.ROCM: ("rocm", "the host's AMD devices, /dev/kfd and /dev/dri, are for the container"),
    Vendor.CPU: ("none", "no GPU is used"),
}


def assemble_plan(winner: Evaluation, rejected: tuple[Evaluation, ...], question: Problem) -> Plan:
    """The plan of the winning candidate. `rejected` are the others, newest first, to say why they were not taken."""
    candidate = winner.candidate
    base = base_image.choose_image(candidate, question)
    python = base_image.choose_python(candidate, question)
    if base is None or python is None:
        raise ValueError("a candidate without image or Python was not refused")
    chosen = _packages(candidate, question)
    cuda = candidate.cuda
    torch = str(candidate.release.version)
    return Plan(
        vendor=question.vendor,
        base_image=base.tag,
        python=python,
        torch=torch,
        variant=candidate.index.label,
        cuda=str(cuda) if cuda else None,
        torch_index=candidate.index.url,
        packages=(("torch", torch), *((each.name, each.version) for each in chosen)),
        gpu_request=_GPU_REQUESTS[question.vendor][0],
        architectures=question.architectures,
        reasons=tuple(_reasons(winner, rejected, question, base, python, chosen)),
        warnings=tuple(dict.fromkeys(_warnings(winner, question, base, python))),
        data_as_of=question.tables.as_of,
        rocm=str(candidate.rocm) if candidate.rocm else None,
    )


def _packages(candidate: Candidate, question: Problem) -> tuple[packages.ChosenPackage, ...]:
    found = packages.choose_bitsandbytes(candidate, question)
    return (*(packages.choose_companions(candidate, question) or ()), *((found,) if found else ()))


def _reasons(
    winner: Evaluation,
    rejected: tuple[Evaluation, ...],
    question: Problem,
    base: BaseImage,
    python: str,
    chosen: tuple[packages.ChosenPackage, ...],
) -> Iterator[Reason]:
    candidate = winner.candidate
    release, index = candidate.release, candidate.index
    yield _vendor(question)
    published = question.tables.rocm.releases.get(release.version) if candidate.rocm else None
    yield _reason("torch", str(release.version), _torch(winner, rejected, question), published or release)
    if candidate.cuda is not None:
        yield _reason("cuda", str(candidate.cuda), _cuda(candidate, question), *(candidate.wheels or (index,)))
    if candidate.rocm is not None:
        yield _reason("rocm", str(candidate.rocm), "what the wheel is built with, and brings along", index)
    built = (
        "for the CPU, without CUDA's gigabytes"
        if question.vendor is Vendor.CPU
        else f"built with {candidate.built_for}"
    )
    yield _reason("torch_index", index.url, f"the wheels of torch {built}", index)
    yield _reason("python", python, _python(question, base), _python_row(python, question) or release)
    yield _image(base, candidate, question)
    for each in chosen:
        yield _package(each, question)
    request, says = _GPU_REQUESTS[question.vendor]
    yield Reason("gpu_request", request, says, "the vendor", Confidence.CONFIRMED)


def _vendor(question: Problem) -> Reason:
    origins = " and ".join(dict.fromkeys(machine.origin for machine in question.machines))
    if question.request.vendor is not None:
        says = "asked for"
    elif question.vendor is Vendor.CPU:
        says = f"no NVIDIA GPU or driver, from {origins}"
    else:
        names = [name for name, _ in (*question.gpus, *question.amd_gpus)]
        says = f"{', '.join(names) or 'an NVIDIA driver'}, from {origins}"
    return Reason("vendor", question.vendor.value, says, origins, Confidence.CONFIRMED)


def _torch(winner: Evaluation, rejected: tuple[Evaluation, ...], question: Problem) -> str:
    served = ", ".join(question.spoken_gpus)
    fits = f"newest release that serves {served}" if served else "newest release"
    if winner.doubts and served:
        fits = f"the least doubtful for {served}; see the warnings"
    if question.request.torch:
        fits = "asked for"
    newer = [verdict for verdict in rejected if verdict.candidate.release.version > winner.candidate.release.version]
    refused = [verdict for verdict in newer if verdict.refusals]
    if not refused:
        return fits
    return f"{fits}; not {refused[0].candidate.release.version}: {refused[0].refusals[0].says}"


def _cuda(candidate: Candidate, question: Problem) -> str:
    drivers = [machine for machine in question.machines if machine.driver is not None]
    if not drivers:
        return "what the wheel is built with; the driver must run it"
    driver = ", ".join(dict.fromkeys(str(machine.driver) for machine in drivers))
    match gpu_support.find_cuda_support(candidate, question):
        case CudaSupport.FULL:
            return f"driver {driver} runs CUDA {candidate.cuda} in full (R1)"
        case CudaSupport.MINOR:
            return f"driver {driver} runs CUDA {candidate.cuda} by minor version compatibility (R2)"
        case CudaSupport.FORWARD:
            return f"driver {driver} runs CUDA {candidate.cuda} by forward compatibility (R5)"
        case CudaSupport.NO:
            raise ValueError("a candidate that no driver runs was not refused")


def _python(question: Problem, base: BaseImage) -> str:
    if question.request.python:
        return "asked for"
    if question.request.image or base.cuda is not None:
        return f"the Python of {base.tag}"
    asked = packages.find_constraints(packages.PYTHON, question)
    says = "the most widely served Python that every wheel of the plan exists for"
    return f"{says}; {' and '.join(packages.describe_constraint(each) for each in asked)}" if asked else says


def _python_row(python: str, question: Problem) -> PythonVersion | None:
    return next((row for row in question.tables.stack.pythons if row.version == python), None)


def _image(base: BaseImage, candidate: Candidate, question: Problem) -> Reason:
    if question.request.image:
        says = "asked for"
    elif base.cuda is not None and NVCC in question.request.features:
        says = f"its nvcc is of CUDA {candidate.cuda}, as torch is; extensions are compiled with it"
    elif base.cuda is not None:
        says = f"it carries the cuda-compat libraries that the driver needs to run CUDA {candidate.cuda}"
    elif candidate.cuda is not None or candidate.rocm is not None:
        brings = "CUDA" if candidate.cuda else "ROCm"
        says = f"slim: the torch wheel brings {brings} itself, so the image needs none"
    else:
        says = "slim: torch for the CPU needs nothing more"
    row = base.row or question.tables.images.python_images[0]
    confidence = row.confidence if base.row else Confidence.INFERRED
    return Reason("base_image", base.tag, says, row.source[0], confidence)


def _package(chosen: packages.ChosenPackage, question: Problem) -> Reason:
    row = chosen.row or question.tables.stack.packages[0]
    confidence = row.confidence if chosen.row else Confidence.INFERRED
    return Reason(chosen.name, chosen.version, chosen.because, row.source[0], confidence)


def _reason(field: str, value: str, because: str, *rows: TableRow) -> Reason:
    """A reason that is as sure as the least sure of its rows."""
    order = tuple(Confidence)
    confidence = max((row.confidence for row in rows), key=order.index)
    return Reason(field, value, because, rows[0].source[0], confidence)


def _warnings(winner: Evaluation, question: Problem, base: BaseImage, python: str) -> Iterator[str]:
    yield from (f"{objection.says} ({objection.rule})" for objection in winner.doubts)
    yield from (note for machine in question.request.machines for note in machine.notes)
    yield from gpu_support.find_driver_warnings(winner.candidate, question)
    if question.vendor is Vendor.NVIDIA and not question.gpus:
        yield "no GPU is known: whether the wheel has code for it was not checked"
    for wheel in winner.candidate.wheels:
        if wheel.is_inferred:
            yield f"the GPU code of {winner.candidate} for {wheel.machine} is inferred, not read from the wheel"
    if base.row is None:
        yield f"{base.tag} is not in the tables: its Python and C library were not checked"
    row = _python_row(python, question)
    if row is not None and row.eol < question.tables.torch.as_of[:7]:
        yield f"Python {python} gets no more security fixes since {row.eol}"
    yield from packages.find_pin_warnings(question)
    yield from evaluate.find_feature_warnings(question)
    yield from gpu_support.find_rocm_warnings(question)
    yield from gpu_support.find_toolkit_warnings(question)
