"""Finds a torch wheel that fits this very machine, so that a fix can name it."""

import shlex

from devkit.compat.gpus import has_forward_compatibility
from devkit.compat.rules import (
    CodeSupport,
    CudaSupport,
    can_compile_ptx,
    check_cuda_support,
    check_gpu_code,
    find_newest_cuda,
)
from devkit.compat.version_tables import TorchRelease, TorchWheel, load_tables
from devkit.doctor.model import Side
from devkit.doctor.preconditions import is_in_container, require
from devkit.facts.model import Facts, Gpu, NvmlAnswer, System
from devkit.facts.values import ComputeCapability, Release, Unknown, record


@record
class DriverCuda:
    """The driver's version, the CUDA it says it runs, and whose numbers they are."""

    release: Release
    says: Release | None
    platform: str

    @property
    def cuda(self) -> Release | None:
        """The newest CUDA that this driver runs in full, by its own word or by the tables."""
        return self.says or find_newest_cuda(self.release, platform=self.platform)

    def runs(self, cuda: Release, *, has_forward_gpus: bool = False) -> CudaSupport:
        """How this driver runs programs built with `cuda`."""
        return check_cuda_support(
            self.release,
            cuda,
            platform=self.platform,
            driver_says=self.says,
            has_forward_gpus=has_forward_gpus,
        )

    def compiles(self, cuda: Release) -> bool:
        """Whether this driver compiles PTX made by CUDA `cuda`."""
        return can_compile_ptx(self.release, cuda, platform=self.platform, driver_says=self.says)


@record
class CompatibleWheel:
    """A torch release, its CUDA label and the index that carries it."""

    version: str
    label: str
    index_url: str


def find_driver_cuda(facts: Facts) -> DriverCuda | None:
    """The driver as programs meet it; None when no version of it is known."""
    platform = facts.system.platform.value if isinstance(facts.system, System) else "linux"
    if isinstance(facts.nvml, NvmlAnswer) and isinstance(facts.nvml.driver, Release):
        says = None if isinstance(facts.nvml.cuda, Unknown) else facts.nvml.cuda
        return DriverCuda(facts.nvml.driver, says, platform)
    if not isinstance(facts.driver, Unknown) and isinstance(facts.driver.loaded, Release):
        return DriverCuda(facts.driver.loaded, None, platform)
    return None


def is_forward_compatible(gpus: tuple[Gpu, ...]) -> bool:
    """Whether every GPU is of a kind that forward compatibility is offered for; False without GPUs."""
    return bool(gpus) and all(has_forward_compatibility(gpu.name) for gpu in gpus)


def find_compute_capabilities(facts: Facts) -> tuple[ComputeCapability, ...]:
    """The compute capabilities of the GPUs that answer and say theirs."""
    return tuple(gpu.capability for gpu in facts.gpus if not isinstance(gpu.capability, Unknown))


def find_compatible_wheel(facts: Facts) -> CompatibleWheel | None:
    """The newest torch whose wheel runs on this driver, every GPU and this Python; None when the tables know none."""
    driver = find_driver_cuda(facts)
    if driver is None or not isinstance(facts.system, System):
        return None
    python = None if isinstance(facts.python, Unknown) else _minor(facts.python.version)
    releases = sorted(load_tables().torch.releases, key=lambda row: row.version, reverse=True)
    for release in releases:
        if python is None or python in release.pythons:
            for label in _labels(release):
                if _fits(facts, driver, release, label):
                    return CompatibleWheel(str(release.version), label, load_tables().torch.indexes[label].url)
    return None


def find_wheel_row(version: str, cuda: Release, machine: str) -> TorchWheel | None:
    """The table's row for an installed torch such as "2.7.1+cu128"; None when the tables do not know it."""
    numbers = require(_release(version)).numbers
    label = version.partition("+")[2] or "cu" + "".join(str(number) for number in cuda.numbers[:2])
    return load_tables().torch.wheels.get((".".join(str(number) for number in numbers[:2]), label, machine))


def _release(version: str) -> Release | Unknown:
    try:
        return Release.parse(version)
    except ValueError:
        return Unknown(f"torch {version!r} is no version")


def _labels(release: TorchRelease) -> list[str]:
    """CUDA variants, the default one first, then the highest CUDA."""
    indexes = load_tables().torch.indexes
    labels = [label for label in release.variants if label in indexes and indexes[label].cuda is not None]
    return sorted(labels, key=lambda label: (label != release.default_variant, -int(label.removeprefix("cu"))))


def _fits(facts: Facts, driver: DriverCuda, release: TorchRelease, label: str) -> bool:
    machine = facts.system.machine if isinstance(facts.system, System) else ""
    row, cuda = load_tables().torch.wheels.get((release.minor, label, machine)), load_tables().torch.indexes[label].cuda
    if row is None or cuda is None or driver.runs(cuda) in (CudaSupport.NO, CudaSupport.FORWARD):
        return False
    compiles = driver.compiles(cuda)
    return all(
        check_gpu_code(capability, row.sass, row.ptx, driver_compiles=compiles) is not CodeSupport.NONE
        for capability in find_compute_capabilities(facts)
    )


def _minor(version: Release) -> str:
    return ".".join(str(number) for number in version.numbers[:2])


# How packages are installed in this very Python: pip, uv or conda's pip, with the index that carries the build.

_UV = "uv pip install"
_PIP = "pip install"


def find_workload_side(facts: Facts) -> Side:
    """Where the workload's packages are installed."""
    return Side.CONTAINER if is_in_container(facts) else Side.HOST


def uses_uv(facts: Facts) -> bool:
    """Whether uv made this environment. It brings no pip of its own."""
    return not isinstance(facts.python, Unknown) and facts.python.installer == "uv"


def format_install_command(
    facts: Facts, *requirements: str, index: str = "", replace: bool = False, more: str = ""
) -> str:
    """The command that installs `requirements`; `replace` puts them in place of the same version of another build.

    `more` holds options that pip and uv share, such as --no-deps.
    """
    words = [_UV if uses_uv(facts) else _PIP]
    if replace:
        words.append("--reinstall" if uses_uv(facts) else "--force-reinstall")
    words += [more] if more else []
    words += [shlex.quote(requirement) for requirement in requirements]
    words += [f"--index-url {index}"] if index else []
    return " ".join(words)


def format_wheel_install_command(facts: Facts, wheel: CompatibleWheel) -> str:
    """The command that puts exactly this build of torch in place of the present one."""
    return format_install_command(facts, f"torch=={wheel.version}", index=wheel.index_url, replace=True)


def format_upgrade_command(facts: Facts, *requirements: str) -> str:
    """The command that brings `requirements` up to date."""
    return format_install_command(facts, *requirements, more="--upgrade")


def format_uninstall_command(facts: Facts, *names: str) -> str:
    """The command that removes distributions."""
    return f"{'uv pip uninstall' if uses_uv(facts) else 'pip uninstall -y'} {' '.join(names)}"
