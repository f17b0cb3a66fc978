"""Why the NVIDIA module is not loaded: each cause with its own evidence and repair."""

from devkit.doctor.applies import NVML_DRIVER_NOT_LOADED, is_in_container, is_in_wsl
from devkit.doctor.gpus import driver_lines
from devkit.doctor.machine import (
    DRIVER_GUIDE,
    INSTALL_DRIVER,
    INSTALL_HEADERS,
    REBUILD_INITRAMFS,
    Family,
    family_of,
)
from devkit.doctor.model import Confidence, Finding, Fix, Restart, Severity, Side
from devkit.facts.model import Driver, Facts, NvmlFailure, PciGpu, System
from devkit.facts.values import Release, Unknown

LINES_SHOWN = 3

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


def driver_without_gpu(facts: Facts) -> Finding | None:
    """NVML asks for a driver although no GPU is on the bus: leftover packages, or a GPU that is not seen at all."""
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


def why_not_loaded(facts: Facts, driver: Driver, gpus: tuple[PciGpu, ...]) -> Finding:
    """The finding for the likeliest cause on this machine. `gpus` are those on the PCI bus, at least one."""
    owners = {gpu.kernel_driver for gpu in gpus}
    if is_in_container(facts):
        return _seen_from_container(gpus)
    if owners == {"vfio-pci"}:
        return _passed_through(gpus)
    if isinstance(driver.on_disk, Release):
        return _present_but_not_loaded(facts, driver, gpus, driver.on_disk)
    if driver.dkms_state in _UNFINISHED or isinstance(driver.libnvidia_ml, Release):
        return _not_built(facts, driver, gpus)
    return _not_installed(facts, gpus)


def _functions(gpus: tuple[PciGpu, ...]) -> tuple[str, ...]:
    return tuple(f"PCI {gpu.address} ({gpu.device_id}): kernel driver {gpu.kernel_driver or 'none'}" for gpu in gpus)


def _seen_from_container(gpus: tuple[PciGpu, ...]) -> Finding:
    return Finding(
        Severity.ERROR,
        "the host has an NVIDIA GPU, but its kernel driver is not loaded",
        Fix("Run devkit doctor on the host: only there can the cause be seen and repaired.", ("devkit doctor",)),
        evidence=(*_functions(gpus), "/sys/module/nvidia is absent"),
    )


def _passed_through(gpus: tuple[PciGpu, ...]) -> Finding:
    return Finding(
        Severity.ERROR,
        "vfio-pci holds the GPU for a virtual machine, so the NVIDIA driver cannot",
        Fix(
            "If that is intended, run devkit inside the virtual machine. If not, remove vfio-pci.ids= from the kernel"
            " command line, or the override, and reboot.",
            (f"sudo driverctl unset-override {gpus[0].address}",),
            root=True,
            restart=Restart.HOST,
        ),
        subject=gpus[0].address,
        evidence=_functions(gpus),
    )


def _present_but_not_loaded(facts: Facts, driver: Driver, gpus: tuple[PciGpu, ...], release: Release) -> Finding:
    evidence = (*_functions(gpus), f"module for this kernel on disk: {release}")
    if any(gpu.kernel_driver == "nouveau" for gpu in gpus):
        return Finding(
            Severity.ERROR,
            f"the driver nouveau holds the GPU, so the installed NVIDIA module {release} cannot load",
            _disable_nouveau(facts),
            evidence=evidence,
        )
    refused = driver_lines(facts, *_REFUSED)
    if refused or (driver.secure_boot is True and not _signature_is_trusted(driver)):
        return _signature_refused(facts, driver, release, (*evidence, *refused[:LINES_SHOWN]))
    return Finding(
        Severity.ERROR,
        f"the NVIDIA module {release} is installed for this kernel but not loaded",
        Fix(
            "Load it, and read what it says if it refuses.",
            ("sudo modprobe nvidia", "journalctl -k -b | grep NVRM"),
            root=True,
        ),
        evidence=(*evidence, *driver_lines(facts, *_UNFIT)[:LINES_SHOWN]),
    )


def _signature_is_trusted(driver: Driver) -> bool:
    """Whether the key is enrolled, or one that the distribution's own kernel carries."""
    signer = driver.module_signer
    by_vendor = isinstance(signer, str) and signer.startswith(_VENDOR_SIGNERS)
    return driver.signer_is_enrolled is True or by_vendor


def _signature_refused(facts: Facts, driver: Driver, release: Release, evidence: tuple[str, ...]) -> Finding:
    signer = driver.module_signer
    is_certain = driver.signer_is_enrolled is False or signer == "" or any("rejected" in line for line in evidence)
    why = "its key is not enrolled" if is_certain else "its key is most likely not enrolled"
    readings = [f"Secure Boot: {'on' if driver.secure_boot is True else 'not known to be on'}"]
    if isinstance(signer, str):
        readings.append(f"signed by {signer or 'nobody'}")
        why = why if signer else "nobody has signed it"
    return Finding(
        Severity.ERROR,
        f"Secure Boot is on and the NVIDIA module {release} is not loaded: {why}"
        if driver.secure_boot is True
        else f"this kernel refuses the NVIDIA module {release}: {why}",
        _enroll_key(facts),
        evidence=(*evidence, *readings),
        confidence=Confidence.CERTAIN if is_certain else Confidence.LIKELY,
    )


def _disable_nouveau(facts: Facts) -> Fix:
    if family_of(facts) is Family.NIXOS:
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
    rebuild = REBUILD_INITRAMFS.get(family_of(facts))
    return Fix(
        "Blacklist nouveau, rebuild the initial RAM disk, and reboot.",
        (
            r"printf 'blacklist nouveau\noptions nouveau modeset=0\n'"
            " | sudo tee /etc/modprobe.d/blacklist-nouveau.conf",
            *((rebuild,) if rebuild else ()),
            "sudo reboot",
        ),
        root=True,
        restart=Restart.HOST,
    )


def _enroll_key(facts: Facts) -> Fix:
    keys = {
        Family.UBUNTU: "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der",
        Family.DEBIAN: "sudo mokutil --import /var/lib/dkms/mok.pub",
        Family.FEDORA: "sudo kmodgenca -a && sudo mokutil --import /etc/pki/akmods/certs/public_key.der",
        Family.RHEL: "sudo mokutil --import /var/lib/dkms/mok.pub",
        Family.SUSE: "sudo mokutil --import /usr/share/nvidia-pubkeys/*.der",
    }
    key = keys.get(family_of(facts))
    return Fix(
        "Enroll the key that signed the module: import it, reboot, and choose Enroll MOK on the blue screen. Or turn"
        " Secure Boot off in the firmware.",
        ((key, "sudo reboot") if key else ("sudo modprobe nvidia",)),
        root=True,
        restart=Restart.HOST,
    )


def _not_built(facts: Facts, driver: Driver, gpus: tuple[PciGpu, ...]) -> Finding:
    kernel = facts.system.kernel if isinstance(facts.system, System) else "the running kernel"
    evidence = [*_functions(gpus), f"no nvidia module for {kernel}"]
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
                (*INSTALL_HEADERS.get(family_of(facts), ("sudo dkms autoinstall",)), "sudo modprobe nvidia"),
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


def _not_installed(facts: Facts, gpus: tuple[PciGpu, ...]) -> Finding:
    install = INSTALL_DRIVER.get(family_of(facts), ())
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
        evidence=(*_functions(gpus), "no nvidia module for this kernel", "no libnvidia-ml.so.1"),
    )
