"""The version tables: typed rows over tables/*.toml, each file and array read when it is first used.

Every row says where it was read, when, and how sure that makes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Any, Generic, TypeVar

from devkit.facts.decode import decode_fields
from devkit.facts.values import ComputeCapability, Release
from devkit.formats.documents import load
from devkit.text import count_days, join_words

STALE_AFTER_DAYS = 180
"""Two torch releases and a CUDA release are out by then."""


class RowConfidence(StrEnum):
    """The confidence in a row. An inferred row may warn; it never refuses."""

    CONFIRMED = "confirmed"
    SINGLE_SOURCE = "single-source"
    INFERRED = "inferred"


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row with its provenance: public addresses, the day they were checked (ISO 8601), and the confidence."""

    source: tuple[str, ...]
    checked: str
    confidence: RowConfidence

    @property
    def is_inferred(self) -> bool:
        """True if the row was inferred instead of read at its source."""
        return self.confidence is RowConfidence.INFERRED


@dataclass(frozen=True, kw_only=True)
class CudaToolkit(TableRow):
    """A CUDA Toolkit release and its toolkit driver, the one that gives full support."""

    version: Release
    cuda: Release
    linux_driver: Release
    windows_driver: Release | None = None


@dataclass(frozen=True, kw_only=True)
class CudaFamily(TableRow):
    """Minor version compatibility: the oldest driver on which machine code of a CUDA major runs."""

    major: int
    linux_driver: Release
    windows_driver: Release


@dataclass(frozen=True, kw_only=True)
class DriverBranch(TableRow):
    """The newest CUDA that a Linux driver branch runs in full."""

    branch: int
    cuda: Release


@dataclass(frozen=True, kw_only=True)
class WindowsDriverBranch(TableRow):
    """The same for Windows driver branches, which also serve WSL 2."""

    branches: tuple[int, ...]
    cuda: Release


@dataclass(frozen=True, kw_only=True)
class ForwardPackage(TableRow):
    """A cuda-compat package, and the host driver branches it supports; CUDA images exempt those from their demand, too."""

    package: str
    cuda: Release
    host_branches: tuple[int, ...]
    exempts_geforce: bool = False


@dataclass(frozen=True, kw_only=True)
class Capability(TableRow):
    """A compute capability: the CUDA Toolkits that target it and the driver branches that know it; None means no limit.

    `generic_wheels_from_cuda` is set for Tegra GPUs: ordinary aarch64 wheels load only from that CUDA on.
    """

    capability: ComputeCapability
    architecture: str
    first_cuda: Release
    last_cuda: Release | None = None
    first_branch: int | None = None
    last_branch: int | None = None
    generic_wheels_from_cuda: Release | None = None


@dataclass(frozen=True, kw_only=True)
class GpuModel(TableRow):
    """A GPU as sold. `kind` is datacenter, workstation, geforce or jetson.

    `memory_gib` are the sizes it is sold with, () where they are unknown; `machine` the only processor it is sold with.
    """

    id: str
    name: str
    aliases: tuple[str, ...]
    capability: ComputeCapability
    kind: str
    memory_gib: tuple[int, ...]
    forward: bool
    """Whether forward compatibility is offered for it."""
    machine: str = ""


@dataclass(frozen=True, kw_only=True)
class GpuSeries(TableRow):
    """Further GPUs of one compute capability and kind, by name."""

    capability: ComputeCapability
    kind: str
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TorchRelease(TableRow):
    """A torch release: Pythons with a wheel, CUDA variants by index label, and the oldest C library that loads it.

    `released` is the day of its first wheel on the package index, such as 2026-10-28.
    `x86_64_only` says that no CUDA wheel was published for aarch64; `requires` holds requirement lines that its wheel
    should state and does not.
    """

    version: Release
    released: str
    pythons: tuple[str, ...]
    variants: tuple[str, ...]
    default_variant: str
    glibc: Release
    x86_64_only: bool = False
    requires: tuple[str, ...] = ()

    @property
    def minor(self) -> str:
        """The first two numbers: 2.15."""
        return ".".join(str(number) for number in self.version.numbers[:2])


