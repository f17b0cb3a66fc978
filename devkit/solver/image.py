"""Chooses the base image and its Python, and speaks for the C library."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from devkit.compat.rows import CudaImage, Row
from devkit.compat.rules import CudaSupport, driver_cuda, forward_package
from devkit.facts.values import Release
from devkit.solver.hardware import has_forward_gpus, support
from devkit.solver.question import Candidate, Objection, Question

_PYTHON_TAG = re.compile(r"(?:^|/)python:(\d+\.\d+)(?:[.-]|$)")
_CUDA_TAG = re.compile(r"(?:^|/)nvidia/cuda:(\d+(?:\.\d+)*)(?:-(?P<flavour>[a-z0-9-]+))?-(?P<system>[a-z]+[\d.]+)$")


@dataclass(frozen=True)
class Image:
    """A base image as far as it is known. `row` is None for one that the tables do not list."""

    tag: str
    row: Row | None
    python: str | None = None
    glibc: Release | None = None
    machines: tuple[str, ...] = ()
    cuda: Release | None = None


def chosen_image(candidate: Candidate, question: Question) -> Image | None:
    """The image to build on: the user's, the one that carries cuda-compat (R5), or Python's slim one."""
    asked = question.request.image
    if asked is not None:
        return known_image(asked, question)
    if support(candidate, question) is CudaSupport.FORWARD:
        return _compat_image(candidate, question)
    python = _python(candidate, question)
    for row in question.tables.images.python_images:
        if row.python == python and set(question.architectures) <= set(row.machines):
            return Image(row.tag, row, row.python, row.glibc, row.machines)
    return None


def chosen_python(candidate: Candidate, question: Question) -> str | None:
    """The Python of the plan: asked for, the image's own, or the best that the wheel and an image exist for."""
    if question.request.python:
        return question.request.python
    image = chosen_image(candidate, question) if _image_decides(candidate, question) else None
    return image.python if image and image.python else _python(candidate, question)


def known_image(tag: str, question: Question) -> Image:
    """What the tables know of an image that the user named; a mirror's prefix does not matter."""
    for row in question.tables.images.python_images:
        if tag == row.tag or tag.endswith("/" + row.tag):
            return Image(tag, row, row.python, row.glibc, row.machines)
    found = _CUDA_TAG.search(tag)
    if found:
        for cuda_row in question.tables.images.cuda_images:
            if str(cuda_row.cuda) == found[1] and cuda_row.system == found["system"]:
                return _cuda_image(tag, cuda_row)
        return Image(tag, None, cuda=Release.read(found[1]))
    python = _PYTHON_TAG.search(tag)
    return Image(tag, None, python[1] if python else None)


def tag(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """Tags that do not exist (I1), and images that are not built for a processor."""
    asked = question.request.image
    if asked is None:
        return
    withdrawn = question.tables.images.withdrawn.get(asked)
    if withdrawn is not None:
        yield Objection.by(withdrawn, "I1", f"{asked}: {withdrawn.problem}; use {withdrawn.instead}")
    image = known_image(asked, question)
    missing = set(question.architectures) - set(image.machines) if image.row else set()
    if image.row is not None and missing:
        yield Objection.by(image.row, "I1", f"{asked} is not built for {', '.join(sorted(missing))}")
    found = _CUDA_TAG.search(asked)
    if found and found[1].count(".") != 2 and withdrawn is None:
        policy = question.tables.images.cuda_images[0].source[0]
        yield Objection("I1", f"{asked}: nvidia/cuda tags name CUDA by three numbers, such as 13.0.2", policy)


def python_wheel(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """A Python that the release has no wheel for (W7)."""
    release = candidate.release
    python = chosen_python(candidate, question)
    if python is not None and python not in release.pythons:
        known = ", ".join(release.pythons)
        yield Objection.by(release, "W7", f"torch {release.version} has wheels for Python {known}, not {python}")


def system(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """No image to carry the Python (I1), one with another Python, or a C library too old for the wheel (W6)."""
    release = candidate.release
    python = chosen_python(candidate, question)
    image = chosen_image(candidate, question)
    if python is None or image is None:
        wanted = f"Python {python or ' or '.join(release.pythons)} on {' and '.join(question.architectures)}"
        says = f"no base image with {wanted} is known: name one with --image"
        yield Objection("I1", says, question.tables.images.python_images[0].source[0])
        return
    if question.request.python and image.python and image.python != python:
        yield Objection("W7", f"{image.tag} has Python {image.python}; Python {python} is asked for", release.source[0])
    yield from _glibc(candidate, question, image)


def requirement(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """CUDA images that demand a newer driver than a machine has (I2, I4), unless cuda-compat stands in."""
    image = chosen_image(candidate, question)
    if image is None or image.cuda is None:
        return
    minor = Release.read(".".join(str(number) for number in image.cuda.numbers[:2]))
    for machine in question.machines:
        if machine.driver is None:
            continue
        newest = machine.cuda or driver_cuda(machine.driver, platform=machine.platform, known=question.tables)
        if newest is not None and newest >= minor:
            continue
        package = forward_package(machine.driver, minor, platform=machine.platform, known=question.tables)
        if package is None or not has_forward_gpus(machine, question):
            source = image.row.source[0] if image.row else candidate.index.source[0]
            runs = f"CUDA {newest}" if newest else "an older CUDA"
            says = f"{image.tag} demands a driver that runs CUDA {minor}; driver {machine.driver} runs {runs}"
            yield Objection("I2", says, source)


def _image_decides(candidate: Candidate, question: Question) -> bool:
    return question.request.image is not None or support(candidate, question) is CudaSupport.FORWARD


def _python(candidate: Candidate, question: Question) -> str | None:
    if question.request.python:
        return question.request.python
    with_image = {
        row.python for row in question.tables.images.python_images if set(question.architectures) <= set(row.machines)
    }
    for row in sorted(question.tables.stack.pythons, key=lambda row: row.rank):
        if row.version in candidate.release.pythons and (row.version in with_image or question.request.image):
            return row.version
    return None


def _compat_image(candidate: Candidate, question: Question) -> Image | None:
    cuda = candidate.cuda
    wanted = question.request.python
    for row in question.tables.images.cuda_images:
        fits = row.cuda.numbers[:2] == cuda.numbers[:2] if cuda else False
        if fits and row.python in candidate.release.pythons and wanted in (None, row.python):
            return _cuda_image(f"nvidia/cuda:{row.cuda}-base-{row.system}", row)
    return None


def _cuda_image(tag: str, row: CudaImage) -> Image:
    return Image(tag, row, row.python, row.glibc, row.machines, row.cuda)


def _glibc(candidate: Candidate, question: Question, image: Image) -> Iterator[Objection]:
    floor = candidate.release.glibc
    for machine in question.machines:
        if machine.glibc is not None and machine.glibc < floor:
            says = f"torch {candidate.release.version} needs glibc {floor}; {machine.glibc} is given"
            yield Objection.by(candidate.release, "W6", says)
    if image.glibc is not None and image.row is not None and image.glibc < floor:
        says = f"torch {candidate.release.version} needs glibc {floor}; {image.tag} has {image.glibc}"
        yield Objection.by(image.row, "W6", says)
