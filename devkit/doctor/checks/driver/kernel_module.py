"""Checks of the driver's kernel module: loaded, of a branch and flavor that drive every GPU."""

from collections.abc import Iterator

from devkit.doctor.checks.cascades import NEEDS_DRIVER_CODES
from devkit.doctor.gpus import MAX_LOG_LINES, find_driver_gpus, find_driver_lines, has_fewer_gpus_than_bus
from devkit.doctor.model import Confidence, NotApplicable, Severity, check
from devkit.doctor.preconditions import (
    NVML_DRIVER_NOT_LOADED,
    is_in_container,
    is_in_wsl,
    require,
    require_driver,
    require_host,
    require_loaded_driver,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import (
    FIRST_MAXWELL_DEVICE_ID,
    FIRST_OPEN_ONLY_DEVICE_ID,
    FIRST_TURING_DEVICE_ID,
    LAST_BRANCH_BEFORE_TURING,
    LAST_BRANCH_OF_KEPLER,
)
from devkit.facts.gpu import Driver, NvmlFailure, PciGpu
from devkit.facts.machine import System
from devkit.facts.model import Facts
from devkit.facts.values import Release, Unknown
from devkit.text import join_words

_REFUSED = ("is rejected", "trusted key", "Lockdown")
_UNFIT = ("disagrees about version", "version magic", "probe routine", "already bound to", "No NVIDIA")
_VENDOR_SIGNERS = (
    "Canonical Ltd.",
    "Debian Secure Boot",
    "Fedora kernel",
    "Red Hat",
    "SUSE Linux",
    "openSUSE",
    "Rocky",
)
_UNFINISHED = ("added", "built")
"""States of a DKMS module that was not built, or not installed, for the running kernel."""
LEGACY_GPU_LINES = ("Legacy drivers", "required GPU System Processor", "not supported by the NVIDIA")
OPEN_MODULE_LINE = "requires use of the NVIDIA open kernel modules"


@check("DRV001", causes=NEEDS_DRIVER_CODES)
def driver_loaded(facts: Facts) -> Iterator[Problem]:
    failure = facts.nvml if isinstance(facts.nvml, NvmlFailure) and not is_in_wsl(facts) else None
    is_bare = isinstance(facts.driver, Driver) and facts.driver.loaded is None and facts.driver.pci_gpus == ()
    if failure and failure.code == NVML_DRIVER_NOT_LOADED and is_bare:
        # Leftover packages, or a GPU that is not visible.
        returned = f"{failure.call} returned {failure.code}: {failure.message}"
        yield problem("libraries-alone", evidence=(returned, "no NVIDIA function on PCI"))
        return
    driver = require_driver(facts)
    if require(driver.loaded) is None:
        if isinstance(driver.pci_gpus, Unknown) or not driver.pci_gpus:
            raise NotApplicable("NVML reports a GPU that is not on this PCI bus")
        yield _find_cause(facts, driver, driver.pci_gpus)


def _find_cause(facts: Facts, driver: Driver, gpus: tuple[PciGpu, ...]) -> Problem:
    """Find the likeliest cause on this machine. `gpus` are those on the PCI bus, at least one."""
    seen = tuple(f"PCI {gpu.address} ({gpu.device_id}): kernel driver {gpu.kernel_driver or 'none'}" for gpu in gpus)
    if is_in_container(facts):
        return problem("not-loaded-on-host", evidence=(*seen, "/sys/module/nvidia does not exist"))
    if {gpu.kernel_driver for gpu in gpus} == {"vfio-pci"}:
        return problem("held-by-vfio", address=gpus[0].address, evidence=seen)
    if isinstance(driver.on_disk, Release):
        evidence = (*seen, f"module for this kernel on disk: {driver.on_disk}")
        if any(gpu.kernel_driver == "nouveau" for gpu in gpus):
            return problem("held-by-nouveau", release=driver.on_disk, evidence=evidence)
        refused = find_driver_lines(facts, *_REFUSED)
        # The key is enrolled, or one that the distribution's own kernel carries.
        by_vendor = isinstance(driver.module_signer, str) and driver.module_signer.startswith(_VENDOR_SIGNERS)
        is_trusted = driver.signer_is_enrolled is True or by_vendor
        if refused or (driver.secure_boot is True and not is_trusted):
            return _find_signature_fault(driver, (*evidence, *refused[:MAX_LOG_LINES]))
        unfit = find_driver_lines(facts, *_UNFIT)[:MAX_LOG_LINES]
        return problem("not-loaded", release=driver.on_disk, evidence=(*evidence, *unfit))
    if driver.dkms_state in _UNFINISHED or isinstance(driver.libnvidia_ml, Release):
        return _find_build_fault(facts, driver, seen)
    return problem("not-installed", evidence=(*seen, "no nvidia module for this kernel", "no libnvidia-ml.so.1"))


def _find_signature_fault(driver: Driver, evidence: tuple[str, ...]) -> Problem:
    signer = driver.module_signer
    is_certain = driver.signer_is_enrolled is False or any("rejected" in line for line in evidence)
    if driver.secure_boot is True:
        readings = ["Secure Boot: on"]
        name = "not-signed" if signer == "" else "not-enrolled" if is_certain else "likely-not-enrolled"
    else:
        readings = ["Secure Boot: not known to be on"]
        unenrolled = "refused-not-enrolled" if is_certain else "refused-likely-not-enrolled"
        name = "refused-not-signed" if signer == "" else unenrolled
    if isinstance(signer, str):
        readings.append(f"signed by {signer or 'no one'}")
    return problem(name, release=driver.on_disk, evidence=(*evidence, *readings))


def _find_build_fault(facts: Facts, driver: Driver, seen: tuple[str, ...]) -> Problem:
    kernel = facts.system.kernel if isinstance(facts.system, System) else "the running kernel"
    evidence = [*seen, f"no nvidia module for {kernel}"]
    is_unfinished = driver.dkms_state in _UNFINISHED
    if is_unfinished:
        evidence.append(f"dkms status: {driver.dkms_state}")
    if isinstance(driver.build_error, str) and driver.build_error:
        evidence.append(f"make.log: {driver.build_error}")
    if driver.headers_present is False:
        return problem("no-headers", kernel=kernel, evidence=(*evidence, f"/lib/modules/{kernel}/build is missing"))
    confidence = Confidence.CERTAIN if is_unfinished else Confidence.LIKELY
    return problem("not-built", kernel=kernel, evidence=evidence, confidence=confidence)


@check("DRV004", causes=NEEDS_DRIVER_CODES)
def module_is_open_where_required(facts: Facts) -> Iterator[Problem]:
    release = require_loaded_driver(facts)
    driver = require_driver(facts)
    log_lines = find_driver_lines(facts, OPEN_MODULE_LINE)
    needs_open = [
        gpu
        for gpu in require(driver.pci_gpus)
        if any(gpu.address in line for line in log_lines) or _parse_device_id(gpu) >= FIRST_OPEN_ONLY_DEVICE_ID
    ]
    if not needs_open or require(driver.is_open):
        return
    yield problem(
        "proprietary",
        release=release,
        branch=release.major,
        gpus=join_words(gpu.address for gpu in needs_open),
        subject=needs_open[0].address,
        evidence=(*log_lines[:2], *_list_device_ids(needs_open)),
        confidence=Confidence.CERTAIN if log_lines else Confidence.LIKELY,
    )


@check("DRV008", require_host, causes=("DRV001", *NEEDS_DRIVER_CODES))
def branch_supports_gpus(facts: Facts) -> Iterator[Problem]:
    driver = require_driver(facts)
    log_lines = find_driver_lines(facts, *LEGACY_GPU_LINES)
    # The module on disk may have refused to load.
    release = next((version for version in (driver.loaded, driver.on_disk) if isinstance(version, Release)), None)
    old = [
        gpu
        for gpu in find_driver_gpus(facts)
        if _is_too_old(gpu, release, driver) or any(gpu.address in line for line in log_lines)
    ]
    if not old and not log_lines:
        require(driver.pci_gpus)
        return
    works = not has_fewer_gpus_than_bus(facts)
    skip_if(works and not old, "NVML can now use the GPU in the kernel log")
    has_kepler = any(_parse_device_id(gpu) < FIRST_MAXWELL_DEVICE_ID for gpu in old)
    yield problem(
        "not-supported",
        driver=release or "installed here",
        gpus=join_words(gpu.address for gpu in old) or "this GPU",
        branch=LAST_BRANCH_OF_KEPLER if has_kepler else LAST_BRANCH_BEFORE_TURING,
        subject=old[0].address if old else "",
        evidence=(*log_lines[:MAX_LOG_LINES], *_list_device_ids(old)),
        severity=Severity.WARNING if works else Severity.ERROR,
        confidence=Confidence.CERTAIN if log_lines else Confidence.LIKELY,
    )


def _list_device_ids(gpus: list[PciGpu]) -> list[str]:
    return [f"{gpu.address} has device id {gpu.device_id}" for gpu in gpus]


def _is_too_old(gpu: PciGpu, release: Release | None, driver: Driver) -> bool:
    if release is None or _parse_device_id(gpu) >= FIRST_TURING_DEVICE_ID:
        return False
    if driver.is_open is True or release.major > LAST_BRANCH_BEFORE_TURING:
        return True
    return _parse_device_id(gpu) < FIRST_MAXWELL_DEVICE_ID and release.major > LAST_BRANCH_OF_KEPLER


def _parse_device_id(gpu: PciGpu) -> int:
    try:
        return int(gpu.device_id, 16)
    except ValueError:
        return FIRST_TURING_DEVICE_ID
