"""The torch wheel for a driver, GPUs and a Python, by the version tables."""

from devkit.compat.rules import (
    CodeSupport,
    CudaSupport,
    can_compile_ptx,
    check_cuda_support,
    check_gpu_code,
    find_newest_cuda,
)
from devkit.compat.version_tables import load_tables
from devkit.facts.values import ComputeCapability, Release, record


@record
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


@record
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
    """Find the newest torch wheel for a driver, GPUs and a Python such as "3.12"; what is None limits nothing."""
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
