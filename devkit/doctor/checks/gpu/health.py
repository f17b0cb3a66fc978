"""Checks of GPU faults: Xids in the kernel log, memory errors, and recoveries that the driver requests."""

import re
from collections.abc import Iterator

from devkit.doctor.checks.cascades import DEEP_CODES
from devkit.doctor.error_codes import (
    XID_CLEANUP,
    XID_FALLEN_OFF_THE_BUS,
    XID_RECOVERY_CHANGED,
    XID_ROW_REMAP_FAILED,
    explain_recovery,
    load_xids,
)
from devkit.doctor.gpus import (
    find_gpu_at,
    format_gpu,
    is_gpu_failing,
    require_gpu_health,
    require_gpu_health_field,
)
from devkit.doctor.model import Confidence, NotApplicable, Severity, check
from devkit.doctor.preconditions import is_in_wsl, require, require_host, require_nvidia_gpu, skip_if
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import STILL_FRESH_HOURS
from devkit.facts.gpu import Gpu, GpuHealth, NvmlAnswer, NvmlEnd, NvmlFailure, Xid
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.text import compute_seconds_between, format_count

_MAX_OTHERS = 3
_HOUR_S = 3600
_BY_THE_PROGRAM = ("restart the program", "nothing")
_CHANGED_TO = re.compile(r"changed from .* to 0x[0-9a-f]+ \((.+?)\)")
"""Xid 154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"."""
_CAN_WAIT = "drain-p2p"


@check(
    "GPU006",
    require_host,
    require_nvidia_gpu,
    causes=("DRV003", "GPU002", "GPU005", "GPU009", "GPU010", "GPU011", "GPU027"),
)
def kernel_log_has_no_fault(facts: Facts) -> Iterator[Problem]:
    log = require(facts.kernel_log)
    # The driver cleans up after another report on the same GPU, and says to every report what it requests.
    own = [xid for xid in log.xids if xid.number != XID_RECOVERY_CHANGED]
    faulty = {xid.address for xid in own if xid.number != XID_CLEANUP}
    reports = [xid for xid in own if xid.number != XID_CLEANUP or xid.address not in faulty]
    severe = [xid for xid in reports if not _is_minor(facts, xid)]
    for address in dict.fromkeys(xid.address for xid in severe):
        # A GPU off the bus before all else; otherwise what was reported first, from which the others follow.
        of_gpu = [xid for xid in severe if xid.address == address]
        yield _tell_xid(facts, *sorted(of_gpu, key=lambda xid: xid.number != XID_FALLEN_OFF_THE_BUS))
    for xid in reports:
        if xid not in severe:
            yield _tell_xid(facts, xid)
    if not reports and log.is_whole is not True:
        raise NotApplicable("the rest of the kernel log reports no fault, but its beginning is lost")


def _is_minor(facts: Facts, xid: Xid) -> bool:
    """Say if the report is about a program, has been dealt with, or is known better from NVML."""
    meaning = load_xids().get(xid.number)
    if meaning is None or meaning.remedy in _BY_THE_PROGRAM:
        return True
    gpu = find_gpu_at(facts, xid.address)
    is_known_by_nvml = isinstance(gpu, Gpu) and isinstance(gpu.health, GpuHealth) and gpu.health.remap_failed is True
    return xid.number == XID_ROW_REMAP_FAILED and is_known_by_nvml


def _tell_xid(facts: Facts, xid: Xid, *others: Xid) -> Problem:
    meaning = load_xids().get(xid.number)
    gpu = find_gpu_at(facts, xid.address)
    failing = is_gpu_failing(facts, xid.address)
    name, severity = "reported", None
    if _is_minor(facts, xid):
        severity = Severity.NOTE
    elif failing is True:
        name = "unusable-now"
    elif failing is False:
        name = "usable-now"
        # A GPU that works now has left an old report behind.
        age_s = compute_seconds_between(str(xid.at), facts.taken_at)
        is_old = age_s is not None and age_s > STILL_FRESH_HOURS * _HOUR_S
        severity = Severity.NOTE if is_old else None
    times = _format_times(xid.count)
    if not isinstance(xid.at, Unknown):
        times += f", {'at' if xid.count == 1 else 'last at'} {xid.at}"
    return problem(
        name,
        source=f"Xid {xid.number} in the kernel log" if "Xid" in xid.line else "the kernel log",
        fault=meaning.summary if meaning else "NVIDIA's table refers to its support",
        times=times,
        number=xid.number,
        remedy=meaning.remedy if meaning else "nothing",
        index=gpu.index if gpu else "",
        by="reset" if gpu else "reboot",
        subject=f"GPU {gpu.index}" if gpu else xid.address,
        evidence=(xid.line, *(other.line for other in others[:_MAX_OTHERS])),
        severity=severity,
        # The driver names a lost GPU itself, and NVML confirms it; other reports leave open what is broken.
        confidence=Confidence.LIKELY if failing is True and xid.number != XID_FALLEN_OFF_THE_BUS else None,
    )


