"""Checks that NVML answers, and that its libraries match the loaded kernel module."""

from collections.abc import Iterator
from typing import assert_never

from devkit.doctor.checks.cascades import (
    CDI_CODES,
    CUDA_CODES,
    GPU_USE_CODES,
    NEEDS_DRIVER_CODES,
    PYTHON_CODES,
    TOOLKIT_CODES,
)
from devkit.doctor.fixes import TOOLKIT_TROUBLESHOOTING, WSL_GUIDE, find_driver_side, find_host_side, list_commands
from devkit.doctor.gpus import DAY_S, compute_seconds_between
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.doctor.preconditions import (
    is_in_container,
    is_in_wsl,
    require_loaded_driver,
    require_nvidia_gpu,
    require_visible_gpu,
)
from devkit.facts.model import Driver, Engine, Facts, NvmlEnd, NvmlFailure
from devkit.facts.values import Release, Unknown

_NVML_MISMATCH = 18

_READ_KERNEL_LOG = "journalctl -k -b | grep -iE 'nvrm|xid'"

_Explanation = tuple[str, Fix, Confidence]


@check("DRV002", causes=NEEDS_DRIVER_CODES)
def libraries_match_module(facts: Facts) -> Iterator[Finding]:
    require_nvidia_gpu(facts)
    nvml_says_so = isinstance(facts.nvml, NvmlFailure) and facts.nvml.code == _NVML_MISMATCH
    driver = None if is_in_wsl(facts) or isinstance(facts.driver, Unknown) else facts.driver
    if driver is None and not nvml_says_so:
        raise NotApplicable("in WSL the driver belongs to Windows")
    versions: tuple[Release, Release] | None = None
    if driver is not None and isinstance(driver.loaded, Release) and isinstance(driver.libnvidia_ml, Release):
        versions = driver.loaded, driver.libnvidia_ml
    if not nvml_says_so:
        require_loaded_driver(facts)
        if versions is None:
            raise NotApplicable("the version of libnvidia-ml.so.1 is not known")
        if versions[0] == versions[1]:
            return
    evidence = []
    if versions is not None:
        evidence += [f"/sys/module/nvidia/version: {versions[0]}", f"libnvidia-ml.so.{versions[1]}"]
    if isinstance(facts.nvml, NvmlFailure) and facts.nvml.code == _NVML_MISMATCH:
        evidence.append(f"{facts.nvml.call} returned {facts.nvml.code}: {facts.nvml.message}")
    if driver is not None and driver.upgraded_packages:
        evidence.append(f"package log: {driver.upgraded_packages[-1]}")
    yield Finding(
        Severity.ERROR,
        f"the loaded NVIDIA module is {versions[0]}, but its libraries are {versions[1]}"
        if versions
        else "the NVIDIA libraries are of another version than the loaded kernel module",
        _mismatch_fix(facts, driver),
        evidence=tuple(evidence),
    )


def _mismatch_fix(facts: Facts, driver: Driver | None) -> Fix:
    if is_in_container(facts):
        return Fix(
            "If the host's own nvidia-smi works, recreate this container: it still holds the libraries of the driver"
            " before the upgrade, or its image carries some. If it fails there too, reboot the host.",
            where=Side.HOST,
        )
    if find_driver_side(facts) is Side.WINDOWS:
        return Fix(
            "Restart WSL, so that the guest gets the libraries of the driver that Windows runs now.",
            ("wsl.exe --shutdown",),
            where=Side.WINDOWS,
            restart=Restart.WSL,
        )
    rebuild = list_commands(facts, "rebuild_initramfs")
    if driver is not None and rebuild and _is_rebooted_since_upgrade(driver):
        return Fix(
            "The machine has been rebooted since the upgrade, so the initial RAM disk still holds the old module. Rebuild"
            " it, and reboot.",
            (*rebuild, "sudo reboot"),
            root=True,
            restart=Restart.HOST,
        )
    return Fix(
        "Reboot the host, so that the new module is loaded. Reinstalling packages does not help."
        " To keep it from coming back, exclude driver packages from automatic upgrades.",
        ("sudo reboot", *list_commands(facts, "hold_driver")),
        root=True,
        restart=Restart.HOST,
    )


