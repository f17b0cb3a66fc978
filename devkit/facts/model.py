"""Facts: everything devkit knows about one machine, host or container, at one moment."""

from dataclasses import dataclass

from devkit.facts.engine import (
    CdiSpec,
    Client,
    Clients,
    Compose,
    CredentialHelper,
    DaemonFile,
    DockerSettings,
    Endpoint,
    Engine,
    EngineEnd,
    EngineFailure,
    EngineKind,
    LocalImage,
    ResolvedService,
    RunningContainer,
    Runtime,
    StoppedContainer,
    Toolkit,
)
from devkit.facts.gpu import (
    Amd,
    AmdGpu,
    AptSource,
    Driver,
    DriverPackage,
    FailedGpu,
    Gpu,
    GpuHealth,
    GpuProcess,
    KernelLog,
    NvmlAnswer,
    NvmlEnd,
    NvmlFailure,
    PciGpu,
    Xid,
)
from devkit.facts.machine import (
    Container,
    Copy,
    CudaFolder,
    Directory,
    Distribution,
    Library,
    Limits,
    Mps,
    Package,
    Platform,
    Python,
    Storage,
    System,
    Tegra,
    Torch,
    Wsl,
    WslSettings,
)
from devkit.facts.programs import ProgramFailure
from devkit.facts.project import (
    Build,
    DevContainer,
    Dockerfile,
    EnvFile,
    FileState,
    GpuRequest,
    HostRequirement,
    Install,
    Mount,
    Origin,
    Project,
    ProjectFile,
    RequestForm,
    Requirement,
    Service,
    Setting,
    Stage,
    Variable,
)
from devkit.facts.runs import (
    CaBundle,
    CudaCall,
    CudaStop,
    Deep,
    Hub,
    HubCall,
    Proxy,
    Step,
    StepEnd,
    TorchCall,
    TorchDevice,
    TrainingRun,
    Trial,
    Trials,
    WatchedGpu,
    Way,
)
from devkit.facts.values import NOT_READ, Unknown

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
    "Mps",
    "NvmlAnswer",
    "NvmlEnd",
    "NvmlFailure",
    "Origin",
    "Package",
    "PciGpu",
    "Platform",
    "ProgramFailure",
    "Project",
    "ProjectFile",
    "Proxy",
    "Python",
    "RequestForm",
    "Requirement",
    "ResolvedService",
    "RunningContainer",
    "Runtime",
    "Service",
    "Setting",
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
    "Trial",
    "Trials",
    "Variable",
    "WatchedGpu",
    "Way",
    "Wsl",
    "WslSettings",
    "Xid",
]
"""The names of every fact; other packages import them from here."""


@dataclass(frozen=True)
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
    """None when this is not a container."""
    python: Python | Unknown
    storage: Storage | Unknown
    kernel_log: KernelLog | Unknown = NOT_READ
    clients: Clients | Unknown = NOT_READ
    limits: Limits | Unknown = NOT_READ
    project: Project | Unknown | None = NOT_READ
    """None when no project's folder was looked into."""
    hub: Hub | Unknown = NOT_READ
    deep: Deep | Unknown = NOT_READ
    """Unknown without --deep."""
    trials: Trials | Unknown = NOT_READ
    """Unknown where no container was started."""
    training: TrainingRun | Unknown = NOT_READ
    """Unknown unless the folder of a fine-tuning run was given."""
    compose_config: tuple[ResolvedService, ...] | ProgramFailure | Unknown = NOT_READ
    """The project's services as Compose resolves them, or why it refuses the project."""
    expected_gpus: int | Unknown = NOT_READ
    """How many GPUs should answer, where the user says so."""
    programs: tuple[ProgramFailure, ...] | Unknown = NOT_READ
    """Programs that GPU containers need and that cannot run."""
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