def _format_times(count: int | Unknown) -> str:
    if isinstance(count, Unknown):
        return "at least once"
    return "once" if count == 1 else f"{count} times"


@check("GPU007", require_nvidia_gpu)
def kernel_log_is_readable(facts: Facts) -> Iterator[Problem]:
    if not isinstance(facts.kernel_log, Unknown):
        return
    if isinstance(facts.nvml, NvmlFailure):
        is_failing = facts.nvml.end is not NvmlEnd.LIBRARY_NOT_FOUND
    else:
        is_failing = isinstance(facts.nvml, NvmlAnswer) and len(facts.nvml.gpus) > len(facts.gpus)
    skip_if(not is_failing, "no GPU fails, so no cause was missed")
    if is_in_wsl(facts):
        raise NotApplicable(facts.kernel_log.reason, is_lost=facts.kernel_log.is_lost)
    yield problem("unreadable", reason=facts.kernel_log.reason, evidence=(facts.kernel_log.reason,))


@check("GPU027", causes=("GPU009", "GPU010", *DEEP_CODES))
def no_recovery_is_required(facts: Facts) -> Iterator[Problem]:
    logged: dict[str, tuple[Xid, str]] = {}
    for xid in () if isinstance(facts.kernel_log, Unknown) else facts.kernel_log.xids:
        actions = _CHANGED_TO.findall(xid.line) if xid.number == XID_RECOVERY_CHANGED else []
        if actions and actions[-1] != "None":
            logged[xid.address] = (xid, actions[-1].lower())
    states = require_gpu_health(facts) if logged else require_gpu_health_field(facts, "recovery_action")
    for gpu, health in states:
        action = health.recovery_action
        if isinstance(action, Unknown):
            report = logged.get(str(health.pci_address))
            if report is None:
                continue
            evidence, request = report[0].line, report[1]
        elif action == "none":
            continue
        else:
            evidence = f"{format_gpu(gpu)} {gpu.name}: recovery action {action}"
            request = explain_recovery(action)
        yield problem(
            "recovery-required",
            index=gpu.index,
            request=request,
            by="reboot" if "reboot" in request else "reset",
            evidence=(evidence,),
            severity=Severity.WARNING if action == _CAN_WAIT else None,
        )


@check("GPU033", require_host, require_nvidia_gpu, causes=("GPU030", "GPU031"))
def switches_report_no_fatal_error(facts: Facts) -> Iterator[Problem]:
    log = require(facts.kernel_log)
    joined = [health.fabric_state == "completed" for gpu in facts.gpus if isinstance(health := gpu.health, GpuHealth)]
    is_working = isinstance(facts.nvml, NvmlAnswer) and len(joined) == len(facts.nvml.gpus) and all(joined)
    for report in require(log.switch_errors):
        yield problem(
            "fatal-error-before" if is_working else "fatal-error",
            address=report.address,
            number=report.number,
            times=_format_times(report.count),
            at=report.at,
            evidence=(report.line,),
        )


@check("GPU009", causes=("GPU010", "GPU011"))
def memory_has_no_uncorrectable_error(facts: Facts) -> Iterator[Problem]:
    for gpu, health in require_gpu_health_field(facts, "ecc_uncorrected"):
        count = health.ecc_uncorrected
        if isinstance(count, int) and count:
            errors = format_count(count, "uncorrectable memory error")
            yield _tell("uncorrectable", gpu, f"uncorrectable, volatile: {count}", errors=errors)


@check("GPU010")
def bad_rows_are_remapped(facts: Facts) -> Iterator[Problem]:
    for gpu, health in require_gpu_health_field(facts, "remap_pending"):
        reading = f"pending {health.remap_pending}, failed {health.remap_failed}"
        if health.remap_failed is True:
            yield _tell("no-spare-rows", gpu, reading)
        elif health.remap_pending is True:
            yield _tell("reset-pending", gpu, reading)


@check("GPU032")
def sram_errors_are_few(facts: Facts) -> Iterator[Problem]:
    for gpu, health in require_gpu_health_field(facts, "sram_threshold_exceeded"):
        if health.sram_threshold_exceeded is True:
            yield _tell("above-threshold", gpu, "SRAM threshold exceeded")


@check("GPU011")
def bad_pages_are_retired(facts: Facts) -> Iterator[Problem]:
    for gpu, health in require_gpu_health_field(facts, "retirement_pending"):
        if health.retirement_pending is True:
            yield _tell("reload-pending", gpu, "retired pages pending")


def _tell(name: str, gpu: Gpu, reading: str, *, errors: str = "") -> Problem:
    evidence = (f"{format_gpu(gpu)} {gpu.name}: {reading}",)
    return problem(name, index=gpu.index, errors=errors, evidence=evidence)


@check("GPU012")
def inforom_is_intact(facts: Facts) -> Iterator[Problem]:
    for gpu, health in require_gpu_health_field(facts, "inforom_ok"):
        if health.inforom_ok is False:
            evidence = ("NVML returned 14: corrupted infoROM",)
            yield problem("corrupted", index=gpu.index, evidence=evidence)
