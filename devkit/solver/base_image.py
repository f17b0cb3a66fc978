"""Base image and Python of a candidate, and rules on tags, C library, compiler and the driver that an image demands."""

import re
from collections.abc import Iterable, Iterator

from packaging.version import Version

from devkit.compat.gpus import find_gpu_kind, has_forward_compatibility
from devkit.compat.images import find_image_system, is_musl
from devkit.compat.rules import CudaSupport, find_forward_package
from devkit.compat.specifiers import find_python_release
from devkit.compat.version_tables import CudaImage, PythonImage
from devkit.facts.values import Release
from devkit.solver.candidates import BaseImage, Candidate, Environment, Objection, Problem
from devkit.solver.gpu_support import NVCC
from devkit.solver.plan import PYTHON, Vendor

CDI = "cdi"
"""The GPU runtime in which nothing reads an image's demand on the driver (I3)."""

_PYTHON_TAG = re.compile(r"(?:^|/)python:(\d+\.\d+)(?:[.-]|$)")
_CUDA_TAG = re.compile(r"(?:^|/)nvidia/cuda:(\d+(?:\.\d+)*)(?:-(?P<flavor>[a-z0-9-]+))?-(?P<system>[a-z]+[\d.]+)$")


def choose_image_and_python(
    candidate: Candidate, problem: Problem, support: CudaSupport
) -> tuple[BaseImage | None, str | None]:
    """Choose the image to build on, and its Python; None for what no row fits.

    The image is the requested one, an nvidia/cuda one where the cuda-compat libraries (R5) are needed, or
    Python's slim one. The Python is the requested one, the image's own, or the preferred one that the wheel exists for.
    """
    request = problem.request
    image: BaseImage | None
    if request.image is not None:
        image = find_image(request.image, problem)
    elif candidate.cuda is not None and support is CudaSupport.FORWARD:
        # The newest of the build's CUDA whose system has a Python that fits.
        cuda, image = candidate.cuda, None
        for cuda_row in problem.tables.images.cuda_images:
            fits = cuda_row.cuda.numbers[:2] == cuda.numbers[:2]
            has_python = cuda_row.python in candidate.release.pythons and request.python in (None, cuda_row.python)
            is_built = set(problem.architectures) <= set(cuda_row.machines)
            if fits and has_python and is_built and _is_python_allowed(cuda_row.python, problem):
                image = _build_cuda_image(f"nvidia/cuda:{cuda_row.cuda}-base-{cuda_row.system}", cuda_row)
                break
    else:
        python = _choose_python(candidate, problem)
        rows = (row for row in problem.tables.images.python_images if row.python == python)
        row = next((row for row in rows if set(problem.architectures) <= set(row.machines)), None)
        if python is None:
            return None, None
        tag, row = find_python_tag(python, row, problem)
        return (BaseImage(tag, row, python, row.glibc, row.machines) if row else BaseImage(tag, None, python)), python
    own = image.python if image else None
    return image, request.python or own or _choose_python(candidate, problem)


def find_python_tag(python: str, row: PythonImage | None, problem: Problem) -> tuple[str, PythonImage | None]:
    """Find the tag of a Python's slim image, and its row; of the release that the project names where it refuses the newest."""
    release = _find_release(python, problem) or python
    if row is None or (release != python and Version(release) < Version(row.first_release or "0")):
        # Docker's official images have such a tag for every release.
        return f"python:{release}-slim", None
    return row.tag.replace(f":{python}-", f":{release}-"), row


def find_image(tag: str, problem: Problem) -> BaseImage:
    """Find what the tables know of an image that the user named; a mirror's prefix does not matter."""
    for row in problem.tables.images.python_images:
        if tag == row.tag or tag.endswith("/" + row.tag):
            return BaseImage(tag, row, row.python, row.glibc, row.machines)
    found = _CUDA_TAG.search(tag)
    if found:
        for cuda_row in problem.tables.images.cuda_images:
            if str(cuda_row.cuda) == found[1] and cuda_row.system == found["system"]:
                return _build_cuda_image(tag, cuda_row)
        return BaseImage(tag, None, cuda=Release.parse(found[1]), has_nvcc="devel" in tag)
    python = _PYTHON_TAG.search(tag)
    system = find_image_system(tag, problem.tables.images.systems)
    if system is None:
        return BaseImage(tag, None, python[1] if python else None)
    # The system's own Python need not be the one that is used, and the bare images have none.
    return BaseImage(tag, system, python[1] if python else None, system.glibc, system.machines)