def _is_rebooted_since_upgrade(driver: Driver) -> bool:
    """Say if the machine started on a later day than the last upgrade: logs are in local time, so a day is certain."""
    if isinstance(driver.booted_at, Unknown) or not driver.upgraded_packages:
        return False
    running_s = compute_seconds_between(driver.upgraded_packages[-1], driver.booted_at)
    return running_s is not None and running_s > DAY_S


@check("DRV003", causes=(*GPU_USE_CODES, *TOOLKIT_CODES, *CDI_CODES, *CUDA_CODES, "CON005", *PYTHON_CODES))
def nvml_answers(facts: Facts) -> Iterator[Finding]:
    require_visible_gpu(facts)
    if isinstance(facts.nvml, Unknown):
        raise NotApplicable(facts.nvml.reason, is_lost=facts.nvml.is_lost)
    if isinstance(facts.nvml, NvmlFailure):
        yield explain_nvml_failure(facts, facts.nvml)


def explain_nvml_failure(facts: Facts, failure: NvmlFailure) -> Finding:
    """Explain an NVML session that gave no answer."""
    message, fix, confidence = _explain(facts, failure)
    evidence = f"{failure.call} ended with {failure.end.value}"
    if failure.code:
        evidence = f"{failure.call} returned {failure.code}"
    if failure.end is NvmlEnd.CRASHED:
        evidence = f"{failure.call} ended with signal {failure.code}"
    return Finding(
        Severity.ERROR,
        message,
        fix,
        evidence=(f"{evidence}: {failure.message}" if failure.message else evidence,),
        confidence=confidence,
    )


def _explain(facts: Facts, failure: NvmlFailure) -> _Explanation:
    match failure.end:
        case NvmlEnd.TIMED_OUT:
            return (
                f"the driver hangs: {failure.call} did not return before the deadline",
                _restart_fix(
                    facts, "Read the kernel log for an Xid, which names the fault; the processes cannot be killed."
                ),
                Confidence.CERTAIN,
            )
        case NvmlEnd.CRASHED:
            side = Side.CONTAINER if is_in_container(facts) else find_driver_side(facts)
            return (
                f"libnvidia-ml crashes in {failure.call} (signal {failure.code}): the library is damaged or of a wrong version",
                Fix(
                    "Reinstall the driver's libraries in the version of the kernel module; inside a container, remove the copy"
                    " that the image carries, so that the host's is used.",
                    ("ldconfig -p | grep libnvidia-ml", "cat /sys/module/nvidia/version"),
                    where=side,
                ),
                Confidence.LIKELY,
            )
        case NvmlEnd.LIBRARY_NOT_FOUND:
            return _explain_missing_library(facts)
        case NvmlEnd.ERROR:
            return _explain_code(facts, failure)
        case _ as never:
            assert_never(never)


