"""Checks of GPU faults: Xids in the kernel log, memory errors, and recoveries that the driver requests."""

import re
from collections.abc import Iterator

from devkit.doctor.checks.cascades import DEEP_CODES
from devkit.doctor.error_codes import (
    XID_CATALOG_URL,
    XID_CLEANUP,
    XID_FALLEN_OFF_THE_BUS,
    XID_RECOVERY_CHANGED,
    XID_ROW_REMAP_FAILED,
    XidMeaning,
    XidRemedy,
    load_xids,
)
from devkit.doctor.fixes import DistroFamily, find_distro_family, find_driver_side, power_cycle, reset_gpu_or_reboot
from devkit.doctor.gpus import (
    compute_seconds_between,
    find_gpu_at,
    format_gpu,
    is_gpu_failing,
    require_gpu_health,
    require_gpu_health_field,
)
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.doctor.preconditions import is_in_wsl, require, require_host, require_nvidia_gpu
from devkit.doctor.thresholds import STILL_FRESH_HOURS
from devkit.facts.model import Facts, Gpu, GpuHealth, NvmlAnswer, NvmlEnd, NvmlFailure, Xid
from devkit.facts.values import Unknown
from devkit.text import format_count

_MAX_OTHERS = 3

_HOUR_S = 3600

_BY_THE_PROGRAM = (XidRemedy.RESTART_PROGRAM, XidRemedy.NOTHING)

_MEMORY_ERRORS_GUIDE = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"

_PAGE_RETIREMENT_GUIDE = "https://docs.nvidia.com/deploy/dynamic-page-retirement/"

_CHANGED_TO = re.compile(r"changed from .* to 0x[0-9a-f]+ \((.+?)\)")
"""Xid 154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"."""

_CAN_WAIT = "drain-p2p"

_RECOVERY_ACTIONS = {
    "gpu-reset": "a reset",
    "node-reboot": "a reboot of the machine",
    "drain-p2p": "an end of all transfers between GPUs, and a reset then",
    "drain-and-reset": "an end of the work on it, and a reset",
    "recover-imex-domain": "a recovery of its IMEX domain",
    "bus-reset": "a reset of its bus",
    "system-reboot": "a reboot of the whole system",
}


