"""Checks of WSL: the driver belongs to Windows, and only its libraries belong into the guest."""

from collections.abc import Iterator

from devkit.doctor.applies import WSL_NVIDIA_LIBRARIES, outside_of_containers, platform_of, system_of, windows_guest
from devkit.doctor.checks.chains import WITHOUT_DRIVER
from devkit.doctor.machine import WSL_GUIDE, Family, family_of
from devkit.doctor.model import Confidence, Finding, Fix, Restart, Severity, Side, check
from devkit.facts.model import Facts, NvmlAnswer, Platform, WslSettings

WSL_LIBRARY_FOLDER = "/usr/lib/wsl/"

_REMOVE = {
    Family.UBUNTU: "sudo apt-get purge -y",
    Family.DEBIAN: "sudo apt-get purge -y",
    Family.FEDORA: "sudo dnf remove -y",
    Family.RHEL: "sudo dnf remove -y",
    Family.SUSE: "sudo zypper remove -y",
    Family.ARCH: "sudo pacman -Rns",
}


@check(
    "WSL001",
    "The WSL guest carries no Linux NVIDIA driver",
    covers=("D01",),
    symptoms=("Failed to initialize NVML: GPU access blocked by the operating system",),
    causes=(*WITHOUT_DRIVER, "WSL003", "WSL004"),
)
def no_linux_driver_in_guest(facts: Facts) -> Iterator[Finding]:
    """No package in the WSL guest replaces the driver libraries that Windows provides.

    Why it matters: in WSL 2 the driver is the one on Windows. A Linux driver in the guest hides its libraries, and
    every GPU call ends with "GPU access blocked by the operating system".
    How it is seen: driver packages in the guest's package database, and the path of the libnvidia-ml.so.1 that the
    loader takes, which should be under /usr/lib/wsl.
    Source: NVIDIA, CUDA on WSL user guide, "Getting started"; microsoft/WSL issues 9938 and 9166.
    """
    guest = windows_guest(facts)
    is_shadowed = bool(guest.libnvidia_ml_path) and not guest.libnvidia_ml_path.startswith(WSL_LIBRARY_FOLDER)
    if not guest.linux_driver_packages and not is_shadowed:
        return
    packages = tuple(name.partition(":")[0] for name in guest.linux_driver_packages)
    evidence = [f"installed in the guest: {', '.join(packages)}"] if packages else []
    if guest.libnvidia_ml_path:
        evidence.append(f"libnvidia-ml.so.1 is {guest.libnvidia_ml_path}")
    still_works = isinstance(facts.nvml, NvmlAnswer) and not is_shadowed
    yield Finding(
        Severity.WARNING if still_works else Severity.ERROR,
        "a Linux NVIDIA driver is installed inside WSL and hides the one that Windows provides",
        _remove_driver(facts, packages),
        evidence=tuple(evidence),
        confidence=Confidence.CERTAIN if packages else Confidence.LIKELY,
    )


def _remove_driver(facts: Facts, packages: tuple[str, ...]) -> Fix:
    remove = _REMOVE.get(family_of(facts))
    return Fix(
        "Remove the Linux driver packages from the guest, then restart WSL from Windows. Install none in their place."
        if packages
        else "Remove the copied driver library from the guest, then restart WSL from Windows.",
        (*((f"{remove} {' '.join(packages)}",) if remove and packages else ()), "wsl.exe --shutdown"),
        where=Side.WSL,
        root=True,
        restart=Restart.WSL,
        docs=WSL_GUIDE,
    )


@check(
    "WSL002",
    "WSL is version 2 and shows the GPU device",
    covers=("D01", "D02"),
    symptoms=("The command 'docker' could not be found in this WSL 1 distro", "no /dev/dxg in WSL"),
    causes=(*WITHOUT_DRIVER, "WSL003", "STO003", "ENG001"),
)
def wsl_shows_gpu(facts: Facts) -> Iterator[Finding]:
    """The guest runs on WSL 2, whose kernel shows the Windows GPU as /dev/dxg.

    Why it matters: WSL 1 has neither a GPU nor containers, and a home-made WSL kernel without dxgkrnl has no GPU.
    How it is seen: the kernel's release, and whether /dev/dxg exists although NVIDIA libraries are there.
    Source: Microsoft Learn, "GPU acceleration for machine learning with WSL"; NVIDIA, CUDA on WSL user guide.
    """
    outside_of_containers(facts)
    if platform_of(facts) is Platform.WSL1:
        yield Finding(
            Severity.ERROR,
            "this distribution runs on WSL 1, which has neither GPUs nor containers",
            Fix(
                "Convert the distribution to WSL 2, from Windows. `wsl.exe --list --verbose` shows its name.",
                ("wsl.exe --set-version <distribution> 2",),
                where=Side.WINDOWS,
                restart=Restart.WSL,
            ),
            evidence=(f"kernel {system_of(facts).kernel}",),
        )
        return
    guest = windows_guest(facts)
    if guest.has_dxg or not any(name in guest.libraries for name in WSL_NVIDIA_LIBRARIES):
        return
    yield _without_device(facts)


def _without_device(facts: Facts) -> Finding:
    settings = system_of(facts).wsl_settings
    kernel = settings.kernel if isinstance(settings, WslSettings) else ""
    return Finding(
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
            f"kernel {system_of(facts).kernel}",
            "no /dev/dxg",
            *(f".wslconfig: kernel={own}" for own in (kernel,) if own),
        ),
        confidence=Confidence.CERTAIN if kernel else Confidence.LIKELY,
    )


@check(
    "WSL003",
    "Windows provides all NVIDIA libraries to the guest",
    covers=("D03",),
    symptoms=("stat failed: /usr/lib/wsl/lib/libcuda.so.1: no such file or directory",),
    causes=WITHOUT_DRIVER,
)
def windows_provides_libraries(facts: Facts) -> Iterator[Finding]:
    """Every NVIDIA library that GPU programs load is in /usr/lib/wsl/lib.

    Why it matters: the Windows driver puts libcuda and libnvidia-ml there. With a part missing, containers fail to
    start with "stat failed: /usr/lib/wsl/lib/libcuda.so.1".
    How it is seen: the names in /usr/lib/wsl/lib. No NVIDIA library at all means no NVIDIA GPU, and is no finding.
    Source: NVIDIA, CUDA on WSL user guide; NVIDIA/nvidia-docker issue 1225.
    """
    guest = windows_guest(facts)
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
