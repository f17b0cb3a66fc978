"""Checks of the driver's branch and flavour: old GPUs need an old branch, new GPUs the open module."""

from collections.abc import Iterator

from devkit.doctor.applies import driver_of, known, loaded_driver, outside_of_containers
from devkit.doctor.checks.chains import WITHOUT_DRIVER
from devkit.doctor.gpus import driver_lines, fewer_than_on_bus, owned_gpus
from devkit.doctor.limits import (
    FIRST_MAXWELL_DEVICE_ID,
    FIRST_OPEN_ONLY_DEVICE_ID,
    FIRST_TURING_DEVICE_ID,
    LAST_BRANCH_BEFORE_TURING,
    LAST_BRANCH_OF_KEPLER,
)
from devkit.doctor.machine import DRIVER_GUIDE, Family, family_of
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, check
from devkit.facts.model import Driver, Facts, PciGpu
from devkit.facts.values import Release
from devkit.text import listed

LINES_SHOWN = 3
IS_LEGACY = ("Legacy drivers", "required GPU System Processor", "not supported by the NVIDIA")
NEEDS_OPEN_MODULE = "requires use of the NVIDIA open kernel modules"


@check(
    "DRV004",
    "The kernel module is the open flavour where the GPU needs it",
    covers=("A09",),
    symptoms=("No devices were found", "requires use of the NVIDIA open kernel modules", "RTX 50", "Blackwell"),
    causes=WITHOUT_DRIVER,
)
def open_module_where_needed(facts: Facts) -> Iterator[Finding]:
    """GPUs of the Blackwell generation and later are driven by the open kernel module.

    Why it matters: the proprietary module does not support them; nvidia-smi then prints "No devices were found".
    How it is seen: the kernel log's own words, or PCI device ids against the first Blackwell id; and the flavour in
    /proc/driver/nvidia/version.
    Source: NVIDIA, driver README, "Open Linux Kernel Modules"; NVIDIA/open-gpu-kernel-modules issue 872.
    """
    release = loaded_driver(facts)
    driver = driver_of(facts)
    said = driver_lines(facts, NEEDS_OPEN_MODULE)
    needing = [gpu for gpu in known(driver.pci_gpus) if _needs_open_module(gpu, said)]
    if not needing or known(driver.is_open):
        return
    yield Finding(
        Severity.ERROR,
        f"the proprietary kernel module {release} cannot drive {listed(gpu.address for gpu in needing)},"
        " which needs the open one",
        Fix(
            f"Replace the module of branch {release.major} by its open flavour, and reboot.",
            _install_open(facts, release),
            root=True,
            restart=Restart.HOST,
            docs=DRIVER_GUIDE,
        ),
        subject=needing[0].address,
        evidence=(*said[:2], *(f"{gpu.address} has device id {gpu.device_id}" for gpu in needing)),
        confidence=Confidence.CERTAIN if said else Confidence.LIKELY,
    )


def _needs_open_module(gpu: PciGpu, said: tuple[str, ...]) -> bool:
    if any(gpu.address in line for line in said):
        return True
    try:
        return int(gpu.device_id, 16) >= FIRST_OPEN_ONLY_DEVICE_ID.value
    except ValueError:
        return False


def _install_open(facts: Facts, release: Release) -> tuple[str, ...]:
    match family_of(facts):
        case Family.UBUNTU:
            return (f"sudo apt-get install -y nvidia-driver-{release.major}-open", "sudo reboot")
        case Family.DEBIAN:
            return ("sudo apt-get install -y nvidia-open", "sudo reboot")
        case Family.FEDORA:
            return (
                "echo '%_with_kmod_nvidia_open 1' | sudo tee /etc/rpm/macros.nvidia-kmod",
                "sudo akmods --force --rebuild",
                "sudo reboot",
            )
        case Family.RHEL:
            return ("sudo dnf install -y --allowerasing nvidia-open", "sudo reboot")
        case Family.SUSE:
            return ("sudo zypper install -y nvidia-open-driver-G06-signed-kmp-default", "sudo reboot")
        case Family.ARCH:
            return ("sudo pacman -S nvidia-open", "sudo reboot")
        case Family.NIXOS:
            return ("# in configuration.nix: hardware.nvidia.open = true;", "sudo nixos-rebuild boot", "sudo reboot")
        case _:
            return ()


