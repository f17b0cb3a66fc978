"""Checks of what keeps the driver from starting a GPU: its memory window, its firmware, its device nodes."""

from collections.abc import Iterator, Mapping

from devkit.doctor.checks.cascades import DEEP_CODES, NEEDS_DRIVER_CODES, NVML_CODES
from devkit.doctor.checks.driver.kernel_module import LEGACY_GPU_LINES, OPEN_MODULE_LINE
from devkit.doctor.checks.gpu.fabric import has_no_nvswitch
from devkit.doctor.error_codes import CUDA_SYSTEM_NOT_READY
from devkit.doctor.fixes import DRIVER_GUIDE, INITRAMFS_COMMANDS, DistroFamily, find_distro_family
from devkit.doctor.gpus import MAX_LOG_LINES, find_driver_lines, find_gpu_at, has_fewer_gpus_than_bus, has_missing_gpus
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, check
from devkit.doctor.preconditions import require, require_driver, require_host, require_loaded_driver
from devkit.doctor.thresholds import SMALL_WINDOW_BYTES
from devkit.facts.model import CudaCall, Deep, Driver, Facts, Gpu, KernelLog, PciGpu
from devkit.facts.values import Release, Unknown
from devkit.text import format_bytes, join_words

# Checks of CUDA failing to start over a driver that NVML finds healthy: after suspend, and for want of a fabric.

_CUDA_ERROR_UNKNOWN = 999
_CUDA_ERROR_NOT_INITIALIZED = 3

_RELOAD = "sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm"
_PRESERVE = "PreserveVideoMemoryAllocations"


@check("DRV009", "CUDA starts after the machine has slept", causes=DEEP_CODES)
def cuda_survives_suspend(facts: Facts) -> Iterator[Finding]:
    """cuInit works on this host, also after suspend; or at least the driver keeps its memory over one.

    Why it matters: the module nvidia_uvm may lose its state while the machine sleeps. nvidia-smi stays healthy, and
    torch blames the environment variables, which is wrong.
    How it is seen: with --deep, cuInit returns 999 on the host; the kernel log tells whether the machine has slept.
    Without --deep a machine that has slept and does not preserve GPU memory gets a note.
    Source: pytorch/pytorch issues 49081, 88639 and 115340; NVIDIA, driver README, "Configuring Power Management
    Support".
    """
    require_host(facts)
    require_loaded_driver(facts)
    driver = require_driver(facts)
    woke = facts.kernel_log.resumed_at if isinstance(facts.kernel_log, KernelLog) else Unknown("not known")
    code = _code(facts)
    slept = isinstance(woke, str)
    if code is not None and woke is None:
        raise NotApplicable("the machine has not slept since it started")
    if code == _CUDA_ERROR_UNKNOWN:
        yield Finding(
            Severity.ERROR,
            "CUDA ends with error 999 on this host, though NVML is healthy"
            + (f": nvidia_uvm has most likely lost its state when the machine slept (until {woke})" if slept else ""),
            _reload(driver),
            evidence=(f"cuInit returned {code}", f"woke from suspend: {woke if slept else 'not seen'}"),
            confidence=Confidence.LIKELY if slept else Confidence.POSSIBLE,
        )
    elif code is None and slept and f"{_PRESERVE}: 0" in require(driver.parameters):
        yield Finding(
            Severity.NOTE,
            "the machine has slept, and its driver does not keep GPU memory over that: CUDA may end with error 999",
            _reload(driver),
            evidence=(f"woke from suspend: {woke}", f"{_PRESERVE}: 0"),
            confidence=Confidence.POSSIBLE,
        )
    elif code is None:
        raise NotApplicable("cuInit was not tried; run devkit doctor --deep")


def _code(facts: Facts) -> int | None:
    """What cuInit returned; None where it was not tried."""
    cuda = facts.deep.cuda if isinstance(facts.deep, Deep) else None
    return cuda.code if isinstance(cuda, CudaCall) else None


def _reload(driver: Driver) -> Fix:
    return Fix(
        "End all CUDA programs and load the module anew; a reboot does the same. To keep it from coming back, let the"
        " driver save GPU memory when the machine sleeps.",
        (
            _RELOAD,
            f"echo 'options nvidia NVreg_{_PRESERVE}=1' | sudo tee /etc/modprobe.d/nvidia-suspend.conf",
            "sudo systemctl enable nvidia-suspend nvidia-resume nvidia-hibernate",
        ),
        root=True,
        docs=DRIVER_GUIDE,
    )


