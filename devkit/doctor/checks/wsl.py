"""Checks of WSL: its settings, the GPU and libraries that Windows provides, and the guest's memory and clock."""

from collections.abc import Iterator
from shlex import join

from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.cascades import NEEDS_DRIVER_CODES, NVML_CODES
from devkit.doctor.fixes import CDI_GUIDE, WSL_GUIDE, list_commands
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.doctor.preconditions import (
    WSL_NVIDIA_LIBRARIES,
    find_platform,
    is_in_container,
    require,
    require_host,
    require_nvidia_gpu,
    require_system,
    require_toolkit_version,
    require_wsl_guest,
)
from devkit.doctor.thresholds import CLOCK_SKEW_S, WSL_MEMORY_BYTES
from devkit.facts.model import Engine, EngineKind, Facts, NvmlAnswer, NvmlEnd, NvmlFailure, Platform, WslSettings
from devkit.facts.values import Unknown
from devkit.text import format_bytes, join_words

_WSL_LIBRARY_FOLDER = "/usr/lib/wsl/"

_NVML_OPERATING_SYSTEM = 17
"""NVML_ERROR_OPERATING_SYSTEM."""

_WSLCONFIG_GUIDE = "https://learn.microsoft.com/en-us/windows/wsl/wsl-config"


@check("WSL001", causes=(*NEEDS_DRIVER_CODES, "WSL003", "WSL004"))
def no_linux_driver_in_guest(facts: Facts) -> Iterator[Finding]:
    guest = require_wsl_guest(facts)
    is_shadowed = bool(guest.libnvidia_ml_path) and not guest.libnvidia_ml_path.startswith(_WSL_LIBRARY_FOLDER)
    if not guest.linux_driver_packages and not is_shadowed:
        return
    packages = tuple(name.partition(":")[0] for name in guest.linux_driver_packages)
    evidence = [f"installed in the guest: {', '.join(packages)}"] if packages else []
    if guest.libnvidia_ml_path:
        evidence.append(f"libnvidia-ml.so.1 is {guest.libnvidia_ml_path}")
    still_works = isinstance(facts.nvml, NvmlAnswer) and not is_shadowed
    remove = list_commands(facts, "remove_packages", packages=join(packages)) if packages else ()
    yield Finding(
        Severity.WARNING if still_works else Severity.ERROR,
        "a Linux NVIDIA driver is installed inside WSL and hides the one that Windows provides",
        Fix(
            "Remove the Linux driver packages from the guest, then restart WSL from Windows. Install none in their place."
            if packages
            else "Remove the copied driver library from the guest, then restart WSL from Windows.",
            (*remove, "wsl.exe --shutdown"),
            where=Side.WSL,
            root=True,
            restart=Restart.WSL,
            docs=WSL_GUIDE,
        ),
        evidence=tuple(evidence),
        confidence=Confidence.CERTAIN if packages else Confidence.LIKELY,
    )


