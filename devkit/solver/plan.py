"""Input and answer of the solver: a request for machines, and a plan or a conflict."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from devkit.compat.specifiers import satisfies, satisfies_python
from devkit.errors import DevkitError
from devkit.facts.dependencies import Framework, Resolved
from devkit.facts.values import ComputeCapability, Release, Unknown

PYTHON = "python"
"""The name of constraints on Python itself."""

RESOLUTION = "resolution"
"""The field of the reason for the versions of a project's packages."""

AS_OF = "as_of"
"""The field of the reason for the day by which the project's packages were released."""

NO_GPU = "no NVIDIA GPU or driver"
"""How the reason for the vendor starts where no machine has a GPU."""

LATEST = "latest"
"""The newest packages, in place of a day."""

SYSTEM_PACKAGE = "apt"
"""The value of reasons for Debian packages, whose field is the package's name."""

FROM_WHEELS = "wheels"
"""The value of `Plan.nvcc` where the compiler comes from packages of the index."""

FLAGS_ORIGIN = "the flags"
"""The origin of a machine that was described on the command line."""

TORCH_VERSION = re.compile(r"(\d+\.\d+(?:\.\d+)?)(?:\+(cu\d{3}|cpu|rocm\d+\.\d+(?:\.\d+)?))?")
"""A torch version as users write it, with or without the variant of its wheel: 2.14, 2.14.1, 2.14.1+cu126."""


class Vendor(StrEnum):
    """The accelerator that a plan is for."""

    NVIDIA = "nvidia"
    ROCM = "rocm"
    CPU = "cpu"


@dataclass(frozen=True)
class Machine:
    """The part of a machine that versions depend on. `driver` and `gpus` are NVIDIA's, and empty on a CPU machine.

    `machine` is x86_64 or aarch64, `platform` linux or wsl2. `glibc` is that of the system that will run torch,
    where it is not the planned image; None leaves it to the image.

    `cuda` is the newest CUDA the driver runs, as nvidia-smi prints it; None when only tables can say.
    `origin` says where this came from: "this machine", a facts file, or the flags.
    """

    driver: Release | None
    cuda: Release | None
    gpus: tuple[tuple[str, ComputeCapability], ...]
    machine: str
    platform: str
    glibc: Release | None
    origin: str
    notes: tuple[str, ...] = ()
    """Warnings for a plan for this machine, such as a GPU that does not answer."""
    amd_gpus: tuple[tuple[str, str], ...] = ()
    """AMD GPUs by name, each with its LLVM target such as gfx942."""
    toolkit: Release | None = None
    """The version of its NVIDIA Container Toolkit; None where it is absent or unknown."""


@dataclass(frozen=True)
class Constraint:
    """A requirement in the project's own files: a PEP 440 specifier on a package or on Python, and its file and line."""

    name: str
    specifier: str
    origin: str

    def __str__(self) -> str:
        return f"{self.origin} wants {self.name}{self.specifier}"

    def is_met_by(self, version: str) -> bool:
        """Return whether a version of the package, or of Python, meets the constraint."""
        return (satisfies_python if self.name == PYTHON else satisfies)(version, self.specifier)


@dataclass(frozen=True)
class Request:
    """A request for a plan. None and empty leave the choice to the solver; `pins` are (package, version) pairs.

    `constraints` come from the project's files; several may be on one package. `stated` are constraints on what uv resolves,
    as PEP 508 writes them. `gpu_runtime` is "legacy" or "cdi", None where it is unknown. `apt` are Debian packages for the image.
    `adds_packages` is false where a project says itself what it needs: then no transformers, peft, accelerate and
    bitsandbytes are added to it.
    `framework` None leaves it to the project; `framework_because` is how its files show it.
    `no_hold` leaves the versions that uv resolves open, so that each build of the image takes the newest ones.
    `as_of` is the day, such as 2023-07-24, by which the project's packages are to have been released, "latest" for any; "" leaves it open.
    """

    machines: tuple[Machine, ...]
    vendor: Vendor | None = None
    torch: str | None = None
    cuda: str | None = None
    python: str | None = None
    image: str | None = None
    pins: tuple[tuple[str, str], ...] = ()
    features: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    stated: tuple[str, ...] = ()
    gpu_runtime: str | None = None
    apt: tuple[str, ...] = ()
    adds_packages: bool = True
    framework: Framework | None = None
    framework_because: str = ""
    as_of: str = ""
    no_hold: bool = False

    def constraints_on(self, name: str) -> tuple[Constraint, ...]:
        """Return the constraints on one package, or on "python"."""
        return tuple(each for each in self.constraints if each.name == name)


@dataclass(frozen=True)
class Reason:
    """The reason why `field` has `value`, with the rule's source and the table row's confidence."""

    field: str
    value: str
    because: str
    source: str
    confidence: str


class CompileMode(StrEnum):
    """The treatment of a package that compiles code against torch."""

    COMPILED = "compiled"
    """It compiles while the image is built, or, for a package among the project's files, when its container is made."""
    WHEEL = "wheel"
    """A wheel from elsewhere than the package index is installed."""
    AT_USE = "at use"
    """It compiles when it is first used."""
    LEFT_OUT = "left out"
    """It is not installed."""


