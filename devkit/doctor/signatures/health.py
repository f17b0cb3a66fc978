"""Errors of a GPU that does not start, is lost, or is taken."""

from devkit.doctor.model import Confidence, Fix, Restart, Severity
from devkit.doctor.signatures.fixes import POWER_CYCLE, RESET_GPU
from devkit.doctor.signatures.model import Signature

_XIDS = "NVIDIA, XID Errors (docs.nvidia.com/deploy/xid-errors)"

LOST: tuple[Signature, ...] = (
    Signature(
        "GPU002",
        (
            "GPU has fallen off the bus",
            "GPU at {bus:name} has fallen off the bus",
            "fallen off the bus and is not responding to commands",
            "GPU is lost…Reboot the system to recover this GPU",
            "NVML_ERROR_GPU_IS_LOST",
            "NVMLError_GpuIsLost",
            "nvml error: gpu is lost",
            "Unable to determine the device handle for GPU…GPU is lost",
        ),
        "the GPU stopped answering on the PCI Express bus: power, heat, riser, slot or card",
        POWER_CYCLE,
        "NVIDIA/open-gpu-kernel-modules issue 1151; " + _XIDS,
        entry="B01",
        also=("GPU006",),
    ),
    Signature(
        "GPU002",
        ("Xid ({bus:name}): 79,", "Xid 79", "xid=79"),
        "Xid 79: the GPU fell off the PCI Express bus",
        POWER_CYCLE,
        _XIDS,
        entry="B01",
    ),
    Signature(
        "GPU002",
        (
            "Unable to determine the device handle for GPU",
            "Unable to determine the device handle for GPU {bus:name}: Unknown Error",
            "Unable to determine the device handle for GPU{bus:name}: {bus2:name}: Unknown Error",
            "Unable to determine the device handle for GPU…Unknown Error",
            "Unable to determine the device handle for gpu…No such device",
        ),
        "one GPU no longer answers the driver: mostly it has fallen off the bus, and the kernel log says why",
        POWER_CYCLE,
        "NVIDIA/open-gpu-kernel-modules issue 507",
        confidence=Confidence.LIKELY,
        entry="B01",
        also=("GPU006",),
    ),
    Signature(
        "GPU002",
        (
            "NVML_ERROR_RESET_REQUIRED",
            "GPU requires reset",
            "NVMLError_ResetRequired",
            "CUDA_ERROR… GPU requires reset",
        ),
        "the GPU must be reset before it computes again",
        RESET_GPU,
        "NVIDIA, NVML API reference",
        entry="B02",
    ),
    Signature(
        "GPU005",
        (
            "RmInitAdapter failed!",
            "The NVIDIA probe routine failed for {count:number} device",
            "rm_init_adapter failed",
        ),
        "the driver found the GPU and could not start it: firmware settings (Above 4G Decoding, Resizable BAR),"
        " power, or the"
        " wrong flavour of module",
        Fix(
            "Read the lines around it in the kernel log; enable Above 4G Decoding and Resizable BAR in the firmware's"
            " settings;"
            " for RTX 50 and newer install the open module.",
            ("sudo dmesg | grep -i -e nvrm -e nvidia",),
            root=True,
            restart=Restart.HOST,
        ),
        "NVIDIA/open-gpu-kernel-modules issue 862",
        confidence=Confidence.LIKELY,
        entry="A10",
        also=("GPU008", "DRV004", "DRV007"),
    ),
    Signature(
        "GPU008",
        (
            "This PCI I/O region assigned to your NVIDIA device is invalid",
            "BAR1 is 0M @ 0x0",
            "BAR{number:number} is 0M @",
            "No MMIO space…NVRM",
            "can't assign; no space… nvidia",
        ),
        "the firmware gave the GPU no address space, so the driver cannot use it",
        Fix(
            "Enable Above 4G Decoding and Resizable BAR in the firmware's settings.",
            restart=Restart.HOST,
        ),
        "NVIDIA/open-gpu-kernel-modules, nvidia/nv-pci.c",
        entry="A10",
    ),
    Signature(
        "GPU005",
        ("No devices were found",),
        "the driver is loaded and starts no GPU: look at the kernel log, and on data centre cards at MIG",
        Fix(
            "Read the kernel log; RTX 50 and newer need the open module; MIG mode needs instances.",
            ("sudo dmesg | grep -i nvrm", "nvidia-smi -L"),
            root=True,
        ),
        "NVIDIA/open-gpu-kernel-modules issues 862 and 872",
        confidence=Confidence.POSSIBLE,
        unless=("adb", "No devices were found. Waiting", "android"),
        entry="A09",
        also=("DRV004", "GPU003", "GPU008"),
    ),
    Signature(
        "DRV007",
        (
            "RmFetchGspRmImages: No firmware image found",
            "failed to wait for GFW_BOOT",
            "Direct firmware load for nvidia/{file:name} failed with error",
            "Cannot initialize GSP firmware RM",
            "gpuWaitForGfwBootComplete",
            "Failed to boot GSP",
            "unexpected WPR2 already up, cannot proceed with booting GSP",
            "GSP-FMC reported an error while attempting to boot GSP",
            "loading GSP firmware… failed",
            "Direct firmware load for nvidia/{version:name}/gsp_{chip:name} failed with error",
            "firmware: failed to load nvidia/{version:name}/gsp",
        ),
        "the firmware of the GPU's own processor (GSP) does not start: its files are missing, of another version, or"
        " the card is"
        " stuck",
        Fix(
            "Reinstall the driver's firmware package in the driver's version, then switch the machine off and on.",
            ("ls /lib/firmware/nvidia/",),
            root=True,
            restart=Restart.HOST,
        ),
        "NVIDIA/open-gpu-kernel-modules issues 246 and 789",
        entry="A11",
    ),
    Signature(
        "GPU012",
        ("infoROM is corrupted at gpu", "Corrupted infoROM", "NVML_ERROR_CORRUPTED_INFOROM"),
        "the card's own configuration memory (infoROM) is damaged; it may go on working",
        Fix(
            "Use the card for now and have it replaced or reflashed by its vendor.",
            docs="https://docs.nvidia.com/deploy/xid-errors/",
        ),
        "NVIDIA, NVML API reference",
        severity=Severity.WARNING,
        entry="B15",
    ),
    Signature(
        "GPU018",
        (
            "all CUDA-capable devices are busy or unavailable",
            "cudaErrorDevicesUnavailable",
            "CUDA_ERROR_DEVICE_UNAVAILABLE",
        ),
        "another process holds the GPU alone, or its compute mode forbids programs",
        Fix(
            "Stop the other process, or set the compute mode back to the default.",
            ("nvidia-smi", "sudo nvidia-smi -c 0"),
            root=True,
        ),
        "NVIDIA, CUDA Runtime API, cudaErrorDevicesUnavailable",
        confidence=Confidence.LIKELY,
        entry="B13",
        also=("GPU019",),
    ),
    Signature(
        "GPU008",
        ("BAR {number:number}: no space for [mem size", "BAR 1: no space for", "]: can't assign; no space"),
        "the firmware left no address space for a card's memory",
        Fix("Enable Above 4G Decoding and Resizable BAR in the firmware's settings.", restart=Restart.HOST),
        "Linux, drivers/pci/setup-res.c",
        confidence=Confidence.LIKELY,
        beside=("nvidia", "NVRM", "10de"),
        entry="A10",
    ),
    Signature(
        "GPU013",
        ("HW Thermal Slowdown : Active", "SW Thermal Slowdown : Active", "Thermal Slowdown: Active"),
        "the GPU slows itself down because it is too hot",
        Fix("Give it air: fans, dust, room between cards; or cap its power.", ("sudo nvidia-smi -pl 300",), root=True),
        "NVIDIA, nvidia-smi documentation, Clocks Event Reasons",
        severity=Severity.WARNING,
        entry="B09",
    ),
    Signature(
        "GPU014",
        (
            "HW Power Brake Slowdown : Active",
            "HW Power Brake Slowdown: Active",
            "HW Slowdown : Active",
            "HW Slowdown: Active",
        ),
        "the machine's power supply or board tells the GPU to slow down",
        Fix(
            "Check the power cables and the supply, then the board's power settings.", ("nvidia-smi -q -d PERFORMANCE",)
        ),
        "NVIDIA, nvidia-smi documentation, Clocks Event Reasons",
        severity=Severity.WARNING,
        entry="B10",
    ),
)