@dataclass(frozen=True, kw_only=True)
class TorchWheel(TableRow):
    """GPU code in one variant of a torch minor release: machine code (`sass`) and portable code (`ptx`)."""

    minor: str
    variant: str
    machine: str
    sass: tuple[str, ...]
    ptx: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WheelIndex(TableRow):
    """A wheel index. `cuda` is None for the CPU."""

    label: str
    url: str
    cuda: Release | None = None


@dataclass(frozen=True, kw_only=True)
class PackageRelease(TableRow):
    """A release of a Python package. `requires` holds requirement lines, `python` the specifier of its Python."""

    name: str
    version: str
    python: str
    requires: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RuntimeRequirement(TableRow):
    """A requirement that a package checks at run time and does not state, from `version` on in its major."""

    name: str
    version: Release
    requires: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Lockstep(TableRow):
    """A package that refuses to be imported where it is newer than the one that it stays `behind`."""

    name: str
    behind: str


@dataclass(frozen=True, kw_only=True)
class BuildLimit(TableRow):
    """A limit for the build of source distributions from before `until`, the day of the release that ended them.

    One that is `general` also counts where packages of any day are installed: newer ones are built with it as well.
    """

    requirement: str
    until: str
    is_general: bool = False


@dataclass(frozen=True, kw_only=True)
class CudaWheel(TableRow):
    """The builds of a package's wheels, from `version` on: majors of CUDA such as "13", minors, or "cpu"; and GPUs.

    `sass` are the targets of the kernels that every model needs, none where it is not read.
    """

    name: str
    version: Release
    builds: tuple[str, ...]
    sass: tuple[str, ...] = ()

    def fits(self, cuda: str | None) -> bool:
        """Return whether there is a wheel for this CUDA, None for the CPU or ROCm."""
        if cuda is None:
            return "cpu" in self.builds
        return cuda in self.builds or cuda.partition(".")[0] in self.builds

    def format_builds(self) -> str:
        """Format what it is built for, such as "CUDA 12.6 or 13.0"."""
        return f"CUDA {join_words([build for build in self.builds if build != 'cpu'], 'or')}"


@dataclass(frozen=True, kw_only=True)
class PythonBound(TableRow):
    """The Requires-Python of a package's releases from `version` on, whose upper bound uv does not look at."""

    name: str
    version: Release
    python: str


@dataclass(frozen=True, kw_only=True)
class Stack(TableRow):
    """A set of requirements by its name: `requires` are what a project of it asks for, `title` what it is."""

    name: str
    title: str
    requires: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ManylinuxPlatform(TableRow):
    """A manylinux platform: the C library that its tag names, and the newest libstdc++ symbol its wheels may use."""

    glibc: Release
    glibcxx: Release


@dataclass(frozen=True, kw_only=True)
class BitsandbytesRelease(TableRow):
    """A release of bitsandbytes: `cudas` are those it carries a library for, `cpu` whether it runs without one."""

    version: str
    cudas: tuple[str, ...]
    cpu: bool
    aarch64: bool
    python: str = ""
    torch: str = ""


@dataclass(frozen=True, kw_only=True)
class BitsandbytesLibrary(TableRow):
    """GPU code in the libraries of one bitsandbytes release on one machine."""

    version: str
    machine: str
    cudas: tuple[str, ...]
    sass: tuple[str, ...]
    ptx: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Feature(TableRow):
    """A feature that a user may request, the compute capability it needs, and Debian packages that bring it."""

    name: str
    title: str
    capability: ComputeCapability
    note: str = ""
    aliases: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PythonVersion(TableRow):
    """A Python that a plan may choose; a lower `rank` is chosen first. `eol` is the month its support ends."""

    version: str
    rank: int
    eol: str


@dataclass(frozen=True, kw_only=True)
class ContainerToolkit(TableRow):
    """A release of the NVIDIA Container Toolkit."""

    version: Release
    default_mode: str
    cdi_refresh: bool


