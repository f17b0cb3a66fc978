"""Candidates of a request: the torch builds that it allows, and what is settled about each of them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from devkit.compat.rules import CudaSupport, find_newest_cuda
from devkit.compat.specifiers import satisfies
from devkit.compat.version_tables import (
    RocmIndex,
    RowConfidence,
    TableRow,
    Tables,
    TorchRelease,
    TorchWheel,
    WheelIndex,
)
from devkit.facts.dependencies import Framework
from devkit.facts.values import ComputeCapability, Release
from devkit.solver.plan import NO_GPU, Machine, Plan, Reason, Request, Vendor, parse_torch

SUPPORT_ORDER = (CudaSupport.FULL, CudaSupport.MINOR, CudaSupport.FORWARD, CudaSupport.NO)
"""Best first."""
GPU_REQUESTS = {
    Vendor.NVIDIA: ("all", "the container gets all of the host's GPUs"),
    Vendor.ROCM: ("rocm", "the container gets the host's AMD devices, /dev/kfd and /dev/dri"),
    Vendor.CPU: ("none", "no GPU is used"),
}
"""What the container asks the engine for, and why, by vendor."""


@dataclass(frozen=True)
class Problem:
    """A request whose vendor is settled, with the version tables to solve it from."""

    request: Request
    vendor: Vendor
    tables: Tables

    @cached_property
    def machines(self) -> tuple[Machine, ...]:
        """The machines that the plan computes on: those with a GPU of the vendor, or all when none has one."""
        match self.vendor:
            case Vendor.NVIDIA:
                found = [machine for machine in self.request.machines if machine.driver or machine.gpus]
            case Vendor.ROCM:
                found = [machine for machine in self.request.machines if machine.amd_gpus]
            case Vendor.CPU:
                found = []
        return tuple(found) or self.request.machines

    @cached_property
    def gpus(self) -> tuple[tuple[str, ComputeCapability], ...]:
        """Every NVIDIA GPU to serve, each model once; empty for another vendor."""
        if self.vendor is not Vendor.NVIDIA:
            return ()
        return tuple(dict.fromkeys(gpu for machine in self.machines for gpu in machine.gpus))

    @cached_property
    def amd_gpus(self) -> tuple[tuple[str, str], ...]:
        """Every AMD GPU to serve, each model once; empty for another vendor."""
        if self.vendor is not Vendor.ROCM:
            return ()
        return tuple(dict.fromkeys(gpu for machine in self.machines for gpu in machine.amd_gpus))

    @cached_property
    def gpu_names(self) -> tuple[str, ...]:
        """Every GPU to serve, with its compute capability or target."""
        named: tuple[tuple[str, ComputeCapability | str], ...] = (*self.gpus, *self.amd_gpus)
        return tuple(describe_gpu(name, code) for name, code in named)

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        """The processors of every machine, those without a GPU too: the image must start there."""
        return tuple(sorted({machine.machine for machine in self.request.machines})) or ("x86_64",)

    def newest_cuda(self, machine: Machine) -> Release | None:
        """Return the newest CUDA that the machine's driver runs in full; None where no driver is known."""
        if machine.driver is None:
            return None
        return machine.cuda or find_newest_cuda(machine.driver, platform=machine.platform, known=self.tables)


@dataclass(frozen=True)
class Candidate:
    """A torch build: a release from one wheel index."""

    release: TorchRelease
    index: WheelIndex
    wheels: tuple[TorchWheel, ...]
    """The known CUDA wheels, one per processor that must compute on a GPU."""

    @property
    def cuda(self) -> Release | None:
        """The CUDA it is built with; None for other builds."""
        return self.index.cuda

    @property
    def rocm(self) -> Release | None:
        """The ROCm it is built with; None for other builds."""
        return self.index.rocm if isinstance(self.index, RocmIndex) else None

    @property
    def built_for(self) -> str:
        """The platform it computes on, in words: "CUDA 13.0", "ROCm 7.2", "the CPU"."""
        if self.cuda:
            return f"CUDA {self.cuda}"
        return f"ROCm {self.rocm}" if self.rocm else "the CPU"

    def __str__(self) -> str:
        return f"torch {self.release.version}+{self.index.label}"


