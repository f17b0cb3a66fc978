"""The containers that a project's files describe, each with its image and all that asks something of it."""

import re
from collections.abc import Iterator
from typing import Protocol

from devkit.doctor.model import Confidence, Finding, Fix, Location, NotApplicable, Severity
from devkit.doctor.preconditions import require
from devkit.facts.model import (
    Build,
    DevContainer,
    Dockerfile,
    Facts,
    GpuRequest,
    Install,
    Mount,
    Project,
    Requirement,
    Service,
    Setting,
    Stage,
    Variable,
)
from devkit.facts.values import record

TORCH_PACKAGES = (
    "torch",
    "torchvision",
    "torchaudio",
    "vllm",
    "unsloth",
    "xformers",
    "flash-attn",
    "bitsandbytes",
    "deepspeed",
)
"""Packages that bring torch, or are of no use without it."""

_DEFAULT = re.compile(r"\$\{\w+:?-([^}]*)\}")
_GPU_IMAGES = re.compile(
    r"(?:^|/)(?:nvidia/(?:cuda|pytorch|nemo|tensorflow)|pytorch/pytorch|vllm/vllm-openai|unsloth/unsloth"
    r"|huggingface/(?:transformers-pytorch|peft|accelerate)[\w-]*gpu)(?::|@|$)"
)


@record
class ProjectContainer:
    """One container: a dev container with its Compose service, a service alone, or the image of a Dockerfile alone."""

    project: Project
    dev: DevContainer | None = None
    service: Service | None = None
    dockerfile: Dockerfile | None = None

    @property
    def name(self) -> str:
        """The name that a reader would use."""
        if self.dev is not None:
            return self.dev.path
        if self.service is not None:
            return f"service {self.service.name} in {self.service.path}"
        return self.dockerfile.path if self.dockerfile else self.project.folder

    @property
    def location(self) -> Location:
        """The place to look at first: the service, or the file."""
        if self.service is not None:
            return Location(self.service.path, self.service.line)
        path = self.dev.path if self.dev else self.name
        return Location(path)

    @property
    def is_compose(self) -> bool:
        """True if Compose starts it, which knows no runArgs."""
        return self.service is not None or bool(self.dev and self.dev.compose_files)

    @property
    def is_started_by_files(self) -> bool:
        """True if these files decide how it starts; a Dockerfile alone does not."""
        return self.dev is not None or self.service is not None

    @property
    def requests(self) -> tuple[GpuRequest, ...]:
        """The GPU requests that take effect, without hostRequirements."""
        of_service = self.service.requests if self.service else ()
        of_dev = self.dev.requests if self.dev and not self.is_compose else ()
        return (*of_service, *of_dev)

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Mounts of both files."""
        return (*(self.service.mounts if self.service else ()), *(self.dev.mounts if self.dev else ()))

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Environment variables of the container, those of its image first."""
        of_image = tuple(one for stage in self.stages for one in stage.variables if one.place == "ENV")
        of_files = (*(self.service.variables if self.service else ()), *(self.dev.variables if self.dev else ()))
        return (*of_image, *of_files)

    def value(self, name: str) -> str:
        """The plain value of an environment variable, "" when it has none that is known."""
        return next((one.value for one in reversed(self.variables) if one.name == name), "")

    def settings(self, *names: str) -> tuple[Setting, ...]:
        """Settings by these names, in both files."""
        every = (*(self.service.settings if self.service else ()), *(self.dev.settings if self.dev else ()))
        return tuple(one for one in every if one.name in names)

    def setting(self, *names: str) -> Setting | None:
        """The setting that counts among these names."""
        return next(reversed(self.settings(*names)), None)

    @property
    def build(self) -> Build | None:
        """The build of its image."""
        if self.service is not None:
            return self.service.build
        return self.dev.build if self.dev else None

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that its image consists of, the first one lowest."""
        if self.dockerfile is None or not self.dockerfile.stages:
            return ()
        target = self.build.target if self.build else ""
        stage: Stage | None = next((one for one in self.dockerfile.stages if target and one.name == target), None)
        stage = stage or self.dockerfile.stages[-1]
        chain: list[Stage] = []
        while stage is not None and stage not in chain:
            chain.insert(0, stage)
            image = stage.image
            stage = next((one for one in self.dockerfile.stages if one.name == image and one is not chain[0]), None)
        return tuple(chain)

    @property
    def image(self) -> Setting | None:
        """The image that all begins with, defaults filled in; None when a variable without one decides."""
        stages = self.stages
        if stages:
            found = Setting("FROM", stages[0].image, self.dockerfile.path if self.dockerfile else "", stages[0].line)
        else:
            named = (self.service.image if self.service else None) or (self.dev.image if self.dev else None)
            if named is None or self.build is not None:
                return None
            found = Setting("image", _DEFAULT.sub(r"\1", named.value), named.path, named.line)
        return None if "$" in found.value or not found.value else found

    @property
    def installs(self) -> tuple[Install, ...]:
        """The installations into it, with the requirement files that a command names."""
        direct = (*(one for stage in self.stages for one in stage.installs), *(self.dev.installs if self.dev else ()))
        named = {file.rpartition("/")[2] for one in direct for file in one.files}
        of_files = tuple(one for one in self.project.installs if one.path.rpartition("/")[2] in named)
        return (*direct, *of_files)

    @property
    def user(self) -> Setting | None:
        """The user that it runs as, as far as the files say; None is the base image's own."""
        of_image = next((stage.user for stage in reversed(self.stages) if stage.user), None)
        return self.setting("remoteUser", "containerUser") or self.setting("user") or of_image