@dataclass(frozen=True, kw_only=True)
class Vulnerability(TableRow):
    """A known vulnerability of the NVIDIA Container Toolkit, and the release that fixed it."""

    id: str
    severity: str
    summary: str
    fixed_in: Release


@dataclass(frozen=True, kw_only=True)
class EngineFault(TableRow):
    """A fault of a program's releases from `since` until before `fixed_in`, on machines of the kind `when`."""

    program: str
    since: Release
    fixed_in: Release
    when: str
    summary: str


@dataclass(frozen=True, kw_only=True)
class EngineFeature(TableRow):
    """The oldest version of an engine that has a feature."""

    engine: str
    feature: str
    version: Release


@dataclass(frozen=True, kw_only=True)
class IgnoredKey(TableRow):
    """A key of devcontainer.json that a tool ignores or reads in its own way; `effect` follows the tool's name.

    `instead` says what becomes of it in the files that devkit writes; "" for a key that they never hold.
    """

    editor: str
    key: str
    effect: str
    instead: str = ""


@dataclass(frozen=True, kw_only=True)
class Editor(TableRow):
    """An editor by the name that the setting `editors` knows, and the tools that this name may mean.

    `customizations` are those that it reads, `packages` what its program inside needs of the system. `cpus`,
    `memory_gb` and `storage_gb` are the smallest machine to request from its cloud, 0 for none. `note` is what
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


@dataclass(frozen=True, kw_only=True)
class PythonImage(TableRow):
    """An official Python image. `first_release` is the oldest one that has this Debian, "" where each has it."""

    tag: str
    python: str
    glibc: Release
    machines: tuple[str, ...]
    first_release: str = ""


@dataclass(frozen=True, kw_only=True)
class SystemImage(TableRow):
    """A system that images are built on. `tags` are how tags name it; `python` is its own, "" for none.

    `newer_python` is its package with Python 3.11 or later, "" for none.
    """

    name: str
    tags: tuple[str, ...]
    glibc: Release
    python: str
    machines: tuple[str, ...]
    newer_python: str = ""


@dataclass(frozen=True, kw_only=True)
class ImageTool(TableRow):
    """A program that builds an image's contents, in the version that devkit was tried with."""

    name: str
    version: str


@dataclass(frozen=True, kw_only=True)
class CudaImage(TableRow):
    """The nvidia/cuda images of one CUDA release on one system."""

    cuda: Release
    system: str
    glibc: Release
    python: str
    machines: tuple[str, ...]
    may_vanish: bool = False


@dataclass(frozen=True, kw_only=True)
class WithdrawnTag(TableRow):
    """An image tag that does not exist, and what to use instead."""

    tag: str
    problem: str
    instead: str


@dataclass(frozen=True, kw_only=True)
class ImageEndOfLife(TableRow):
    """The end of updates to images of a CUDA release or of a CUDA major.

    `name` is "12.8.0" or "11"; `ended` is a month (2025-03); `instead` what is kept in their place.
    """

    name: str
    ended: str
    instead: str


@dataclass(frozen=True, kw_only=True)
class GpuDatasheet(TableRow):
    """The data sheet of a GPU: dense peaks, without sparsity. 0 where it has no value.

    `nvlink_gb_per_s` counts both directions of all links, as NVIDIA does; `power_w` is the board's; `mig_slices` are
    the compute slices that MIG divides it into.
    """

    id: str
    fp16_tflops: float
    bf16_tflops: float
    bandwidth_gb_per_s: float
    nvlink_gb_per_s: float
    pcie_generation: int
    power_w: int
    mig_slices: int