@dataclass(frozen=True)
class BaseImage:
    """A base image as far as it is known. `row` is None for one that the tables do not list."""

    tag: str
    row: TableRow | None
    python: str | None = None
    glibc: Release | None = None
    machines: tuple[str, ...] = ()
    cuda: Release | None = None
    has_nvcc: bool = False


@dataclass(frozen=True)
class ChosenPackage:
    """A package of the plan. `row` is None for a pin that the tables do not list."""

    name: str
    version: str
    row: TableRow | None
    because: str


@dataclass(frozen=True)
class Packages:
    """The packages around torch. `companions` is None where no releases fit together, `bitsandbytes` where none does."""

    companions: tuple[ChosenPackage, ...] | None = None
    bitsandbytes: ChosenPackage | None = None


@dataclass(frozen=True)
class Environment:
    """A candidate with everything that follows from it; settled once, and read by every later step.

    `machine_support` says how the driver of each of the problem's machines runs the build's CUDA, in their order.
    `image` and `python` are None where none fits. `packages` stay empty for a candidate that is refused before them.
    """

    candidate: Candidate
    machine_support: tuple[CudaSupport, ...]
    image: BaseImage | None
    python: str | None
    packages: Packages = Packages()

    @property
    def support(self) -> CudaSupport:
        """The weakest support among the drivers."""
        return max(self.machine_support, key=SUPPORT_ORDER.index, default=CudaSupport.FULL)


@dataclass(frozen=True)
class Objection:
    """An objection to a candidate. It refuses only when it rests on rows that were read at their source."""

    rule: str
    says: str
    source: str
    refuses: bool = True

    @classmethod
    def from_row(cls, row: TableRow, rule: str, says: str) -> "Objection":
        """Object by one row: an inferred row may warn, never refuse."""
        return cls(rule, says, row.source[0], refuses=not row.is_inferred)


def build_problem(request: Request, tables: Tables) -> Problem:
    """Build the problem that a request poses: with its vendor settled."""
    return Problem(request, choose_vendor(request), tables)


def choose_vendor(request: Request) -> Vendor:
    """Choose what to compute on: as requested, else by the requested build, else by the GPUs or the driver.

    A build for the CPU that the project's files name decides only where no machine has a GPU: elsewhere it would hide one.
    """
    if request.vendor is not None:
        return request.vendor
    variant = _find_named_variant(request)
    if variant.startswith("rocm") or any(machine.amd_gpus for machine in request.machines):
        return Vendor.ROCM
    if parse_torch(request.torch)[1] == "cpu":
        return Vendor.CPU
    shows_gpu = any(machine.driver or machine.gpus for machine in request.machines)
    return Vendor.NVIDIA if shows_gpu or variant not in ("", "cpu") or request.cuda else Vendor.CPU


def explain_vendor(problem: Problem) -> Reason:
    """Return the reason why a plan is for this vendor."""
    request = problem.request
    origins = " and ".join(dict.fromkeys(machine.origin for machine in problem.machines))
    names = [name for name, _ in (*problem.gpus, *problem.amd_gpus)]
    because = f"{', '.join(names) or 'an NVIDIA driver'}, from {origins}"
    has_gpu = any(machine.driver or machine.gpus or machine.amd_gpus for machine in request.machines)
    if request.vendor is not None or (problem.vendor is Vendor.CPU and has_gpu):
        because = "requested"
    elif problem.vendor is Vendor.CPU:
        because = f"{NO_GPU}, from {origins}"
    return Reason("vendor", problem.vendor.value, because, origins, RowConfidence.CONFIRMED)


FIRST_OPEN_TORCH = Release.parse("1.11.0")
"""Releases before it are for projects that name them, or are planned as of their day: today's packages take none."""