def require_project_containers(facts: Facts) -> tuple[ProjectContainer, ...]:
    """Return every container that the project's files describe, or end the check."""
    project = require_project(facts)
    dockerfiles = {one.path: one for one in project.dockerfiles}

    def made(dev: DevContainer | None, service: Service | None) -> ProjectContainer:
        build = service.build if service else dev.build if dev else None
        return ProjectContainer(project, dev, service, dockerfiles.get(build.dockerfile) if build else None)

    containers = []
    for dev in project.dev_containers:
        own = (one for one in project.services if one.name == dev.service and one.files == dev.compose_files)
        service = next(own, None) if dev.compose_files else None
        containers.append(made(dev, service))
    taken = [container.service for container in containers]
    containers += [made(None, one) for one in project.services if one not in taken]
    built = [container.dockerfile for container in containers]
    containers += [ProjectContainer(project, dockerfile=one) for one in project.dockerfiles if one not in built]
    return tuple(containers)


def require_project(facts: Facts) -> Project:
    """Return the project's files, or end the check where none is about containers."""
    project = require(facts.project)
    if project is None:
        raise NotApplicable("no project folder was looked into")
    if not (project.dev_containers or project.services or project.dockerfiles):
        raise NotApplicable("the project has no dev container, Compose file or Dockerfile")
    return project


def find_gpu_evidence(container: ProjectContainer) -> Requirement | Setting | None:
    """Find the evidence of GPU work: a package with CUDA inside, or a GPU image; None for neither."""
    for install in (
        *container.installs,
        *(container.project.installs if container.dev and not container.installs else ()),
    ):
        if install.index.startswith(("cpu", "rocm", "xpu")):
            continue
        found = next(
            (one for one in install.requirements if one.name in TORCH_PACKAGES and "+cpu" not in one.specifier), None
        )
        if found is not None and not any(_has_cpu_torch(other) for other in container.installs):
            return found
    image = container.image
    return image if image is not None and _GPU_IMAGES.search(image.value) else None


def _has_cpu_torch(install: Install) -> bool:
    """Say if torch itself comes from the index for the CPU; other packages follow it."""
    has_torch = any(one.name == "torch" for one in install.requirements)
    return has_torch and install.index.startswith(("cpu", "rocm", "xpu"))


def find_torch_installs(container: ProjectContainer) -> Iterator[Install]:
    """Yield the installations of torch for CUDA into this container."""
    for install in container.installs:
        names = {one.name for one in install.requirements}
        if "torch" in names and not _has_cpu_torch(install):
            yield install


def format_location(path: str, line: int) -> str:
    """Format a place as findings show it."""
    return f"{path}:{line}"


class _FileLine(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def line(self) -> int: ...


def build_file_finding(
    place: _FileLine,
    severity: Severity,
    message: str,
    fix: Fix,
    *,
    evidence: tuple[str, ...],
    confidence: Confidence = Confidence.CERTAIN,
) -> Finding:
    """Build a finding about a line of one of the project's files."""
    return Finding(
        severity,
        message,
        fix,
        subject=format_location(place.path, place.line),
        evidence=evidence,
        confidence=confidence,
        location=Location(place.path, place.line),
    )


def build_setting_finding(
    setting: Setting, severity: Severity, message: str, fix: Fix, confidence: Confidence = Confidence.CERTAIN
) -> Finding:
    """Build a finding about a setting in one of the project's files, with the setting as evidence."""
    at = format_location(setting.path, setting.line)
    evidence = (f"{at}: {setting.name} {setting.value}".rstrip(": "),)
    return build_file_finding(setting, severity, message, fix, evidence=evidence, confidence=confidence)
