"""Facts that checks need before they can judge: each `require_…` returns one, or ends the check with the reason."""

from typing import TypeVar

from devkit.doctor.model import NotApplicable
from devkit.facts.engine import Engine, EngineFailure, EngineKind, Toolkit
from devkit.facts.gpu import Driver, NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.machine import Container, Platform, Torch, Wsl
from devkit.facts.model import Facts
from devkit.facts.project import Project
from devkit.facts.runs import CudaCall, Deep
from devkit.facts.values import Release, Unknown

_T = TypeVar("_T")

NVML_DRIVER_NOT_LOADED = 9
NO_NVIDIA_GPU = "this machine has no NVIDIA GPU to judge"
WSL_NVIDIA_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
NO_VISIBLE_DEVICES = ("", "void", "none")
"""Values of NVIDIA_VISIBLE_DEVICES that ask for no GPU."""


def require(value: _T | Unknown) -> _T:
    """Return the value; an unknown one ends the check with its reason."""
    if isinstance(value, Unknown):
        raise NotApplicable(value.reason, is_lost=value.is_lost)
    return value


def require_some(value: _T | Unknown | None, reason: str) -> _T:
    """Return the value; an unknown one ends the check with its reason, and None with this one."""
    known = require(value)
    if known is None:
        raise NotApplicable(reason)
    return known


def skip_if(condition: object, reason: str) -> None:
    """End a check that has nothing to judge under a condition."""
    if condition:
        raise NotApplicable(reason)


def find_platform(facts: Facts) -> Platform | None:
    """Return the platform, or None when it could not be read."""
    return None if isinstance(facts.system, Unknown) else facts.system.platform


def is_in_container(facts: Facts) -> bool:
    """Say if these facts were read inside a container, even one whose details could not be read."""
    return facts.container is not None


def is_in_wsl(facts: Facts) -> bool:
    """Say if this is WSL of either version, or a container in it."""
    return find_platform(facts) in (Platform.WSL1, Platform.WSL2)


def require_container(facts: Facts) -> Container:
    """Return the container around this process."""
    return require_some(facts.container, "this is not a container")


def require_host(facts: Facts) -> None:
    """End checks of readings that only the host has."""
    skip_if(is_in_container(facts), "only the host can show this; run devkit doctor there, too")


def require_wsl_guest(facts: Facts) -> Wsl:
    """Return the WSL 2 guest, which a container in it is not."""
    require_host(facts)
    return require_some(facts.wsl, "this is not WSL 2")


def require_engine_side(facts: Facts) -> None:
    """End checks of the engine's own files where it runs elsewhere. Few containers hold an engine."""
    if is_in_container(facts) and not (isinstance(facts.engine, Engine) and facts.engine.hook_on_path in (True, False)):
        raise NotApplicable(
            "this can be checked only on the machine that runs the engine; run devkit doctor there, too"
        )


def has_nvidia_gpu(facts: Facts) -> bool | Unknown:
    """Say if this machine has an NVIDIA GPU, by any reading that survives a broken driver."""
    if _has_gpu_by_nvml(facts):
        return True
    driver = facts.driver
    platform = find_platform(facts)
    if platform is Platform.MACOS:
        return False
    if platform is Platform.WSL1:
        return Unknown("WSL 1 cannot see a GPU")
    if platform is Platform.WSL2:
        if not isinstance(facts.wsl, Wsl):
            return facts.wsl or Unknown("the WSL guest was not read")
        return facts.wsl.has_dxg and any(name in facts.wsl.libraries for name in WSL_NVIDIA_LIBRARIES)
    if isinstance(driver, Unknown) and driver.is_lost:
        return driver
    if isinstance(driver, Unknown):
        # Windows shows its GPUs through NVML only: a missing library is a missing driver, and most likely no GPU.
        return False if isinstance(facts.nvml, NvmlFailure | NvmlAnswer) else driver
    if isinstance(driver.loaded, Release):
        return True
    if not isinstance(driver.pci_gpus, Unknown):
        return bool(driver.pci_gpus)
    # Where the PCI bus is hidden, a host without any trace of the driver counts as a machine without a GPU.
    has_library = not (isinstance(facts.nvml, NvmlFailure) and facts.nvml.end is NvmlEnd.LIBRARY_NOT_FOUND)
    return driver.pci_gpus if has_library or driver.device_nodes or is_in_container(facts) else False


def find_cu_init_code(facts: Facts) -> int | None:
    """Find what cuInit returned; None where it was not tried."""
    cuda = facts.deep.cuda if isinstance(facts.deep, Deep) else None
    return cuda.code if isinstance(cuda, CudaCall) else None


