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
from devkit.doctor.gpus import DAY_S, compute_seconds_between
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

_NVML_MISMATCH = 18
_ENDS = {NvmlEnd.TIMED_OUT: "hangs", NvmlEnd.CRASHED: "crashes"}


@check("DRV002", require_nvidia_gpu, causes=NEEDS_DRIVER_CODES)
def libraries_match_module(facts: Facts) -> Iterator[Problem]:
    failure = facts.nvml if isinstance(facts.nvml, NvmlFailure) and facts.nvml.code == _NVML_MISMATCH else None
    driver = None if is_in_wsl(facts) or isinstance(facts.driver, Unknown) else facts.driver
    if driver is None and failure is None:
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
    yield problem(
        _ENDS.get(failure.end) or _name_error(facts, failure),
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


def _name_error(facts: Facts, failure: NvmlFailure) -> str:
    """Name the problem of an NVML return value. Source: NVIDIA, NVML API reference, nvmlReturn_t."""
    inside = is_in_container(facts)
    if failure.end is NvmlEnd.LIBRARY_NOT_FOUND or failure.code == 12:
        return "library-not-given" if inside else "library-not-installed"
    match failure.code:
        case 4:
            return "no-access-in-container" if inside else "no-access"
        case 9:
            return "no-driver-on-windows" if find_driver_side(facts) is Side.WINDOWS else "not-loaded"
        case 15:
            return "gpu-lost"
        case 17:
            return "blocked-by-windows"
        case 18:
            return "other-version"
        case 999:
            return "unknown-error-in-container" if inside else "unknown-error"
        case _:
            return "not-started"
