"""The compatibility rules: which driver runs which CUDA, which binary runs on which GPU.

The short names (R1, A1 …) are the ones that plans and findings quote.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from devkit.compat.version_tables import ForwardPackage, Tables, load_tables
from devkit.facts.values import ComputeCapability, Release

WINDOWS_DRIVER_PLATFORMS = ("wsl2", "windows")
"""Platforms whose driver number is a Windows number."""


class CudaSupport(StrEnum):
    """The way in which a driver runs programs built with a CUDA version."""

    FULL = "full"
    """R1: everything, run-time compilation of PTX included."""
    MINOR = "minor"
    """R2: machine code only, by minor version compatibility."""
    FORWARD = "forward"
    """R5: with the cuda-compat libraries inside the container."""
    NO = "no"
    """R4: not at all."""


class CodeSupport(StrEnum):
    """The way in which a binary's GPU code runs on a GPU."""

    NATIVE = "native"
    """A1, A2: machine code for it."""
    PTX = "ptx"
    """A3: compiled by the driver at first use."""
    NONE = "none"


class LibraryChoice(StrEnum):
    """The way in which bitsandbytes finds its library."""

    EXACT = "exact"
    OVERRIDE = "override"
    """Only by BNB_CUDA_VERSION, with a library of the same CUDA major."""
    MISSING = "missing"


@dataclass(frozen=True)
class BitsandbytesChoice:
    """The library bitsandbytes would load: how, and the CUDA version it was built with ("" when missing)."""

    choice: LibraryChoice
    cuda: str


def find_newest_cuda(driver: Release, *, platform: str = "linux", known: Tables | None = None) -> Release | None:
    """Find the newest CUDA that a driver runs in full, as nvidia-smi prints it; None for one older than the tables.

    `platform` decides whose numbers these are: on wsl2 and windows the driver is the Windows one.
    """
    table = (known or load_tables()).driver
    if platform in WINDOWS_DRIVER_PLATFORMS:
        found = [row.cuda for row in table.windows_branches if min(row.branches) <= driver.major]
        found += [row.cuda for row in table.toolkits if row.windows_driver and _reaches(driver, row.windows_driver)]
    else:
        found = [row.cuda for row in table.branches if row.branch <= driver.major]
    return max(found, default=None)


def check_cuda_support(
    driver: Release,
    cuda: Release,
    *,
    platform: str = "linux",
    driver_says: Release | None = None,
    has_forward_gpus: bool = False,
    known: Tables | None = None,
) -> CudaSupport:
    """Check how `driver` runs programs built with `cuda` (rules R1, R2, R4, R5).

    `driver_says` is the CUDA version the driver itself reports (R6) and outranks the tables.
    `has_forward_gpus` says that every GPU is of a kind that forward compatibility is offered for.
    """
    if driver_says is not None and driver_says >= cuda:
        return CudaSupport.FULL
    known = known or load_tables()
    newest = driver_says or find_newest_cuda(driver, platform=platform, known=known)
    floor = find_oldest_driver(cuda, platform=platform, known=known)
    above_floor = floor is None or _reaches(driver, floor)
    if newest is not None and newest >= cuda and above_floor:
        return CudaSupport.FULL
    if newest is not None and newest.major == cuda.major and above_floor:
        return CudaSupport.MINOR
    if has_forward_gpus and find_forward_package(driver, cuda, platform=platform, known=known):
        return CudaSupport.FORWARD
    return CudaSupport.NO


def can_compile_ptx(
    driver: Release, cuda: Release, *, platform: str = "linux", driver_says: Release | None = None
) -> bool:
    """Return whether the driver compiles PTX made by CUDA Toolkit `cuda` (R3a); otherwise CUDA fails with error 222."""
    return check_cuda_support(driver, cuda, platform=platform, driver_says=driver_says) is CudaSupport.FULL


def find_oldest_driver(cuda: Release, *, platform: str = "linux", known: Tables | None = None) -> Release | None:
    """Find the oldest driver that runs anything built with `cuda` without forward compatibility; None when unknown."""
    table = (known or load_tables()).driver
    windows = platform in WINDOWS_DRIVER_PLATFORMS
    family = table.families.get(cuda.major)
    floors = [family.windows_driver if windows else family.linux_driver] if family else []
    toolkit = find_toolkit_driver(cuda, platform=platform, known=known)
    return min((floor for floor in (*floors, toolkit) if floor is not None), default=None)


def find_toolkit_driver(cuda: Release, *, platform: str = "linux", known: Tables | None = None) -> Release | None:
    """Find the driver that came with the first release of `cuda`, which supports it in full; None when unknown."""
    table = (known or load_tables()).driver
    windows = platform in WINDOWS_DRIVER_PLATFORMS
    found = [row.windows_driver if windows else row.linux_driver for row in table.toolkits if row.cuda == cuda]
    return min((driver for driver in found if driver is not None), default=None)


def find_forward_package(
    driver: Release, cuda: Release, *, platform: str = "linux", known: Tables | None = None
) -> ForwardPackage | None:
    """Find the cuda-compat package that lets `driver` run `cuda` (R5), whatever the GPU; None when there is none."""
    known = known or load_tables()
    newest = find_newest_cuda(driver, platform=platform, known=known)
    if platform in WINDOWS_DRIVER_PLATFORMS or (newest is not None and newest >= cuda):
        return None
    packages = sorted(known.driver.forward, key=lambda row: row.cuda)
    row = next((row for row in packages if row.cuda >= cuda and row.cuda.major == cuda.major), None)
    return row if row is not None and driver.major in row.host_branches else None


def check_gpu_code(
    capability: ComputeCapability, sass: Iterable[str], ptx: Iterable[str] = (), *, driver_compiles: bool = True
) -> CodeSupport:
    """Check how GPU code runs on `capability` (rules A1 to A3).

    `sass` and `ptx` list targets such as "9.0", "9.0a" or "sm_90"; `driver_compiles` is the answer of `compiles_ptx`.
    """
    for target, suffix in map(_parse_target, sass):
        is_same_major = capability.major == target.major and capability.minor >= target.minor
        if capability == target if suffix == "a" else is_same_major:
            return CodeSupport.NATIVE
    for target, suffix in map(_parse_target, ptx) if driver_compiles else ():
        if capability == target if suffix else capability >= target:
            return CodeSupport.PTX
    return CodeSupport.NONE


def find_bitsandbytes_library(cuda: Release, shipped: Sequence[str]) -> BitsandbytesChoice:
    """Find the library that bitsandbytes loads under a torch built with `cuda`, of those it ships (B1)."""
    releases = sorted((Release.parse(text) for text in shipped), reverse=True)
    if cuda in releases:
        return BitsandbytesChoice(LibraryChoice.EXACT, str(cuda))
    same_major = [release for release in releases if release.major == cuda.major]
    older = [release for release in same_major if release < cuda]
    if not same_major:
        return BitsandbytesChoice(LibraryChoice.MISSING, "")
    return BitsandbytesChoice(LibraryChoice.OVERRIDE, str(older[0] if older else same_major[-1]))


def _reaches(driver: Release, floor: Release) -> bool:
    """Return whether a driver is at or above a floor; a bare branch such as 580 means its newest driver.

    Jetson Linux writes the branch alone, too: a Jetson AGX Thor has driver 580.00, which runs CUDA 13.0.
    """
    return driver.major >= floor.major if not any(driver.numbers[1:]) else driver >= floor


@cache
def _parse_target(text: str) -> tuple[ComputeCapability, str]:
    suffix = text[-1] if text[-1] in "af" else ""
    return ComputeCapability.parse(text.removesuffix(suffix)), suffix
