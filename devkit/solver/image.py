"""Chooses the base image and its Python, and speaks for tags and the C library."""

import re
from collections.abc import Iterator

from devkit.compat.image_rows import CudaImage, SystemImage
from devkit.compat.images import is_musl, system_of_image
from devkit.compat.rows import Row
from devkit.compat.rules import CudaSupport
from devkit.compat.specifiers import meets_python
from devkit.facts.record import record
from devkit.facts.values import Release
from devkit.solver.hardware import support
from devkit.solver.question import Candidate, Objection, Question, once

NVCC = "nvcc"
"""The feature that needs an image with the CUDA compiler."""

_PYTHON_TAG = re.compile(r"(?:^|/)python:(\d+\.\d+)(?:[.-]|$)")
_CUDA_TAG = re.compile(r"(?:^|/)nvidia/cuda:(\d+(?:\.\d+)*)(?:-(?P<flavour>[a-z0-9-]+))?-(?P<system>[a-z]+[\d.]+)$")


@record
class Image:
    """A base image as far as it is known. `row` is None for one that the tables do not list."""

    tag: str
    row: Row | None
    python: str | None = None
    glibc: Release | None = None
    machines: tuple[str, ...] = ()
    cuda: Release | None = None
    has_nvcc: bool = False

    @property
    def tells_compiler(self) -> bool:
        """Whether it is known if the image has nvcc; a system alone does not say what else was put on it."""
        return self.cuda is not None or (self.row is not None and not isinstance(self.row, SystemImage))


@once
def chosen_image(candidate: Candidate, question: Question) -> Image | None:
    """The image to build on: the user's, one with cuda-compat (R5) or nvcc where needed, or Python's slim one."""
    asked = question.request.image
    if asked is not None:
        return known_image(asked, question)
    flavour = _cuda_flavour(candidate, question)
    if flavour:
        return _cuda_image_for(candidate, question, flavour)
    python = _python(candidate, question)
    for row in question.tables.images.python_images:
        if row.python == python and set(question.architectures) <= set(row.machines):
            return Image(row.tag, row, row.python, row.glibc, row.machines)
    return None


@once
def chosen_python(candidate: Candidate, question: Question) -> str | None:
    """The Python of the plan: asked for, the image's own, or the best that the wheel and an image exist for."""
    if question.request.python:
        return question.request.python
    image_decides = question.request.image is not None or _cuda_flavour(candidate, question)
    image = chosen_image(candidate, question) if image_decides else None
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
        return Image(tag, None, cuda=Release.read(found[1]), has_nvcc="devel" in tag)
    python = _PYTHON_TAG.search(tag)
    system = system_of_image(tag, question.tables.images.systems)
    if system is None:
        return Image(tag, None, python[1] if python else None)
    # The system's own Python need not be the one that is used, and the bare images have none.
    return Image(tag, system, python[1] if python else None, system.glibc, system.machines)


