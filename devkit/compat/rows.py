"""The rows of the version tables. Each says where it was read, when, and how sure that makes it."""

from enum import StrEnum

from devkit.facts.record import keyword_record
from devkit.facts.values import ComputeCapability, Release


class Confidence(StrEnum):
    """How well a row is known. An inferred row may warn; it never refuses."""

    CONFIRMED = "confirmed"
    SINGLE_SOURCE = "single-source"
    INFERRED = "inferred"


@keyword_record
class Row:
    """Where a row comes from: public addresses, the day they were checked (ISO 8601), and the confidence."""

    source: tuple[str, ...]
    checked: str
    confidence: Confidence

    @property
    def is_inferred(self) -> bool:
        """Whether the row was not read at its source."""
        return self.confidence is Confidence.INFERRED


@keyword_record
class CudaToolkit(Row):
    """A CUDA Toolkit release and its toolkit driver, the one that gives full support."""

    version: Release
    cuda: Release
    linux_driver: Release
    windows_driver: Release | None = None


@keyword_record
class CudaFamily(Row):
    """Minor version compatibility: the oldest driver on which machine code of a CUDA major runs."""

    major: int
    linux_driver: Release
    windows_driver: Release


@keyword_record
class Branch(Row):
    """The newest CUDA that a Linux driver branch runs in full."""

    branch: int
    cuda: Release


@keyword_record
class WindowsBranch(Row):
    """The same for Windows driver branches, which also serve WSL 2."""

    branches: tuple[int, ...]
    cuda: Release


@keyword_record
class ForwardPackage(Row):
    """A cuda-compat package, and the host driver branches it may stand on; its image lets those pass, too."""

    package: str
    cuda: Release
    host_branches: tuple[int, ...]
    exempts_geforce: bool = False


@keyword_record
class Capability(Row):
    """A compute capability: the CUDA Toolkits that target it and the driver branches that know it; None is no limit.

    `generic_wheels_from_cuda` is set for Tegra GPUs: ordinary aarch64 wheels load only from that CUDA on.
    """

    capability: ComputeCapability
    architecture: str
    first_cuda: Release
    last_cuda: Release | None = None
    first_branch: int | None = None
    last_branch: int | None = None
    generic_wheels_from_cuda: Release | None = None


@keyword_record
class GpuModel(Row):
    """A GPU as sold. `kind` is datacenter, workstation, geforce or jetson; `memory_gib` the sizes it is sold with."""

    id: str
    name: str
    aliases: tuple[str, ...]
    capability: ComputeCapability
    kind: str
    memory_gib: tuple[int, ...]
    forward: bool
    """Whether forward compatibility is offered for it."""


@keyword_record
class TorchRelease(Row):
    """A torch release: Pythons with a wheel, CUDA variants by index label, and the oldest C library that loads it.

    `requires` holds requirement lines that its wheel should state and does not.
    """

    version: Release
    pythons: tuple[str, ...]
    variants: tuple[str, ...]
    default_variant: str
    glibc: Release
    requires: tuple[str, ...] = ()

    @property
    def minor(self) -> str:
        """The first two numbers: 2.15."""
        return ".".join(str(number) for number in self.version.numbers[:2])


@keyword_record
class TorchWheel(Row):
    """GPU code in one variant of a torch minor release: machine code (`sass`) and portable code (`ptx`)."""

    minor: str
    variant: str
    machine: str
    sass: tuple[str, ...]
    ptx: tuple[str, ...] = ()


@keyword_record
class WheelIndex(Row):
    """A wheel index. `cuda` is None for the CPU."""

    label: str
    url: str
    cuda: Release | None = None


@keyword_record
class Package(Row):
    """A release of a Python package. `requires` holds requirement lines, `python` the specifier of its Python."""

    name: str
    version: str
    python: str
    requires: tuple[str, ...]


@keyword_record
class RuntimeFloor(Row):
    """What a package checks at run time and does not state in its metadata, from `version` on in its major."""

    name: str
    version: Release
    requires: tuple[str, ...]


@keyword_record
class CxxLibrary(Row):
    """A manylinux platform: the C library that its tag names, and the newest libstdc++ symbol its wheels may use."""

    glibc: Release
    glibcxx: Release


@keyword_record
class Bitsandbytes(Row):
    """A release of bitsandbytes: `cudas` are those it carries a library for, `cpu` whether it runs without one."""

    version: str
    cudas: tuple[str, ...]
    cpu: bool
    aarch64: bool
    python: str = ""
    torch: str = ""


@keyword_record
class BitsandbytesLibrary(Row):
    """GPU code in the libraries of one bitsandbytes release on one machine."""

    version: str
    machine: str
    cudas: tuple[str, ...]
    sass: tuple[str, ...]
    ptx: tuple[str, ...]


@keyword_record
class Feature(Row):
    """Something a user may ask for, and the compute capability it needs."""

    name: str
    title: str
    capability: ComputeCapability
    note: str = ""
    aliases: tuple[str, ...] = ()


@keyword_record
class PythonVersion(Row):
    """A Python that a plan may choose; a lower `rank` is chosen first. `eol` is the month its support ends."""

    version: str
    rank: int
    eol: str


@keyword_record
class ContainerToolkit(Row):
    """A release of the NVIDIA Container Toolkit."""

    version: Release
    default_mode: str
    cdi_refresh: bool


@keyword_record
class Vulnerability(Row):
    """A known hole of the NVIDIA Container Toolkit, and the release that closed it."""

    id: str
    severity: str
    summary: str
    fixed_in: Release


@keyword_record
class EngineFault(Row):
    """What releases of a program from `since` until before `fixed_in` get wrong, on machines of the kind `when`."""

    program: str
    since: Release
    fixed_in: Release
    when: str
    summary: str


@keyword_record
class EngineFeature(Row):
    """The oldest version of an engine that has a feature."""

    engine: str
    feature: str
    version: Release


@keyword_record
class IgnoredKey(Row):
    """A key of devcontainer.json that a tool passes over or reads in its own way; `effect` follows the tool's name.

    `instead` says what becomes of it in the files that devkit writes; "" for a key that they never hold.
    """

    editor: str
    key: str
    effect: str
    instead: str = ""


@keyword_record
class Editor(Row):
    """An editor by the name that `--editor` knows, and the tools that this name may mean.

    `customizations` are those that it reads, `packages` what its program inside needs of the system. `cpus`,
    `memory_gb` and `storage_gb` are the smallest machine that its cloud is asked for, 0 for none. `note` is what
    everyone who uses it must know.
    """

    name: str
    title: str
    tools: tuple[str, ...]
    customizations: tuple[str, ...]
    note: str
    packages: tuple[str, ...] = ()
    cpus: int = 0
    memory_gb: int = 0
    storage_gb: int = 0
