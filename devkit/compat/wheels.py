"""Wheels by the version tables: torch's for a driver, GPUs and a Python, and those of packages built for some CUDA alone."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from devkit.compat.rules import (
    CodeSupport,
    CudaSupport,
    can_compile_ptx,
    check_cuda_support,
    check_gpu_code,
    find_newest_cuda,
)
from devkit.compat.specifiers import satisfies_python
from devkit.compat.version_tables import CudaWheel, Tables, load_tables
from devkit.facts.values import ComputeCapability, Release
from devkit.text import join_words


def list_wheel_limits(cuda: str | None, gpus: Iterable[ComputeCapability], tables: Tables) -> dict[str, str]:
    """List constraints that leave out wheels for a newer major of CUDA than the plan's, and those without code for a GPU.

    `cuda` is the plan's, the newest that the machines run with any torch that may be chosen. Of each package the newest
    releases in succession that serve the machines are left; without one, none. The values say why.
    """
    if cuda is None:
        return {}
    major, limits = Release.parse(cuda).major, {}
    of_majors = (row for row in tables.stack.cuda_wheels if not any("." in build for build in row.builds))
    built = " and ".join((f"CUDA {major}", *(f"compute capability {each}" for each in dict.fromkeys(gpus))))
    for name, found in groupby(of_majors, key=lambda row: row.name):
        rows = sorted(found, key=lambda row: row.version)
        serves = [
            any(build != "cpu" and int(build) <= major for build in row.builds)
            and not (row.sass and any(check_gpu_code(each, row.sass) is CodeSupport.NONE for each in gpus))
            for row in rows
        ]
        end = len(rows) - serves[::-1].index(True) if any(serves) else 0
        start = next((place + 1 for place in reversed(range(end)) if not serves[place]), 0)
        above = [f">={rows[start].version}"] if start else []
        below = [f"<{rows[end].version}"] if end < len(rows) else []
        limit = f"{name}{','.join((*above, *below))}"
        if not any(serves):
            limits[limit] = f"no wheel of {name} is built for {built}"
        elif below:
            limits[limit] = (
                f"{limit} has the wheels for {built}; from {rows[end].version} on {describe_wheel(rows[end])}"
            )
        elif above:
            limits[limit] = f"{limit} has the wheels for {built}"
    return limits


def list_python_limits(python: str, tables: Tables) -> dict[str, str]:
    """List constraints that leave out releases of packages whose Requires-Python excludes this Python; the values say why."""
    limits = {}
    for name, found in groupby(tables.stack.python_bounds, key=lambda row: row.name):
        rows = sorted(found, key=lambda row: row.version)
        serves = [satisfies_python(python, row.python) for row in rows]
        start = next((place + 1 for place in reversed(range(len(rows))) if not serves[place]), 0)
        if 0 < start < len(rows):
            limits[f"{name}>={rows[start].version}"] = (
                f"{name} before {rows[start].version} is for {rows[start - 1].python}"
            )
    return limits


def find_wheels(versions: Mapping[str, str], tables: Tables) -> Iterator[CudaWheel]:
    """Find the rows of a resolution's packages."""
    for name in dict.fromkeys(row.name for row in tables.stack.cuda_wheels if row.name in versions):
        version = Release.parse(versions[name])
        rows = [row for row in tables.stack.cuda_wheels if row.name == name and row.version <= version]
        if rows:
            yield max(rows, key=lambda row: row.version)


def find_foreign_wheels(versions: Mapping[str, str], cuda: str | None, tables: Tables) -> Iterator[CudaWheel]:
    """Find the packages of a resolution that have no wheel for `cuda`, None for the CPU or ROCm."""
    return (row for row in find_wheels(versions, tables) if not row.fits(cuda))


def describe_foreign_wheel(row: CudaWheel, versions: Mapping[str, str]) -> str:
    """Say for which CUDA a package's wheel is built."""
    return f"the wheel of {row.name} {versions[row.name]} is built for {row.format_builds()}"


def describe_wheel(row: CudaWheel) -> str:
    """Say for which CUDA and GPUs a wheel is built."""
    gpus = f" and compute capability {join_words(row.sass)}" if row.sass else ""
    return f"the wheel is built for {row.format_builds()}{gpus}"


# The torch wheel for a driver, GPUs and a Python, by the version tables.


@dataclass(frozen=True)
class DriverCuda:
    """The driver's version, and the newest CUDA that it reports."""

    release: Release
    reported_cuda: Release | None
    platform: str

    @property
    def cuda(self) -> Release | None:
        """The newest CUDA that this driver supports in full, as it reports or by the tables."""
        return self.reported_cuda or find_newest_cuda(self.release, platform=self.platform)

    def classify(self, cuda: Release, *, has_forward_gpus: bool = False) -> CudaSupport:
        """Classify the support of this driver for programs built with `cuda`."""
        return check_cuda_support(
            self.release,
            cuda,
            platform=self.platform,
            driver_says=self.reported_cuda,
            has_forward_gpus=has_forward_gpus,
        )

    def can_compile(self, cuda: Release) -> bool:
        """Say if this driver compiles PTX made by CUDA `cuda`."""
        return can_compile_ptx(self.release, cuda, platform=self.platform, driver_says=self.reported_cuda)


@dataclass(frozen=True)
class CompatibleWheel:
    """A torch release, its CUDA label and the index that carries it."""

    version: str
    label: str
    index_url: str


def find_wheel(
    *,
    driver: DriverCuda | None,
    capabilities: tuple[ComputeCapability, ...],
    machine: str,
    python: str | None,
) -> CompatibleWheel | None:
    """Find the newest torch wheel for a driver, GPUs and a Python such as "3.12"; None means no limit."""
    tables = load_tables().torch
    for release in sorted(tables.releases, key=lambda row: row.version, reverse=True):
        if python is not None and python not in release.pythons:
            continue
        labels = [label for label in release.variants if label in tables.indexes and tables.indexes[label].cuda]
        # The default CUDA variant first, then the highest CUDA; for an unknown driver the one that the oldest runs.
        labels.sort(key=lambda label: int(label.removeprefix("cu")), reverse=driver is not None)
        if driver is not None:
            labels.sort(key=release.default_variant.__ne__)
        for label in labels:
            row = tables.wheels.get((release.minor, label, machine))
            cuda = tables.indexes[label].cuda
            if row is None or cuda is None:
                continue
            if driver is not None and driver.classify(cuda) in (CudaSupport.NO, CudaSupport.FORWARD):
                continue
            compiles = driver is not None and driver.can_compile(cuda)
            if all(
                check_gpu_code(capability, row.sass, row.ptx, driver_compiles=compiles) is not CodeSupport.NONE
                for capability in capabilities
            ):
                return CompatibleWheel(str(release.version), label, tables.indexes[label].url)
    return None
