"""Checks of WSL: its settings, the GPU and libraries that Windows provides, and the guest's memory and clock."""

from collections.abc import Iterator

from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.cascades import NEEDS_DRIVER_CODES, NVML_CODES
from devkit.doctor.model import Confidence, NotApplicable, Severity, check
from devkit.doctor.preconditions import (
    WSL_NVIDIA_LIBRARIES,
    find_platform,
    is_in_container,
    require,
    require_host,
    require_nvidia_gpu,
    require_some,
    require_toolkit_version,
    require_wsl_guest,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import CLOCK_SKEW_S, WSL_MEMORY_BYTES
from devkit.facts.engine import Engine, EngineKind
from devkit.facts.gpu import NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.machine import Platform, WslSettings
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.text import format_bytes, join_words

_WSL_LIBRARY_FOLDER = "/usr/lib/wsl/"
_NVML_OPERATING_SYSTEM = 17
"""NVML_ERROR_OPERATING_SYSTEM."""


@check("WSL001", causes=(*NEEDS_DRIVER_CODES, "WSL003", "WSL004"))
def no_linux_driver_in_guest(facts: Facts) -> Iterator[Problem]:
    guest = require_wsl_guest(facts)
    is_shadowed = bool(guest.libnvidia_ml_path) and not guest.libnvidia_ml_path.startswith(_WSL_LIBRARY_FOLDER)
    if not guest.linux_driver_packages and not is_shadowed:
        return
    packages = tuple(name.partition(":")[0] for name in guest.linux_driver_packages)
    evidence = [f"installed in the guest: {', '.join(packages)}"] if packages else []
    if guest.libnvidia_ml_path:
        evidence.append(f"libnvidia-ml.so.1 is {guest.libnvidia_ml_path}")
    still_works = isinstance(facts.nvml, NvmlAnswer) and not is_shadowed
    yield problem(
        "driver-packages" if packages else "copied-library",
        severity=Severity.WARNING if still_works else None,
        packages=packages,
        evidence=evidence,
    )


@check("WSL002", require_host, causes=(*NEEDS_DRIVER_CODES, "WSL003", "STO003", "ENG001"))
def wsl_shows_gpu(facts: Facts) -> Iterator[Problem]:
    if find_platform(facts) is Platform.WSL1:
        yield problem("wsl-1", evidence=(f"kernel {require(facts.system).kernel}",))
        return
    guest = require_wsl_guest(facts)
    if guest.has_dxg or not any(name in guest.libraries for name in WSL_NVIDIA_LIBRARIES):
        return
    settings = require(facts.system).wsl_settings
    kernel = settings.kernel if isinstance(settings, WslSettings) else ""
    yield problem(
        "no-dxg",
        confidence=None if kernel else Confidence.LIKELY,
        evidence=(
            f"kernel {require(facts.system).kernel}",
            "no /dev/dxg",
            *(f".wslconfig: kernel={own}" for own in (kernel,) if own),
        ),
    )


@check("WSL003", causes=NEEDS_DRIVER_CODES)
def windows_provides_libraries(facts: Facts) -> Iterator[Problem]:
    guest = require_wsl_guest(facts)
    missing = [name for name in WSL_NVIDIA_LIBRARIES if name not in guest.libraries]
    if 0 < len(missing) < len(WSL_NVIDIA_LIBRARIES):
        evidence = (f"/usr/lib/wsl/lib contains {', '.join(guest.libraries)}",)
        yield problem("missing", libraries=", ".join(missing), evidence=evidence)


@check("WSL004", causes=(*NVML_CODES, "GPU002", "GPU003", "GPU005"))
def windows_lets_guest_use_gpu(facts: Facts) -> Iterator[Problem]:
    guest = require_wsl_guest(facts)
    require_nvidia_gpu(facts)
    failure = facts.nvml
    if (
        not isinstance(failure, NvmlFailure)
        or failure.end is not NvmlEnd.ERROR
        or failure.code != _NVML_OPERATING_SYSTEM
    ):
        return
    skip_if(guest.linux_driver_packages, "a Linux driver in the guest already explains it")
    store = (
        guest.driver_store.reason
        if isinstance(guest.driver_store, Unknown)
        else join_words(guest.driver_store) or "no folder of NVIDIA's"
    )
    yield problem(
        "empty-driver-store" if guest.driver_store == () else "blocked",
        evidence=(f"{failure.call} returned {failure.code}: {failure.message}", f"/usr/lib/wsl/drivers: {store}"),
    )


@check("WSL005", causes=("GPU001", "WSL002", *NEEDS_DRIVER_CODES))
def wslconfig_leaves_gpu_on(facts: Facts) -> Iterator[Problem]:
    skip_if(is_in_container(facts), "only the WSL guest and Windows show .wslconfig")
    settings = require_some(require(facts.system).wsl_settings, ".wslconfig does not exist")
    if not settings.gpu_support:
        yield problem(
            "switched-off",
            severity=Severity.WARNING if find_platform(facts) is Platform.WINDOWS else None,
            path=settings.path,
            evidence=(f"{settings.path}: gpuSupport=false",),
        )


@check("WSL006")
def wsl_has_memory(facts: Facts) -> Iterator[Problem]:
    system = require(facts.system)
    guest = require_wsl_guest(facts)
    require_nvidia_gpu(facts)
    memory, swap = require(system.memory_bytes), require(guest.swap_bytes)
    if memory + swap >= WSL_MEMORY_BYTES:
        return
    settings = system.wsl_settings
    limit = settings.memory if isinstance(settings, WslSettings) else ""
    memory_size, swap_size = format_bytes(memory), format_bytes(swap)
    yield problem(
        "little-memory",
        memory=memory_size,
        swap=swap_size,
        evidence=(
            f"MemTotal {memory_size}, SwapTotal {swap_size}",
            f".wslconfig: memory={limit}"
            if limit
            else ".wslconfig does not set memory, so WSL gets half of the machine's",
        ),
    )


@check("WSL007")
def linker_finds_libcuda(facts: Facts) -> Iterator[Problem]:
    guest = require_wsl_guest(facts)
    if "libcuda.so.1" in guest.libraries and not require(guest.libcuda_link_in_cache):
        yield problem("not-in-cache", evidence=("ldconfig -p does not list libcuda.so",))


@check("WSL008")
def image_has_no_driver_libraries(facts: Facts) -> Iterator[Problem]:
    skip_if(not is_in_container(facts), "only a container shows the contents of its image")
    if facts.wsl is None:
        raise NotApplicable("this is not WSL 2")
    libraries = require(require(facts.wsl).image_libraries)
    if libraries:
        yield problem(
            "driver-libraries",
            names=join_words(path.rpartition("/")[2] for path in libraries),
            paths=libraries,
            evidence=[f"{path} is neither a mount nor a link into /usr/lib/wsl" for path in libraries],
        )


@check("WSL009", require_wsl_guest, require_nvidia_gpu)
def cdi_follows_driver_in_wsl(facts: Facts) -> Iterator[Problem]:
    if not isinstance(facts.engine, Engine) or facts.engine.kind is EngineKind.DOCKER_DESKTOP:
        raise NotApplicable("this distribution has no engine in the guest")
    version = require_toolkit_version(facts)
    floor = load_tables().engines.features["nvidia-container-toolkit", "wsl-cdi-refresh"].version
    if version < floor:
        yield problem("not-refreshed", version=version, floor=floor, evidence=(f"nvidia-ctk {version}",))


@check("WSL010", causes=("HUB009",))
def clock_agrees_with_windows(facts: Facts) -> Iterator[Problem]:
    behind = require(require_wsl_guest(facts).clock_behind_s)
    if abs(behind) > CLOCK_SKEW_S:
        evidence = (f"hardware clock minus guest's clock: {behind} s",)
        yield problem("behind" if behind > 0 else "ahead", seconds=abs(behind), evidence=evidence)
