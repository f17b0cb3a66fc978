"""Checks of what reaches the guest and its containers: the GPU, linkable libraries, clean images, fresh CDI."""

from collections.abc import Iterator

from devkit.compat.load import tables
from devkit.doctor.applies import (
    an_nvidia_gpu,
    is_in_container,
    known,
    toolkit_version,
    windows_guest,
)
from devkit.doctor.checks.chains import NVML
from devkit.doctor.machine import CDI_GUIDE, INSTALL_TOOLKIT, WSL_GUIDE, family_of
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.facts.model import Engine, EngineKind, Facts, NvmlEnd, NvmlFailure, Wsl
from devkit.facts.values import Unknown
from devkit.text import listed

ACCESS_BLOCKED = 17
"""NVML_ERROR_OPERATING_SYSTEM."""


@check(
    "WSL004",
    "Windows lets the guest use its GPU",
    covers=("D01",),
    symptoms=(
        "Failed to initialize NVML: GPU access blocked by the operating system",
        "Failed to properly shut down NVML: GPU access blocked by the operating system",
    ),
    causes=(*NVML, "GPU002", "GPU003", "GPU005"),
)
def windows_lets_guest_use_gpu(facts: Facts) -> Iterator[Finding]:
    """NVML starts in the guest: Windows passes on a whole driver, of a GPU in display mode.

    Why it matters: nvidia-smi works in PowerShell, and in WSL everything ends with "GPU access blocked by the operating
    system". Installing a driver in the guest makes it worse.
    How it is seen: NVML returns 17 although no Linux driver is in the guest. An empty driver store under
    /usr/lib/wsl/drivers tells that Windows passes in no driver; with one, a data centre GPU in TCC mode or a driver
    that does not fit the Windows build is the likely reason. WSL takes GPUs in WDDM mode only.
    Source: microsoft/WSL issues 9938, 9952, 11865, 12835 and 14339.
    """
    guest = windows_guest(facts)
    an_nvidia_gpu(facts)
    failure = facts.nvml
    if not isinstance(failure, NvmlFailure) or failure.end is not NvmlEnd.ERROR or failure.code != ACCESS_BLOCKED:
        return
    if guest.linux_driver_packages:
        raise NotApplicable("a Linux driver in the guest explains it already")
    yield _blocked(failure, guest)


def _blocked(failure: NvmlFailure, guest: Wsl) -> Finding:
    is_empty = guest.driver_store == ()
    return Finding(
        Severity.ERROR,
        "Windows blocks the GPU for WSL: it passes in no driver from its driver store"
        if is_empty
        else "Windows blocks the GPU for WSL: its driver does not fit, or the GPU is in TCC mode instead of WDDM",
        Fix(
            "Update WSL, install the NVIDIA driver on Windows anew, and restart WSL. A data centre GPU must be in WDDM"
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
            f"/usr/lib/wsl/drivers: {_store(guest.driver_store)}",
        ),
        confidence=Confidence.LIKELY if is_empty else Confidence.POSSIBLE,
    )


def _store(folders: tuple[str, ...] | Unknown) -> str:
    return folders.reason if isinstance(folders, Unknown) else listed(folders) or "no folder of NVIDIA's"


@check(
    "WSL007",
    "The guest's linker finds libcuda",
    covers=("D04",),
    symptoms=("/usr/lib/wsl/lib/libcuda.so.1 is not a symbolic link", "/usr/bin/ld: cannot find -lcuda"),
)
def linker_finds_libcuda(facts: Facts) -> Iterator[Finding]:
    """The loader's cache of the guest knows the plain name libcuda.so.

    Why it matters: Windows puts copies where Linux expects links. ldconfig complains of it, which is harmless, but
    leaves libcuda.so out of its cache; builds that link with -lcuda fail then.
    How it is seen: the list that `ldconfig -p` prints. Programs that load libcuda.so.1 by themselves do not care.
    Source: microsoft/WSL issues 5548, 5663 and 8587.
    """
    guest = windows_guest(facts)
    if "libcuda.so.1" not in guest.libraries or known(guest.libcuda_link_in_cache):
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


@check(
    "WSL008",
    "The image carries no driver libraries of its own",
    covers=("D05",),
    symptoms=("nvidia-container-cli: mount error: file creation failed: libnvidia-ml.so.1: file exists: unknown",),
)
def image_carries_no_driver(facts: Facts) -> Iterator[Finding]:
    """In WSL the image of a container holds no copy of the libraries that Windows brings.

    Why it matters: the toolkit mounts libcuda.so.1 and libnvidia-ml.so.1 into the container. Where the image already
    has files of these names, the container does not even start: "file exists".
    How it is seen: inside of a container on WSL, such files that are no mounts and no links into /usr/lib/wsl. Building
    with nvidia as the default runtime, or committing a container that had a GPU, leaves them behind.
    Source: NVIDIA/nvidia-docker issues 1551 and 1699; NVIDIA/nvidia-container-toolkit issues 287 and 289.
    """
    if not is_in_container(facts):
        raise NotApplicable("only the inside of a container shows what its image holds")
    if facts.wsl is None:
        raise NotApplicable("this is not WSL 2")
    libraries = known(known(facts.wsl).image_libraries)
    if not libraries:
        return
    yield Finding(
        Severity.ERROR,
        f"the image carries {listed(path.rpartition('/')[2] for path in libraries)}: in WSL no container of it starts"
        " with a GPU",
        Fix(
            "Remove these files at the end of the image's build, and do not build with nvidia as the default runtime.",
            (f"RUN rm -f {' '.join(libraries)}",),
            where=Side.IMAGE,
        ),
        evidence=tuple(f"{path} is neither a mount nor a link into /usr/lib/wsl" for path in libraries),
        confidence=Confidence.LIKELY,
    )


@check(
    "WSL009",
    "CDI specifications follow the driver in WSL",
    covers=("D10",),
    symptoms=("nvidia-cdi-refresh.service: skipped because of an unmet condition check",),
)
def cdi_follows_driver_in_wsl(facts: Facts) -> Iterator[Finding]:
    """The toolkit in the guest writes the CDI specification anew when Windows's driver changes.

    Why it matters: up to toolkit 1.19.0 the conditions of nvidia-cdi-refresh never hold in WSL. After a driver update
    on Windows the old specification names folders that are gone.
    How it is seen: the toolkit's version, with an engine in the guest itself. What NVML does not support in WSL, such
    as ECC and process names, is no fault and never reported.
    Source: NVIDIA, Container Toolkit release notes, 1.19.1.
    """
    windows_guest(facts)
    an_nvidia_gpu(facts)
    if not isinstance(facts.engine, Engine) or facts.engine.kind is EngineKind.DOCKER_DESKTOP:
        raise NotApplicable("there is no engine of the guest's own")
    version = toolkit_version(facts)
    fixed = tables().engines.features["nvidia-container-toolkit", "wsl-cdi-refresh"]
    if version >= fixed.version:
        return
    yield Finding(
        Severity.NOTE,
        f"Container Toolkit {version} does not refresh CDI specifications in WSL; {fixed.version} does",
        Fix(
            "Update the toolkit, or write the specification anew after each driver update on Windows.",
            (*INSTALL_TOOLKIT.get(family_of(facts), ()), "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
            where=Side.WSL,
            root=True,
            docs=CDI_GUIDE,
        ),
        evidence=(f"nvidia-ctk {version}",),
    )
