"""Checks of the kernel log: the driver's fault reports, and whether they can be read where they matter."""

from collections.abc import Iterator

from devkit.doctor.applies import an_nvidia_gpu, is_in_wsl, outside_of_containers
from devkit.doctor.checks.revive import cold_start, reset_or_reboot
from devkit.doctor.gpus import fails_now, gpu_at, kernel_log_of
from devkit.doctor.limits import STILL_FRESH_HOURS
from devkit.doctor.machine import Family, family_of
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.doctor.moments import seconds_between
from devkit.doctor.xids import (
    CLEANUP,
    FALLEN_OFF_THE_BUS,
    RECOVERY_CHANGED,
    ROW_NOT_REPLACED,
    SOURCE,
    XIDS,
    Meaning,
    Remedy,
)
from devkit.facts.model import Facts, Gpu, GpuHealth, NvmlAnswer, NvmlEnd, NvmlFailure, Xid
from devkit.facts.values import Unknown

MOST_OTHERS = 3
HOUR_S = 3600
_BY_THE_PROGRAM = (Remedy.RESTART_PROGRAM, Remedy.NOTHING)


@check(
    "GPU006",
    "The kernel log reports no fault of a GPU",
    covers=("B01", "B02", "B06", "B07", "B08"),
    symptoms=(
        "NVRM: Xid",
        "GPU has fallen off the bus",
        "fallen off the bus and is not responding to commands",
        "Unable to determine the device handle for GPU",
        "Timeout after 6s of waiting for RPC response from GPU0 GSP",
        "CUDA error: an illegal memory access was encountered",
        "uncorrectable ECC error encountered",
        "NVLink error",
    ),
    causes=("DRV003", "GPU002", "GPU005", "GPU009", "GPU010", "GPU011", "GPU027"),
)
def kernel_log_has_no_fault(facts: Facts) -> Iterator[Finding]:
    """The NVIDIA driver has reported no fault (Xid) since the machine started.

    Why it matters: the number says whether a program, the driver, the card, its link or its power is at fault, which
    the error that a program shows does not. A program's fault needs no new card, a lost card no new program.
    How it is seen: lines "NVRM: Xid" of the kernel log, and lines that say the same without a number, against NVIDIA's
    table of recommended actions. A report counts as an error while NVML cannot use that GPU; afterwards it is history.
    Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog"; NVIDIA/open-gpu-kernel-modules issue 507;
    NVIDIA/NVSentinel issue 155 and leptonai/gpud pull request 1209 for the reports without a number.
    """
    outside_of_containers(facts)
    an_nvidia_gpu(facts)
    log = kernel_log_of(facts)
    told = [xid for xid in log.xids if not _only_follows(xid, log.xids)]
    severe = [xid for xid in told if not _is_minor(facts, xid)]
    for address in dict.fromkeys(xid.address for xid in severe):
        yield _finding(facts, *_worst_first([xid for xid in severe if xid.address == address]))
    for xid in told:
        if xid not in severe:
            yield _finding(facts, xid)
    if not told and log.is_whole is not True:
        raise NotApplicable("what is left of the kernel log reports no fault, but its beginning is lost")


def _only_follows(xid: Xid, xids: tuple[Xid, ...]) -> bool:
    """Clean-up after another report on the same GPU, and what the driver says to every report."""
    others = any(other.address == xid.address and other.number not in (CLEANUP, RECOVERY_CHANGED) for other in xids)
    return xid.number == RECOVERY_CHANGED or (xid.number == CLEANUP and others)


def _is_minor(facts: Facts, xid: Xid) -> bool:
    """Whether the report is about a program, has been dealt with, or is known better from NVML."""
    meaning = XIDS.get(xid.number)
    if meaning is None or meaning.remedy in _BY_THE_PROGRAM:
        return True
    gpu = gpu_at(facts, xid.address)
    told_by_nvml = isinstance(gpu, Gpu) and isinstance(gpu.health, GpuHealth) and gpu.health.remap_failed is True
    return xid.number == ROW_NOT_REPLACED and told_by_nvml


def _worst_first(xids: list[Xid]) -> list[Xid]:
    """A GPU off the bus before all else; otherwise what was reported first, from which the others follow."""
    return sorted(xids, key=lambda xid: xid.number != FALLEN_OFF_THE_BUS)


def _finding(facts: Facts, xid: Xid, *others: Xid) -> Finding:
    meaning = XIDS.get(xid.number)
    says = meaning.says if meaning else "NVIDIA's table leaves it to its support"
    is_minor = _is_minor(facts, xid)
    failing = fails_now(facts, xid.address)
    source = f"Xid {xid.number} in the kernel log" if "Xid" in xid.line else "the kernel log"
    return Finding(
        Severity.NOTE if is_minor else _severity(facts, xid, failing),
        f"{source}: {says} ({_when(xid)}){'' if is_minor else _now(failing)}",
        _fix(facts, xid, meaning),
        subject=_subject(facts, xid),
        evidence=(xid.line, *(other.line for other in others[:MOST_OTHERS])),
        confidence=Confidence.LIKELY if failing is True else Confidence.CERTAIN,
    )


