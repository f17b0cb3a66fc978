"""Errors of the GPU itself: lost GPUs, memory errors, Xid events of the kernel log, MIG, vGPU, the Fabric Manager."""

from devkit.doctor.model import Confidence, Fix, Restart, Severity, Side
from devkit.doctor.signatures.fixes import POWER_CYCLE, RESET_GPU
from devkit.doctor.signatures.model import Signature

_XIDS = "NVIDIA, XID Errors (docs.nvidia.com/deploy/xid-errors)"
_FABRIC_GUIDE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/"
_PROGRAM = Fix(
    "Look for the fault in the program, not in the card: run it with synchronous launches and read the first error.",
    ("CUDA_LAUNCH_BLOCKING=1 python …",),
    where=Side.CONTAINER,
    docs="https://docs.nvidia.com/deploy/xid-errors/",
)
_START_FABRIC = Fix(
    "Install the Fabric Manager of exactly the driver's version and start it.",
    (
        "sudo apt-get install -y nvidia-fabricmanager-580  # the branch of the driver",
        "sudo systemctl enable --now nvidia-fabricmanager",
    ),
    root=True,
    docs=_FABRIC_GUIDE,
)


def _xid(number: int) -> tuple[str, str]:
    """An Xid as the kernel writes it, and as people quote it."""
    return f"Xid ({{bus:name}}): {number},", f"Xid {number}"