def tag(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """Tags that do not exist (I1), images that are not built for a processor, and those without a wished compiler."""
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
    if NVCC in question.request.features and image.tells_compiler:
        yield from _compiler(candidate, image, question)


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
        yield Objection("I1", _no_image(python, candidate, question), question.tables.images.python_images[0].source[0])
        return
    if question.request.python and image.python and image.python != python:
        yield Objection("W7", f"{image.tag} has Python {image.python}; Python {python} is asked for", release.source[0])
    yield from _glibc(candidate, question, image)


def life(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """A CUDA tag past its end of life (I1), which its publisher may delete on any day: a doubt, never a refusal."""
    image = chosen_image(candidate, question)
    if image is None or image.cuda is None:
        return
    names = (str(image.cuda), str(image.cuda.major))
    row = next((row for row in question.tables.images.life if row.name in names), None)
    if row is not None:
        says = (
            f"{image.tag}: images of CUDA {row.name} had their last update in {row.ended}, and NVIDIA deletes such tags"
            f" six months later: take {row.instead}, or keep a copy"
        )
        yield Objection("I1", says, row.source[0], refuses=False)


def _cuda_flavour(candidate: Candidate, question: Question) -> str:
    """The flavour of nvidia/cuda that a build needs: devel for nvcc, base for cuda-compat, "" for none."""
    if candidate.cuda is None:
        return ""
    if NVCC in question.request.features:
        return "devel"
    return "base" if support(candidate, question) is CudaSupport.FORWARD else ""


def _compiler(candidate: Candidate, image: Image, question: Question) -> Iterator[Objection]:
    """W1: extensions are compiled with the CUDA that torch was built with."""
    if candidate.cuda is None:
        return
    source = image.row.source[0] if image.row else question.tables.images.cuda_images[0].source[0]
    if not image.has_nvcc:
        yield Objection("W1", f"{image.tag} has no nvcc: that is in the devel images of nvidia/cuda", source)
    elif image.cuda is not None and image.cuda.numbers[:2] != candidate.cuda.numbers[:2]:
        says = f"nvcc of {image.tag} is CUDA {image.cuda}; extensions of {candidate} need that of CUDA {candidate.cuda}"
        yield Objection("W1", says, source)


def _python(candidate: Candidate, question: Question) -> str | None:
    if question.request.python:
        return question.request.python
    with_image = {
        row.python for row in question.tables.images.python_images if set(question.architectures) <= set(row.machines)
    }
    for row in sorted(question.tables.stack.pythons, key=lambda row: row.rank):
        has_place = row.version in with_image or question.request.image
        if row.version in candidate.release.pythons and has_place and _allowed(row.version, question):
            return row.version
    return None


def _allowed(python: str, question: Question) -> bool:
    """Whether the project's files allow a Python."""
    return all(meets_python(python, each.specifier) for each in question.request.constraints if each.name == "python")


def _cuda_image_for(candidate: Candidate, question: Question, flavour: str) -> Image | None:
    """The newest nvidia/cuda image of the build's CUDA whose system has a Python that fits."""
    cuda = candidate.cuda
    wanted = question.request.python
    for row in question.tables.images.cuda_images:
        fits = row.cuda.numbers[:2] == cuda.numbers[:2] if cuda else False
        has_python = row.python in candidate.release.pythons and wanted in (None, row.python)
        if fits and has_python and _allowed(row.python, question) and set(question.architectures) <= set(row.machines):
            return _cuda_image(f"nvidia/cuda:{row.cuda}-{flavour}-{row.system}", row)
    return None


def _cuda_image(tag: str, row: CudaImage) -> Image:
    return Image(tag, row, row.python, row.glibc, row.machines, row.cuda, "devel" in tag)


def _no_image(python: str | None, candidate: Candidate, question: Question) -> str:
    wanted = f"Python {python or ' or '.join(candidate.release.pythons)} on {' and '.join(question.architectures)}"
    flavour = _cuda_flavour(candidate, question)
    if flavour:
        return f"no nvidia/cuda {flavour} image of CUDA {candidate.cuda} with {wanted} is known: name one with --image"
    return f"no base image with {wanted} is known: name one with --image"


def _glibc(candidate: Candidate, question: Question, image: Image) -> Iterator[Objection]:
    floor = candidate.release.glibc
    if is_musl(image.tag):
        says = f"torch has no wheel for musl, the C library of {image.tag}: take an image of Debian or Ubuntu"
        yield Objection("W6", says, candidate.release.source[0])
    for machine in question.machines:
        if machine.glibc is not None and machine.glibc < floor:
            says = f"torch {candidate.release.version} needs glibc {floor}; {machine.glibc} is given"
            yield Objection.by(candidate.release, "W6", says)
    if image.glibc is not None and image.row is not None and image.glibc < floor:
        says = f"torch {candidate.release.version} needs glibc {floor}; {image.tag} has {image.glibc}"
        yield Objection.by(image.row, "W6", says)
