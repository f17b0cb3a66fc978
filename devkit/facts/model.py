"""Facts: everything devkit knows about one machine, host or container, at one moment."""

from dataclasses import dataclass

from devkit.facts.engine import CdiSpec, Clients, Compose, Engine, EngineFailure, ResolvedService, Toolkit
from devkit.facts.gpu import Amd, Driver, Gpu, KernelLog, NvmlAnswer, NvmlFailure
from devkit.facts.machine import Container, Limits, Python, Storage, System, Wsl
from devkit.facts.project import Project
from devkit.facts.runs import Deep, Hub, ProgramFailure, Trials
from devkit.facts.values import NOT_READ, Unknown


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