LOST: tuple[Signature, ...] = (
    Signature(
        "GPU002",
        (
            "GPU has fallen off the bus",
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
    ),
    Signature(
        "GPU002",
        (*_xid(79), "xid=79"),
        "Xid 79: the GPU fell off the PCI Express bus",
        POWER_CYCLE,
        _XIDS,
        entry="B01",
    ),
    Signature(
        "GPU002",
        (
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
    ),
    Signature(
        "A10",
        (
            "This PCI I/O region assigned to your NVIDIA device is invalid",
            "BAR1 is 0M @ 0x0",
            "NVRM: BAR… is 0M @",
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
    ),
    Signature(
        "A11",
        (
            "Cannot initialize GSP firmware RM",
            "GSP firmware… RmInitAdapter",
            "gpuWaitForGfwBootComplete",
            "Failed to boot GSP",
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
        "B15",
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
        "B13",
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
    ),
)

XIDS: tuple[Signature, ...] = (
    Signature(
        "B06",
        (
            *_xid(13),
            *_xid(31),
            *_xid(43),
            *_xid(45),
            "CUDA error: an illegal memory access was encountered",
            "an illegal memory access was encountered",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "cudaErrorIllegalAddress",
            "CUDA error: device-side assert triggered",
            "cudaErrorAssert",
            "CUDA error: unspecified launch failure",
            "CUDA error: misaligned address",
        ),
        "the program, or one of its kernels, broke a rule on the GPU; the hardware is rarely to blame",
        _PROGRAM,
        _XIDS,
        confidence=Confidence.LIKELY,
        entry="B06",
    ),
    Signature(
        "B02",
        (
            *_xid(48),
            *_xid(94),
            *_xid(95),
            *_xid(140),
            "uncorrectable ECC error encountered",
            "cudaErrorECCUncorrectable",
            "CUDA_ERROR_ECC_UNCORRECTABLE",
            "DBE (double bit error)",
            "Double Bit ECC Error",
        ),
        "the GPU's memory had an error that it could not correct",
        RESET_GPU,
        _XIDS,
        entry="B02",
    ),
    Signature(
        "B03",
        (*_xid(63), "Row Remapper: New row", "Row remapping pending"),
        "the GPU wants to replace a bad row of its memory, and does so at its next reset",
        Fix("Reset the GPU or reboot when it is free.", ("sudo nvidia-smi --gpu-reset -i 0",), root=True),
        _XIDS,
        severity=Severity.WARNING,
        entry="B03",
    ),
    Signature(
        "B04",
        (*_xid(64), "Row Remapper: Error", "Row remapping failure", "Failed to remap row"),
        "the GPU could not replace a bad row of its memory: the card must be exchanged",
        Fix("Take the GPU out of use and have it replaced.", docs="https://docs.nvidia.com/deploy/xid-errors/"),
        _XIDS,
        entry="B04",
    ),
    Signature(
        "B07",
        (
            *_xid(119),
            *_xid(120),
            "Timeout after {seconds:number}s of waiting for RPC response from GPU",
            "Timeout waiting for RPC from GSP",
        ),
        "the GPU's own processor (GSP) stopped answering",
        Fix(
            "Update the driver, then reset the GPU or switch the machine off and on.",
            ("sudo nvidia-smi --gpu-reset -i 0",),
            root=True,
            restart=Restart.HOST,
        ),
        _XIDS,
        entry="B07",
    ),
    Signature(
        "B08",
        (*_xid(74), *(text for number in range(144, 151) for text in _xid(number)), "NVLink: fatal error detected"),
        "an NVLink between the GPUs failed",
        Fix(
            "Check the bridge or the Fabric Manager; reboot, and if it comes back have the hardware replaced.",
            ("nvidia-smi nvlink --status",),
        ),
        _XIDS,
        entry="B08",
    ),
)

GROUPS: tuple[Signature, ...] = (
    Signature(
        "GPU004",
        (
            "Error 802: system not yet initialized",
            "CUDA error: system not yet initialized",
            "cudaErrorSystemNotReady",
            "CUDA_ERROR_SYSTEM_NOT_READY",
            "system not yet initialized",
        ),
        "the GPUs of this machine are joined by an NVSwitch, and its Fabric Manager does not run",
        _START_FABRIC,
        "pytorch/pytorch issue 35710",
        confidence=Confidence.LIKELY,
        entry="C01",
    ),
    Signature(
        "GPU004",
        (
            "fabric manager NVIDIA GPU driver interface version {manager:version} don't match with driver version"
            " {driver:version}",
            "FM… interface version {manager:version} doesn't match driver version {driver:version}",
        ),
        "the Fabric Manager is of version {manager}, the driver of {driver}; they must be the same",
        _START_FABRIC,
        "ollama/ollama issue 12136",
        entry="C02",
    ),
    Signature(
        "GPU004",
        (
            "NV_WARN_NOTHING_TO_DO",
            "query NVSwitch device information from NVSwitch driver failed with error:WARNING Nothing to do",
        ),
        "the Fabric Manager found no NVSwitch: this machine needs none, and nothing is wrong",
        Fix("Leave it off.", ("sudo systemctl disable --now nvidia-fabricmanager",), root=True),
        "NVIDIA/gpu-operator issue 610",
        severity=Severity.NOTE,
        entry="C03",
    ),
    Signature(
        "C05",
        (
            "device >= 0 && device < num_gpus INTERNAL ASSERT FAILED",
            "device >= 0 && device < num_gpus… INTERNAL ASSERT FAILED",
        ),
        "a process asked for a GPU that it does not see: with MIG every process sees only one instance",
        Fix(
            "Give each process one instance, and start none of several GPUs over MIG.",
            ("nvidia-smi -L", "export CUDA_VISIBLE_DEVICES=MIG-…"),
            where=Side.CONTAINER,
        ),
        "pytorch/pytorch issue 130181",
        confidence=Confidence.POSSIBLE,
        entry="C05",
    ),
    Signature(
        "C07",
        (
            "License Status : Unlicensed",
            "nvidia-gridd: Failed to acquire license",
            "Failed to acquire license from",
            "Unlicensed (Unrestricted)",
            "Failed to acquire/renew license from license server",
        ),
        "this virtual GPU has no licence: it slows down, and then CUDA stops",
        Fix(
            "Put the client token in place and restart the licence client.",
            ("ls /etc/nvidia/ClientConfigToken/", "sudo systemctl restart nvidia-gridd"),
            root=True,
            docs="https://docs.nvidia.com/vgpu/latest/grid-licensing-user-guide/",
        ),
        "NVIDIA, Virtual GPU Client Licensing User Guide",
        beside=("grid", "vGPU", "License"),
        entry="C07",
    ),
    Signature(
        "GPU003",
        ("No MIG-enabled devices found", "MIG device… Insufficient Resources", "In-use by another client… MIG"),
        "MIG mode is on and has no usable instance",
        Fix(
            "Create instances, or turn MIG off.",
            ("sudo nvidia-smi mig -cgi 0 -C", "sudo nvidia-smi -mig 0"),
            root=True,
        ),
        "NVIDIA, Multi-Instance GPU User Guide",
        confidence=Confidence.LIKELY,
        entry="C04",
    ),
    Signature(
        "GPU004",
        ("nvidia-fabricmanager.service: Failed with result", "Failed to start NVIDIA fabric manager service"),
        "the Fabric Manager did not start; on a machine with an NVSwitch no CUDA program runs then",
        Fix(
            "Read its log: its version must be exactly the driver's. Without an NVSwitch it is not needed.",
            (
                "journalctl -u nvidia-fabricmanager --no-pager -n 30",
                "nvidia-smi --query-gpu=driver_version --format=csv",
            ),
            root=True,
            docs=_FABRIC_GUIDE,
        ),
        "NVIDIA/gpu-operator issue 1043",
        confidence=Confidence.LIKELY,
        entry="C02",
    ),
)
