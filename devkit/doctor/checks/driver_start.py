"""Checks of what keeps the driver from starting a GPU: its memory window, its firmware, its device nodes."""

from collections.abc import Iterator, Mapping

from devkit.doctor.applies import driver_of, known, loaded_driver, outside_of_containers
from devkit.doctor.checks.chains import NVML, WITHOUT_DRIVER
from devkit.doctor.checks.driver_flavour import IS_LEGACY, NEEDS_OPEN_MODULE
from devkit.doctor.gpus import driver_lines, fewer_than_on_bus, gpu_at, misses_gpus
from devkit.doctor.limits import (
    SMALL_WINDOW_BYTES,
)
from devkit.doctor.machine import DRIVER_GUIDE, REBUILD_INITRAMFS, Family, family_of
from devkit.doctor.model import Confidence, Finding, Fix, Restart, Severity, check
from devkit.facts.model import Driver, Facts, Gpu, PciGpu
from devkit.facts.values import Release, Unknown
from devkit.text import human_bytes, listed

LINES_SHOWN = 3

_FIRMWARE_MISSING = ("No firmware image found", "failed with error -2")
_FIRMWARE_FAILS = ("GSP firmware RM", "GFW_BOOT", "WPR2 already up")
_OF_THE_DRIVER = ("PCI I/O region assigned to your NVIDIA", "resize PCIe BARs")
_WINDOW_LOST = (*_OF_THE_DRIVER, "BAR 1")


@check(
    "GPU008",
    "The firmware gives every GPU its memory window",
    covers=("A10",),
    symptoms=(
        "This PCI I/O region assigned to your NVIDIA device is invalid",
        "RmInitAdapter failed! (0x22:0x56:884)",
        "BAR 1: no space for",
        "can't assign; no space",
        "No devices were found",
    ),
    causes=("DRV001", *WITHOUT_DRIVER),
)
def memory_window_is_assigned(facts: Facts) -> Iterator[Finding]:
    """Each GPU on the bus has a window (BAR 1) through which the processor reaches its memory.

    Why it matters: without room for it above 4 GiB the driver cannot start the GPU: nvidia-smi says "No devices were
    found", though module, libraries and flavour are right.
    How it is seen: the second memory region in sysfs, of GPUs that NVML does not answer for. One of size zero is an
    error at once; one of 256 MiB, which is all right on most machines, only where the driver could not start the GPU.
    Source: NVIDIA/open-gpu-kernel-modules issue 862; aikitoria/open-gpu-kernel-modules issue 9.
    """
    outside_of_containers(facts)
    driver = driver_of(facts)
    gpus = [
        gpu
        for gpu in known(driver.pci_gpus)
        if gpu.kernel_driver in ("nvidia", "") and not isinstance(gpu_at(facts, gpu.address), Gpu)
    ]
    missing = [gpu for gpu in gpus if gpu.bar1_bytes == 0]
    small = [gpu for gpu in gpus if _is_small(gpu) and _did_not_start(facts, gpu)]
    for gpu in missing or small:
        yield Finding(
            Severity.ERROR,
            f"GPU {gpu.address} has {_window(gpu)}, and the driver cannot start it",
            Fix(
                "Switch Above 4G Decoding and Resizable BAR on in the firmware (BIOS); both want UEFI without CSM."
                " In a virtual machine, give it a larger MMIO window.",
                (f"lspci -vs {gpu.address}", "systemctl reboot --firmware-setup"),
                root=True,
                restart=Restart.HOST,
            ),
            subject=gpu.address,
            evidence=(
                f"{gpu.address}/resource: BAR 1 has {gpu.bar1_bytes} B",
                *_told_of(facts, gpu)[:LINES_SHOWN],
            ),
            confidence=Confidence.CERTAIN if gpu.bar1_bytes == 0 else Confidence.LIKELY,
        )


def _window(gpu: PciGpu) -> str:
    if not gpu.bar1_bytes or isinstance(gpu.bar1_bytes, Unknown):
        return "no memory window (BAR 1)"
    return f"a memory window (BAR 1) of only {human_bytes(gpu.bar1_bytes)}"


def _is_small(gpu: PciGpu) -> bool:
    return isinstance(gpu.bar1_bytes, int) and 0 < gpu.bar1_bytes <= SMALL_WINDOW_BYTES.value


def _did_not_start(facts: Facts, gpu: PciGpu) -> bool:
    """Whether the log names this GPU's failed start for want of a window, or of no reason that another check knows."""
    if not misses_gpus(facts) or driver_lines(facts, *IS_LEGACY, *_FIRMWARE_MISSING, *_FIRMWARE_FAILS):
        return False
    if driver_lines(facts, NEEDS_OPEN_MODULE):
        return False
    return bool(_told_of(facts, gpu))


def _told_of(facts: Facts, gpu: PciGpu) -> tuple[str, ...]:
    """Lines about a failed start or a missing window, of this GPU or of the driver as a whole."""
    lines = driver_lines(facts, "RmInitAdapter failed", *_WINDOW_LOST)
    return tuple(line for line in lines if gpu.address in line or any(text in line for text in _OF_THE_DRIVER))


