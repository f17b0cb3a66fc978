"""The containers that a project's files describe, each with its image and all that asks something of it."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from devkit.doctor.model import Location, NotApplicable
from devkit.doctor.preconditions import require_some
from devkit.facts.model import Facts
from devkit.facts.project import (
    Build,
    DevContainer,
    Dockerfile,
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
from devkit.facts.values import Unknown

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
MANIFESTS = ("pyproject.toml", "setup.py", "setup.cfg")
"""Files with the requirements of a project that is installed itself."""
_DEFAULT = re.compile(r"\$\{\w+:?-([^}]*)\}")
_ITSELF = re.compile(r"\.\[?([^\]/]*)\]?")
_TORCH_IMAGES = re.compile(
    r"(?:^|/)(?:nvidia/(?:pytorch|nemo)|nvidian?/nemo|pytorch/pytorch|pytorchlightning/[\w-]+|rocm/pytorch\S*|vllm/vllm-openai"
    r"|unsloth/unsloth|huggingface/(?:transformers-pytorch|peft|accelerate)[\w-]*gpu)(?::|@|$)"
)
"""Images that bring torch."""
_PYTORCH_TAG = re.compile(r"(?:^|/)pytorch/pytorch:(\d+\.\d+\.\d+)-cuda(\d+\.\d+)-")
_TORCH_PIN = re.compile(r"={1,3}\s*(\d+(?:\.\d+)+)(?:\+(\w+(?:\.\d+)*))?(?:\s*;.*)?")
_CUDA_IMAGES = re.compile(r"(?:^|/)nvidia/(?:cuda|tensorflow)(?::|@|$)")


@dataclass(frozen=True)
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
        return self._find_chain(target) or self.find_chain(self.dockerfile.stages[-1])

    def find_chain(self, stage: Stage) -> tuple[Stage, ...]:
        """Return a stage of the Dockerfile and those that it is built on, the lowest first."""
        every = self.dockerfile.stages if self.dockerfile else ()
        return self._find_chain(str(every.index(stage)))

    def _find_chain(self, name: str) -> tuple[Stage, ...]:
        """Return the stage of this name or number and those below it, the lowest first."""
        every = dict(enumerate(self.dockerfile.stages if self.dockerfile else ()))
        chain: list[Stage] = []
        while found := next((one for number, one in every.items() if name in (one.name, str(number)) and name), None):
            if found in chain:
                break
            chain.insert(0, found)
            name = found.image
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
    def image_stages(self) -> tuple[Stage, ...]:
        """The stages of its image, and those that it copies from."""
        stages = list(self.stages)
        for stage in stages:
            names = () if isinstance(stage.copied_from, Unknown) else stage.copied_from
            copied = dict.fromkeys(one for name in names for one in self._find_chain(name))
            stages += [one for one in copied if one not in stages]
        return tuple(stages)

    @property
    def image_installs(self) -> tuple[Install, ...]:
        """The installations into its image, in stages that it copies from as well, with the requirement files named."""
        return find_with_files((one for stage in self.image_stages for one in stage.installs), self.project)

    @property
    def installs(self) -> tuple[Install, ...]:
        """The installations into it, by its image and by its lifecycle commands."""
        of_image = self.image_installs
        of_commands = find_with_files(self.dev.installs if self.dev else (), self.project)
        return (*of_image, *(one for one in of_commands if one not in of_image))

    @property
    def user(self) -> Setting | None:
        """The user that it runs as, as far as the files say; None is the base image's own."""
        of_image = next((stage.user for stage in reversed(self.stages) if stage.user), None)
        return self.setting("remoteUser", "containerUser") or self.setting("user") or of_image


def require_project_containers(facts: Facts) -> tuple[ProjectContainer, ...]:
    """Return every container that the project's files describe, or end the check."""
    require_project(facts)
    return find_project_containers(facts)


def find_project_containers(facts: Facts) -> tuple[ProjectContainer, ...]:
    """Return every container that the project's files describe; none where no project was read."""
    if not isinstance(facts.project, Project):
        return ()
    project = facts.project
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
    project = require_some(facts.project, "no project folder was checked")
    if not (project.dev_containers or project.services or project.dockerfiles):
        raise NotApplicable("the project has no dev container, Compose file or Dockerfile")
    return project


def find_gpu_evidence(container: ProjectContainer) -> Requirement | Setting | None:
    """Find the evidence of GPU work: torch for CUDA, or an image with CUDA inside; None for neither."""
    image = container.image
    has_cuda = image is not None and _CUDA_IMAGES.search(image.value)
    return find_torch_evidence(container) or (image if has_cuda else None)