@check("WSL002", causes=(*NEEDS_DRIVER_CODES, "WSL003", "STO003", "ENG001"))
def wsl_shows_gpu(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    if find_platform(facts) is Platform.WSL1:
        yield Finding(
            Severity.ERROR,
            "this distribution runs on WSL 1, which has neither GPUs nor containers",
            Fix(
                "Convert the distribution to WSL 2, from Windows. `wsl.exe --list --verbose` shows its name.",
                ("wsl.exe --set-version <distribution> 2",),
                where=Side.WINDOWS,
                restart=Restart.WSL,
            ),
            evidence=(f"kernel {require_system(facts).kernel}",),
        )
        return
    guest = require_wsl_guest(facts)
    if guest.has_dxg or not any(name in guest.libraries for name in WSL_NVIDIA_LIBRARIES):
        return
    settings = require_system(facts).wsl_settings
    kernel = settings.kernel if isinstance(settings, WslSettings) else ""
    yield Finding(
        Severity.ERROR,
        "Windows offers an NVIDIA GPU, but this WSL kernel has no /dev/dxg",
        Fix(
            "Use Microsoft's WSL kernel: remove `kernel=` from %UserProfile%\\.wslconfig, update, and restart WSL.",
            ("wsl.exe --update", "wsl.exe --shutdown"),
            where=Side.WINDOWS,
            restart=Restart.WSL,
            docs=WSL_GUIDE,
        ),
        evidence=(
            f"kernel {require_system(facts).kernel}",
            "no /dev/dxg",
            *(f".wslconfig: kernel={own}" for own in (kernel,) if own),
        ),
        confidence=Confidence.CERTAIN if kernel else Confidence.LIKELY,
    )


@check("WSL003", causes=NEEDS_DRIVER_CODES)
def windows_provides_libraries(facts: Facts) -> Iterator[Finding]:
    guest = require_wsl_guest(facts)
    missing = [name for name in WSL_NVIDIA_LIBRARIES if name not in guest.libraries]
    if not missing or len(missing) == len(WSL_NVIDIA_LIBRARIES):
        return
    yield Finding(
        Severity.ERROR,
        f"the Windows driver left {', '.join(missing)} out of /usr/lib/wsl/lib",
        Fix(
            "Install the newest NVIDIA driver on Windows, then restart WSL. Install none inside of WSL.",
            ("wsl.exe --update", "wsl.exe --shutdown"),
            where=Side.WINDOWS,
            restart=Restart.WSL,
            docs=WSL_GUIDE,
        ),
        evidence=(f"/usr/lib/wsl/lib holds {', '.join(guest.libraries)}",),
    )


@check("WSL004", causes=(*NVML_CODES, "GPU002", "GPU003", "GPU005"))
def windows_lets_guest_use_gpu(facts: Facts) -> Iterator[Finding]:
    guest = require_wsl_guest(facts)
    require_nvidia_gpu(facts)
    failure = facts.nvml
    if (
        not isinstance(failure, NvmlFailure)
        or failure.end is not NvmlEnd.ERROR
        or failure.code != _NVML_OPERATING_SYSTEM
    ):
        return
    if guest.linux_driver_packages:
        raise NotApplicable("a Linux driver in the guest explains it already")
    is_empty = guest.driver_store == ()
    store = (
        guest.driver_store.reason
        if isinstance(guest.driver_store, Unknown)
        else join_words(guest.driver_store) or "no folder of NVIDIA's"
    )
    yield Finding(
        Severity.ERROR,
        "Windows blocks the GPU for WSL: it passes in no driver from its driver store"
        if is_empty
        else "Windows blocks the GPU for WSL: its driver does not fit, or the GPU is in TCC mode instead of WDDM",
        Fix(
            "Update WSL, reinstall the NVIDIA driver on Windows, and restart WSL. A data center GPU must be in WDDM"
            " mode, which not all of them know; the second command shows it.",
            (
                "wsl.exe --update",
                "nvidia-smi.exe --query-gpu=name,driver_model.current --format=csv",
                "wsl.exe --shutdown",
            ),
            where=Side.WINDOWS,
            restart=Restart.WSL,
            docs=WSL_GUIDE,
        ),
        evidence=(
            f"{failure.call} returned {failure.code}: {failure.message}",
            f"/usr/lib/wsl/drivers: {store}",
        ),
        confidence=Confidence.LIKELY if is_empty else Confidence.POSSIBLE,
    )


@check("WSL005", causes=("GPU001", "WSL002", *NEEDS_DRIVER_CODES))
def wslconfig_leaves_gpu_on(facts: Facts) -> Iterator[Finding]:
    if is_in_container(facts):
        raise NotApplicable("only the WSL guest and Windows show .wslconfig")
    settings = require(require_system(facts).wsl_settings)
    if settings is None:
        raise NotApplicable("there is no .wslconfig")
    if settings.gpu_support:
        return
    yield Finding(
        Severity.ERROR if find_platform(facts) is not Platform.WINDOWS else Severity.WARNING,
        f"{settings.path} says gpuSupport=false, so WSL passes no GPU to any distribution",
        Fix(
            "Remove the line gpuSupport=false, or set it to true, and restart WSL.",
            ("notepad.exe $env:USERPROFILE\\.wslconfig", "wsl.exe --shutdown"),
            where=Side.WINDOWS,
            restart=Restart.WSL,
            docs=_WSLCONFIG_GUIDE,
        ),
        subject=settings.path,
        evidence=(f"{settings.path}: gpuSupport=false",),
    )


@check("WSL006")
def wsl_has_memory(facts: Facts) -> Iterator[Finding]:
    system = require_system(facts)
    guest = require_wsl_guest(facts)
    require_nvidia_gpu(facts)
    memory, swap = require(system.memory_bytes), require(guest.swap_bytes)
    if memory + swap >= WSL_MEMORY_BYTES.value:
        return
    settings = system.wsl_settings
    limit = settings.memory if isinstance(settings, WslSettings) else ""
    yield Finding(
        Severity.WARNING,
        f"WSL has {format_bytes(memory)} of memory and {format_bytes(swap)} of swap: loading a larger model ends in"
        " a kill",
        Fix(
            "Give WSL more in %UserProfile%\\.wslconfig, under [wsl2]: memory= up to what Windows can spare, and"
            " swap=16GB. Then restart WSL.",
            ("wsl.exe --shutdown",),
            where=Side.WINDOWS,
            restart=Restart.WSL,
            docs=_WSLCONFIG_GUIDE,
        ),
        evidence=(
            f"MemTotal {format_bytes(memory)}, SwapTotal {format_bytes(swap)}",
            f".wslconfig: memory={limit}" if limit else ".wslconfig sets no memory: half of the machine's",
        ),
        confidence=Confidence.POSSIBLE,
    )


@check("WSL007")
def linker_finds_libcuda(facts: Facts) -> Iterator[Finding]:
    guest = require_wsl_guest(facts)
    if "libcuda.so.1" not in guest.libraries or require(guest.libcuda_link_in_cache):
        return
    yield Finding(
        Severity.NOTE,
        "the loader's cache has no libcuda.so: running programs is fine, linking new ones with -lcuda is not",
        Fix(
            "Name the folder where you build; the complaint about a missing symbolic link needs no fix.",
            ("export LIBRARY_PATH=/usr/lib/wsl/lib:$LIBRARY_PATH",),
            where=Side.WSL,
        ),
        evidence=("ldconfig -p lists no libcuda.so",),
    )


@check("WSL008")
def image_has_no_driver_libraries(facts: Facts) -> Iterator[Finding]:
    if not is_in_container(facts):
        raise NotApplicable("only the inside of a container shows what its image holds")
    if facts.wsl is None:
        raise NotApplicable("this is not WSL 2")
    libraries = require(require(facts.wsl).image_libraries)
    if not libraries:
        return
    yield Finding(
        Severity.ERROR,
        f"the image carries {join_words(path.rpartition('/')[2] for path in libraries)}: in WSL no container of it starts"
        " with a GPU",
        Fix(
            "Remove these files at the end of the image's build, and do not build with nvidia as the default runtime.",
            (f"RUN rm -f {join(libraries)}",),
            where=Side.IMAGE,
        ),
        evidence=tuple(f"{path} is neither a mount nor a link into /usr/lib/wsl" for path in libraries),
        confidence=Confidence.LIKELY,
    )


@check("WSL009")
def cdi_follows_driver_in_wsl(facts: Facts) -> Iterator[Finding]:
    require_wsl_guest(facts)
    require_nvidia_gpu(facts)
    if not isinstance(facts.engine, Engine) or facts.engine.kind is EngineKind.DOCKER_DESKTOP:
        raise NotApplicable("there is no engine of the guest's own")
    version = require_toolkit_version(facts)
    fixed = load_tables().engines.features["nvidia-container-toolkit", "wsl-cdi-refresh"]
    if version >= fixed.version:
        return
    yield Finding(
        Severity.NOTE,
        f"Container Toolkit {version} does not refresh CDI specifications in WSL; {fixed.version} does",
        Fix(
            "Update the toolkit, or regenerate the specification after each driver update on Windows.",
            (
                *list_commands(facts, "install_toolkit"),
                "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
            ),
            where=Side.WSL,
            root=True,
            docs=CDI_GUIDE,
        ),
        evidence=(f"nvidia-ctk {version}",),
    )


@check("WSL010", causes=("HUB009",))
def clock_agrees_with_windows(facts: Facts) -> Iterator[Finding]:
    behind = require(require_wsl_guest(facts).clock_behind_s)
    if abs(behind) <= CLOCK_SKEW_S.value:
        return
    yield Finding(
        Severity.WARNING,
        f"the guest's clock is {abs(behind)} s {'behind' if behind > 0 else 'before'} Windows's: certificates and"
        " signed downloads are refused",
        Fix("Set the clock from the hardware clock.", ("sudo hwclock -s",), where=Side.WSL, root=True),
        evidence=(f"hardware clock minus guest's clock: {behind} s",),
        confidence=Confidence.LIKELY,
    )