@check(
    "DRV007",
    "The GPU's system processor (GSP) starts",
    covers=("A11",),
    symptoms=(
        "RmInitAdapter: Cannot initialize GSP firmware RM",
        "Direct firmware load for nvidia/gsp_ga10x.bin failed with error -2",
        "RmFetchGspRmImages: No firmware image found",
        "failed to wait for GFW_BOOT",
        "unexpected WPR2 already up, cannot proceed with booting GSP",
    ),
    causes=(*NVML, "GPU002", "GPU005", "GPU006"),
)
def system_processor_starts(facts: Facts) -> Iterator[Finding]:
    """The driver finds the firmware of its version, and the GPU's own processor runs it.

    Why it matters: the open module, and the other one on newer GPUs, leave the GPU's management to firmware. If that
    does not start, the GPU is on the bus and belongs to the driver, but "No devices were found".
    How it is seen: the kernel log's lines about GSP firmware, and the folder of the loaded version under /lib/firmware.
    It is reported while NVML misses a GPU, or as a warning where the GPU works again.
    Source: NVIDIA/open-gpu-kernel-modules issues 246, 639, 789 and 1104; NVIDIA, driver README, "GSP Firmware".
    """
    outside_of_containers(facts)
    release = loaded_driver(facts)
    driver = driver_of(facts)
    lost = fewer_than_on_bus(facts)
    unfound = driver_lines(facts, *_FIRMWARE_MISSING)
    failing = driver_lines(facts, *_FIRMWARE_FAILS)
    if unfound or (driver.firmware_present is False and driver.is_open is True and misses_gpus(facts)):
        yield Finding(
            Severity.ERROR if lost else Severity.WARNING,
            f"the GSP firmware of driver {release} was not found, so the GPU does not start",
            _install_firmware(facts, release),
            evidence=(*unfound[:LINES_SHOWN], f"/lib/firmware/nvidia/{release}: {_present(driver)}"),
            confidence=Confidence.CERTAIN if unfound else Confidence.LIKELY,
        )
    elif failing and lost:
        yield Finding(
            Severity.ERROR,
            "the GPU's own processor (GSP) did not start: the card is stuck, or its firmware does not fit the driver",
            Fix(
                "Switch the machine off, take its power away for half a minute, and start it again: a warm reboot"
                " leaves the processor as it is. If that does not help, try another driver branch, then another slot.",
                ("sudo poweroff",),
                root=True,
                restart=Restart.HOST,
                docs=DRIVER_GUIDE,
            ),
            evidence=failing[:LINES_SHOWN],
            confidence=Confidence.LIKELY,
        )


def _present(driver: Driver) -> str:
    if isinstance(driver.firmware_present, Unknown):
        return "not known"
    return "present" if driver.firmware_present else "no gsp*.bin"


_FIRMWARE: Mapping[Family, str] = {
    Family.DEBIAN: "sudo apt-get install --reinstall -y firmware-nvidia-gsp",
    Family.FEDORA: "sudo dnf reinstall -y xorg-x11-drv-nvidia-kmodsrc xorg-x11-drv-nvidia",
    Family.RHEL: "sudo dnf reinstall -y nvidia-kmod-common",
    Family.SUSE: "sudo zypper install -f -y kernel-firmware-nvidia-gspx-G06",
    Family.ARCH: "sudo pacman -S nvidia-utils linux-firmware-nvidia",
}


def _install_firmware(facts: Facts, release: Release) -> Fix:
    family = family_of(facts)
    install = _FIRMWARE.get(family)
    if family is Family.UBUNTU:
        install = f"sudo apt-get install --reinstall -y 'nvidia-firmware-{release.major}*'"
    if family is Family.NIXOS:
        install = "# in configuration.nix: hardware.firmware = [ config.hardware.nvidia.package.firmware ];"
    rebuild = REBUILD_INITRAMFS.get(family)
    return Fix(
        f"Install the firmware of exactly {release} again, write it into the initial RAM disk, and reboot.",
        (*((install,) if install else ()), *((rebuild,) if rebuild else ()), "sudo reboot"),
        root=True,
        restart=Restart.HOST,
    )


@check(
    "DRV006",
    "This user may open the GPU's device nodes",
    covers=("J10",),
    symptoms=("Failed to initialize NVML: Insufficient Permissions", "/dev/nvidia0: Permission denied"),
    causes=WITHOUT_DRIVER,
)
def device_nodes_are_open(facts: Facts) -> Iterator[Finding]:
    """The device nodes of NVIDIA's driver may be read and written by the user who asks.

    Why it matters: the nodes are open to everybody by default. Where a module option or a rule gives them to a group,
    every other user, and every container that runs as one, fails as if there were no GPU.
    How it is seen: mode and owner of /dev/nvidia*, against this user and its groups.
    Source: NVIDIA, driver README, NVreg_DeviceFileUID, -GID and -Mode; NVIDIA, Container Toolkit troubleshooting.
    """
    driver = driver_of(facts)
    closed = known(driver.closed_nodes)
    if not closed:
        return
    options = tuple(line for line in _parameters(driver) if line.startswith(("DeviceFile", "ModifyDeviceFiles")))
    yield Finding(
        Severity.ERROR,
        f"this user may not open {listed(node.partition(':')[0] for node in closed)}: GPU programs fail as if there"
        " were no GPU",
        Fix(
            "Join the group that owns the nodes and log in again, give that group to the container (--group-add), or"
            " take the options NVreg_DeviceFileMode and NVreg_DeviceFileGID out of the module's configuration.",
            ("ls -l /dev/nvidia*", "grep -rn NVreg_DeviceFile /etc/modprobe.d /usr/lib/modprobe.d"),
            root=True,
            restart=Restart.LOGIN,
        ),
        evidence=(*closed, *options),
    )


def _parameters(driver: Driver) -> tuple[str, ...]:
    return driver.parameters if isinstance(driver.parameters, tuple) else ()
