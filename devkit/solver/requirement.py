"""Speaks for what a CUDA image demands of the driver (I2 to I4), and for its cuda-compat libraries (R5)."""

from collections.abc import Iterator

from devkit.compat.gpus import gpu_kind, offers_forward_compatibility
from devkit.compat.rows import ForwardPackage
from devkit.compat.rules import driver_cuda, forward_package
from devkit.facts.values import Release
from devkit.solver.image import Image, chosen_image
from devkit.solver.model import Machine, Vendor
from devkit.solver.question import Candidate, Objection, Question

CDI = "cdi"
"""The way to pass on GPUs in which nothing reads an image's demand (I3)."""


def requirement(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """CUDA images newer than a machine's driver: refused when the container starts, or broken by their cuda-compat."""
    image = chosen_image(candidate, question)
    if image is None or image.cuda is None or question.vendor is not Vendor.NVIDIA:
        return
    minor = Release.read(".".join(str(number) for number in image.cuda.numbers[:2]))
    for machine in question.machines:
        newest = _newest(machine, question)
        if machine.driver is None or (newest is not None and newest >= minor):
            continue
        is_checked = question.request.gpu_runtime != CDI
        if is_checked and not _is_exempt(machine, minor, question):
            yield _refused(image, minor, machine, newest, candidate)
        else:
            yield from _compat(image, minor, machine, question)


def _newest(machine: Machine, question: Question) -> Release | None:
    if machine.driver is None:
        return None
    return machine.cuda or driver_cuda(machine.driver, platform=machine.platform, known=question.tables)


def _refused(image: Image, minor: Release, machine: Machine, newest: Release | None, candidate: Candidate) -> Objection:
    source = image.row.source[0] if image.row else candidate.index.source[0]
    runs = f"CUDA {newest}" if newest else "an older CUDA"
    says = (
        f"{image.tag} demands a driver that runs CUDA {minor}; driver {machine.driver} runs {runs}"
        f" (the legacy runtime checks that, CDI does not: --gpu-runtime {CDI})"
    )
    return Objection("I2", says, source)


def _is_exempt(machine: Machine, minor: Release, question: Question) -> bool:
    """Whether the image lists the driver's branch for the brand of every GPU; a GPU without a name has no brand."""
    row = _package(machine, minor, question)
    kinds = [gpu_kind(name, known=question.tables) for name, _ in machine.gpus]
    if row is None or not kinds:
        return False
    return all(kind is not None and (kind != "geforce" or row.exempts_geforce) for kind in kinds)


def _package(machine: Machine, minor: Release, question: Question) -> ForwardPackage | None:
    if machine.driver is None:
        return None
    return forward_package(machine.driver, minor, platform=machine.platform, known=question.tables)


def _compat(image: Image, minor: Release, machine: Machine, question: Question) -> Iterator[Objection]:
    """The image's own libcuda takes the place of the host's; CUDA ends with 804 where that is not supported."""
    package = _package(machine, minor, question)
    for name, _ in machine.gpus or (("", None),):
        has_forward = bool(name) and offers_forward_compatibility(name, known=question.tables)
        if has_forward and package is not None:
            continue
        gpu = name or "a GPU that is not known"
        says = (
            f"{image.tag} brings cuda-compat for CUDA {minor}, which takes the place of driver {machine.driver}'s own"
            f" library: on {gpu} CUDA ends with error 804; an image of an older CUDA, or none, has no such library"
        )
        row = package or question.tables.driver.forward[0]
        is_sure = gpu_kind(name, known=question.tables) == "geforce"
        yield Objection("R5", says, row.source[0], refuses=is_sure and not row.is_inferred)
