"""Checks of the driver's kernel module: loaded, of a branch and flavor that drive every GPU."""

from collections.abc import Iterator
from shlex import quote

from devkit.doctor.checks.cascades import NEEDS_DRIVER_CODES
from devkit.doctor.fixes import DRIVER_GUIDE, DistroFamily, find_distro_family, list_commands
from devkit.doctor.gpus import MAX_LOG_LINES, find_driver_gpus, find_driver_lines, has_fewer_gpus_than_bus
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.doctor.preconditions import (
    NVML_DRIVER_NOT_LOADED,
    is_in_container,
    is_in_wsl,
    require,
    require_driver,
    require_host,
    require_loaded_driver,
)
from devkit.doctor.thresholds import (
    FIRST_MAXWELL_DEVICE_ID,
    FIRST_OPEN_ONLY_DEVICE_ID,
    FIRST_TURING_DEVICE_ID,
    LAST_BRANCH_BEFORE_TURING,
    LAST_BRANCH_OF_KEPLER,
)
from devkit.facts.model import Driver, Facts, NvmlFailure, PciGpu, System
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
def driver_loaded(facts: Facts) -> Iterator[Finding]:
    if finding := explain_driver_without_gpu(facts):
        yield finding
        return
    driver = require_driver(facts)
    if require(driver.loaded) is None:
        if isinstance(driver.pci_gpus, Unknown) or not driver.pci_gpus:
            raise NotApplicable("NVML answers for a GPU that is not on this PCI bus")
        yield explain_not_loaded(facts, driver, driver.pci_gpus)


def explain_driver_without_gpu(facts: Facts) -> Finding | None:
    """Explain a missing driver without a GPU on the bus: leftover packages, or a GPU that is not visible."""
    if is_in_wsl(facts) or not isinstance(facts.nvml, NvmlFailure) or facts.nvml.code != NVML_DRIVER_NOT_LOADED:
        return None
    driver = facts.driver
    if isinstance(driver, Unknown) or driver.loaded is not None or driver.pci_gpus != ():
        return None
    return Finding(
        Severity.WARNING,
        "the NVIDIA libraries are installed, but no driver is loaded and no NVIDIA GPU is on the PCI bus",
        Fix(
            "If this machine has a GPU, check that it is seated, powered, enabled in the firmware, and passed to this"
            " virtual machine. If it has none, the libraries do no harm."
        ),
        evidence=(f"{facts.nvml.call} returned {facts.nvml.code}: {facts.nvml.message}", "no NVIDIA function on PCI"),
        confidence=Confidence.POSSIBLE,
    )


def explain_not_loaded(facts: Facts, driver: Driver, gpus: tuple[PciGpu, ...]) -> Finding:
    """Explain the likeliest cause on this machine. `gpus` are those on the PCI bus, at least one."""
    owners = {gpu.kernel_driver for gpu in gpus}
    if is_in_container(facts):
        return Finding(
            Severity.ERROR,
            "the host has an NVIDIA GPU, but its kernel driver is not loaded",
            Fix("Run devkit doctor on the host: only there can the cause be seen and repaired.", ("devkit doctor",)),
            evidence=(*_list_pci_functions(gpus), "/sys/module/nvidia is absent"),
        )
    if owners == {"vfio-pci"}:
        return Finding(
            Severity.ERROR,
            "vfio-pci holds the GPU for a virtual machine, so the NVIDIA driver cannot",
            Fix(
                "If that is intended, run devkit inside the virtual machine. If not, remove vfio-pci.ids= from the kernel"
                " command line, or the override, and reboot.",
                (f"sudo driverctl unset-override {quote(gpus[0].address)}",),
                root=True,
                restart=Restart.HOST,
            ),
            subject=gpus[0].address,
            evidence=_list_pci_functions(gpus),
        )
    if isinstance(driver.on_disk, Release):
        return _explain_installed_module(facts, driver, gpus, driver.on_disk)
    if driver.dkms_state in _UNFINISHED or isinstance(driver.libnvidia_ml, Release):
        return _explain_not_built(facts, driver, gpus)
    install = list_commands(facts, "install_driver")
    return Finding(
        Severity.ERROR,
        "this machine has an NVIDIA GPU, but no NVIDIA driver is installed",
        Fix(
            "Install the driver with the distribution's own package manager, and reboot.",
            (*install, "sudo reboot") if install else (),
            where=Side.HOST,
            root=True,
            restart=Restart.HOST,
            docs=DRIVER_GUIDE,
        ),
        evidence=(*_list_pci_functions(gpus), "no nvidia module for this kernel", "no libnvidia-ml.so.1"),
    )


