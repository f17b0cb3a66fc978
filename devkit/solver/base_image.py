"""Chooses the base image and its Python, and speaks for tags and the C library."""

import re
from collections.abc import Iterator

from devkit.compat.gpus import find_gpu_kind, has_forward_compatibility
from devkit.compat.images import find_image_system, is_musl
from devkit.compat.rules import CudaSupport, find_forward_package, find_newest_cuda
from devkit.compat.specifiers import satisfies_python
from devkit.compat.version_tables import CudaImage, ForwardPackage, SystemImage, TableRow
from devkit.facts.values import Release, record
from devkit.solver.candidates import Candidate, Objection, Problem, memoize
from devkit.solver.gpu_support import find_cuda_support
from devkit.solver.plan import Machine, Vendor

NVCC = "nvcc"
"""The feature that needs an image with the CUDA compiler."""

_PYTHON_TAG = re.compile(r"(?:^|/)python:(\d+\.\d+)(?:[.-]|$)")
_CUDA_TAG = re.compile(r"(?:^|/)nvidia/cuda:(\d+(?:\.\d+)*)(?:-(?P<flavour>[a-z0-9-]+))?-(?P<system>[a-z]+[\d.]+)$")


@record
class BaseImage:
    """A base image as far as it is known. `row` is None for one that the tables do not list."""

    tag: str
    row: TableRow | None
    python: str | None = None
    glibc: Release | None = None
    machines: tuple[str, ...] = ()
    cuda: Release | None = None
    has_nvcc: bool = False

    @property
    def tells_compiler(self) -> bool:
        """Whether it is known if the image has nvcc; a system alone does not say what else was put on it."""
        return self.cuda is not None or (self.row is not None and not isinstance(self.row, SystemImage))


@memoize
def choose_image(candidate: Candidate, question: Problem) -> BaseImage | None:
    """The image to build on: the user's, one with cuda-compat (R5) or nvcc where needed, or Python's slim one."""
    asked = question.request.image
    if asked is not None:
        return find_image(asked, question)
    flavour = _cuda_flavour(candidate, question)
    if flavour:
        return _cuda_image_for(candidate, question, flavour)
    python = _python(candidate, question)
    for row in question.tables.images.python_images:
        if row.python == python and set(question.architectures) <= set(row.machines):
            return BaseImage(row.tag, row, row.python, row.glibc, row.machines)
    return None


@memoize
def choose_python(candidate: Candidate, question: Problem) -> str | None:
    """The Python of the plan: asked for, the image's own, or the best that the wheel and an image exist for."""
    if question.request.python:
        return question.request.python
    image_decides = question.request.image is not None or _cuda_flavour(candidate, question)
    image = choose_image(candidate, question) if image_decides else None
    return image.python if image and image.python else _python(candidate, question)


def find_image(tag: str, question: Problem) -> BaseImage:
    """What the tables know of an image that the user named; a mirror's prefix does not matter."""
    for row in question.tables.images.python_images:
        if tag == row.tag or tag.endswith("/" + row.tag):
            return BaseImage(tag, row, row.python, row.glibc, row.machines)
    found = _CUDA_TAG.search(tag)
    if found:
        for cuda_row in question.tables.images.cuda_images:
            if str(cuda_row.cuda) == found[1] and cuda_row.system == found["system"]:
                return _cuda_image(tag, cuda_row)
        return BaseImage(tag, None, cuda=Release.parse(found[1]), has_nvcc="devel" in tag)
    python = _PYTHON_TAG.search(tag)
    system = find_image_system(tag, question.tables.images.systems)
    if system is None:
        return BaseImage(tag, None, python[1] if python else None)
    # The system's own Python need not be the one that is used, and the bare images have none.
    return BaseImage(tag, system, python[1] if python else None, system.glibc, system.machines)