@check("DRV010", "CUDA starts on machines without an NVSwitch", causes=DEEP_CODES)
def cuda_starts_without_nvswitch(facts: Facts) -> Iterator[Finding]:
    """Without an NVSwitch, cuInit returns neither "system not yet initialized" nor "not initialized".

    Why it matters: on some kernels the module nvidia_uvm fails while it sets up shared memory management (HMM), and
    every CUDA program with it. The error reads like a missing Fabric Manager, which such a machine does not need.
    How it is seen: with --deep, cuInit returns 802 or 3, on a machine whose bus has no NVSwitch and whose GPUs do not
    wait for a fabric.
    Source: NVIDIA/open-gpu-kernel-modules issues 797, 901 and 947; wilicc/gpu-burn issue 133; CUDA release notes, known
    issues.
    """
    require_host(facts)
    release = require_loaded_driver(facts)
    code = _code(facts)
    if code is None:
        raise NotApplicable("cuInit was not tried; run devkit doctor --deep")
    if code not in (CUDA_SYSTEM_NOT_READY, _CUDA_ERROR_NOT_INITIALIZED):
        return
    if not require(has_no_nvswitch(facts)):
        raise NotApplicable("this machine has an NVSwitch, whose Fabric Manager another check looks at")
    is_open = require_driver(facts).is_open is True
    yield Finding(
        Severity.ERROR,
        f"CUDA ends with error {code} although this machine has no NVSwitch: driver {release} and this kernel most"
        " likely disagree about shared memory management (HMM)",
        Fix(
            "Update the driver first. If that does not help, switch HMM off in nvidia_uvm and load it anew; as a last"
            " resort start the kernel with nokaslr.",
            (
                "echo 'options nvidia_uvm uvm_disable_hmm=1' | sudo tee /etc/modprobe.d/nvidia-uvm-hmm.conf",
                _RELOAD,
            ),
            root=True,
            restart=Restart.NONE,
            docs="https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/",
        ),
        evidence=(f"cuInit returned {code}", "no PCI function of class 0x0680", f"driver {release}"),
        confidence=Confidence.LIKELY if is_open and code == _CUDA_ERROR_NOT_INITIALIZED else Confidence.POSSIBLE,
    )


FIRMWARE_MISSING_LINES = ("No firmware image found", "failed with error -2")
FIRMWARE_FAILURE_LINES = ("GSP firmware RM", "GFW_BOOT", "WPR2 already up")
_OF_THE_DRIVER = ("PCI I/O region assigned to your NVIDIA", "resize PCIe BARs")
_WINDOW_LOST = (*_OF_THE_DRIVER, "BAR 1")


@check("GPU008", "The firmware gives every GPU its memory window", causes=("DRV001", *NEEDS_DRIVER_CODES))
def bar1_is_assigned(facts: Facts) -> Iterator[Finding]:
    """Each GPU on the bus has a window (BAR 1) through which the processor reaches its memory.

    Why it matters: without room for it above 4 GiB the driver cannot start the GPU: nvidia-smi says "No devices were
    found", though module, libraries and flavour are right.
    How it is seen: the second memory region in sysfs, of GPUs that NVML does not answer for. One of size zero is an
    error at once; one of 256 MiB, which is all right on most machines, only where the driver could not start the GPU.
    Source: NVIDIA/open-gpu-kernel-modules issue 862; aikitoria/open-gpu-kernel-modules issue 9.
    """
    require_host(facts)
    driver = require_driver(facts)
    gpus = [
        gpu
        for gpu in require(driver.pci_gpus)
        if gpu.kernel_driver in ("nvidia", "") and not isinstance(find_gpu_at(facts, gpu.address), Gpu)
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
                *_told_of(facts, gpu)[:MAX_LOG_LINES],
            ),
            confidence=Confidence.CERTAIN if gpu.bar1_bytes == 0 else Confidence.LIKELY,
        )


def _window(gpu: PciGpu) -> str:
    if not gpu.bar1_bytes or isinstance(gpu.bar1_bytes, Unknown):
        return "no memory window (BAR 1)"
    return f"a memory window (BAR 1) of only {format_bytes(gpu.bar1_bytes)}"


def _is_small(gpu: PciGpu) -> bool:
    return isinstance(gpu.bar1_bytes, int) and 0 < gpu.bar1_bytes <= SMALL_WINDOW_BYTES.value


def _did_not_start(facts: Facts, gpu: PciGpu) -> bool:
    """Whether the log names this GPU's failed start for want of a window, or of no reason that another check knows."""
    if not has_missing_gpus(facts) or find_driver_lines(facts, *LEGACY_GPU_LINES, *FIRMWARE_MISSING_LINES, *FIRMWARE_FAILURE_LINES):
        return False
    if find_driver_lines(facts, OPEN_MODULE_LINE):
        return False
    return bool(_told_of(facts, gpu))