@check("GPU006", causes=("DRV003", "GPU002", "GPU005", "GPU009", "GPU010", "GPU011", "GPU027"))
def kernel_log_has_no_fault(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    require_nvidia_gpu(facts)
    log = require(facts.kernel_log)
    reports = [xid for xid in log.xids if not _is_consequence(xid, log.xids)]
    severe = [xid for xid in reports if not _is_minor(facts, xid)]
    for address in dict.fromkeys(xid.address for xid in severe):
        # A GPU off the bus before all else; otherwise what was reported first, from which the others follow.
        of_gpu = [xid for xid in severe if xid.address == address]
        yield _xid_finding(facts, *sorted(of_gpu, key=lambda xid: xid.number != XID_FALLEN_OFF_THE_BUS))
    for xid in reports:
        if xid not in severe:
            yield _xid_finding(facts, xid)
    if not reports and log.is_whole is not True:
        raise NotApplicable("what is left of the kernel log reports no fault, but its beginning is lost")


def _is_consequence(xid: Xid, xids: tuple[Xid, ...]) -> bool:
    """Clean-up after another report on the same GPU, and what the driver says to every report."""
    others = any(
        other.address == xid.address and other.number not in (XID_CLEANUP, XID_RECOVERY_CHANGED) for other in xids
    )
    return xid.number == XID_RECOVERY_CHANGED or (xid.number == XID_CLEANUP and others)


def _is_minor(facts: Facts, xid: Xid) -> bool:
    """Say if the report is about a program, has been dealt with, or is known better from NVML."""
    meaning = load_xids().get(xid.number)
    if meaning is None or meaning.remedy in _BY_THE_PROGRAM:
        return True
    gpu = find_gpu_at(facts, xid.address)
    is_known_by_nvml = isinstance(gpu, Gpu) and isinstance(gpu.health, GpuHealth) and gpu.health.remap_failed is True
    return xid.number == XID_ROW_REMAP_FAILED and is_known_by_nvml


def _xid_finding(facts: Facts, xid: Xid, *others: Xid) -> Finding:
    meaning = load_xids().get(xid.number)
    says = meaning.summary if meaning else "NVIDIA's table leaves it to its support"
    is_minor = _is_minor(facts, xid)
    failing = is_gpu_failing(facts, xid.address)
    source = f"Xid {xid.number} in the kernel log" if "Xid" in xid.line else "the kernel log"
    times = "once" if xid.count == 1 else f"{xid.count} times" if isinstance(xid.count, int) else "at least once"
    if not isinstance(xid.at, Unknown):
        times += f", {'at' if xid.count == 1 else 'last at'} {xid.at}"
    state = ""
    if not is_minor and not isinstance(failing, Unknown):
        state = ", and the GPU cannot be used now" if failing else "; the GPU answers now"
    severity = Severity.NOTE if is_minor else Severity.ERROR
    if not is_minor and failing is not True:
        # A GPU that works now has left an old report behind.
        age_s = compute_seconds_between(str(xid.at), facts.taken_at)
        is_old = age_s is not None and age_s > STILL_FRESH_HOURS.value * _HOUR_S
        severity = Severity.NOTE if failing is False and is_old else Severity.WARNING
    gpu = find_gpu_at(facts, xid.address)
    return Finding(
        severity,
        f"{source}: {says} ({times}){state}",
        _xid_fix(facts, xid, meaning),
        subject=(xid.address if gpu is None else f"GPU {gpu.index}"),
        evidence=(xid.line, *(other.line for other in others[:_MAX_OTHERS])),
        confidence=Confidence.LIKELY if failing is True else Confidence.CERTAIN,
    )


def _xid_fix(facts: Facts, xid: Xid, meaning: XidMeaning | None) -> Fix:
    remedy = meaning.remedy if meaning else XidRemedy.NOTHING
    match remedy:
        case XidRemedy.RESTART_PROGRAM:
            return Fix(
                "Look for the fault in the program that ran at that time: run it again with CUDA_LAUNCH_BLOCKING=1, and"
                " with compute-sanitizer. The GPU needs neither a reset nor a replacement for this.",
                ("CUDA_LAUNCH_BLOCKING=1 python …",),
                where=Side.PROJECT,
                docs=XID_CATALOG_URL,
            )
        case XidRemedy.RESTART_MACHINE if xid.number == XID_FALLEN_OFF_THE_BUS:
            return power_cycle(facts)
        case XidRemedy.RESET_GPU | XidRemedy.RESTART_MACHINE:
            return reset_gpu_or_reboot(facts, find_gpu_at(facts, xid.address))
        case XidRemedy.CHECK_POWER:
            return Fix(
                "Switch the machine off and connect the GPU's power cables.",
                restart=Restart.HOST,
                docs=XID_CATALOG_URL,
            )
        case XidRemedy.CHECK_LINK:
            return Fix(
                "See which link has errors; check that the bridge is seated, or that the Fabric Manager runs and is of"
                " the driver's version. If the errors come back after a reset, the link's hardware is at fault.",
                ("nvidia-smi nvlink --status", "nvidia-smi nvlink -e"),
                docs=XID_CATALOG_URL,
            )
        case _:
            return Fix("Nothing to do now. If it is reported again and again, look it up.", docs=XID_CATALOG_URL)


@check("GPU007")
def kernel_log_is_readable(facts: Facts) -> Iterator[Finding]:
    require_nvidia_gpu(facts)
    if not isinstance(facts.kernel_log, Unknown):
        return
    if isinstance(facts.nvml, NvmlFailure):
        is_failing = facts.nvml.end is not NvmlEnd.LIBRARY_NOT_FOUND
    else:
        is_failing = isinstance(facts.nvml, NvmlAnswer) and len(facts.nvml.gpus) > len(facts.gpus)
    if not is_failing:
        raise NotApplicable("no GPU fails, so nothing is missed")
    if is_in_wsl(facts):
        raise NotApplicable(facts.kernel_log.reason, is_lost=facts.kernel_log.is_lost)
    readers = "adm" if find_distro_family(facts) in (DistroFamily.UBUNTU, DistroFamily.DEBIAN) else "systemd-journal"
    yield Finding(
        Severity.NOTE,
        f"the kernel log, which would name the fault, is not known: {facts.kernel_log.reason}",
        Fix(
            "Read it as root, or join the group that may read it and log in again.",
            ("sudo dmesg | grep -iE 'nvrm|xid'", f"sudo usermod -aG {readers} $USER"),
            root=True,
            restart=Restart.LOGIN,
        ),
        evidence=(facts.kernel_log.reason,),
    )


@check("GPU027", causes=("GPU009", "GPU010", *DEEP_CODES))
def no_recovery_is_required(facts: Facts) -> Iterator[Finding]:
    logged: dict[str, tuple[Xid, str]] = {}
    for xid in () if isinstance(facts.kernel_log, Unknown) else facts.kernel_log.xids:
        actions = _CHANGED_TO.findall(xid.line) if xid.number == XID_RECOVERY_CHANGED else []
        if actions and actions[-1] != "None":
            logged[xid.address] = (xid, actions[-1].lower())
    states = require_gpu_health(facts) if logged else require_gpu_health_field(facts, "recovery_action")
    for gpu, health in states:
        if isinstance(health.recovery_action, Unknown):
            report = logged.get(str(health.pci_address))
            if report is not None:
                yield _recovery_finding(facts, gpu, report[1], report[0].line, Severity.ERROR)
            continue
        action = health.recovery_action
        if action != "none":
            evidence = f"{format_gpu(gpu)} {gpu.name}: recovery action {action}"
            severity = Severity.WARNING if action == _CAN_WAIT else Severity.ERROR
            yield _recovery_finding(facts, gpu, _RECOVERY_ACTIONS.get(action, action), evidence, severity)


def _recovery_finding(facts: Facts, gpu: Gpu, request: str, evidence: str, severity: Severity) -> Finding:
    return Finding(
        severity,
        f"{format_gpu(gpu)} cannot be used: its driver requests {request}",
        reset_gpu_or_reboot(facts, None if "reboot" in request else gpu),
        subject=format_gpu(gpu),
        evidence=(evidence,),
    )


@check("GPU033", causes=("GPU030", "GPU031"))
def switches_report_no_fatal_error(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    require_nvidia_gpu(facts)
    log = require(facts.kernel_log)
    joined = [health.fabric_state == "completed" for gpu in facts.gpus if isinstance(health := gpu.health, GpuHealth)]
    is_working = isinstance(facts.nvml, NvmlAnswer) and len(joined) == len(facts.nvml.gpus) and all(joined)
    for report in require(log.switch_errors):
        times = "once" if report.count == 1 else f"{report.count} times"
        yield Finding(
            Severity.WARNING if is_working else Severity.ERROR,
            f"NVSwitch {report.address} reported the fatal error SXid {report.number} {times}, last at {report.at}"
            + ("; every GPU is in the fabric now" if is_working else ", and not every GPU is in the fabric"),
            Fix(
                "Stop the work on all GPUs of the machine and reboot it, which resets GPUs and NVSwitches. If the number comes"
                " back, look it up in the guide.",
                ("sudo reboot",),
                root=True,
                restart=Restart.HOST,
                docs="https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",
            ),
            subject=report.address,
            evidence=(report.line,),
        )


@check("GPU009", causes=("GPU010", "GPU011"))
def memory_has_no_uncorrectable_error(facts: Facts) -> Iterator[Finding]:
    for gpu, health in require_gpu_health_field(facts, "ecc_uncorrected"):
        if not isinstance(health.ecc_uncorrected, int) or not health.ecc_uncorrected:
            continue
        yield Finding(
            Severity.WARNING,
            f"{format_gpu(gpu)} has had {format_count(health.ecc_uncorrected, 'uncorrectable memory error')} since its driver"
            " was loaded: programs that were hit have ended, and it should be reset before long work",
            Fix(
                "Stop the programs on the GPU and reset it, which retires the bad memory. If the count grows again soon"
                " after, have the GPU tested and replaced.",
                (f"sudo nvidia-smi --gpu-reset -i {gpu.index}", f"nvidia-smi -q -d ECC -i {gpu.index}"),
                where=find_driver_side(facts),
                root=True,
                docs=_MEMORY_ERRORS_GUIDE,
            ),
            subject=format_gpu(gpu),
            evidence=(f"{format_gpu(gpu)} {gpu.name}: uncorrectable, volatile: {health.ecc_uncorrected}",),
        )


@check("GPU010")
def bad_rows_are_remapped(facts: Facts) -> Iterator[Finding]:
    for gpu, health in require_gpu_health_field(facts, "remap_pending"):
        evidence = (f"{format_gpu(gpu)} {gpu.name}: pending {health.remap_pending}, failed {health.remap_failed}",)
        if health.remap_failed is True:
            yield Finding(
                Severity.WARNING,
                f"{format_gpu(gpu)} could not replace a bad row of its memory: its spare rows are used up there",
                Fix(
                    "Move important work to another GPU. Run NVIDIA's field diagnostics or `dcgmi diag -r 3`, and ask"
                    " the vendor for a replacement with their report.",
                    (f"nvidia-smi -q -d ROW_REMAPPER -i {gpu.index}",),
                    docs=_MEMORY_ERRORS_GUIDE,
                ),
                subject=format_gpu(gpu),
                evidence=evidence,
            )
        elif health.remap_pending is True:
            yield Finding(
                Severity.WARNING,
                f"{format_gpu(gpu)} waits for a reset to replace a bad row of its memory",
                Fix(
                    "Reset the GPU, or reboot, at the next opportunity; until then the row is avoided.",
                    (f"sudo nvidia-smi --gpu-reset -i {gpu.index}",),
                    root=True,
                    docs=_MEMORY_ERRORS_GUIDE,
                ),
                subject=format_gpu(gpu),
                evidence=evidence,
            )


@check("GPU032")
def sram_errors_are_few(facts: Facts) -> Iterator[Finding]:
    for gpu, health in require_gpu_health_field(facts, "sram_threshold_exceeded"):
        if health.sram_threshold_exceeded is not True:
            continue
        yield Finding(
            Severity.WARNING,
            f"{format_gpu(gpu)} has exceeded the threshold of uncorrectable SRAM errors: more will end programs on it",
            Fix(
                "Move important work to another GPU. Run NVIDIA's field diagnostics or `dcgmi diag -r 3`, and ask the vendor"
                " for a replacement with their report.",
                (f"nvidia-smi -q -d ECC -i {gpu.index}",),
                where=find_driver_side(facts),
                docs=_MEMORY_ERRORS_GUIDE,
            ),
            subject=format_gpu(gpu),
            evidence=(f"{format_gpu(gpu)} {gpu.name}: SRAM threshold exceeded",),
        )


@check("GPU011")
def bad_pages_are_retired(facts: Facts) -> Iterator[Finding]:
    for gpu, health in require_gpu_health_field(facts, "retirement_pending"):
        if health.retirement_pending is not True:
            continue
        yield Finding(
            Severity.WARNING,
            f"{format_gpu(gpu)} needs a reload of its driver to retire a bad page of its memory",
            Fix(
                "Reboot, or unload and load the driver, when no program uses the GPU. Many retired pages are a reason"
                " to have the GPU replaced: the document says how many.",
                ("nvidia-smi -q -d PAGE_RETIREMENT", "sudo reboot"),
                root=True,
                restart=Restart.HOST,
                docs=_PAGE_RETIREMENT_GUIDE,
            ),
            subject=format_gpu(gpu),
            evidence=(f"{format_gpu(gpu)} {gpu.name}: retired pages pending",),
        )


@check("GPU012")
def inforom_is_intact(facts: Facts) -> Iterator[Finding]:
    for gpu, health in require_gpu_health_field(facts, "inforom_ok"):
        if health.inforom_ok is False:
            yield Finding(
                Severity.WARNING,
                f"the infoROM of {format_gpu(gpu)} is corrupted: the GPU works, but may forget its memory's errors",
                Fix(
                    "Work on if you must, and ask the GPU's vendor for a new infoROM image or a replacement.",
                    (f"nvidia-smi -q -i {gpu.index}",),
                    where=find_driver_side(facts),
                ),
                subject=format_gpu(gpu),
                evidence=("NVML returned 14: corrupted infoROM",),
                confidence=Confidence.LIKELY,
            )
