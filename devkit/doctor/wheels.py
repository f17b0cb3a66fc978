"""The CUDA that the driver supports, a torch wheel that fits it, and the commands that install packages."""

import shlex

from devkit.compat.gpus import has_forward_compatibility
from devkit.compat.version_tables import TorchWheel, load_tables
from devkit.compat.wheels import CompatibleWheel, DriverCuda, find_wheel
from devkit.doctor.fixes import adapt_to_installer
from devkit.doctor.model import NotApplicable
from devkit.facts.gpu import Gpu, NvmlAnswer
from devkit.facts.machine import System
from devkit.facts.model import Facts
from devkit.facts.values import ComputeCapability, Release, Unknown


def find_driver_cuda(facts: Facts) -> DriverCuda | None:
    """Find the driver's version and its CUDA; None when no version is known."""
    platform = facts.system.platform.value if isinstance(facts.system, System) else "linux"
    if isinstance(facts.nvml, NvmlAnswer) and isinstance(facts.nvml.driver, Release):
        reported = None if isinstance(facts.nvml.cuda, Unknown) else facts.nvml.cuda
        return DriverCuda(facts.nvml.driver, reported, platform)
    if not isinstance(facts.driver, Unknown) and isinstance(facts.driver.loaded, Release):
        return DriverCuda(facts.driver.loaded, None, platform)
    return None


def is_forward_compatible(gpus: tuple[Gpu, ...]) -> bool:
    """Say if forward compatibility is offered for every GPU; False without GPUs."""
    return bool(gpus) and all(has_forward_compatibility(gpu.name) for gpu in gpus)


def find_compute_capabilities(facts: Facts) -> tuple[ComputeCapability, ...]:
    """List the compute capabilities of the GPUs that report one."""
    return tuple(gpu.capability for gpu in facts.gpus if not isinstance(gpu.capability, Unknown))


def find_compatible_wheel(facts: Facts) -> CompatibleWheel | None:
    """Find the newest torch wheel for this driver, every GPU and this Python; None when the tables have none."""
    driver = find_driver_cuda(facts)
    if driver is None or not isinstance(facts.system, System):
        return None
    return find_wheel(
        driver=driver,
        capabilities=find_compute_capabilities(facts),
        machine=facts.system.machine,
        python=None if isinstance(facts.python, Unknown) else facts.python.version.minor,
    )


def find_wheel_row(version: str, cuda: Release, machine: str) -> TorchWheel | None:
    """Find the table's row for an installed torch such as "2.7.1+cu128"; None when the tables do not know it."""
    try:
        release = Release.parse(version)
    except ValueError:
        raise NotApplicable(f"torch {version!r} is not a version") from None
    label = version.partition("+")[2] or "cu" + "".join(str(number) for number in cuda.numbers[:2])
    return load_tables().torch.wheels.get((release.minor, label, machine))


def list_wheel_requirements(facts: Facts, wheel: CompatibleWheel) -> tuple[str, ...]:
    """List what to install instead of the installed torch: exactly this build, and the torchvision for it."""
    names = () if isinstance(facts.python, Unknown) else [package.name for package in facts.python.packages]
    return (f"torch=={wheel.version}", *(name for name in names if name == "torchvision"))


def format_install_command(facts: Facts, *requirements: str, index: str = "", replace: bool = False) -> str:
    """Format the command that installs `requirements` with pip or uv."""
    words = ["pip install", *(["--force-reinstall"] if replace else []), *map(shlex.quote, requirements)]
    return adapt_to_installer(" ".join((*words, *([f"--index-url {index}"] if index else []))), facts)


def format_wheel_install_command(facts: Facts, wheel: CompatibleWheel) -> str:
    """Format the command that replaces the installed torch by exactly this build, with the torchvision for it."""
    return format_install_command(facts, *list_wheel_requirements(facts, wheel), index=wheel.index_url, replace=True)
