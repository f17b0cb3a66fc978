"""Checks that NVML answers, and that its libraries match the loaded kernel module."""

from collections.abc import Iterator

from devkit.doctor.checks.cascades import (
    CDI_CODES,
    CUDA_CODES,
    GPU_USE_CODES,
    NEEDS_DRIVER_CODES,
    PYTHON_CODES,
    TOOLKIT_CODES,
)
from devkit.doctor.fixes import find_driver_side
from devkit.doctor.gpus import DAY_S
from devkit.doctor.model import NotApplicable, Side, check
from devkit.doctor.preconditions import (
    is_in_container,
    is_in_wsl,
    require,
    require_loaded_driver,
    require_nvidia_gpu,
    require_visible_gpu,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.program_failures import report_failure
from devkit.facts.engine import Engine
from devkit.facts.gpu import NvmlEnd, NvmlFailure
from devkit.facts.model import Facts
from devkit.facts.values import Release, Unknown
from devkit.text import compute_seconds_between

_NVML_MISMATCH = 18
_ENDS = {NvmlEnd.TIMED_OUT: "hangs", NvmlEnd.CRASHED: "crashes"}
_LIBRARY_NOT_FOUND = 12
_ERRORS = {
    4: ("no-access", "no-access-in-container"),
    9: ("not-loaded", "not-loaded"),
    _LIBRARY_NOT_FOUND: ("library-not-installed", "library-not-given"),
    15: ("gpu-lost", "gpu-lost"),
    17: ("blocked-by-windows", "blocked-by-windows"),
    _NVML_MISMATCH: ("other-version", "other-version"),
    999: ("unknown-error", "unknown-error-in-container"),
}
"""The problem of an NVML return value on the host and in a container. Source: NVIDIA, NVML API reference, nvmlReturn_t."""


@check("DRV002", require_nvidia_gpu, causes=NEEDS_DRIVER_CODES)
def libraries_match_module(facts: Facts) -> Iterator[Problem]:
    failure = facts.nvml if isinstance(facts.nvml, NvmlFailure) and facts.nvml.code == _NVML_MISMATCH else None
    driver = None if is_in_wsl(facts) or isinstance(facts.driver, Unknown) else facts.driver
    if driver is None and failure is None:
        if isinstance(facts.driver, Unknown) and not is_in_wsl(facts):
            raise NotApplicable(f"the driver was not read: {facts.driver.reason}")
        raise NotApplicable("in WSL, the driver belongs to Windows")
    versions: tuple[Release, Release] | None = None
    if driver is not None and isinstance(driver.loaded, Release) and isinstance(driver.libnvidia_ml, Release):
        versions = driver.loaded, driver.libnvidia_ml
    if failure is None:
        require_loaded_driver(facts)
        if versions is None:
            raise NotApplicable("the version of libnvidia-ml.so.1 is not known")
        if versions[0] == versions[1]:
            return
    said = [f"{failure.call} returned {failure.code}: {failure.message}"] if failure else []
    rebooted = "not known"
    if driver is not None and driver.upgraded_packages:
        said.append(f"package log: {driver.upgraded_packages[-1]}")
        # Logs are in local time, so that a day is certain.
        running_s = compute_seconds_between(driver.upgraded_packages[-1], str(driver.booted_at))
        rebooted = "since the upgrade" if running_s is not None and running_s > DAY_S else rebooted
    if versions is None:
        yield problem("other-version", rebooted=rebooted, evidence=said)
        return
    module, library = versions
    evidence = (f"/sys/module/nvidia/version: {module}", f"libnvidia-ml.so.{library}", *said)
    yield problem("two-versions", module=module, library=library, rebooted=rebooted, evidence=evidence)


@check(
    "DRV003",
    require_visible_gpu,
    causes=(*GPU_USE_CODES, *TOOLKIT_CODES, *CDI_CODES, *CUDA_CODES, "CON005", *PYTHON_CODES),
)
def nvml_answers(facts: Facts) -> Iterator[Problem]:
    failure = facts.nvml
    if isinstance(failure, Unknown):
        raise NotApplicable(failure.reason, is_lost=failure.is_lost)
    if not isinstance(failure, NvmlFailure):
        return
    ended = f"ended with {failure.end.value}"
    if failure.code:
        ended = f"returned {failure.code}"
    if failure.end is NvmlEnd.CRASHED:
        ended = f"ended with signal {failure.code}"
    code = _LIBRARY_NOT_FOUND if failure.end is NvmlEnd.LIBRARY_NOT_FOUND else failure.code
    name = _ENDS.get(failure.end) or _ERRORS.get(code, ("not-started", "not-started"))[is_in_container(facts)]
    if name == "not-loaded" and find_driver_side(facts) is Side.WINDOWS:
        name = "no-driver-on-windows"
    yield problem(
        name,
        call=failure.call,
        code=failure.code,
        reason=failure.message or f"return value {failure.code}",
        selinux="on" if isinstance(facts.engine, Engine) and facts.engine.has_selinux else "off",
        evidence=(f"{failure.call} {ended}" + (f": {failure.message}" if failure.message else ""),),
    )


@check("DRV016", require_nvidia_gpu, causes=("DRV002", *NEEDS_DRIVER_CODES))
def nvml_answers_with_these_variables(facts: Facts) -> Iterator[Problem]:
    said = require(facts.nvml.said) if isinstance(facts.nvml, NvmlFailure) else None
    if said is not None:
        yield report_failure(said)