def _told_of(facts: Facts, gpu: PciGpu) -> tuple[str, ...]:
    """Lines about a failed start or a missing window, of this GPU or of the driver as a whole."""
    lines = find_driver_lines(facts, "RmInitAdapter failed", *_WINDOW_LOST)
    return tuple(line for line in lines if gpu.address in line or any(text in line for text in _OF_THE_DRIVER))


@check("DRV007", "The GPU's system processor (GSP) starts", causes=(*NVML_CODES, "GPU002", "GPU005", "GPU006"))
def gsp_starts(facts: Facts) -> Iterator[Finding]:
    """The driver finds the firmware of its version, and the GPU's own processor runs it.

    Why it matters: the open module, and the other one on newer GPUs, leave the GPU's management to firmware. If that
    does not start, the GPU is on the bus and belongs to the driver, but "No devices were found".
    How it is seen: the kernel log's lines about GSP firmware, and the folder of the loaded version under /lib/firmware.
    It is reported while NVML misses a GPU, or as a warning where the GPU works again.
    Source: NVIDIA/open-gpu-kernel-modules issues 246, 639, 789 and 1104; NVIDIA, driver README, "GSP Firmware".
    """
    require_host(facts)
    release = require_loaded_driver(facts)
    driver = require_driver(facts)
    lost = has_fewer_gpus_than_bus(facts)
    unfound = find_driver_lines(facts, *FIRMWARE_MISSING_LINES)
    failing = find_driver_lines(facts, *FIRMWARE_FAILURE_LINES)
    if unfound or (driver.firmware_present is False and driver.is_open is True and has_missing_gpus(facts)):
        yield Finding(
            Severity.ERROR if lost else Severity.WARNING,
            f"the GSP firmware of driver {release} was not found, so the GPU does not start",
            _install_firmware(facts, release),
            evidence=(*unfound[:MAX_LOG_LINES], f"/lib/firmware/nvidia/{release}: {_present(driver)}"),
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
            evidence=failing[:MAX_LOG_LINES],
            confidence=Confidence.LIKELY,
        )


def _present(driver: Driver) -> str:
    if isinstance(driver.firmware_present, Unknown):
        return "not known"
    return "present" if driver.firmware_present else "no gsp*.bin"


_FIRMWARE: Mapping[DistroFamily, str] = {
    DistroFamily.DEBIAN: "sudo apt-get install --reinstall -y firmware-nvidia-gsp",
    DistroFamily.FEDORA: "sudo dnf reinstall -y xorg-x11-drv-nvidia-kmodsrc xorg-x11-drv-nvidia",
    DistroFamily.RHEL: "sudo dnf reinstall -y nvidia-kmod-common",
    DistroFamily.SUSE: "sudo zypper install -f -y kernel-firmware-nvidia-gspx-G06",
    DistroFamily.ARCH: "sudo pacman -S nvidia-utils linux-firmware-nvidia",
}


def _install_firmware(facts: Facts, release: Release) -> Fix:
    family = find_distro_family(facts)
    install = _FIRMWARE.get(family)
    if family is DistroFamily.UBUNTU:
        install = f"sudo apt-get install --reinstall -y 'nvidia-firmware-{release.major}*'"
    if family is DistroFamily.NIXOS:
        install = "# in configuration.nix: hardware.firmware = [ config.hardware.nvidia.package.firmware ];"
    rebuild = INITRAMFS_COMMANDS.get(family)
    return Fix(
        f"Install the firmware of exactly {release} again, write it into the initial RAM disk, and reboot.",
        (*((install,) if install else ()), *((rebuild,) if rebuild else ()), "sudo reboot"),
        root=True,
        restart=Restart.HOST,
    )


@check("DRV006", "This user may open the GPU's device nodes", causes=NEEDS_DRIVER_CODES)
def device_nodes_are_accessible(facts: Facts) -> Iterator[Finding]:
    """The device nodes of NVIDIA's driver may be read and written by the user who asks.

    Why it matters: the nodes are open to everybody by default. Where a module option or a rule gives them to a group,
    every other user, and every container that runs as one, fails as if there were no GPU.
    How it is seen: mode and owner of /dev/nvidia*, against this user and its groups.
    Source: NVIDIA, driver README, NVreg_DeviceFileUID, -GID and -Mode; NVIDIA, Container Toolkit troubleshooting.
    """
    driver = require_driver(facts)
    closed = require(driver.closed_nodes)
    if not closed:
        return
    options = tuple(line for line in _parameters(driver) if line.startswith(("DeviceFile", "ModifyDeviceFiles")))
    yield Finding(
        Severity.ERROR,
        f"this user may not open {join_words(node.partition(':')[0] for node in closed)}: GPU programs fail as if there"
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