def has_gpu_to_judge(facts: Facts) -> bool:
    """Say if an NVIDIA GPU was seen. Of AMD's only the device is read, and where nothing could be read there is none."""
    return has_nvidia_gpu(facts) is True


def _has_gpu_by_nvml(facts: Facts) -> bool:
    """Say if NVML found GPUs, or failed in a way that needs a loaded driver."""
    match facts.nvml:
        case NvmlAnswer(gpus=gpus):
            return bool(gpus)
        case NvmlFailure(end=NvmlEnd.TIMED_OUT | NvmlEnd.CRASHED):
            return True
        case NvmlFailure(end=NvmlEnd.ERROR, code=code):
            return code != NVML_DRIVER_NOT_LOADED
        case _:
            return False


def require_nvidia_gpu(facts: Facts) -> None:
    """End checks on a machine without an NVIDIA GPU."""
    skip_if(not require(has_nvidia_gpu(facts)), NO_NVIDIA_GPU)


def require_visible_gpu(facts: Facts) -> None:
    """End checks of GPU use in a container that deliberately has no GPU."""
    require_nvidia_gpu(facts)
    visible = facts.container.visible_devices if isinstance(facts.container, Container) else None
    is_disabled = visible is not None and visible.strip() in NO_VISIBLE_DEVICES
    skip_if(is_disabled, "this container was started without a GPU on purpose")


def require_driver(facts: Facts) -> Driver:
    """Return the kernel driver of a Linux machine with an NVIDIA GPU; WSL has its driver on Windows."""
    require_nvidia_gpu(facts)
    skip_if(is_in_wsl(facts), "in WSL, the driver belongs to Windows")
    return require(facts.driver)


def require_loaded_driver(facts: Facts) -> Release:
    """Return the version of the loaded kernel module."""
    return require_some(require_driver(facts).loaded, "the NVIDIA kernel module is not loaded")


def require_nvml(facts: Facts) -> NvmlAnswer:
    """Return NVML's answer."""
    require_nvidia_gpu(facts)
    if isinstance(facts.nvml, NvmlAnswer):
        return facts.nvml
    if isinstance(facts.nvml, NvmlFailure):
        raise NotApplicable("NVML does not respond")
    return require(facts.nvml)


def require_container_engine(facts: Facts) -> Engine:
    """Return the container engine that answered, seen from its own side."""
    require_engine_side(facts)
    if isinstance(facts.engine, Engine):
        return facts.engine
    if isinstance(facts.engine, EngineFailure):
        raise NotApplicable("no container engine responds")
    return require(facts.engine)


def require_gpu_engine(facts: Facts) -> Engine:
    """Return the engine, if it runs on this machine and the machine has a GPU."""
    require_nvidia_gpu(facts)
    engine = require_container_engine(facts)
    skip_if(not is_local_engine(engine), f"the engine runs on another machine ({engine.endpoint.url})")
    return engine


def needs_compose(facts: Facts) -> bool:
    """Return True if the project has services, which only Compose starts."""
    return isinstance(facts.project, Project) and bool(facts.project.services)


def require_toolkit_engine(facts: Facts) -> Engine:
    """Return a local engine that uses this system's Container Toolkit; Docker Desktop has its own."""
    engine = require_gpu_engine(facts)
    skip_if(engine.kind is EngineKind.DOCKER_DESKTOP, "Docker Desktop has its own GPU support")
    return engine


def is_local_engine(engine: Engine) -> bool:
    """Say if the engine's endpoint is a socket of this machine."""
    return engine.endpoint.url.startswith(("unix:", "npipe:", "/"))


def require_toolkit(facts: Facts) -> Toolkit:
    """Return the facts about the Container Toolkit."""
    require_engine_side(facts)
    return require(facts.toolkit)


def require_toolkit_version(facts: Facts) -> Release:
    """Return the installed Container Toolkit's version."""
    return require_some(require_toolkit(facts).version, "the NVIDIA Container Toolkit is not installed")


def require_torch(facts: Facts) -> Torch:
    """Return the installed torch, on a machine whose GPU it could use."""
    require_visible_gpu(facts)
    torch = require_some(require(facts.python).torch, "torch is not installed in this Python")
    skip_if(torch.hip is not None, f"torch {torch.version} is built for ROCm")
    return torch


def require_torch_cuda(facts: Facts) -> Release:
    """Return the CUDA version that torch was built with."""
    return require_some(require_torch(facts).cuda, "torch is a CPU build")