@dataclass(frozen=True, kw_only=True)
class RocmRelease(TableRow):
    """A torch release and its ROCm builds, by index label."""

    version: Release
    variants: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RocmIndex(WheelIndex):
    """A wheel index of ROCm builds, and the GPU targets (gfx942 …) that its wheels hold code for.

    For those in `without_rocblas` the wheels hold torch's own kernels, but none of rocBLAS.
    """

    rocm: Release
    targets: tuple[str, ...]
    without_rocblas: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RocmLibrary(TableRow):
    """GPU targets in the libraries that a bitsandbytes release carries for some ROCm versions."""

    version: str
    rocms: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RocmFeature(TableRow):
    """A feature by its name in the stack table, and the targets that have it."""

    name: str
    targets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AmdGpuModel(TableRow):
    """An AMD GPU as sold. `target` is its LLVM target; code for another target does not run on it."""

    name: str
    aliases: tuple[str, ...]
    target: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class SystemNeed(TableRow):
    """Debian packages (`apt`) that a Python package needs and its wheel does not hold.

    `kind` is "import", "pure" or "program": what fails without them. `because` follows the package's name.
    """

    package: str
    apt: tuple[str, ...]
    kind: str
    because: str


@dataclass(frozen=True, kw_only=True)
class KnownSystemPackage(TableRow):
    """Debian packages that a dev container may need, and the older names of one, which newer releases lack.

    `programs` are those that a build may run. `libraries` are its headers, and its libraries by the names that CMake,
    pkg-config or a linker call them, as far as Debian's own rule, libNAME-dev, does not lead to it.
    """

    names: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RenamedModule(TableRow):
    """A module that programs import, and the distribution that brings it, where their names differ.

    `limit` is a specifier of the versions that have the module, "" where all do.
    """

    module: str
    distribution: str
    limit: str = ""


@dataclass(frozen=True, kw_only=True)
class CondaName(TableRow):
    """A package of conda, or a name that people give one, and what the package index calls it."""

    name: str
    distribution: str


@dataclass(frozen=True, kw_only=True)
class EponymousDistributions(TableRow):
    """Distributions on one subject whose module has their own name, with underscores for hyphens."""

    subject: str
    distributions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PopularModules(TableRow):
    """Modules of the most downloaded packages from a rank on, as words: the module's name, or DISTRIBUTION:MODULE."""

    from_rank: int
    modules: str


@dataclass(frozen=True, kw_only=True)
class CompiledPackage(TableRow):
    """A Python package that compiles code against torch: while it is installed, or (`is_at_use`) when it is first used.

    `needs_cuda` says that it does not compile without nvcc. `core_minutes` are those of one core for one GPU
    architecture, 0 where unknown, `job_gb` the memory of one job of its compiler. `cxx` is the C++
    that the releases up to `version` set themselves, 0 for torch's own. `requires` are build requirements that it does
    not declare. `variables` are NAME=value, in which {archs} is "8.9", {numbers} "89" and {majors} "80"; by
    `without_cuda` its own folder installs on a CPU. `has_wheels` says that the package index has wheels for some torch
    releases.
    """

    package: str
    needs_cuda: bool
    job_gb: int
    core_minutes: int = 0
    is_at_use: bool = False
    has_wheels: bool = False
    version: str = ""
    cxx: int = 0
    requires: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    without_cuda: str = ""


@dataclass(frozen=True, kw_only=True)
class TorchHeaders(TableRow):
    """The oldest C++ that the headers of these torch releases take."""

    torch: str
    cxx: int


@dataclass(frozen=True, kw_only=True)
class PrebuiltWheel(TableRow):
    """Wheels that a package publishes elsewhere than on the package index, for some torch minors.

    `cuda` is a major, or a release where torch's own builds differ; `glibc` is the oldest that the wheels run with.
    """

    package: str
    version: str
    torch: tuple[str, ...]
    cuda: str
    pythons: tuple[str, ...]
    machines: tuple[str, ...]
    url: str
    glibc: Release | None = None


@dataclass(frozen=True, kw_only=True)
class ToolkitPackage(TableRow):
    """A package of the index with a part of the CUDA compiler, from a CUDA release on."""

    package: str
    since_cuda: Release


@dataclass(frozen=True, kw_only=True)
class HostCompiler(TableRow):
    """The newest gcc that a CUDA release takes on a system whose own is newer."""

    cuda: str
    system: str
    gcc: int


