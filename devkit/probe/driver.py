"""The NVIDIA kernel driver, read from the kernel's own files; NVML is asked elsewhere."""

import re

from devkit.facts.model import Driver
from devkit.facts.values import Release, Unknown
from devkit.probe.driver_install import with_installation
from devkit.probe.fabric import fabric_manager_state
from devkit.probe.host import NOT_FOUND, Host
from devkit.probe.pci import read_pci
from devkit.probe.programs import find_libraries, library_release, loader_cache
from devkit.probe.system import kernel_and_machine

MODULE_ON_DISK = ("modinfo", "-F", "version", "nvidia")
DKMS = ("dkms", "status")

SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
PACKAGE_LOGS = ("/var/log/dpkg.log", "/var/log/dnf.rpm.log", "/var/log/zypp/history", "/var/log/pacman.log")
UPGRADES_KEPT = 5

_DRIVER_PACKAGE = re.compile(
    r"nvidia-(?:driver|dkms|utils|kernel|open|compute|firmware|settings|modprobe|x11)|libnvidia-(?!container)|libcuda1"
    r"|cuda-drivers|kmod-nvidia|linux-modules-nvidia|xorg-x11-drv-nvidia"
)
_CHANGE = re.compile(r" (?:upgrade|install) |Upgraded?:|Installed?:|\|install\||\[ALPM\] (?:upgraded|installed)")


def read_driver(host: Host) -> Driver:
    """The kernel module, its libraries and device nodes, and the GPUs on the PCI bus."""
    kernel, _ = kernel_and_machine(host)
    cache = loader_cache(host)
    cuda_paths = find_libraries(host, "libcuda.so.1", cache)
    ml_paths = find_libraries(host, "libnvidia-ml.so.1", cache)
    loaded, is_open = _loaded(host)
    pci_gpus, nvswitch = read_pci(host)
    driver = Driver(
        loaded=loaded,
        is_open=is_open,
        on_disk=_on_disk(host),
        dkms_state=_dkms_state(host, kernel),
        libnvidia_ml=library_release(host, ml_paths[0]) if ml_paths else None,
        libcuda=library_release(host, cuda_paths[0]) if cuda_paths else None,
        libcuda_paths=cuda_paths,
        device_nodes=_device_nodes(host),
        nvidiactl=_nvidiactl(host),
        pci_gpus=pci_gpus,
        nvswitch_present=nvswitch,
        fabric_manager=fabric_manager_state(host, nvswitch),
        headers_present=host.stat(f"/lib/modules/{kernel}/build") is not None if kernel else Unknown("no kernel name"),
        secure_boot=_secure_boot(host),
        upgraded_packages=_upgraded_packages(host),
    )
    return with_installation(host, driver)


_VERSION = re.compile(r"\b\d{3}\.\d{2,3}(?:\.\d{2,3})?\b")
"""Every driver since 2010: 260.19.06, 580.95.05."""


def _loaded(host: Host) -> tuple[Release | Unknown | None, bool | Unknown]:
    """The loaded module's version and whether it is the open flavour."""
    text = host.read("/proc/driver/nvidia/version")
    version = host.read("/sys/module/nvidia/version")
    if text is None and version is None:
        return None, Unknown("the nvidia module is not loaded")
    is_open: bool | Unknown = "Open Kernel Module" in text if text else Unknown("/proc/driver/nvidia is not visible")
    found = _VERSION.fullmatch((version or "").strip()) or _VERSION.search(text or "")
    if found is None:
        return Unknown("the loaded module does not say its version"), is_open
    return Release.read(found[0]), is_open


def _on_disk(host: Host) -> Release | Unknown | None:
    done = host.run(MODULE_ON_DISK)
    if done.code == 0:
        found = _VERSION.fullmatch(done.out.strip())
        return Release.read(found[0]) if found else Unknown("modinfo printed no version")
    is_absent = done.code != NOT_FOUND and "not found" in done.err
    return None if is_absent else Unknown("modinfo is missing or did not answer")


def _dkms_state(host: Host, kernel: str) -> str | Unknown:
    """The state of the nvidia module for the running kernel, out of lines like
    `nvidia/580.95.05, 6.8.0-45-generic, x86_64: installed`; "added" carries no kernel."""
    if not any(name.startswith("nvidia") for name in host.list("/var/lib/dkms")):
        return ""
    done = host.run(DKMS)
    if done.code != 0:
        return Unknown("dkms is missing or did not answer")
    states = [
        state.strip().split(" ", 1)[0]
        for module, _, state in (line.rpartition(":") for line in done.out.splitlines())
        if module.startswith("nvidia") and (kernel in module or state.strip() == "added")
    ]
    return states[0] if states else ""


def _device_nodes(host: Host) -> tuple[str, ...]:
    names = [f"/dev/{name}" for name in host.list("/dev") if name.startswith("nvidia")]
    return tuple(name for name in names if (found := host.stat(name)) is not None and found.kind == "character")


def _nvidiactl(host: Host) -> str:
    outcome = host.open_error("/dev/nvidiactl")
    return "absent" if outcome == "ENOENT" else outcome


def _secure_boot(host: Host) -> bool | Unknown:
    if host.stat("/sys/firmware") is None:
        return Unknown("/sys/firmware is not visible here")
    if host.stat("/sys/firmware/efi") is None:
        return False
    text = host.read(SECURE_BOOT)
    # Four bytes of attributes, then the value.
    return text[4] == "\x01" if text and len(text) > 4 else Unknown("the SecureBoot variable cannot be read")


def _upgraded_packages(host: Host) -> tuple[str, ...]:
    """The last log lines that installed or upgraded a package of the driver, newest last."""
    found: list[str] = []
    for log in PACKAGE_LOGS:
        lines = (host.read(log) or "").splitlines()
        found += [line.strip() for line in lines if _DRIVER_PACKAGE.search(line) and _CHANGE.search(line)]
    return tuple(found[-UPGRADES_KEPT:])