def find_torch_evidence(container: ProjectContainer) -> Requirement | Setting | None:
    """Find the evidence of torch for CUDA: a package that is or needs it, or an image with it inside; None for neither."""
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
    has_torch = image is not None and _TORCH_IMAGES.search(image.value) and "rocm" not in image.value
    return image if has_torch else None


def _has_cpu_torch(install: Install) -> bool:
    """Say if torch itself comes from the index for the CPU; other packages follow it."""
    has_torch = any(one.name == "torch" for one in install.requirements)
    return has_torch and install.index.startswith(("cpu", "rocm", "xpu"))


class TorchOrigin(StrEnum):
    """The part of a project that brings torch into a container."""

    IMAGE = "image"
    BUILD = "build"
    COMMAND = "command"
    UNKNOWN = "unknown"
    """Nothing that the files show; an image of somebody else's may have it."""


@dataclass(frozen=True)
class TorchSource:
    """The origin of a container's torch; `version` and `variant`, such as cu118, are "" where no file says them."""

    origin: TorchOrigin
    place: Location
    version: str = ""
    variant: str = ""
    tool: str = ""
    """What installs it: pip, uv, conda; "" for an image."""

    @property
    def is_known(self) -> bool:
        """True if a file of the project says it."""
        return self.origin is not TorchOrigin.UNKNOWN


def find_torch_source(container: ProjectContainer, *, has_project_torch: bool = False) -> TorchSource:
    """Find what brings torch into the container: its image, a step of its build, or a lifecycle command.

    The first one counts, because an installed torch meets the later requirements. `has_project_torch` says that the
    project requires torch, where the files of the facts do not show it.
    """
    image = container.image
    if image is not None and _TORCH_IMAGES.search(image.value):
        tag = _PYTORCH_TAG.search(image.value)
        version, cuda = (tag[1], f"cu{tag[2].replace('.', '')}") if tag else ("", "")
        return TorchSource(TorchOrigin.IMAGE, Location(image.path, image.line), version, cuda)
    commands = container.dev.installs if container.dev else ()
    for origin, installs in ((TorchOrigin.BUILD, container.image_installs), (TorchOrigin.COMMAND, commands)):
        found = [one for one in installs if _brings_torch(one, container.project, has_project_torch=has_project_torch)]
        if found:
            return _read_source(origin, found, find_with_files(found, container.project))
    location = Location(image.path, image.line) if image else container.location
    return TorchSource(TorchOrigin.UNKNOWN, location)


def find_project_extras(install: Install) -> tuple[str, ...] | None:
    """Return the extras with which an installation installs the project itself; None where it does not."""
    found = [each for each in (_ITSELF.fullmatch(file) for file in install.files) if each]
    return tuple(name.strip() for each in found for name in each[1].split(",") if name.strip()) if found else None


def find_with_files(direct: Iterable[Install], project: Project) -> tuple[Install, ...]:
    """Return these installations, and the project's requirement files that they and these name, by their names alone."""
    found = list(dict.fromkeys(direct))
    for install in found:
        named = {file.rpartition("/")[2] for file in install.files}
        manifests = MANIFESTS if find_project_extras(install) is not None else ()
        found += [
            one
            for one in project.installs
            if one not in found and (one.path in manifests or one.path.rpartition("/")[2] in named)
        ]
    return tuple(found)


def _brings_torch(install: Install, project: Project, *, has_project_torch: bool) -> bool:
    """Say if an installation brings torch: by name, by a package of its family, or by a file; a torch index hints at it."""
    if any(one.name in TORCH_PACKAGES for one in install.requirements) or install.index:
        return True
    if has_project_torch and find_project_extras(install) is not None:
        return True
    files = find_with_files((install,), project)
    return any(one.name in TORCH_PACKAGES for file in files for one in file.requirements)


def _read_source(origin: TorchOrigin, found: list[Install], installs: Iterable[Install]) -> TorchSource:
    every = [(one.specifier, install) for install in installs for one in install.requirements if one.name == "torch"]
    pins = ((_TORCH_PIN.fullmatch(specifier), install) for specifier, install in every)
    version, label, install = next(
        ((pin[1], pin[2] or "", install) for pin, install in pins if pin), ("", "", every[0][1] if every else found[0])
    )
    index = next(
        (each for one in (install, *found) for each in (one.index, one.backend) if each not in ("", "auto")), ""
    )
    location = Location(found[0].path, found[0].line)
    return TorchSource(origin, location, version, label or index, found[0].tool)


def find_torch_installs(container: ProjectContainer) -> Iterator[Install]:
    """Yield the installations of torch for CUDA into this container."""
    for install in container.installs:
        names = {one.name for one in install.requirements}
        if "torch" in names and not _has_cpu_torch(install):
            yield install