def _list_pci_functions(gpus: tuple[PciGpu, ...]) -> tuple[str, ...]:
    return tuple(f"PCI {gpu.address} ({gpu.device_id}): kernel driver {gpu.kernel_driver or 'none'}" for gpu in gpus)


def _explain_installed_module(facts: Facts, driver: Driver, gpus: tuple[PciGpu, ...], release: Release) -> Finding:
    evidence = (*_list_pci_functions(gpus), f"module for this kernel on disk: {release}")
    if any(gpu.kernel_driver == "nouveau" for gpu in gpus):
        return Finding(
            Severity.ERROR,
            f"the driver nouveau holds the GPU, so the installed NVIDIA module {release} cannot load",
            _disable_nouveau(facts),
            evidence=evidence,
        )
    refused = find_driver_lines(facts, *_REFUSED)
    if refused or (driver.secure_boot is True and not _signature_is_trusted(driver)):
        return _explain_signature(facts, driver, release, (*evidence, *refused[:MAX_LOG_LINES]))
    return Finding(
        Severity.ERROR,
        f"the NVIDIA module {release} is installed for this kernel but not loaded",
        Fix(
            "Load it, and read what it says if it refuses.",
            ("sudo modprobe nvidia", "journalctl -k -b | grep NVRM"),
            root=True,
        ),
        evidence=(*evidence, *find_driver_lines(facts, *_UNFIT)[:MAX_LOG_LINES]),
    )


def _disable_nouveau(facts: Facts) -> Fix:
    if find_distro_family(facts) is DistroFamily.NIXOS:
        return Fix(
            "Blacklist nouveau, rebuild, and reboot.",
            (
                '# in configuration.nix: boot.blacklistedKernelModules = [ "nouveau" ];',
                "sudo nixos-rebuild boot",
                "sudo reboot",
            ),
            root=True,
            restart=Restart.HOST,
        )
    return Fix(
        "Blacklist nouveau, rebuild the initial RAM disk, and reboot.",
        (
            r"printf 'blacklist nouveau\noptions nouveau modeset=0\n'"
            " | sudo tee /etc/modprobe.d/blacklist-nouveau.conf",
            *list_commands(facts, "rebuild_initramfs"),
            "sudo reboot",
        ),
        root=True,
        restart=Restart.HOST,
    )


def _signature_is_trusted(driver: Driver) -> bool:
    """Say if the key is enrolled, or one that the distribution's own kernel carries."""
    signer = driver.module_signer
    by_vendor = isinstance(signer, str) and signer.startswith(_VENDOR_SIGNERS)
    return driver.signer_is_enrolled is True or by_vendor


def _explain_signature(facts: Facts, driver: Driver, release: Release, evidence: tuple[str, ...]) -> Finding:
    signer = driver.module_signer
    is_certain = driver.signer_is_enrolled is False or signer == "" or any("rejected" in line for line in evidence)
    why = "its key is not enrolled" if is_certain else "its key is most likely not enrolled"
    readings = [f"Secure Boot: {'on' if driver.secure_boot is True else 'not known to be on'}"]
    if isinstance(signer, str):
        readings.append(f"signed by {signer or 'no one'}")
        why = why if signer else "it is not signed"
    enroll = list_commands(facts, "enroll_key")
    return Finding(
        Severity.ERROR,
        f"Secure Boot is on and the NVIDIA module {release} is not loaded: {why}"
        if driver.secure_boot is True
        else f"this kernel refuses the NVIDIA module {release}: {why}",
        Fix(
            "Enroll the key that signed the module: import it, reboot, and choose Enroll MOK on the blue screen. Or turn"
            " Secure Boot off in the firmware.",
            (*enroll, "sudo reboot") if enroll else ("sudo modprobe nvidia",),
            root=True,
            restart=Restart.HOST,
        ),
        evidence=(*evidence, *readings),
        confidence=Confidence.CERTAIN if is_certain else Confidence.LIKELY,
    )


