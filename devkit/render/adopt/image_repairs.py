"""What devkit does about a finding on an image: the versions come from the plan, which the doctor does not know."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from devkit.doctor.checks.project_images import CudaTag
from devkit.doctor.checks.project_units import TORCH, Unit, units_of
from devkit.doctor.model import Finding
from devkit.facts.model import Dockerfile, Facts, Project
from devkit.facts.policy import Policy
from devkit.facts.project_parts import RequestForm
from devkit.render.adopt.dockerfile import (
    Versions,
    with_base_image,
    with_compiler,
    with_requirement,
    with_user,
    with_versions,
)

Changed = Iterator[tuple[str, bytes]]

_SYSTEM = re.compile(r"(ubuntu|debian)([\d.]+)")
_NEEDS_NVCC = re.compile(r"\bnvcc\b|CUDA_HOME|TORCH_CUDA_ARCH_LIST|flash[-_]attn")
_NEEDS_ROOT = re.compile(r"\b(?:apt|apt-get|sudo)\b")
_HAS_UBUNTU_USER = re.compile(r"ubuntu:?(?:23\.04|23\.10|2[4-9]\.)")
_CUDA_IMAGES_SET = "NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility"


@dataclass(frozen=True)
class Target:
    """The project as it is judged, the plan's versions, and each file as it would be by now."""

    facts: Facts
    versions: Versions
    text: Callable[[str], bytes]

    def units(self, finding: Finding) -> Iterator[tuple[Unit, Dockerfile]]:
        """The containers with a Dockerfile that the finding concerns."""
        path = finding.location.path if finding.location else ""
        for unit in units_of(self.facts):
            dockerfile = unit.dockerfile
            if dockerfile is not None and path in (dockerfile.path, *_files_of(unit)):
                yield unit, dockerfile


def _files_of(unit: Unit) -> tuple[str, ...]:
    """Where a finding about this container may stand."""
    dev = (unit.dev.path,) if unit.dev else ()
    return (*dev, *(install.path for install in unit.installs))


def _another_image(target: Target, finding: Finding) -> Changed:
    """The same system without CUDA's libraries: the system's packages stay what they are."""
    for unit, dockerfile in target.units(finding):
        image, text = unit.image, target.text(dockerfile.path).decode()
        tag = CudaTag.of(image.value) if image else None
        system = _SYSTEM.fullmatch(tag.system) if tag else None
        if image is None or tag is None or system is None or tag.flavour == "devel" or _NEEDS_NVCC.search(text):
            continue
        if unit.stages[0].image_text != image.value:
            continue
        by_runtime = any(request.form is RequestForm.RUNTIME for request in unit.requests)
        environment = _CUDA_IMAGES_SET if by_runtime else ""
        name = f"{system[1]}:{system[2]}"
        yield dockerfile.path, with_base_image(text, line=image.line, image=name, environment=environment).encode()


def _compiler(target: Target, finding: Finding) -> Changed:
    for unit, dockerfile in target.units(finding):
        stage = unit.stages[-1]
        has_own_python = bool(unit.image and re.search(r"(?:^|/)python:", unit.image.value))
        text = target.text(dockerfile.path).decode()
        yield dockerfile.path, with_compiler(text, after=stage.line, has_own_python=has_own_python).encode()


def _pins(target: Target, finding: Finding) -> Changed:
    for unit, dockerfile in target.units(finding):
        unpinned = [
            one
            for install in target.facts.project.installs  # type: ignore[union-attr] # units_of has looked
            for one in install.requirements
            if one.name in TORCH and install in unit.installs
        ]
        lists = [one for one in unpinned if one.path.endswith((".txt", ".in"))]
        for one in lists:
            listed = target.text(one.path).decode()
            yield one.path, with_requirement(listed, line=one.line, versions=target.versions).encode()
        files = frozenset(one.path.rpartition("/")[2] for one in lists if one.name == "torch")
        text = target.text(dockerfile.path).decode()
        yield dockerfile.path, with_versions(text, target.versions, files=files).encode()


def _user(target: Target, finding: Finding) -> Changed:
    for unit, dockerfile in target.units(finding):
        commands = target.text(unit.dev.path).decode() if unit.dev else ""
        # A service runs as whoever its image says, and what it may do then nobody can tell from here.
        if unit.dev is None or unit.user is not None or _NEEDS_ROOT.search(commands):
            continue
        has_ubuntu = bool(unit.image and _HAS_UBUNTU_USER.search(unit.image.value))
        yield dockerfile.path, with_user(target.text(dockerfile.path).decode(), has_ubuntu=has_ubuntu).encode()


def _mirror(target: Target, finding: Finding) -> Changed:
    """The same image under the name where the policy has it taken from."""
    project = target.facts.project
    policy = project.policy if isinstance(project, Project) else None
    if finding.location is None or not isinstance(policy, Policy):
        return
    for unit, dockerfile in target.units(finding):
        for stage in unit.stages:
            is_meant = (dockerfile.path, stage.line) == (finding.location.path, finding.location.line)
            image = policy.mirrored(stage.image)
            if is_meant and stage.image_text == stage.image and image != stage.image and policy.allows_image(image):
                text = target.text(dockerfile.path).decode()
                yield dockerfile.path, with_base_image(text, line=stage.line, image=image).encode()


IMAGE_REPAIRS: Mapping[str, Callable[[Target, Finding], Changed]] = {
    "PRJ021": _another_image,
    "PRJ022": _another_image,
    "PRJ023": _compiler,
    "PRJ024": _pins,
    "PRJ026": _pins,
    "PRJ027": _another_image,
    "PRJ029": _user,
    "PRJ032": _mirror,
}
"""Code of a check -> the change that it asks for."""
