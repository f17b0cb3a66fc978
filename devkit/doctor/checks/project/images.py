"""Checks of base images and builds: tags that exist, CUDA that fits, and builds that need no GPU."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from devkit.compat.rules import CudaSupport, check_cuda_support
from devkit.compat.version_tables import CudaImage, load_tables
from devkit.doctor.checks.project.containers import (
    ProjectContainer,
    TorchOrigin,
    find_gpu_evidence,
    find_project_extras,
    find_torch_evidence,
    find_torch_installs,
    find_torch_source,
    find_with_files,
    require_project_containers,
)
from devkit.doctor.model import NotApplicable, Severity, check, cite
from devkit.doctor.preconditions import find_platform, require, require_nvml, skip_if
from devkit.doctor.problems import Problem, problem
from devkit.facts.machine import Platform
from devkit.facts.model import Facts
from devkit.facts.project import Install, Requirement, Setting, Stage
from devkit.facts.values import Release, Unknown
from devkit.text import join_words

_COMPILED = ("apex", "pytorch3d", "detectron2", "gsplat", "nvdiffrast", "tinycudann", "mamba-ssm")
"""Packages that come as source and compile CUDA code by torch.utils.cpp_extension."""
_PINNED = re.compile(r"===?|~=|^url$|^git$|^@|\$")
_CUDA = re.compile(
    r"(?:^|/)nvidia/cuda:(?P<cuda>\d+(?:\.\d+)*)(?:-(?P<cudnn>cudnn\d*))?(?:-(?P<flavor>base|runtime|devel))?"
    r"(?:-(?P<system>[a-z]+[\d.]+))?(?:@.*)?$"
)
_NO_NVCC = re.compile(
    r"^(?:docker\.io/)?(?:library/)?(?:python|debian|ubuntu)(?::|$)|(?:^|/)pytorch/pytorch:\S+-runtime$"
    r"|^mcr\.microsoft\.com/(?:vscode/)?devcontainers/(?:base|python|miniconda|anaconda)(?::|$)"
    r"|(?:^|/)nvidia/cuda:\S*-(?:base|runtime)-\S+$"
)
"""Images without CUDA's compiler."""
_NO_COMPILER = re.compile(
    r"^(?:docker\.io/)?(?:library/)?(?:python:[\w.]*-?slim\S*|debian:\S+|debian|ubuntu:\S+|ubuntu)$"
    r"|(?:^|/)nvidia/cuda:\S*-(?:base|runtime)-\S+$"
)


@dataclass(frozen=True)
class CudaTag:
    """A tag of nvidia/cuda, taken apart."""

    cuda: Release
    cudnn: str
    flavor: str
    system: str

    @classmethod
    def of(cls, image: str) -> "CudaTag | None":
        """From an image's name; None for any other image."""
        found = _CUDA.search(image)
        if found is None:
            return None
        return cls(Release.parse(found["cuda"]), found["cudnn"] or "", found["flavor"] or "", found["system"] or "")

    @property
    def row(self) -> CudaImage | None:
        """The row of the tables, None for one that they do not list."""
        rows = load_tables().images.cuda_images
        return next((row for row in rows if row.cuda == self.cuda and row.system == self.system), None)


def _require_base_images(facts: Facts) -> Iterator[tuple[ProjectContainer, Setting]]:
    """Each image once, with the first container that begins with it."""
    found = {
        (image.path, image.line): (container, image)
        for container in require_project_containers(facts)
        if (image := container.image) is not None
    }
    skip_if(not found, "no file sets a base image")
    yield from found.values()


