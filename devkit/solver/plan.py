"""What the solver is asked, and what it answers."""

from enum import StrEnum

from devkit.facts.project import Policy
from devkit.facts.values import ComputeCapability, Release, record


class Vendor(StrEnum):
    """Whose accelerator the plan is for."""

    NVIDIA = "nvidia"
    ROCM = "rocm"
    CPU = "cpu"


@record
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
    """What a plan for this machine must warn about, such as a GPU that does not answer."""
    amd_gpus: tuple[tuple[str, str], ...] = ()
    """AMD GPUs by name, each with its LLVM target such as gfx942."""
    toolkit: Release | None = None
    """The NVIDIA Container Toolkit there; None where it is absent or not known."""


@record
class Constraint:
    """What the project's own files ask of a package: a PEP 440 specifier, and where it stands ("pyproject.toml:12")."""

    name: str
    specifier: str
    origin: str


@record
class Request:
    """What the user asked for. None and empty mean "you choose"; `pins` are (package, version) pairs.

    `constraints` come from the project's files; a name may stand there more than once. `gpu_runtime` is "legacy" or
    "cdi", None where it is not known. `policy` is that of the project, None without one.
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
    gpu_runtime: str | None = None
    policy: Policy | None = None


@record
class Reason:
    """Why `field` has `value`, with the rule's source and the table row's confidence."""

    field: str
    value: str
    because: str
    source: str
    confidence: str


@record
class Plan:
    """Versions that fit every machine of the request, with a reason for each.

    `torch_index` is the wheel index's URL; `variant` its label such as cu130 or cpu.
    `packages` maps distribution names to exact versions, torch included.
    `cuda` and `rocm` are what torch is built with, None for neither. `gpu_request` is "all" for NVIDIA's, "rocm" or
    "none". `architectures` are the machines it is for, such as x86_64. `data_as_of` is the day
    of the oldest table used.
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

    def because(self, name: str) -> str:
        """The reason given for a field, as one sentence. Raises KeyError for a field without one."""
        for reason in self.reasons:
            if reason.field == name:
                return reason.because
        raise KeyError(name)


@record
class Blocker:
    """One rule that refuses the request. `rule` is its short name in docs, such as R4 or A1."""

    rule: str
    says: str
    source: str


@record
class Conflict:
    """No plan: what was wanted, which rules refuse it (the first is the true cause), and the nearest plan."""

    wanted: str
    blockers: tuple[Blocker, ...]
    nearest: Plan | None
    nearest_changes: str
    """What the nearest plan gives up, as flags to pass: "--torch 2.14 --cuda 12.6"."""
    data_as_of: str