def list_candidates(problem: Problem) -> tuple[Candidate, ...]:
    """List every torch build that the request itself allows, newest first.

    Where the request names a release that the tables do not list, it has the rows of the nearest one, all of them
    inferred, so that none of them refuses it.
    """
    tables, request = problem.tables, problem.request
    variant = parse_torch(request.torch)[1]
    cuda = Release.parse(request.cuda).numbers if request.cuda else ()
    machines = dict.fromkeys(machine.machine for machine in problem.machines)
    releases = _list_releases(problem)
    builds = [(release, index) for release in releases for index in _list_indexes(release, problem)]
    if not builds and problem.vendor is Vendor.ROCM:
        builds = [(release, index) for release in releases for index in _assume_rocm_indexes(release, problem)]
    found = []
    for release, index in builds:
        label, numbers = index.label, index.cuda.numbers if index.cuda else cuda
        if variant not in ("", label) or numbers[: len(cuda)] != cuda[: len(numbers)]:
            continue
        minor = find_nearest_release(release.version, tables).minor if release.is_inferred else release.minor
        rows = (tables.torch.wheels.get((minor, label, machine)) for machine in machines)
        wheels = tuple(row for row in rows if row is not None)
        if release.is_inferred:
            wheels = tuple(replace(row, confidence=RowConfidence.INFERRED) for row in wheels)
        found.append(Candidate(release, index, wheels))
    return tuple(sorted(found, key=lambda each: (each.release.version, each.cuda or Release.parse("0")), reverse=True))


def find_nearest_release(version: Release, tables: Tables) -> TorchRelease:
    """Find the release itself, else the newest of its minor, else the newest before it; the oldest before that."""
    rows = sorted(tables.torch.releases, key=lambda row: row.version)
    exact = [row for row in rows if row.version == version]
    same = [row for row in rows if row.version.numbers[:2] == version.numbers[:2]]
    return (exact or same or [row for row in rows if row.version < version] or rows[:1])[-1]


def _find_named_variant(request: Request) -> str:
    """Find the build that --torch or the project's files name, such as cu126 in "==2.4.1+cu126"; "" for none."""
    local = (
        re.fullmatch(r"===?\s*[\d.]+\+([a-z0-9.]+)", each.specifier.strip()) for each in request.constraints_on("torch")
    )
    return next(filter(None, (parse_torch(request.torch)[1], *(found[1] for found in local if found))), "")


def _list_releases(problem: Problem) -> tuple[TorchRelease, ...]:
    """List the releases that are requested; one that the tables do not list where they list none of these."""
    rows = problem.tables.torch.releases
    wanted = parse_torch(problem.request.torch)[0]
    if wanted:
        return tuple(row for row in rows if wanted in (str(row.version), row.minor)) or (
            _assume_release(wanted, problem.tables),
        )
    # The build after the plus is not part of the release.
    specifiers = [re.sub(r"\+[a-z0-9.]+", "", each.specifier) for each in problem.request.constraints_on("torch")]
    bounds = [bound.strip() for each in specifiers for bound in each.split(",")]
    if not problem.request.as_of and not any(bound.startswith(("<", "=", "~")) for bound in bounds):
        rows = tuple(row for row in rows if row.version >= FIRST_OPEN_TORCH)
    if any(all(satisfies(str(row.version), each) for each in specifiers) for row in rows):
        return rows
    named = [version for each in specifiers for version in _list_versions_near(each)]
    version = next((each for each in named if all(satisfies(each, one) for one in specifiers)), None)
    return (_assume_release(version, problem.tables),) if version else rows


def _list_versions_near(specifier: str) -> Iterator[str]:
    """List the versions that a specifier names, then those beside them: a bound alone need not be met."""
    named = [(*map(int, text.split(".")), 0, 0)[:3] for text in re.findall(r"\d+(?:\.\d+)*", specifier)]
    for near in ((0, 0), (0, 1), (1, 0), (-1, 0)):
        yield from (f"{major}.{max(minor + near[0], 0)}.{patch + near[1]}" for major, minor, patch in named)


def _assume_release(version: str, tables: Tables) -> TorchRelease:
    release = Release.parse(".".join([*version.split("."), "0", "0"][:3]))
    return replace(find_nearest_release(release, tables), version=release, confidence=RowConfidence.INFERRED)