def _explain_code(facts: Facts, failure: NvmlFailure) -> _Explanation:
    """Explain an NVML return value. Source: NVIDIA, NVML API reference, nvmlReturn_t."""
    match failure.code:
        case 4:
            return _explain_no_permission(facts)
        case 9:
            if find_driver_side(facts) is Side.WINDOWS:
                message = "NVML reaches no driver: the one on Windows is missing, broken or too old for WSL"
                return message, _windows_driver_fix(), Confidence.LIKELY
            advice = "Load the driver on the host, and read what it says if it refuses."
            fix = Fix(advice, ("sudo modprobe nvidia",), root=True)
            return "NVML says that the driver is not loaded", fix, Confidence.CERTAIN
        case 12:
            return _explain_missing_library(facts)
        case 15:
            message = "a GPU is lost: it has fallen off the PCI bus, and NVML does not start without it"
            advice = "Power off rather than reboot if it comes back dead; check power and the slot."
            return message, _restart_fix(facts, advice), Confidence.CERTAIN
        case 17:
            return "Windows blocks the GPU for WSL", _windows_driver_fix(), Confidence.LIKELY
        case 18:
            message = "NVML is of another version than the loaded driver"
            return message, _restart_fix(facts, "The new libraries need the new module."), Confidence.CERTAIN
        case 999:
            if is_in_container(facts):
                message = "NVML fails with Unknown Error: this container has most likely lost its GPU"
                advice = "Recreate the container. If the host's own nvidia-smi fails too, reboot the host."
                return message, Fix(advice, ("nvidia-smi",), docs=TOOLKIT_TROUBLESHOOTING), Confidence.LIKELY
            message = "NVML fails with Unknown Error: a GPU or the driver is in a bad state"
            return message, _restart_fix(facts, "Read the kernel log for an Xid."), Confidence.LIKELY
        case _:
            message = f"NVML does not start: {failure.message or f'return value {failure.code}'}"
            return message, _restart_fix(facts, "Read the kernel log."), Confidence.POSSIBLE


def _restart_fix(facts: Facts, summary: str) -> Fix:
    if find_driver_side(facts) is Side.WINDOWS:
        return Fix(
            f"{summary} Restart WSL, then Windows if that does not help.",
            ("wsl.exe --shutdown",),
            where=Side.WINDOWS,
            restart=Restart.WSL,
        )
    return Fix(f"{summary} Then reboot the host.", (_READ_KERNEL_LOG, "sudo reboot"), root=True, restart=Restart.HOST)


def _explain_missing_library(facts: Facts) -> _Explanation:
    if is_in_container(facts):
        return (
            "libnvidia-ml.so.1 was not given to this container",
            Fix(
                "Start the container with the driver capability utility; compute alone leaves NVML out.",
                ("NVIDIA_DRIVER_CAPABILITIES=compute,utility",),
                where=Side.PROJECT,
            ),
            Confidence.LIKELY,
        )
    return (
        "the kernel driver is there, but libnvidia-ml.so.1 is not installed",
        Fix(
            "Install the driver's libraries in exactly the version of the kernel module.",
            list_commands(facts, "install_libnvidia_ml") if find_driver_side(facts) is Side.HOST else (),
            where=find_driver_side(facts),
            root=find_driver_side(facts) is Side.HOST,
        ),
        Confidence.CERTAIN,
    )


def _explain_no_permission(facts: Facts) -> _Explanation:
    has_selinux = isinstance(facts.engine, Engine) and facts.engine.has_selinux
    if is_in_container(facts):
        return (
            "this container may not use the GPU: the device nodes are there, but access is refused",
            Fix(
                "On the host, look for SELinux, no-cgroups = true in the toolkit's config.toml, or a rootless engine."
                " With SELinux, start the container with the option below.",
                ("--security-opt=label=disable",),
                docs=TOOLKIT_TROUBLESHOOTING,
            ),
            Confidence.LIKELY,
        )
    return (
        "this user may not use the GPU",
        Fix(
            "Let the user open the device nodes; a module option NVreg_DeviceFileMode may have closed them."
            + (" SELinux is on: `ausearch -m avc -ts recent` shows what it refused." if has_selinux else ""),
            ("ls -l /dev/dxg" if is_in_wsl(facts) else "ls -l /dev/nvidia*",),
            where=find_host_side(facts),
            root=True,
        ),
        Confidence.LIKELY,
    )


def _windows_driver_fix() -> Fix:
    return Fix(
        "Update WSL and the NVIDIA driver on Windows, then restart WSL. A data center GPU must be in WDDM mode.",
        ("wsl.exe --update", "wsl.exe --shutdown"),
        where=Side.WINDOWS,
        restart=Restart.WSL,
        docs=WSL_GUIDE,
    )