def _explain_not_built(facts: Facts, driver: Driver, gpus: tuple[PciGpu, ...]) -> Finding:
    kernel = facts.system.kernel if isinstance(facts.system, System) else "the running kernel"
    evidence = [*_list_pci_functions(gpus), f"no nvidia module for {kernel}"]
    if driver.dkms_state in _UNFINISHED:
        evidence.append(f"dkms status: {driver.dkms_state}")
    if isinstance(driver.build_error, str) and driver.build_error:
        evidence.append(f"make.log: {driver.build_error}")
    if driver.headers_present is False:
        return Finding(
            Severity.ERROR,
            f"the NVIDIA module was not built for kernel {kernel}, because the kernel's headers are missing",
            Fix(
                "Install the headers of the running kernel, build the module, and load it.",
                (
                    *list_commands(facts, "build_module"),
                    "sudo modprobe nvidia",
                ),
                root=True,
            ),
            evidence=(*evidence, f"/lib/modules/{kernel}/build is missing"),
        )
    return Finding(
        Severity.ERROR,
        f"the NVIDIA module could not be built for kernel {kernel}",
        Fix(
            "Boot the previous kernel to work now. Then install a driver branch that supports this kernel; the build"
            " log says what failed.",
            ("sudo dkms autoinstall", "tail -n 40 /var/lib/dkms/nvidia/*/build/make.log"),
            root=True,
            restart=Restart.HOST,
        ),
        evidence=tuple(evidence),
        confidence=Confidence.CERTAIN if driver.dkms_state in _UNFINISHED else Confidence.LIKELY,
    )


@check("DRV004", causes=NEEDS_DRIVER_CODES)
def module_is_open_where_required(facts: Facts) -> Iterator[Finding]:
    release = require_loaded_driver(facts)
    driver = require_driver(facts)
    log_lines = find_driver_lines(facts, OPEN_MODULE_LINE)
    needs_open = [
        gpu
        for gpu in require(driver.pci_gpus)
        if any(gpu.address in line for line in log_lines) or _parse_device_id(gpu) >= FIRST_OPEN_ONLY_DEVICE_ID.value
    ]
    if not needs_open or require(driver.is_open):
        return
    yield Finding(
        Severity.ERROR,
        f"the proprietary kernel module {release} cannot drive {join_words(gpu.address for gpu in needs_open)},"
        " which needs the open one",
        Fix(
            f"Replace the module of branch {release.major} by its open flavor, and reboot.",
            list_commands(facts, "install_open_module", branch=release.major),
            root=True,
            restart=Restart.HOST,
            docs=DRIVER_GUIDE,
        ),
        subject=needs_open[0].address,
        evidence=(*log_lines[:2], *(f"{gpu.address} has device id {gpu.device_id}" for gpu in needs_open)),
        confidence=Confidence.CERTAIN if log_lines else Confidence.LIKELY,
    )


@check("DRV008", causes=("DRV001", *NEEDS_DRIVER_CODES))
def branch_supports_gpus(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
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
    if works and not old:
        raise NotApplicable("the kernel log speaks of a GPU that NVML can use by now")
    branch = (
        LAST_BRANCH_OF_KEPLER if any(_parse_device_id(gpu) < FIRST_MAXWELL_DEVICE_ID.value for gpu in old) else None
    )
    last = (branch or LAST_BRANCH_BEFORE_TURING).value
    yield Finding(
        Severity.WARNING if works else Severity.ERROR,
        f"the driver {release or 'installed here'} does not drive {join_words(gpu.address for gpu in old) or 'this GPU'}:"
        f" {last} in its proprietary flavor is the last branch for it",
        Fix(
            f"Install branch {last}, proprietary, and keep it from being upgraded. Packages for CUDA 13 have no code"
            " for this GPU: take those for CUDA 12.",
            list_commands(facts, "install_legacy_driver", branch=last),
            root=True,
            restart=Restart.HOST,
            docs="https://www.nvidia.com/en-us/drivers/unix/legacy-gpu/",
        ),
        subject=old[0].address if old else "",
        evidence=(*log_lines[:MAX_LOG_LINES], *(f"{gpu.address} has device id {gpu.device_id}" for gpu in old)),
        confidence=Confidence.CERTAIN if log_lines else Confidence.LIKELY,
    )


def _is_too_old(gpu: PciGpu, release: Release | None, driver: Driver) -> bool:
    if release is None or _parse_device_id(gpu) >= FIRST_TURING_DEVICE_ID.value:
        return False
    if driver.is_open is True or release.major > LAST_BRANCH_BEFORE_TURING.value:
        return True
    return _parse_device_id(gpu) < FIRST_MAXWELL_DEVICE_ID.value and release.major > LAST_BRANCH_OF_KEPLER.value


def _parse_device_id(gpu: PciGpu) -> int:
    try:
        return int(gpu.device_id, 16)
    except ValueError:
        return FIRST_TURING_DEVICE_ID.value
