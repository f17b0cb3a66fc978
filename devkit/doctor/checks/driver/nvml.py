"""What each way of NVML's failing means, and what repairs it."""

from collections.abc import Callable, Mapping
from typing import assert_never

from devkit.doctor.fixes import (
    TOOLKIT_TROUBLESHOOTING,
    WSL_GUIDE,
    DistroFamily,
    find_distro_family,
    find_driver_side,
    find_host_side,
)
from devkit.doctor.model import Confidence, Finding, Fix, Restart, Severity, Side
from devkit.doctor.preconditions import is_in_container, is_in_wsl
from devkit.facts.model import Engine, Facts, NvmlEnd, NvmlFailure

_READ_KERNEL_LOG = "journalctl -k -b | grep -iE 'nvrm|xid'"

_LIBRARY_PACKAGE: Mapping[DistroFamily, str] = {
    DistroFamily.UBUNTU: "sudo apt-get install --fix-broken && sudo ubuntu-drivers install",
    DistroFamily.DEBIAN: "sudo apt-get install -y libnvidia-ml1",
    DistroFamily.FEDORA: "sudo dnf install -y xorg-x11-drv-nvidia-cuda-libs",
    DistroFamily.RHEL: "sudo dnf install -y nvidia-driver-cuda-libs",
    DistroFamily.SUSE: "sudo zypper install -y nvidia-compute-utils-G06",
    DistroFamily.ARCH: "sudo pacman -S --needed nvidia-utils",
}


def explain_nvml_failure(facts: Facts, failure: NvmlFailure) -> Finding:
    """The finding for an NVML session that gave no answer."""
    message, fix, confidence = _explained(facts, failure)
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


_Explanation = tuple[str, Fix, Confidence]


def _explained(facts: Facts, failure: NvmlFailure) -> _Explanation:
    match failure.end:
        case NvmlEnd.TIMED_OUT:
            return _hangs(facts, failure)
        case NvmlEnd.CRASHED:
            return _crashes(facts, failure)
        case NvmlEnd.LIBRARY_NOT_FOUND:
            return _no_library(facts, failure)
        case NvmlEnd.ERROR:
            return _BY_CODE.get(failure.code, _other)(facts, failure)
        case _ as never:
            assert_never(never)


def _restart_machine(facts: Facts, summary: str) -> Fix:
    if find_driver_side(facts) is Side.WINDOWS:
        return Fix(
            f"{summary} Restart WSL, then Windows if that does not help.",
            ("wsl.exe --shutdown",),
            where=Side.WINDOWS,
            restart=Restart.WSL,
        )
    return Fix(f"{summary} Then reboot the host.", (_READ_KERNEL_LOG, "sudo reboot"), root=True, restart=Restart.HOST)


def _hangs(facts: Facts, failure: NvmlFailure) -> _Explanation:
    return (
        f"the driver hangs: {failure.call} did not return before the deadline",
        _restart_machine(
            facts, "Read the kernel log for an Xid, which names the fault; the processes cannot be killed."
        ),
        Confidence.CERTAIN,
    )


def _crashes(facts: Facts, failure: NvmlFailure) -> _Explanation:
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


def _no_library(facts: Facts, failure: NvmlFailure) -> _Explanation:
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
    package = _LIBRARY_PACKAGE.get(find_distro_family(facts))
    return (
        "the kernel driver is there, but libnvidia-ml.so.1 is not installed",
        Fix(
            "Install the driver's libraries in exactly the version of the kernel module.",
            (package,) if package and find_driver_side(facts) is Side.HOST else (),
            where=find_driver_side(facts),
            root=find_driver_side(facts) is Side.HOST,
        ),
        Confidence.CERTAIN,
    )


def _not_loaded(facts: Facts, failure: NvmlFailure) -> _Explanation:
    if find_driver_side(facts) is Side.WINDOWS:
        return (
            "NVML reaches no driver: the one on Windows is missing, broken or too old for WSL",
            _windows_driver(),
            Confidence.LIKELY,
        )
    return (
        "NVML says that the driver is not loaded",
        Fix("Load the driver on the host, and read what it says if it refuses.", ("sudo modprobe nvidia",), root=True),
        Confidence.CERTAIN,
    )


def _mismatch(facts: Facts, failure: NvmlFailure) -> _Explanation:
    return (
        "NVML is of another version than the loaded driver",
        _restart_machine(facts, "The new libraries need the new module."),
        Confidence.CERTAIN,
    )


def _forbidden(facts: Facts, failure: NvmlFailure) -> _Explanation:
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


def _blocked(facts: Facts, failure: NvmlFailure) -> _Explanation:
    return (
        "Windows blocks the GPU for WSL",
        _windows_driver(),
        Confidence.LIKELY,
    )


def _windows_driver() -> Fix:
    return Fix(
        "Update WSL and the NVIDIA driver on Windows, then restart WSL. A data centre GPU must be in WDDM mode.",
        ("wsl.exe --update", "wsl.exe --shutdown"),
        where=Side.WINDOWS,
        restart=Restart.WSL,
        docs=WSL_GUIDE,
    )


def _lost(facts: Facts, failure: NvmlFailure) -> _Explanation:
    return (
        "a GPU is lost: it has fallen off the PCI bus, and NVML does not start without it",
        _restart_machine(facts, "Power off rather than reboot if it comes back dead; check power and the slot."),
        Confidence.CERTAIN,
    )


def _unknown(facts: Facts, failure: NvmlFailure) -> _Explanation:
    if is_in_container(facts):
        return (
            "NVML fails with Unknown Error: this container has most likely lost its GPU",
            Fix(
                "Recreate the container. If the host's own nvidia-smi fails too, reboot the host.",
                ("nvidia-smi",),
                docs=TOOLKIT_TROUBLESHOOTING,
            ),
            Confidence.LIKELY,
        )
    return (
        "NVML fails with Unknown Error: a GPU or the driver is in a bad state",
        _restart_machine(facts, "Read the kernel log for an Xid."),
        Confidence.LIKELY,
    )


def _other(facts: Facts, failure: NvmlFailure) -> _Explanation:
    return (
        f"NVML does not start: {failure.message or f'return value {failure.code}'}",
        _restart_machine(facts, "Read the kernel log."),
        Confidence.POSSIBLE,
    )


_BY_CODE: Mapping[int, Callable[[Facts, NvmlFailure], _Explanation]] = {
    4: _forbidden,
    9: _not_loaded,
    12: _no_library,
    15: _lost,
    17: _blocked,
    18: _mismatch,
    999: _unknown,
}
"""By NVML return value. Source: NVIDIA, NVML API reference, nvmlReturn_t."""