@check(
    "DRV008",
    "The driver branch still supports every GPU",
    covers=("A15",),
    symptoms=(
        "is supported through the NVIDIA 580.xx Legacy drivers",
        "The NVIDIA driver will ignore this GPU",
        "not supported by open nvidia.ko because it does not include the required GPU System Processor (GSP)",
        "No NVIDIA GPU found",
        "None of the NVIDIA devices were initialized",
    ),
    causes=("DRV001", *WITHOUT_DRIVER),
)
def branch_supports_gpus(facts: Facts) -> Iterator[Finding]:
    """The installed driver branch, and its flavour, drive the generation of each GPU.

    Why it matters: a new branch drops old generations, and the open module has never driven anything before Turing. The
    GPU then vanishes with an upgrade, though the driver loads and everything is of one version.
    How it is seen: the kernel log's own words; or PCI device ids from before Turing under a branch after 580, from
    before Maxwell under a branch after 470, or under the open module.
    Source: NVIDIA, legacy GPUs; NVIDIA, driver README, "Open Linux Kernel Modules".
    """
    outside_of_containers(facts)
    driver = driver_of(facts)
    said = driver_lines(facts, *IS_LEGACY)
    release = _installed(driver)
    old = [gpu for gpu in owned_gpus(facts) if _is_too_old(gpu, release, driver) or _is_named(gpu, said)]
    if not old and not said:
        known(driver.pci_gpus)
        return
    works = not fewer_than_on_bus(facts)
    if works and not old:
        raise NotApplicable("the kernel log speaks of a GPU that NVML can use by now")
    branch = LAST_BRANCH_OF_KEPLER if any(_id(gpu) < FIRST_MAXWELL_DEVICE_ID.value for gpu in old) else None
    last = (branch or LAST_BRANCH_BEFORE_TURING).value
    yield Finding(
        Severity.WARNING if works else Severity.ERROR,
        f"the driver {release or 'installed here'} does not drive {listed(gpu.address for gpu in old) or 'this GPU'}:"
        f" {last} in its proprietary flavour is the last branch for it",
        Fix(
            f"Install branch {last}, proprietary, and keep it from being upgraded. Packages for CUDA 13 have no code"
            " for this GPU: take those for CUDA 12.",
            _install_legacy(facts, last),
            root=True,
            restart=Restart.HOST,
            docs="https://www.nvidia.com/en-us/drivers/unix/legacy-gpu/",
        ),
        subject=old[0].address if old else "",
        evidence=(*said[:LINES_SHOWN], *(f"{gpu.address} has device id {gpu.device_id}" for gpu in old)),
        confidence=Confidence.CERTAIN if said else Confidence.LIKELY,
    )


def _is_named(gpu: PciGpu, said: tuple[str, ...]) -> bool:
    return any(gpu.address in line for line in said)


def _installed(driver: Driver) -> Release | None:
    """The loaded module's version, or that of the one on disk which may have refused to load."""
    for release in (driver.loaded, driver.on_disk):
        if isinstance(release, Release):
            return release
    return None


def _id(gpu: PciGpu) -> int:
    try:
        return int(gpu.device_id, 16)
    except ValueError:
        return FIRST_TURING_DEVICE_ID.value


def _is_too_old(gpu: PciGpu, release: Release | None, driver: Driver) -> bool:
    if release is None or _id(gpu) >= FIRST_TURING_DEVICE_ID.value:
        return False
    if driver.is_open is True or release.major > LAST_BRANCH_BEFORE_TURING.value:
        return True
    return _id(gpu) < FIRST_MAXWELL_DEVICE_ID.value and release.major > LAST_BRANCH_OF_KEPLER.value


def _install_legacy(facts: Facts, branch: int) -> tuple[str, ...]:
    commands: tuple[str, ...]
    match family_of(facts):
        case Family.UBUNTU:
            commands = (f"sudo apt-get install -y nvidia-driver-{branch}", f"sudo apt-mark hold nvidia-driver-{branch}")
        case Family.DEBIAN:
            commands = ("sudo apt-get install -y nvidia-driver",)
        case Family.FEDORA:
            packages = f"akmod-nvidia-{branch}xx xorg-x11-drv-nvidia-{branch}xx-cuda"
            commands = (f"sudo dnf install -y --allowerasing {packages}",)
        case Family.ARCH:
            commands = (f"# from the AUR: nvidia-{branch}xx-dkms nvidia-{branch}xx-utils",)
        case Family.NIXOS:
            package = f"config.boot.kernelPackages.nvidiaPackages.legacy_{branch}"
            commands = (f"# in configuration.nix: hardware.nvidia.package = {package};", "sudo nixos-rebuild boot")
        case _:
            return ()
    return (*commands, "sudo reboot")