@dataclass(frozen=True, kw_only=True)
class FrameworkBuild(TableRow):
    """The requirement that brings a framework its CUDA libraries, from the release `since` on.

    `capability` is the oldest that it holds code for, `lacks` newer ones that its kernels fail on, `python` a specifier of
    Pythons that it has wheels for. Releases with a `flavor` bring no libraries: they take those of that flavor of nvidia/cuda.
    """

    framework: str
    requirement: str
    since: Release
    cuda: Release
    capability: ComputeCapability
    python: str
    flavor: str = ""
    lacks: tuple[ComputeCapability, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FrameworkPackages(TableRow):
    """Packages that are a framework, or need it; those that are `flexible` need it or another one, and count last."""

    framework: str
    names: tuple[str, ...]
    flexible: bool = False


TableDocument = Mapping[str, Any]
"""A table as TOML has it: `schema`, `as_of`, arrays of rows by name, and `sources`, the addresses by id."""

RowT = TypeVar("RowT", bound=TableRow)


class Table:
    """The typed arrays of one file. `as_of` is the day the file was last checked."""

    def __init__(self, document: TableDocument) -> None:
        self._document = document
        self.as_of: str = document["as_of"]

    def rows(self, name: str, row: type[RowT]) -> tuple[RowT, ...]:
        """Decode the array `name`.

        Raises:
            KeyError: for a missing array, an unknown field, or a source id that does not resolve.
            InvalidValue: for a value that does not fit its field.
        """
        sources, found = self._document["sources"], []
        for raw in self._document[name]:
            values = {"checked": self.as_of, **decode_fields(raw, row)}
            values["source"] = tuple(sources[source] for source in raw["source"])
            found.append(row(**values))
        return tuple(found)

    @classmethod
    def arrays(cls) -> "tuple[DeclaredArray[Any], ...]":
        """List the arrays that a file of this kind holds."""
        return tuple(each for each in vars(cls).values() if isinstance(each, DeclaredArray))


class DeclaredArray(Generic[RowT]):
    """An array that a kind of table declares. No two rows have the same `unique` fields."""

    def __init__(self, name: str, row: type[RowT], *, unique: tuple[str, ...]) -> None:
        self.name = name
        self.row = row
        self.unique = unique

    def __set_name__(self, owner: type[Table], attribute: str) -> None:
        self._attribute = attribute


class Array(DeclaredArray[RowT]):
    """An array that is read as a tuple of its rows, once."""

    def __get__(self, table: Table, owner: type[Table]) -> tuple[RowT, ...]:
        # The instance's own attribute is found before this descriptor from now on.
        rows = vars(table)[self._attribute] = table.rows(self.name, self.row)
        return rows


class KeyedArray(DeclaredArray[RowT]):
    """An array that is read as a dict of its rows by their unique field, or by a tuple of them, once."""

    def __get__(self, table: Table, owner: type[Table]) -> dict[Any, RowT]:
        key = attrgetter(*self.unique)
        rows = vars(table)[self._attribute] = {key(row): row for row in table.rows(self.name, self.row)}
        return rows


class DriverTable(Table):
    """CUDA versions that each driver runs, and GPUs that each CUDA Toolkit targets."""

    toolkits = Array("toolkit", CudaToolkit, unique=("version",))
    families = KeyedArray("family", CudaFamily, unique=("major",))
    branches = Array("branch", DriverBranch, unique=("branch",))
    windows_branches = Array("windows_branch", WindowsDriverBranch, unique=("branches",))
    forward = Array("forward", ForwardPackage, unique=("package",))
    capabilities = KeyedArray("capability", Capability, unique=("capability",))


class GpuTable(Table):
    """GPUs by name."""

    models = Array("gpu", GpuModel, unique=("id",))
    series = Array("series", GpuSeries, unique=("capability", "kind"))
    rates = KeyedArray("rate", GpuDatasheet, unique=("id",))


class TorchTable(Table):
    """torch releases and the GPU code in their wheels."""

    releases = Array("release", TorchRelease, unique=("version",))
    wheels = KeyedArray("wheel", TorchWheel, unique=("minor", "variant", "machine"))
    indexes = KeyedArray("index", WheelIndex, unique=("label",))


class StackTable(Table):
    """The Python packages around torch."""

    packages = Array("package", PackageRelease, unique=("name", "version"))
    bitsandbytes = Array("bitsandbytes", BitsandbytesRelease, unique=("version",))
    libraries = Array("library", BitsandbytesLibrary, unique=("version", "machine", "cudas"))
    features = KeyedArray("feature", Feature, unique=("name",))
    pythons = Array("python", PythonVersion, unique=("version",))
    floors = Array("floor", RuntimeRequirement, unique=("name", "version"))
    lockstep = Array("lockstep", Lockstep, unique=("name",))
    build_limits = Array("build_limit", BuildLimit, unique=("requirement",))
    cuda_wheels = Array("cuda_wheel", CudaWheel, unique=("name", "version"))
    python_bounds = Array("python_bound", PythonBound, unique=("name", "version"))
    stacks = KeyedArray("stack", Stack, unique=("name",))


class ManylinuxTable(Table):
    """Platforms of Linux wheels, in a separate file: every run of the doctor reads it, and often no other."""

    platforms = Array("manylinux", ManylinuxPlatform, unique=("glibc",))


class ImageTable(Table):
    """Base images."""

    python_images = Array("python_image", PythonImage, unique=("tag",))
    systems = Array("system", SystemImage, unique=("name", "tags"))
    cuda_images = Array("cuda_image", CudaImage, unique=("cuda", "system"))
    tools = Array("tool", ImageTool, unique=("name",))
    life = Array("life", ImageEndOfLife, unique=("name",))
    withdrawn = KeyedArray("withdrawn", WithdrawnTag, unique=("tag",))


class RocmTable(Table):
    """AMD GPUs: torch builds for ROCm, their GPU targets, GPUs by name."""

    releases = KeyedArray("release", RocmRelease, unique=("version",))
    indexes = KeyedArray("index", RocmIndex, unique=("label",))
    libraries = Array("library", RocmLibrary, unique=("version", "rocms"))
    features = KeyedArray("feature", RocmFeature, unique=("name",))
    gpus = Array("gpu", AmdGpuModel, unique=("name",))


class EngineTable(Table):
    """Container engines and the NVIDIA Container Toolkit."""

    container_toolkits = Array("container_toolkit", ContainerToolkit, unique=("version",))
    vulnerabilities = Array("vulnerability", Vulnerability, unique=("id",))
    faults = Array("engine_fault", EngineFault, unique=("program", "since", "when"))
    features = KeyedArray("engine_feature", EngineFeature, unique=("engine", "feature"))


class EditorTable(Table):
    """Tools that open dev containers."""

    editors = KeyedArray("editor", Editor, unique=("name",))
    ignored = Array("ignored", IgnoredKey, unique=("editor", "key"))


class CompiledTable(Table):
    """Packages that compile against torch, and what they compile with."""

    packages = KeyedArray("package", CompiledPackage, unique=("package",))
    headers = KeyedArray("headers", TorchHeaders, unique=("cxx",))
    wheels = Array("wheel", PrebuiltWheel, unique=("package", "version", "cuda", "torch"))
    toolkit = Array("toolkit", ToolkitPackage, unique=("package",))
    host_compilers = Array("host_compiler", HostCompiler, unique=("cuda", "system"))


class SystemPackageTable(Table):
    """Debian packages for Python packages."""

    needs = KeyedArray("need", SystemNeed, unique=("package",))
    known = Array("known", KnownSystemPackage, unique=("names",))
    started = Array("started", KnownSystemPackage, unique=("names",))

    def names(self) -> dict[str, str]:
        """Return the name of each package that is known, by that and by its older ones."""
        return {each: name for row in self.known for name in row.names for each in (name, *row.aliases)}

    def programs(self) -> dict[str, str]:
        """Return the package of each program that builds and code run."""
        same = {name: name for row in self.started if not row.programs for name in row.names}
        return same | {each: row.names[0] for row in (*self.known, *self.started) for each in row.programs}

    def libraries(self) -> dict[str, str]:
        """Return the package of each library and header that Debian's own rule does not lead to."""
        return {each: row.names[0] for row in self.known for each in row.libraries}


class ImportTable(Table):
    """Distributions by the modules that programs import."""

    renamed = Array("renamed", RenamedModule, unique=("module",))
    misnamed = Array("misnamed", CondaName, unique=("name",))
    same = Array("same", EponymousDistributions, unique=("subject",))
    compiled = Array("compiled", EponymousDistributions, unique=("subject",))
    popular = Array("popular", PopularModules, unique=("from_rank",))

    def distributions(self, *, with_compiled: bool = False) -> dict[str, str]:
        """Return the distribution of each module; those that compile against torch only if wanted."""
        rows = (*self.same, *self.compiled) if with_compiled else self.same
        names = (name for row in rows for name in row.distributions)
        return {name.replace("-", "_"): name for name in names} | {row.module: row.distribution for row in self.renamed}

    def popular_distributions(self) -> dict[str, str]:
        """Return the most downloaded distribution that may have each module; of no use before its wheel was read."""
        words = [word.partition(":") for row in reversed(self.popular) for word in row.modules.split()[::-1]]
        return {module or name: name for name, _, module in words}

    def limits(self) -> dict[str, str]:
        """Return the versions of distributions of which not all have their module."""
        return {row.distribution: row.limit for row in self.renamed if row.limit}


class CondaTable(Table):
    """Packages of conda that the package index has, too."""

    on_torch = Array("on_torch", CondaName, unique=("name",))
    renamed = Array("renamed", CondaName, unique=("name",))
    same = Array("same", EponymousDistributions, unique=("subject",))


class FrameworkTable(Table):
    """Frameworks besides torch."""

    builds = Array("build", FrameworkBuild, unique=("requirement", "since"))
    packages = Array("packages", FrameworkPackages, unique=("names",))


TableT = TypeVar("TableT", bound=Table)


class TableFile(Generic[TableT]):
    """A file of tables/, named as the attribute of `Tables` that holds it."""

    def __init__(self, kind: type[TableT]) -> None:
        self.kind = kind

    def __set_name__(self, owner: "type[Tables]", name: str) -> None:
        self._name = name

    def __get__(self, tables: "Tables", owner: "type[Tables]") -> TableT:
        table = vars(tables)[self._name] = self.kind(load("devkit.compat", f"tables/{self._name}"))
        return table


class Tables:
    """All version tables; a file is read when its attribute is first used."""

    driver = TableFile(DriverTable)
    gpus = TableFile(GpuTable)
    torch = TableFile(TorchTable)
    stack = TableFile(StackTable)
    manylinux = TableFile(ManylinuxTable)
    images = TableFile(ImageTable)
    rocm = TableFile(RocmTable)
    engines = TableFile(EngineTable)
    editors = TableFile(EditorTable)
    system_packages = TableFile(SystemPackageTable)
    imports = TableFile(ImportTable)
    conda = TableFile(CondaTable)
    compiled = TableFile(CompiledTable)
    frameworks = TableFile(FrameworkTable)

    @property
    def as_of(self) -> str:
        """The day on which the oldest of the tables read so far was last checked; "" before any was read."""
        return min((table.as_of for table in vars(self).values() if isinstance(table, Table)), default="")


TABLE_NAMES = tuple(name for name, file in vars(Tables).items() if isinstance(file, TableFile))


@cache
def load_tables() -> Tables:
    """Load the version tables, which all callers share."""
    return Tables()


def format_stale_warning(as_of: str, today: str) -> str | None:
    """Format a warning about tables that are too old to trust, by two dates in ISO 8601; None while they are not."""
    age_days = count_days(as_of, today)
    if age_days <= STALE_AFTER_DAYS:
        return None
    return f"the version tables are from {as_of}, {age_days} days old and do not contain newer releases. Update devkit"