def _severity(facts: Facts, xid: Xid, failing: bool | Unknown) -> Severity:
    if failing is True:
        return Severity.ERROR
    return Severity.NOTE if failing is False and _is_history(facts, xid) else Severity.WARNING


def _is_history(facts: Facts, xid: Xid) -> bool:
    """Whether the report is so old that a GPU which works now has left it behind."""
    age_s = seconds_between(str(xid.at), facts.taken_at)
    return age_s is not None and age_s > STILL_FRESH_HOURS.value * HOUR_S


def _when(xid: Xid) -> str:
    times = "once" if xid.count == 1 else f"{xid.count} times" if isinstance(xid.count, int) else "at least once"
    if isinstance(xid.at, Unknown):
        return times
    return f"{times}, {'at' if xid.count == 1 else 'last at'} {xid.at}"


def _now(failing: bool | Unknown) -> str:
    if failing is True:
        return ", and the GPU cannot be used now"
    return "; the GPU answers now" if failing is False else ""


def _subject(facts: Facts, xid: Xid) -> str:
    gpu = gpu_at(facts, xid.address)
    return xid.address if gpu is None else f"GPU {gpu.index}"


def _fix(facts: Facts, xid: Xid, meaning: Meaning | None) -> Fix:
    remedy = meaning.remedy if meaning else Remedy.NOTHING
    match remedy:
        case Remedy.RESTART_PROGRAM:
            return Fix(
                "Look for the fault in the program that ran at that time: run it again with CUDA_LAUNCH_BLOCKING=1, and"
                " with compute-sanitizer. The card needs neither a reset nor a replacement for this.",
                ("CUDA_LAUNCH_BLOCKING=1 python …",),
                where=Side.PROJECT,
                docs=SOURCE,
            )
        case Remedy.RESTART_MACHINE if xid.number == FALLEN_OFF_THE_BUS:
            return cold_start(facts)
        case Remedy.RESET_GPU | Remedy.RESTART_MACHINE:
            return reset_or_reboot(facts, gpu_at(facts, xid.address))
        case Remedy.CHECK_POWER:
            return Fix("Switch the machine off and connect the card's power cables.", restart=Restart.HOST, docs=SOURCE)
        case Remedy.CHECK_LINK:
            return Fix(
                "See which link has errors; check that the bridge is seated, or that the Fabric Manager runs and is of"
                " the driver's version. If the errors come back after a reset, the link's hardware is at fault.",
                ("nvidia-smi nvlink --status", "nvidia-smi nvlink -e"),
                docs=SOURCE,
            )
        case _:
            return Fix("Nothing to do now. If it is reported again and again, look it up.", docs=SOURCE)


@check(
    "GPU007",
    "The kernel log can be read where it matters",
    covers=("B16",),
    symptoms=("dmesg: read kernel buffer failed: Operation not permitted", "-- No entries --"),
)
def kernel_log_is_readable(facts: Facts) -> Iterator[Finding]:
    """Where a GPU does not work, the driver's own words about it can be read.

    Why it matters: the cause of a lost GPU stands in the kernel log alone, which most users may not read, and which no
    container sees. A log that cannot be read must not be taken for one without faults.
    How it is seen: a GPU that NVML cannot use, beside a kernel log that was refused. Nothing is said while all is well.
    Source: journalctl(1), "Access control"; kernel documentation, sysctl kernel.dmesg_restrict.
    """
    an_nvidia_gpu(facts)
    if not isinstance(facts.kernel_log, Unknown):
        return
    if not _something_fails(facts):
        raise NotApplicable("no GPU fails, so nothing is missed")
    if is_in_wsl(facts):
        raise NotApplicable(facts.kernel_log.reason)
    yield Finding(
        Severity.NOTE,
        f"the kernel log, which would name the fault, is not known: {facts.kernel_log.reason}",
        Fix(
            "Read it as root, or join the group that may read it and log in again.",
            ("sudo dmesg | grep -iE 'nvrm|xid'", f"sudo usermod -aG {_readers(facts)} $USER"),
            root=True,
            restart=Restart.LOGIN,
        ),
        evidence=(facts.kernel_log.reason,),
    )


def _something_fails(facts: Facts) -> bool:
    if isinstance(facts.nvml, NvmlFailure):
        return facts.nvml.end is not NvmlEnd.LIBRARY_NOT_FOUND
    return isinstance(facts.nvml, NvmlAnswer) and len(facts.nvml.gpus) > len(facts.gpus)


def _readers(facts: Facts) -> str:
    return "adm" if family_of(facts) in (Family.UBUNTU, Family.DEBIAN) else "systemd-journal"
