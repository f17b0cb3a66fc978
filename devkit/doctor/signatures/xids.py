"""Errors that the kernel logs as Xids, and the same as CUDA says them."""

from devkit.doctor.model import Confidence, Fix, Restart, Severity, Side
from devkit.doctor.signatures.fixes import RESET_GPU
from devkit.doctor.signatures.model import Signature

_XIDS = "NVIDIA, XID Errors (docs.nvidia.com/deploy/xid-errors)"
_PROGRAM = Fix(
    "Look for the fault in the program, not in the card: run it with synchronous launches and read the first error.",
    ("CUDA_LAUNCH_BLOCKING=1 python …",),
    where=Side.CONTAINER,
    docs="https://docs.nvidia.com/deploy/xid-errors/",
)


def _xid(number: int) -> tuple[str, str]:
    """An Xid as the kernel writes it, and as people quote it."""
    return f"Xid ({{bus:name}}): {number},", f"Xid {number}"


XIDS: tuple[Signature, ...] = (
    Signature(
        "GPU006",
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
        "GPU009",
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
        also=("GPU006", "GPU027"),
        entry="B02",
    ),
    Signature(
        "GPU010",
        (*_xid(63), "Row Remapper: New row", "Row remapping pending"),
        "the GPU wants to replace a bad row of its memory, and does so at its next reset",
        Fix("Reset the GPU or reboot when it is free.", ("sudo nvidia-smi --gpu-reset -i 0",), root=True),
        _XIDS,
        severity=Severity.WARNING,
        entry="B03",
    ),
    Signature(
        "GPU010",
        (
            "Row Remap Failure",
            *_xid(64),
            "Row Remapper: Error",
            "Row remapping failure",
            "Failed to remap row",
        ),
        "the GPU could not replace a bad row of its memory: the card must be exchanged",
        Fix("Take the GPU out of use and have it replaced.", docs="https://docs.nvidia.com/deploy/xid-errors/"),
        _XIDS,
        entry="B04",
    ),
    Signature(
        "GPU006",
        (
            *_xid(119),
            *_xid(120),
            "Timeout after {seconds:number}s of waiting for RPC response from GPU",
            "Timeout waiting for RPC from GSP",
            "_kgspIsHeartbeatTimedOut",
            "* GSP Timeout *",
        ),
        "the GPU's own processor (GSP) stopped answering",
        Fix(
            "Update the driver, then reset the GPU or switch the machine off and on.",
            ("sudo nvidia-smi --gpu-reset -i 0",),
            root=True,
            restart=Restart.HOST,
        ),
        _XIDS,
        also=("GPU027", "DRV007"),
        entry="B07",
    ),
    Signature(
        "GPU006",
        (*_xid(74), *(text for number in range(144, 151) for text in _xid(number)), "NVLink: fatal error detected"),
        "an NVLink between the GPUs failed",
        Fix(
            "Check the bridge or the Fabric Manager; reboot, and if it comes back have the hardware replaced.",
            ("nvidia-smi nvlink --status",),
        ),
        _XIDS,
        also=("GPU027",),
        unless=("Nonfatal XC…",),
        entry="B08",
    ),
    Signature(
        "GPU006",
        ("Xid ({bus:name}): {number:number}, {unit:word} Nonfatal XC…",),
        "Xid {number}: an NVLink between the GPUs had an error and recovered",
        Fix("Watch whether it comes back; if it does, check the link.", ("nvidia-smi nvlink --errorcounters",)),
        _XIDS,
        severity=Severity.WARNING,
        entry="B08",
    ),
    Signature(
        "GPU011",
        ("Dynamic Page Retirement: New retired page", "Pending Page Blacklist : Yes", "Pending Page Blacklist: Yes"),
        "the GPU retires a bad page of its memory at the next load of the driver",
        Fix("Reboot when it is free.", ("nvidia-smi -q -d PAGE_RETIREMENT",), restart=Restart.HOST),
        _XIDS,
        severity=Severity.WARNING,
        entry="B05",
        also=("GPU006",),
    ),
    Signature(
        "GPU027",
        (
            "GPU recovery action changed from {old:hex} ({before:text}) to {new:hex} ({action:text})",
            "GPU recovery action changed… ({action:text})",
        ),
        "the driver asks for a recovery of the GPU: {action}",
        RESET_GPU,
        _XIDS,
        entry="B07",
    ),
    Signature(
        "GPU027",
        ("Xid 154", "GPU Reset Required", "Drain and Reset Recommended", "GPU recovery action changed"),
        "the driver asks for a recovery of the GPU: a reset, or a reboot",
        RESET_GPU,
        _XIDS,
        entry="B07",
    ),
    Signature(
        "GPU007",
        ("dmesg: read kernel buffer failed: Operation not permitted",),
        "this user may not read the kernel log, where the driver tells of faults",
        Fix(
            "Read it as root, or with journalctl as a member of the group systemd-journal.",
            ("sudo dmesg | grep -i nvrm",),
            root=True,
        ),
        "util-linux, dmesg(1)",
        severity=Severity.NOTE,
        entry="B16",
    ),
)