@check("PRJ021")
def base_image_tags_exist(facts: Facts) -> Iterator[Problem]:
    for container, image in _require_base_images(facts):
        if "nvidia/cuda" not in image.value:
            continue
        name = re.sub(r"^.*?(?=nvidia/cuda)", "", image.value)
        withdrawn = load_tables().images.withdrawn.get(name if ":" in name else f"{name}:latest")
        tag = CudaTag.of(image.value)
        # Whatever compiles CUDA code needs nvcc, which no slim image has.
        is_for_wheels = bool(find_torch_evidence(container)) or not (tag and tag.flavor == "devel")
        others = [withdrawn.instead] if withdrawn is not None else []
        if is_for_wheels:
            others.append("a slim Python image: the torch wheel includes CUDA")
        elif not others:
            others.append("the tag of a newer CUDA")
        values: dict[str, Any] = {"image": image.value, "others": ", or ".join(others)}
        if withdrawn is not None:
            yield problem("withdrawn", found_at=image, reason=withdrawn.problem, **values)
        elif tag is not None and tag.cuda.major <= _find_newest_deleted_cuda():
            yield problem("deleted", found_at=image, major=tag.cuda.major, **values)
        elif tag is not None and tag.row is not None and tag.row.may_vanish:
            yield problem("may-vanish", found_at=image, cuda=tag.cuda, system=tag.system, **values)


def _find_newest_deleted_cuda() -> int:
    """The newest CUDA major whose images are gone as a whole."""
    named = [CudaTag.of(row.tag) for row in load_tables().images.withdrawn.values() if "images deleted" in row.problem]
    oldest = min(row.cuda.major for row in load_tables().images.cuda_images)
    return max((tag.cuda.major for tag in named if tag is not None and tag.cuda.major < oldest), default=0)


