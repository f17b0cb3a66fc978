"""Finds a torch wheel that fits this very machine, so that a fix can name it."""

from devkit.compat.gpus import offers_forward_compatibility
from devkit.compat.load import tables
from devkit.compat.rows import TorchRelease, TorchWheel
from devkit.compat.rules import CodeSupport, CudaSupport, compiles_ptx, driver_cuda, has_kernels, runs_cuda
from devkit.doctor.applies import known
from devkit.facts.model import Facts, Gpu, NvmlAnswer, System
from devkit.facts.record import record
from devkit.facts.values import ComputeCapability, Release, Unknown


@record
class DriverCuda:
    """The driver's version, the CUDA it says it runs, and whose numbers they are."""

    release: Release
    says: Release | None
    platform: str

    @property
    def cuda(self) -> Release | None:
        """The newest CUDA that this driver runs in full, by its own word or by the tables."""
        return self.says or driver_cuda(self.release, platform=self.platform)

    def runs(self, cuda: Release, *, has_forward_gpus: bool = False) -> CudaSupport:
        """How this driver runs programs built with `cuda`."""
        return runs_cuda(
            self.release,
            cuda,
            platform=self.platform,
            driver_says=self.says,
            has_forward_gpus=has_forward_gpus,
        )

    def compiles(self, cuda: Release) -> bool:
        """Whether this driver compiles PTX made by CUDA `cuda`."""
        return compiles_ptx(self.release, cuda, platform=self.platform, driver_says=self.says)


@record
class FittingWheel:
    """A torch release, its CUDA label and the index that carries it."""

    version: str
    label: str
    index_url: str


def driver_cuda_of(facts: Facts) -> DriverCuda | None:
    """The driver as programs meet it; None when no version of it is known."""
    platform = facts.system.platform.value if isinstance(facts.system, System) else "linux"
    if isinstance(facts.nvml, NvmlAnswer) and isinstance(facts.nvml.driver, Release):
        says = None if isinstance(facts.nvml.cuda, Unknown) else facts.nvml.cuda
        return DriverCuda(facts.nvml.driver, says, platform)
    if not isinstance(facts.driver, Unknown) and isinstance(facts.driver.loaded, Release):
        return DriverCuda(facts.driver.loaded, None, platform)
    return None


def all_offer_forward_compatibility(gpus: tuple[Gpu, ...]) -> bool:
    """Whether every GPU is of a kind that forward compatibility is offered for; False without GPUs."""
    return bool(gpus) and all(offers_forward_compatibility(gpu.name) for gpu in gpus)


def capabilities_of(facts: Facts) -> tuple[ComputeCapability, ...]:
    """The compute capabilities of the GPUs that answer and say theirs."""
    return tuple(gpu.capability for gpu in facts.gpus if not isinstance(gpu.capability, Unknown))


def fitting_wheel(facts: Facts) -> FittingWheel | None:
    """The newest torch whose wheel runs on this driver, every GPU and this Python; None when the tables know none."""
    driver = driver_cuda_of(facts)
    if driver is None or not isinstance(facts.system, System):
        return None
    python = None if isinstance(facts.python, Unknown) else _minor(facts.python.version)
    releases = sorted(tables().torch.releases, key=lambda row: row.version, reverse=True)
    for release in releases:
        if python is None or python in release.pythons:
            for label in _labels(release):
                if _fits(facts, driver, release, label):
                    return FittingWheel(str(release.version), label, tables().torch.indexes[label].url)
    return None


def wheel_row(version: str, cuda: Release, machine: str) -> TorchWheel | None:
    """The table's row for an installed torch such as "2.7.1+cu128"; None when the tables do not know it."""
    numbers = known(_release(version)).numbers
    label = version.partition("+")[2] or "cu" + "".join(str(number) for number in cuda.numbers[:2])
    return tables().torch.wheels.get((".".join(str(number) for number in numbers[:2]), label, machine))


def _release(version: str) -> Release | Unknown:
    try:
        return Release.read(version)
    except ValueError:
        return Unknown(f"torch {version!r} is no version")


def _labels(release: TorchRelease) -> list[str]:
    """CUDA variants, the default one first, then the highest CUDA."""
    indexes = tables().torch.indexes
    labels = [label for label in release.variants if label in indexes and indexes[label].cuda is not None]
    return sorted(labels, key=lambda label: (label != release.default_variant, -int(label.removeprefix("cu"))))


def _fits(facts: Facts, driver: DriverCuda, release: TorchRelease, label: str) -> bool:
    machine = facts.system.machine if isinstance(facts.system, System) else ""
    row, cuda = tables().torch.wheels.get((release.minor, label, machine)), tables().torch.indexes[label].cuda
    if row is None or cuda is None or driver.runs(cuda) in (CudaSupport.NO, CudaSupport.FORWARD):
        return False
    compiles = driver.compiles(cuda)
    return all(
        has_kernels(capability, row.sass, row.ptx, driver_compiles=compiles) is not CodeSupport.NONE
        for capability in capabilities_of(facts)
    )


def _minor(version: Release) -> str:
    return ".".join(str(number) for number in version.numbers[:2])
