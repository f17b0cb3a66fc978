"""Facts that every edition of the tables must agree with (tables/anchors.toml)."""

from collections.abc import Callable, Iterator

from devkit.compat.gpus import find_gpu
from devkit.compat.load import Tables, document
from devkit.compat.rows import Row
from devkit.compat.rules import CodeSupport, driver_cuda, full_driver, has_kernels, oldest_driver
from devkit.compat.signoff.fault import Fault
from devkit.compat.table import Array, Table
from devkit.facts.record import keyword_record
from devkit.facts.values import ComputeCapability, Release


@keyword_record
class Floor(Row):
    """The oldest drivers that run a CUDA version by minor version compatibility."""

    cuda: Release
    linux_driver: Release
    windows_driver: Release | None = None


@keyword_record
class ToolkitDriver(Row):
    """The driver that came with the first release of a CUDA version."""

    cuda: Release
    linux_driver: Release


@keyword_record
class FullSupport(Row):
    """The newest CUDA that a Linux driver runs in full."""

    driver: Release
    cuda: Release


@keyword_record
class KnownGpu(Row):
    """What a GPU is."""

    name: str
    capability: ComputeCapability
    forward: bool


@keyword_record
class Target(Row):
    """The CUDA Toolkits that target a compute capability, as far as they are settled."""

    capability: ComputeCapability
    first_cuda: Release | None = None
    last_cuda: Release | None = None


@keyword_record
class WheelCode(Row):
    """Whether a torch wheel for x86_64 holds machine code for a compute capability."""

    minor: str
    variant: str
    capability: ComputeCapability
    runs: bool


class AnchorTable(Table):
    """All the anchors."""

    floors = Array("floor", Floor, unique=("cuda",))
    toolkits = Array("toolkit", ToolkitDriver, unique=("cuda",))
    drivers = Array("driver", FullSupport, unique=("driver",))
    gpus = Array("gpu", KnownGpu, unique=("name",))
    targets = Array("target", Target, unique=("capability",))
    wheels = Array("wheel", WheelCode, unique=("minor", "variant", "capability"))


def anchor_faults(known: Tables) -> Iterator[Fault]:
    """Where these tables contradict an anchor."""
    anchors = AnchorTable(document("anchors"))
    for part in PARTS:
        yield from part(known, anchors)


def _floors(known: Tables, anchors: AnchorTable) -> Iterator[Fault]:
    for row in anchors.floors:
        linux = oldest_driver(row.cuda, known=known)
        windows = oldest_driver(row.cuda, platform="windows", known=known) if row.windows_driver else None
        if (linux, windows) != (row.linux_driver, row.windows_driver):
            wanted = " and ".join(str(driver) for driver in (row.linux_driver, row.windows_driver) if driver)
            yield _against("driver", f"CUDA {row.cuda} runs from driver {wanted} on", linux, row)


def _toolkits(known: Tables, anchors: AnchorTable) -> Iterator[Fault]:
    for row in anchors.toolkits:
        found = full_driver(row.cuda, known=known)
        if found != row.linux_driver:
            yield _against("driver", f"CUDA {row.cuda} came with driver {row.linux_driver}", found, row)


def _drivers(known: Tables, anchors: AnchorTable) -> Iterator[Fault]:
    for row in anchors.drivers:
        found = driver_cuda(row.driver, known=known)
        if found != row.cuda:
            yield _against("driver", f"driver {row.driver} runs CUDA {row.cuda} in full", found, row)


def _gpus(known: Tables, anchors: AnchorTable) -> Iterator[Fault]:
    for row in anchors.gpus:
        found = find_gpu(row.name, known=known)
        if found is None or found.model is None or found.capability != row.capability:
            says = f"{row.name} has compute capability {row.capability}"
            yield _against("gpus", says, found and found.capability, row)
        elif found.model.forward != row.forward:
            offered = "is" if row.forward else "is not"
            yield _against("gpus", f"forward compatibility {offered} offered for {row.name}", found.model.forward, row)


def _targets(known: Tables, anchors: AnchorTable) -> Iterator[Fault]:
    for row in anchors.targets:
        found = known.driver.capabilities.get(row.capability)
        first, last = (found.first_cuda, found.last_cuda) if found else (None, None)
        if row.first_cuda is not None and first != row.first_cuda:
            says = f"CUDA {row.first_cuda} is the first that targets compute capability {row.capability}"
            yield _against("driver", says, first, row)
        if row.last_cuda is not None and last != row.last_cuda:
            says = f"CUDA {row.last_cuda} is the last that targets compute capability {row.capability}"
            yield _against("driver", says, last, row)


def _wheels(known: Tables, anchors: AnchorTable) -> Iterator[Fault]:
    for row in anchors.wheels:
        wheel = known.torch.wheels.get((row.minor, row.variant, "x86_64"))
        runs = wheel is not None and has_kernels(row.capability, wheel.sass) is CodeSupport.NATIVE
        if wheel is None or runs != row.runs:
            holds = "holds" if row.runs else "holds no"
            says = f"torch {row.minor}+{row.variant} {holds} machine code for {row.capability}"
            yield _against("torch", says, "no such wheel" if wheel is None else runs, row)


PARTS: tuple[Callable[[Tables, AnchorTable], Iterator[Fault]], ...] = (
    _floors,
    _toolkits,
    _drivers,
    _gpus,
    _targets,
    _wheels,
)
"""One part for every array of the anchors."""


def _against(table: str, says: str, found: object, row: Row) -> Fault:
    return Fault(table, "", f"{says} ({row.source[0]}); this table says {found}")
