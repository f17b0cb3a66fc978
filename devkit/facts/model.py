"""Facts: everything devkit knows about one machine, host or container, at one moment."""

from devkit.facts.amd import Amd, AmdGpu
from devkit.facts.clients import Client, Clients, CredentialHelper, DockerSettings
from devkit.facts.containers import LocalImage, RunningContainer, StoppedContainer
from devkit.facts.deep import CudaCall, CudaStop, Deep, Step, StepEnd, TorchCall, TorchDevice
from devkit.facts.dockerfile import Dockerfile, Install, Stage
from devkit.facts.engine import (
    CdiSpec,
    Compose,
    DaemonFile,
    Endpoint,
    Engine,
    EngineEnd,
    EngineFailure,
    EngineKind,
    Runtime,
    Toolkit,
)
from devkit.facts.environment import Container, Copy, CudaFolder, Library, Package, Python, Torch
from devkit.facts.gpu import (
    AptSource,
    Driver,
    DriverPackage,
    FailedGpu,
    Gpu,
    NvmlAnswer,
    NvmlEnd,
    NvmlFailure,
    PciGpu,
)
from devkit.facts.health import GpuHealth, GpuProcess
from devkit.facts.hub import CaBundle, Hub, HubCall, Proxy
from devkit.facts.kernel_log import KernelLog, Xid
from devkit.facts.limits import Limits
from devkit.facts.project import DevContainer, EnvFile, FileState, Project, ProjectFile, Service
from devkit.facts.project_parts import (
    Build,
    GpuRequest,
    HostRequirement,
    Mount,
    Origin,
    RequestForm,
    Requirement,
    Setting,
    Variable,
)
from devkit.facts.record import record
from devkit.facts.smoke import Smoke
from devkit.facts.system import Directory, Distribution, Platform, Storage, System, Tegra, Wsl, WslSettings
from devkit.facts.values import NOT_READ, Unknown
from devkit.facts.workload import ProofReading, ProofStage, TrainingRun, Verification, WatchedGpu

__all__ = [
    "Amd",
    "AmdGpu",
    "AptSource",
    "Build",
    "CaBundle",
    "CdiSpec",
    "Client",
    "Clients",
    "Compose",
    "Container",
    "Copy",
    "CredentialHelper",
    "CudaCall",
    "CudaFolder",
    "CudaStop",
    "DaemonFile",
    "Deep",
    "DevContainer",
    "Directory",
    "Distribution",
    "DockerSettings",
    "Dockerfile",
    "Driver",
    "DriverPackage",
    "Endpoint",
    "Engine",
    "EngineEnd",
    "EngineFailure",
    "EngineKind",
    "EnvFile",
    "Facts",
    "FailedGpu",
    "FileState",
    "Gpu",
    "GpuHealth",
    "GpuProcess",
    "GpuRequest",
    "HostRequirement",
    "Hub",
    "HubCall",
    "Install",
    "KernelLog",
    "Library",
    "Limits",
    "LocalImage",
    "Mount",
    "NvmlAnswer",
    "NvmlEnd",
    "NvmlFailure",
    "Origin",
    "Package",
    "PciGpu",
    "Platform",
    "Project",
    "ProjectFile",
    "ProofReading",
    "ProofStage",
    "Proxy",
    "Python",
    "RequestForm",
    "Requirement",
    "RunningContainer",
    "Runtime",
    "Service",
    "Setting",
    "Smoke",
    "Stage",
    "Step",
    "StepEnd",
    "StoppedContainer",
    "Storage",
    "System",
    "Tegra",
    "Toolkit",
    "Torch",
    "TorchCall",
    "TorchDevice",
    "TrainingRun",
    "Variable",
    "Verification",
    "WatchedGpu",
    "Wsl",
    "WslSettings",
    "Xid",
]
"""The names that other rooms use; the modules beside this one only keep files short."""


@record
class Facts:
    """One machine at one moment. `taken_at` is ISO 8601, UTC; `devkit` the version that read it."""

    taken_at: str
    devkit: str
    system: System | Unknown
    driver: Driver | Unknown
    nvml: NvmlAnswer | NvmlFailure | Unknown
    engine: Engine | EngineFailure | Unknown
    compose: Compose | Unknown | None
    toolkit: Toolkit | Unknown
    cdi: tuple[CdiSpec, ...] | Unknown
    wsl: Wsl | Unknown | None
    """None when this is not WSL 2."""
    container: Container | Unknown | None
    """None when this is not the inside of a container."""
    python: Python | Unknown
    storage: Storage | Unknown
    kernel_log: KernelLog | Unknown = NOT_READ
    clients: Clients | Unknown = NOT_READ
    limits: Limits | Unknown = NOT_READ
    project: Project | Unknown | None = NOT_READ
    """None when no project's folder was looked into."""
    hub: Hub | Unknown = NOT_READ
    deep: Deep | Unknown = NOT_READ
    """Unknown unless the deep tier was asked for."""
    smoke: Smoke | Unknown = NOT_READ
    """Unknown unless a probe container was asked for."""
    verification: Verification | Unknown = NOT_READ
    """Unknown unless a report of `devkit verify` was given."""
    training: TrainingRun | Unknown = NOT_READ
    """Unknown unless the folder of a fine-tuning run was given."""
    amd: Amd | Unknown | None = NOT_READ
    """None when the kernel shows no GPU of AMD's that computes."""
    inside: "Facts | Unknown | None" = None
    """The running dev container of the project, read from its inside; None when none runs."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that answer; empty when NVML does not."""
        if not isinstance(self.nvml, NvmlAnswer):
            return ()
        return tuple(gpu for gpu in self.nvml.gpus if isinstance(gpu, Gpu))