def validate_image_tag(environment: Environment, problem: Problem) -> Iterator[Objection]:
    """Object to requested tags that do not exist or are not built for a processor (I1), or have another nvcc (W1)."""
    image, requested = environment.image, problem.request.image
    if image is None or requested is None:
        return
    yield from validate_requested_image(image, problem)
    cuda = environment.candidate.cuda
    if NVCC not in problem.request.features or not image.has_nvcc or image.cuda is None or cuda is None:
        return
    # Extensions are compiled with the CUDA that torch was built with.
    if image.cuda.numbers[:2] != cuda.numbers[:2]:
        source = image.row.source[0] if image.row else problem.tables.images.cuda_images[0].source[0]
        needed = f"extensions of {environment.candidate} need nvcc of CUDA {cuda}"
        yield Objection("W1", f"nvcc of {image.tag} is CUDA {image.cuda}; {needed}", source)


def validate_requested_image(image: BaseImage, problem: Problem) -> Iterator[Objection]:
    """Object to a tag that does not exist, or is not built for a processor (I1)."""
    requested = image.tag
    withdrawn = problem.tables.images.withdrawn.get(requested)
    if withdrawn is not None:
        yield Objection.from_row(withdrawn, "I1", f"{requested}: {withdrawn.problem}; use {withdrawn.instead}")
    missing = set(problem.architectures) - set(image.machines) if image.row else set()
    if image.row is not None and missing:
        yield Objection.from_row(image.row, "I1", f"{requested} is not built for {', '.join(sorted(missing))}")
    found = _CUDA_TAG.search(requested)
    if found and found[1].count(".") != 2 and withdrawn is None:
        source = problem.tables.images.cuda_images[0].source[0]
        yield Objection("I1", f"{requested}: nvidia/cuda tags contain three numbers, such as 13.0.2", source)


def validate_python_wheel(environment: Environment, problem: Problem) -> Iterator[Objection]:
    """Object to a Python that the release has no wheel for (W7)."""
    release, python = environment.candidate.release, environment.python
    if python is not None and python not in release.pythons:
        known = ", ".join(release.pythons)
        yield Objection.from_row(release, "W7", f"torch {release.version} has wheels for Python {known}, not {python}")


def validate_image_system(environment: Environment, problem: Problem) -> Iterator[Objection]:
    """Object to a missing image (I1), one with another Python (W7), or a C library too old for the wheel (W6)."""
    release, python, image = environment.candidate.release, environment.python, environment.image
    if python is None or image is None:
        source = problem.tables.images.python_images[0].source[0]
        wanted = f"Python {python or ' or '.join(release.pythons)} on {' and '.join(problem.architectures)}"
        cuda = environment.candidate.cuda if environment.support is CudaSupport.FORWARD else None
        kind = f"nvidia/cuda base image for CUDA {cuda}" if cuda else "base image"
        yield Objection("I1", f"no {kind} with {wanted} is known: specify one with --image", source)
        return
    if problem.request.python and image.python and image.python != python:
        yield Objection("W7", f"{image.tag} has Python {image.python}; Python {python} is requested", release.source[0])
    if is_musl(image.tag):
        says = f"torch has no wheel for musl, the C library of {image.tag}: use a Debian or Ubuntu image"
        yield Objection("W6", says, release.source[0])
    needed = f"torch {release.version} needs glibc {release.glibc}"
    for machine in problem.machines:
        if machine.glibc is not None and machine.glibc < release.glibc:
            yield Objection.from_row(release, "W6", f"{needed}; {machine.glibc} is given")
    if image.glibc is not None and image.row is not None and image.glibc < release.glibc:
        yield Objection.from_row(image.row, "W6", f"{needed}; {image.tag} has {image.glibc}")


def doubt_image_life(image: BaseImage | None, problem: Problem) -> Iterator[Objection]:
    """Doubt a CUDA tag past its end of life, which its publisher may delete on any day (I1); never refuse it."""
    if image is None or image.cuda is None:
        return
    names = (str(image.cuda), str(image.cuda.major))
    row = next((row for row in problem.tables.images.life if row.name in names), None)
    if row is not None:
        says = (
            f"{image.tag}: images of CUDA {row.name} had their last update in {row.ended}, and NVIDIA deletes such tags"
            f" six months later: use {row.instead}, or keep a copy"
        )
        yield Objection("I1", says, row.source[0], refuses=False)