def _list_indexes(release: TorchRelease, problem: Problem) -> list[WheelIndex]:
    """List the indexes that have the release; where that is not known, those whose CUDA is not newer than it."""
    indexes, rocm = problem.tables.torch.indexes, problem.tables.rocm
    match problem.vendor:
        case Vendor.NVIDIA if release.is_inferred:
            cuda = _list_indexes_of_its_time(release, problem.tables)
            return cuda + _assume_index(cuda[-1], _find_named_variant(problem.request), indexes)
        case Vendor.NVIDIA:
            return [indexes[label] for label in release.variants]
        case Vendor.ROCM:
            found = rocm.releases.get(release.version)
            return [rocm.indexes[label] for label in found.variants] if found else []
        case Vendor.CPU:
            return [indexes["cpu"]]


def _list_indexes_of_its_time(release: TorchRelease, tables: Tables) -> list[WheelIndex]:
    """List the CUDA indexes that the nearest known release had, or an older CUDA; all of them for a later release."""
    indexes = [row for row in tables.torch.indexes.values() if row.cuda]
    if release.version > max(row.version for row in tables.torch.releases):
        return indexes
    labels = find_nearest_release(release.version, tables).variants
    newest = max(row.cuda for row in indexes if row.cuda and row.label in labels)
    return [row for row in indexes if row.cuda and row.cuda <= newest]


def _assume_rocm_indexes(release: TorchRelease, problem: Problem) -> list[WheelIndex]:
    """Assume for a release that is not known to be published for ROCm the indexes of the newest one before it."""
    rocm = problem.tables.rocm
    before = [version for version in rocm.releases if version < release.version] or [min(rocm.releases)]
    rows = [rocm.indexes[label] for label in rocm.releases[max(before)].variants]
    assumed = [replace(row, confidence=RowConfidence.INFERRED) for row in rows]
    return assumed + _assume_index(assumed[0], _find_named_variant(problem.request), rocm.indexes)


def _assume_index(like: WheelIndex, label: str, known: Mapping[str, WheelIndex]) -> list[WheelIndex]:
    """Assume that an index with a label that the tables do not list is where the others are: none for one they list."""
    built = re.fullmatch(r"(?:cu(\d+)(\d)|rocm([\d.]+))", label)
    if built is None or label in known:
        return []
    url = like.url.removesuffix(like.label) + label
    row = replace(like, label=label, url=url, confidence=RowConfidence.INFERRED)
    if isinstance(row, RocmIndex):
        return [replace(row, rocm=Release.parse(built[3]))] if built[3] else []
    return [replace(row, cuda=Release.parse(f"{built[1]}.{built[2]}"))] if built[1] else []


def find_candidate(problem: Problem, plan: Plan) -> Candidate:
    """Find the torch build of a plan for this problem."""
    return next(each for each in list_candidates(problem) if is_chosen(each, plan))


def is_chosen(candidate: Candidate, plan: Plan) -> bool:
    """Return whether the plan is for this torch build."""
    return (str(candidate.release.version), candidate.index.label) == (plan.torch, plan.variant)


def describe_request(problem: Problem) -> str:
    """Describe in one line what is requested, and for which hardware."""
    request = problem.request
    parts = [
        f"torch {request.torch}" if request.torch else (request.framework or Framework.TORCH).label,
        f"CUDA {request.cuda}" if request.cuda else "",
        f"Python {request.python}" if request.python else "",
        request.image or "",
        *(f"{name}=={version}" for name, version in request.pins),
        *request.features,
    ]
    drivers = dict.fromkeys(str(machine.driver) for machine in problem.machines if machine.driver)
    hardware = ", ".join([*problem.gpu_names, *(f"driver {driver}" for driver in drivers)])
    return ", ".join(filter(None, parts)) + (f" on {hardware}" if hardware else "")


def describe_gpu(name: str, code: ComputeCapability | str) -> str:
    """Name a GPU with its compute capability or target: "Tesla P40 (6.1)", "sm_86", "AMD Instinct MI300X (gfx942)"."""
    alone = code if isinstance(code, str) else code.sm
    return name if name == alone else f"{name} ({code})"