def validate_image_tag(candidate: Candidate, question: Problem) -> Iterator[Objection]:
    """Tags that do not exist (I1), images that are not built for a processor, and those without a wished compiler."""
    asked = question.request.image
    if asked is None:
        return
    withdrawn = question.tables.images.withdrawn.get(asked)
    if withdrawn is not None:
        yield Objection.by(withdrawn, "I1", f"{asked}: {withdrawn.problem}; use {withdrawn.instead}")
    image = find_image(asked, question)
    missing = set(question.architectures) - set(image.machines) if image.row else set()
    if image.row is not None and missing:
        yield Objection.by(image.row, "I1", f"{asked} is not built for {', '.join(sorted(missing))}")
    found = _CUDA_TAG.search(asked)
    if found and found[1].count(".") != 2 and withdrawn is None:
        policy = question.tables.images.cuda_images[0].source[0]
        yield Objection("I1", f"{asked}: nvidia/cuda tags name CUDA by three numbers, such as 13.0.2", policy)
    if NVCC in question.request.features and image.tells_compiler:
        yield from _compiler(candidate, image, question)


def validate_python_wheel(candidate: Candidate, question: Problem) -> Iterator[Objection]:
    """A Python that the release has no wheel for (W7)."""
    release = candidate.release
    python = choose_python(candidate, question)
    if python is not None and python not in release.pythons:
        known = ", ".join(release.pythons)
        yield Objection.by(release, "W7", f"torch {release.version} has wheels for Python {known}, not {python}")


def validate_image_system(candidate: Candidate, question: Problem) -> Iterator[Objection]:
    """No image to carry the Python (I1), one with another Python, or a C library too old for the wheel (W6)."""
    release = candidate.release
    python = choose_python(candidate, question)
    image = choose_image(candidate, question)
    if python is None or image is None:
        yield Objection("I1", _no_image(python, candidate, question), question.tables.images.python_images[0].source[0])
        return
    if question.request.python and image.python and image.python != python:
        yield Objection("W7", f"{image.tag} has Python {image.python}; Python {python} is asked for", release.source[0])
    yield from _glibc(candidate, question, image)


def validate_image_life(candidate: Candidate, question: Problem) -> Iterator[Objection]:
    """A CUDA tag past its end of life (I1), which its publisher may delete on any day: a doubt, never a refusal."""
    image = choose_image(candidate, question)
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


def _cuda_flavour(candidate: Candidate, question: Problem) -> str:
    """The flavour of nvidia/cuda that a build needs: devel for nvcc, base for cuda-compat, "" for none."""
    if candidate.cuda is None:
        return ""
    if NVCC in question.request.features:
        return "devel"
    return "base" if find_cuda_support(candidate, question) is CudaSupport.FORWARD else ""


def _compiler(candidate: Candidate, image: BaseImage, question: Problem) -> Iterator[Objection]:
    """W1: extensions are compiled with the CUDA that torch was built with."""
    if candidate.cuda is None:
        return
    source = image.row.source[0] if image.row else question.tables.images.cuda_images[0].source[0]
    if not image.has_nvcc:
        yield Objection("W1", f"{image.tag} has no nvcc: that is in the devel images of nvidia/cuda", source)
    elif image.cuda is not None and image.cuda.numbers[:2] != candidate.cuda.numbers[:2]:
        says = f"nvcc of {image.tag} is CUDA {image.cuda}; extensions of {candidate} need that of CUDA {candidate.cuda}"
        yield Objection("W1", says, source)


def _python(candidate: Candidate, question: Problem) -> str | None:
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


def _allowed(python: str, question: Problem) -> bool:
    """Whether the project's files allow a Python."""
    return all(
        satisfies_python(python, each.specifier) for each in question.request.constraints if each.name == "python"
    )


def _cuda_image_for(candidate: Candidate, question: Problem, flavour: str) -> BaseImage | None:
    """The newest nvidia/cuda image of the build's CUDA whose system has a Python that fits."""
    cuda = candidate.cuda
    wanted = question.request.python
    for row in question.tables.images.cuda_images:
        fits = row.cuda.numbers[:2] == cuda.numbers[:2] if cuda else False
        has_python = row.python in candidate.release.pythons and wanted in (None, row.python)
        if fits and has_python and _allowed(row.python, question) and set(question.architectures) <= set(row.machines):
            return _cuda_image(f"nvidia/cuda:{row.cuda}-{flavour}-{row.system}", row)
    return None