@check("PRJ022")
def image_has_cuda_once(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        has_wheels = bool(list(find_torch_installs(container)))
        for feature in container.dev.features if container.dev else ():
            if "/nvidia-cuda:" in f"{feature.name}:" and has_wheels:
                yield problem("feature", found_at=feature, version=feature.value or "of its choice")
    for container, image in _require_base_images(facts):
        tag = CudaTag.of(image.value)
        wheels = list(find_torch_installs(container))
        if tag is None or tag.flavor not in ("runtime", "devel") or not wheels:
            continue
        labels = sorted({one.index for one in wheels if one.index})
        line = f"cu{tag.cuda.numbers[0]}{tag.cuda.numbers[1] if len(tag.cuda.numbers) > 1 else 0}"
        is_same, has_wheel_line = line in labels, line in load_tables().torch.indexes
        if tag.flavor == "devel" and is_same:
            continue  # it is there to compile with
        yield problem(
            "base-image" if has_wheel_line else "base-image-without-wheels",
            found_at=image,
            severity=Severity.NOTE if is_same or (has_wheel_line and not labels) else None,
            evidence=(
                cite(image, image.value),
                *(cite(one, f"torch {one.index or 'from the default index'}") for one in wheels),
            ),
            image=image.value,
            cuda=tag.cuda,
            origin=join_words(labels) if labels else "the default index",
            flavor=tag.flavor,
        )


@check("PRJ023")
def image_has_compiler(facts: Facts) -> Iterator[Problem]:
    for container, image in _require_base_images(facts):
        wheels = list(find_torch_installs(container))
        compilers = [name for stage in container.stages for name in stage.compilers]
        if not container.stages or not wheels or compilers or not _NO_COMPILER.search(image.value):
            continue
        evidence = (cite(image, image.value), cite(wheels[0], "torch"))
        yield problem("no-compiler", found_at=image, evidence=evidence, image=image.value)


@check("PRJ024")
def build_names_index(facts: Facts) -> Iterator[Problem]:
    places: dict[tuple[str, int], tuple[ProjectContainer, Install]] = {}
    for container in require_project_containers(facts):
        for install in container.installs:
            places.setdefault((install.path, install.line), (container, install))
    for container, install in places.values():
        by_variable = container.value("UV_TORCH_BACKEND") == "auto" and install.tool == "uv" and not install.backend
        is_built = any(install in stage.installs for stage in container.stages)
        if is_built and (install.backend == "auto" or by_variable):
            yield problem("automatic-backend", found_at=install, evidence=(cite(install, "torch backend auto"),))


@check("PRJ025")
def build_needs_no_gpu(facts: Facts) -> Iterator[Problem]:
    seen: set[str] = set()
    for container in require_project_containers(facts):
        for stage in container.stages:
            for found in _find_gpu_needs(container, stage):
                if found.subject not in seen:
                    seen.add(found.subject)
                    yield found


def _find_gpu_needs(container: ProjectContainer, stage: Stage) -> Iterator[Problem]:
    """Find commands that use a GPU, and extensions that are built for the GPU that is there."""
    for use in stage.gpu_uses:
        name = "gpu-printed" if "printed" in use.name else "gpu-used"
        yield problem(name, found_at=use, evidence=(cite(use, use.value),), program=use.name.partition(",")[0])
    if container.value("TORCH_CUDA_ARCH_LIST") or any(one.name == "TORCH_CUDA_ARCH_LIST" for one in stage.variables):
        return
    for install in stage.installs:
        names = [one.name for one in install.requirements if one.name in _COMPILED]
        if names:
            evidence = (cite(install, join_words(names)), "TORCH_CUDA_ARCH_LIST is not set")
            yield problem("no-architectures", found_at=install, evidence=evidence, packages=join_words(names))


@check("PRJ035")
def compiled_packages_have_nvcc(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        builds = container.project.builds
        extensions = () if isinstance(builds, Unknown) else tuple(one for one in builds if one.has_cuda)
        for stages, installs, nvcc in _list_builds(container):
            image = stages[0].image if stages else container.image.value if container.image else ""
            if (
                not _NO_NVCC.search(image)
                or nvcc
                or (container.dev and any("nvidia-cuda" in each.name for each in container.dev.features))
            ):
                continue
            for install in installs:
                names = [one.name for one in install.requirements if _compiles_cuda(one)]
                names += [one.name or "the project" for one in extensions if find_project_extras(install) is not None]
                if names:
                    evidence = (cite(install, join_words(names)), f"{image}: no nvcc")
                    yield problem(
                        "no-nvcc", found_at=install, evidence=evidence, packages=join_words(names), image=image
                    )


def _list_builds(
    container: ProjectContainer,
) -> Iterator[tuple[tuple[Stage, ...], tuple[Install, ...], tuple[str, ...]]]:
    """Yield each place where packages are built: the stages that it is built from, the installations, packages with nvcc."""
    for stage in container.image_stages:
        below = container.find_chain(stage)
        nvcc = tuple(name for one in below for name in (() if isinstance(one.nvcc, Unknown) else one.nvcc))
        yield below, find_with_files(stage.installs, container.project), nvcc
    if container.dev is not None:
        of_image = (one.nvcc for one in container.stages)
        nvcc = tuple(name for each in (*of_image, container.dev.nvcc) if not isinstance(each, Unknown) for name in each)
        yield container.stages, find_with_files(container.dev.installs, container.project), nvcc


def _compiles_cuda(requirement: Requirement) -> bool:
    """Say if a package compiles with nvcc when it is installed; one that has wheels or an address may not."""
    row = next((one for one in load_tables().compiled.packages.values() if one.package == requirement.name), None)
    is_source = row is not None and row.needs_cuda and not row.is_at_use and not row.has_wheels
    return is_source and requirement.specifier != "url"


@check("PRJ026")
def torch_is_pinned(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        found = [
            one for install in find_torch_installs(container) for one in install.requirements if one.name == "torch"
        ]
        if not found or container.project.locks:
            continue
        if container.value("PIP_CONSTRAINT") or container.value("UV_CONSTRAINT"):
            continue
        if find_torch_source(container).origin is TorchOrigin.IMAGE:
            continue  # An installed torch meets a requirement without a version.
        # A line that pins torch for the CPU counts too: the others must agree with it then.
        requirements = [one for install in container.installs for one in install.requirements]
        if any(one.name == "torch" and _PINNED.search(one.specifier) for one in requirements):
            continue
        first = found[0]
        evidence = (cite(first, f"{first.name}{first.specifier}"),)
        yield problem("unpinned", found_at=first, evidence=evidence, requirement=f"torch{first.specifier or ''}")


@check("PRJ027")
def driver_supports_chosen_cuda(facts: Facts) -> Iterator[Problem]:
    containers = require_project_containers(facts)
    driver, newest = require(require_nvml(facts).driver), require(require_nvml(facts).cuda)
    platform = "wsl2" if find_platform(facts) in (Platform.WSL2, Platform.WINDOWS) else "linux"
    for container in containers:
        for install in find_torch_installs(container):
            row = load_tables().torch.indexes.get(install.index)
            if row is None or row.cuda is None:
                continue
            if check_cuda_support(driver, row.cuda, platform=platform, driver_says=newest) is CudaSupport.NO:
                place = Setting("", "", install.path, install.line)
                yield _find_too_new(facts, f"torch of {install.index}", place, row.cuda)
        image = container.image
        tag = CudaTag.of(image.value) if image else None
        if (
            image is None
            or tag is None
            or container.value("NVIDIA_DISABLE_REQUIRE")
            or not find_gpu_evidence(container)
        ):
            continue
        if _find_minor(tag.cuda) > _find_minor(newest):
            yield _find_too_new(facts, image.value, image, tag.cuda)


@check("PRJ033")
def compiler_knows_every_gpu(facts: Facts) -> Iterator[Problem]:
    images = [(image, tag) for _, image in _require_base_images(facts) if (tag := CudaTag.of(image.value))]
    images = [(image, tag) for image, tag in images if tag.flavor == "devel"]
    if not images or not facts.gpus:
        raise NotApplicable("no image has nvcc" if not images else "no GPU answers")
    rows = load_tables().driver.capabilities
    for gpu in {gpu.name: gpu for gpu in facts.gpus}.values():
        row = rows.get(require(gpu.capability))
        if row is None:
            continue
        for image, tag in images:
            is_early, is_late = (
                tag.cuda < row.first_cuda,
                row.last_cuda and _find_minor(tag.cuda) > row.last_cuda.numbers,
            )
            if not is_early and not is_late:
                continue
            wanted = f"{row.first_cuda} or newer" if is_early else f"{row.last_cuda} or older"
            yield problem(
                "cannot-compile",
                found_at=image,
                evidence=(cite(image, image.value), f"{row.capability.sm} is for CUDA {wanted}"),
                image=image.value,
                cuda=tag.cuda,
                gpu=gpu.name,
                capability=row.capability.sm,
                wanted=wanted,
            )


def _find_too_new(facts: Facts, what: str, place: Setting, cuda: Release) -> Problem:
    answer = require_nvml(facts)
    return problem(
        "too-new",
        found_at=place,
        evidence=(cite(place, f"CUDA {cuda}"), f"driver {answer.driver}, CUDA {answer.cuda}"),
        what=what,
        cuda=cuda,
        driver=answer.driver,
        newest=answer.cuda,
        wanted=f"for CUDA {cuda}",
    )


def _find_minor(cuda: Release) -> tuple[int, ...]:
    return cuda.numbers[:2]


@check("PRJ040")
def image_can_use_gpu(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        for stage in container.stages:
            drivers = () if isinstance(stage.drivers, Unknown) else stage.drivers
            for driver in drivers[:1]:
                packages = join_words(each.value for each in drivers)
                yield problem("driver-in-image", found_at=driver, evidence=(cite(driver, packages),), packages=packages)
        if not container.requests:
            continue
        builds = find_with_files(container.installs, container.project)
        for install in builds:
            torch = next((one for one in install.requirements if one.name == "torch"), None)
            if torch is not None and (install.index == "cpu" or install.backend == "cpu" or "+cpu" in torch.specifier):
                evidence = (
                    cite(install, f"torch{torch.specifier}, index {install.index or install.backend or 'none'}"),
                )
                yield problem("cpu-torch", found_at=install, evidence=evidence, container=container.name)