@dataclass(frozen=True)
class CompiledPackage:
    """A package that compiles code against torch, and what is done about it, `because` in words.

    `path` is the folder among the project's files that it is built from, "" for a requirement. `url` is that of a wheel.
    `core_minutes` are those of one core, 0 where unknown, `job_gb` the memory of one job of its compiler. `requires` are
    its build requirements, `variables` NAME=value for its build. One that does not use torch is built the same way,
    because it imports what an isolated build lacks.
    """

    name: str
    mode: CompileMode
    because: str
    source: str
    path: str = ""
    url: str = ""
    core_minutes: int = 0
    job_gb: int = 0
    requires: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    uses_torch: bool = True


@dataclass(frozen=True)
class Plan:
    """Versions that fit every machine of the request, with a reason for each.

    `torch_index` is the wheel index's URL; `variant` its label such as cu130 or cpu.
    `packages` are those that the image installs for the plan itself, with exact versions, torch included.
    `project_packages` are those that the project names, as uv resolved them; the image installs the project's own files,
    and keeps to `limits`. `resolution` is uv's whole answer, Unknown where the packages were not checked, None where
    there was nothing to resolve. `overrides` are versions that the image installs in place of those that the project requires.
    For a different framework than torch, `torch`, `variant` and `torch_index` are "", `additions` are requirements that
    bring it its CUDA libraries, and `cuda` is that of nvcc or of these.
    `cuda` and `rocm` are what torch is built with, None for neither. `gpu_request` is "all" for NVIDIA's, "rocm" or
    "none". `architectures` are the machines it is for, such as x86_64. `data_as_of` is the day
    of the oldest table used. `compiled` are packages that compile code against torch, for GPUs of these `capabilities`;
    `nvcc` is where their compiler comes from: FROM_WHEELS, an image, or "" for none. `is_graphical` gives the container
    the driver's graphics libraries.
    """

    vendor: Vendor
    base_image: str
    python: str
    torch: str
    variant: str
    cuda: str | None
    torch_index: str
    packages: tuple[tuple[str, str], ...]
    gpu_request: str
    architectures: tuple[str, ...]
    reasons: tuple[Reason, ...]
    warnings: tuple[str, ...]
    data_as_of: str
    rocm: str | None = None
    compiled: tuple[CompiledPackage, ...] = ()
    nvcc: str = ""
    is_graphical: bool = False
    capabilities: tuple[str, ...] = ()
    project_packages: tuple[tuple[str, str], ...] = ()
    limits: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    resolution: Resolved | Unknown | None = None
    resolved_from: str = ""
    """The SHA-256 of the requirements that were resolved, by which devkit.lock knows them again."""

    @property
    def versions(self) -> dict[str, str]:
        """The version of every package that the plan or the project names."""
        return dict((*self.packages, *self.project_packages))

    framework: Framework = Framework.TORCH
    additions: tuple[str, ...] = ()

    @property
    def resolved(self) -> dict[str, str]:
        """The version of every package that the image gets, as far as it is resolved."""
        packages = self.resolution.packages if isinstance(self.resolution, Resolved) else ()
        return dict(packages) | self.versions

    @property
    def lacks_gpu(self) -> bool:
        """Return True if the plan is for the CPU because no machine has a GPU."""
        return any(each.field == "vendor" and each.because.startswith(NO_GPU) for each in self.reasons)

    @property
    def system_packages(self) -> tuple[Reason, ...]:
        """The Debian packages of the image, by reasons whose fields are their names."""
        return tuple(reason for reason in self.reasons if reason.value == SYSTEM_PACKAGE)

    @property
    def as_of(self) -> str:
        """The day by which the project's packages were released, such as 2023-07-24; "" for any."""
        return next((reason.value for reason in self.reasons if reason.field == AS_OF), "")

    def require_torch(self, what: str) -> None:
        """Raise DevkitError where the plan has no torch, which `what` needs."""
        if not self.torch:
            raise DevkitError(
                f"{what} needs a plan with torch, but this one has {self.framework.label}: {self.because('framework')}",
                "If the project uses torch, plan it with --torch VERSION.",
            )

    def because(self, name: str) -> str:
        """Return the reason for a field, as one sentence. Raises KeyError for a field without one."""
        for reason in self.reasons:
            if reason.field == name:
                return reason.because
        raise KeyError(name)


@dataclass(frozen=True)
class Blocker:
    """A rule that refuses the request. `rule` is its short name in docs, such as R4 or A1."""

    rule: str
    says: str
    source: str


@dataclass(frozen=True)
class Conflict:
    """The answer where no plan fits: the request in words, the rules that refuse it, and the nearest plan.

    The first blocker is the root cause. `nearest_changes` is what the nearest plan gives up, as flags to pass:
    "--torch 2.14 --cuda 12.6".
    """

    wanted: str
    blockers: tuple[Blocker, ...]
    nearest: Plan | None
    nearest_changes: str
    data_as_of: str


def parse_torch(text: str | None) -> tuple[str, str]:
    """Return the version and the variant in "2.14.1+cu126"; "" for what is left open."""
    found = TORCH_VERSION.fullmatch(text or "")
    return (found[1], found[2] or "") if found else ("", "")


def explain_field(plan: Plan, name: str, because: str, *, value: str | None = None) -> Plan:
    """Return the plan with another reason for a field, and the value that it then has."""
    reasons = (
        replace(reason, because=because, value=reason.value if value is None else value)
        if reason.field == name
        else reason
        for reason in plan.reasons
    )
    return replace(plan, reasons=tuple(reasons))