def _cuda_image(tag: str, row: CudaImage) -> BaseImage:
    return BaseImage(tag, row, row.python, row.glibc, row.machines, row.cuda, "devel" in tag)


def _no_image(python: str | None, candidate: Candidate, question: Problem) -> str:
    wanted = f"Python {python or ' or '.join(candidate.release.pythons)} on {' and '.join(question.architectures)}"
    flavour = _cuda_flavour(candidate, question)
    if flavour:
        return f"no nvidia/cuda {flavour} image of CUDA {candidate.cuda} with {wanted} is known: name one with --image"
    return f"no base image with {wanted} is known: name one with --image"


def _glibc(candidate: Candidate, question: Problem, image: BaseImage) -> Iterator[Objection]:
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


# Speaks for what a CUDA image demands of the driver (I2 to I4), and for its cuda-compat libraries (R5).

CDI = "cdi"
"""The way to pass on GPUs in which nothing reads an image's demand (I3)."""


def validate_image_driver(candidate: Candidate, question: Problem) -> Iterator[Objection]:
    """CUDA images newer than a machine's driver: refused when the container starts, or broken by their cuda-compat."""
    image = choose_image(candidate, question)
    if image is None or image.cuda is None or question.vendor is not Vendor.NVIDIA:
        return
    minor = Release.parse(".".join(str(number) for number in image.cuda.numbers[:2]))
    for machine in question.machines:
        newest = _newest(machine, question)
        if machine.driver is None or (newest is not None and newest >= minor):
            continue
        is_checked = question.request.gpu_runtime != CDI
        if is_checked and not _is_exempt(machine, minor, question):
            yield _refused(image, minor, machine, newest, candidate)
        else:
            yield from _compat(image, minor, machine, question)


def _newest(machine: Machine, question: Problem) -> Release | None:
    if machine.driver is None:
        return None
    return machine.cuda or find_newest_cuda(machine.driver, platform=machine.platform, known=question.tables)


def _refused(
    image: BaseImage, minor: Release, machine: Machine, newest: Release | None, candidate: Candidate
) -> Objection:
    source = image.row.source[0] if image.row else candidate.index.source[0]
    runs = f"CUDA {newest}" if newest else "an older CUDA"
    says = (
        f"{image.tag} demands a driver that runs CUDA {minor}; driver {machine.driver} runs {runs}"
        f" (the legacy runtime checks that, CDI does not: --gpu-runtime {CDI})"
    )
    return Objection("I2", says, source)


def _is_exempt(machine: Machine, minor: Release, question: Problem) -> bool:
    """Whether the image lists the driver's branch for the brand of every GPU; a GPU without a name has no brand."""
    row = _package(machine, minor, question)
    kinds = [find_gpu_kind(name, known=question.tables) for name, _ in machine.gpus]
    if row is None or not kinds:
        return False
    return all(kind is not None and (kind != "geforce" or row.exempts_geforce) for kind in kinds)


def _package(machine: Machine, minor: Release, question: Problem) -> ForwardPackage | None:
    if machine.driver is None:
        return None
    return find_forward_package(machine.driver, minor, platform=machine.platform, known=question.tables)


def _compat(image: BaseImage, minor: Release, machine: Machine, question: Problem) -> Iterator[Objection]:
    """The image's own libcuda takes the place of the host's; CUDA ends with 804 where that is not supported."""
    package = _package(machine, minor, question)
    for name, _ in machine.gpus or (("", None),):
        has_forward = bool(name) and has_forward_compatibility(name, known=question.tables)
        if has_forward and package is not None:
            continue
        gpu = name or "a GPU that is not known"
        says = (
            f"{image.tag} brings cuda-compat for CUDA {minor}, which takes the place of driver {machine.driver}'s own"
            f" library: on {gpu} CUDA ends with error 804; an image of an older CUDA, or none, has no such library"
        )
        row = package or question.tables.driver.forward[0]
        is_sure = find_gpu_kind(name, known=question.tables) == "geforce"
        yield Objection("R5", says, row.source[0], refuses=is_sure and not row.is_inferred)