def validate_cuda_of_image(image: BaseImage | None, problem: Problem) -> Iterator[Objection]:
    """Object to an image of a CUDA that is newer than a machine's driver.

    The legacy runtime refuses it when the container starts (I2), unless the image exempts the driver; under CDI
    (I3), or exempt, its cuda-compat libraries break CUDA where forward compatibility is not offered (R5).
    """
    if image is None or image.cuda is None or problem.vendor is not Vendor.NVIDIA:
        return
    cuda = Release.parse(image.cuda.minor)
    for machine in problem.machines:
        newest = problem.newest_cuda(machine)
        if machine.driver is None or (newest is not None and newest >= cuda):
            continue
        package = find_forward_package(machine.driver, cuda, platform=machine.platform, known=problem.tables)
        kinds = [find_gpu_kind(name, known=problem.tables) for name, _ in machine.gpus]
        # The image lists driver branches by GPU brand; a GPU without a name has no brand.
        is_exempt = (
            package is not None
            and bool(kinds)
            and all(kind is not None and (kind != "geforce" or package.exempts_geforce) for kind in kinds)
        )
        if problem.request.gpu_runtime != CDI and not is_exempt:
            runs = f"CUDA {newest}" if newest else "an older CUDA"
            says = (
                f"{image.tag} requires a driver that runs CUDA {cuda}; driver {machine.driver} runs {runs}"
                f" (the legacy runtime checks that, CDI does not: --gpu-runtime {CDI})"
            )
            yield Objection("I2", says, (image.row or problem.tables.images.cuda_images[0]).source[0])
            continue
        for name, _ in machine.gpus or (("", None),):
            if name and package is not None and has_forward_compatibility(name, known=problem.tables):
                continue
            # The image's own libcuda takes the place of the host's; CUDA fails with 804 where that is not supported.
            says = (
                f"{image.tag} brings cuda-compat for CUDA {cuda}, which takes the place of driver {machine.driver}'s"
                f" own library: on {name or 'a GPU that is not known'} CUDA ends with error 804; an image of an older"
                " CUDA, or none, has no such library"
            )
            row = package or problem.tables.driver.forward[0]
            is_sure = find_gpu_kind(name, known=problem.tables) == "geforce"
            yield Objection("R5", says, row.source[0], refuses=is_sure and not row.is_inferred)


def _choose_python(candidate: Candidate, problem: Problem) -> str | None:
    request = problem.request
    if request.python:
        return request.python
    with_image = {
        row.python for row in problem.tables.images.python_images if set(problem.architectures) <= set(row.machines)
    }
    ranked = list_allowed_pythons(
        (each for each in rank_pythons(problem) if each in with_image or request.image), problem
    )
    others = list_allowed_pythons(candidate.release.pythons, problem)
    return next((each for each in (*ranked, *others) if each in candidate.release.pythons), None)


def list_allowed_pythons(pythons: Iterable[str], problem: Problem) -> list[str]:
    """List the Pythons that the project allows, last those of which it takes only an older release."""
    allowed = [each for each in pythons if _is_python_allowed(each, problem)]
    return sorted(allowed, key=lambda each: _find_release(each, problem) != each)


def find_python_warnings(python: str, problem: Problem) -> Iterator[str]:
    """Warn of a Python without security fixes."""
    for row in problem.tables.stack.pythons:
        if row.version == python and row.eol < problem.tables.torch.as_of[:7]:
            yield f"Python {python} has had no security fixes since {row.eol}"


def rank_pythons(problem: Problem) -> list[str]:
    """Return the Pythons of the tables, the most widely served one first."""
    return [row.version for row in sorted(problem.tables.stack.pythons, key=lambda row: row.rank)]


def _is_python_allowed(python: str, problem: Problem) -> bool:
    return all(each.is_met_by(python) for each in problem.request.constraints_on(PYTHON))


def _find_release(python: str, problem: Problem) -> str | None:
    return find_python_release(python, ",".join(each.specifier for each in problem.request.constraints_on(PYTHON)))


def _build_cuda_image(tag: str, row: CudaImage) -> BaseImage:
    return BaseImage(tag, row, row.python, row.glibc, row.machines, row.cuda, "devel" in tag)
