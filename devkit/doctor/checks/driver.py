"""Checks of the driver: loaded, of one version, answering, of the right flavour, with its device nodes."""

from collections.abc import Iterator

from devkit.doctor.applies import (
    a_gpu_in_this_container,
    an_nvidia_gpu,
    driver_of,
    is_in_container,
    is_in_wsl,
    known,
    loaded_driver,
)
from devkit.doctor.checks.chains import CDI, CUDA, GPU_USE, PYTHON, TOOLKIT, WITHOUT_DRIVER
from devkit.doctor.checks.driver_absent import driver_without_gpu, why_not_loaded
from devkit.doctor.checks.nvml_failure import explain_failure
from devkit.doctor.machine import REBUILD_INITRAMFS, Family, driver_side, family_of
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.doctor.moments import DAY_S, seconds_between
from devkit.facts.model import Driver, Facts, NvmlFailure
from devkit.facts.values import Release, Unknown

NVML_MISMATCH = 18


@check(
    "DRV001",
    "The NVIDIA kernel driver is loaded",
    covers=("A02", "A03", "A04", "A05", "A06", "A07", "A08"),
    symptoms=(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
        "nvml error: driver not loaded",
        "Key was rejected by service",
        "Required key not available",
        "Bad return status for module build on kernel",
        "kernel-headers package not installed",
        "libnvidia-ml.so.1: cannot open shared object file",
        "nouveau",
        "vfio-pci",
        "dkms",
    ),
    causes=WITHOUT_DRIVER,
)
def driver_loaded(facts: Facts) -> Iterator[Finding]:
    """The kernel module of the NVIDIA driver is loaded. If not, the finding says which of its causes it is.

    Why it matters: without the module no program, inside or outside of a container, reaches the GPU.
    How it is seen: /sys/module/nvidia against NVIDIA functions on the PCI bus; then the driver that owns them, the
    module on disk for this kernel and who signed it, DKMS and its log, kernel headers, Secure Boot and the kernel log
    tell the cause.
    Source: NVIDIA/nvidia-docker issue 1393; NVIDIA, driver installation guide, "Troubleshooting".
    """
    if finding := driver_without_gpu(facts):
        yield finding
        return
    driver = driver_of(facts)
    if known(driver.loaded) is None:
        if isinstance(driver.pci_gpus, Unknown) or not driver.pci_gpus:
            raise NotApplicable("NVML answers for a GPU that is not on this PCI bus")
        yield why_not_loaded(facts, driver, driver.pci_gpus)


@check(
    "DRV002",
    "Driver libraries match the loaded kernel module",
    covers=("A01",),
    symptoms=("Failed to initialize NVML: Driver/library version mismatch",),
    causes=WITHOUT_DRIVER,
)
def libraries_match_module(facts: Facts) -> Iterator[Finding]:
    """libnvidia-ml on disk has the version of the kernel module in memory.

    Why it matters: a package upgrade replaces the libraries while the old module stays loaded, and from then on
    every GPU program fails with "Driver/library version mismatch". Reinstalling does not help; a reboot does.
    How it is seen: /sys/module/nvidia/version, the version in the file name of libnvidia-ml.so.1, NVML's return
    value 18, and the line of the package log that names the upgrade.
    Source: NVIDIA/nvidia-container-toolkit issue 394; NVIDIA, NVML API reference, nvmlReturn_t.
    """
    an_nvidia_gpu(facts)
    nvml_says_so = isinstance(facts.nvml, NvmlFailure) and facts.nvml.code == NVML_MISMATCH
    driver = None if is_in_wsl(facts) or isinstance(facts.driver, Unknown) else facts.driver
    if driver is None and not nvml_says_so:
        raise NotApplicable("in WSL the driver belongs to Windows")
    versions = _versions(driver)
    if not nvml_says_so:
        loaded_driver(facts)
        if versions is None:
            raise NotApplicable("the version of libnvidia-ml.so.1 is not known")
        if versions[0] == versions[1]:
            return
    yield Finding(
        Severity.ERROR,
        f"the loaded NVIDIA module is {versions[0]}, but its libraries are {versions[1]}"
        if versions
        else "the NVIDIA libraries are of another version than the loaded kernel module",
        _mismatch_fix(facts, driver),
        evidence=_mismatch_evidence(facts, driver, versions),
    )


def _versions(driver: Driver | None) -> tuple[Release, Release] | None:
    """Module and library version, where both are known."""
    if driver is None or not isinstance(driver.loaded, Release) or not isinstance(driver.libnvidia_ml, Release):
        return None
    return driver.loaded, driver.libnvidia_ml


def _mismatch_evidence(
    facts: Facts, driver: Driver | None, versions: tuple[Release, Release] | None
) -> tuple[str, ...]:
    evidence = []
    if versions is not None:
        evidence += [f"/sys/module/nvidia/version: {versions[0]}", f"libnvidia-ml.so.{versions[1]}"]
    if isinstance(facts.nvml, NvmlFailure) and facts.nvml.code == NVML_MISMATCH:
        evidence.append(f"{facts.nvml.call} returned {facts.nvml.code}: {facts.nvml.message}")
    if driver is not None and driver.upgraded_packages:
        evidence.append(f"package log: {driver.upgraded_packages[-1]}")
    return tuple(evidence)


def _mismatch_fix(facts: Facts, driver: Driver | None) -> Fix:
    if is_in_container(facts):
        return Fix(
            "If the host's own nvidia-smi works, recreate this container: it still holds the libraries of the driver"
            " before the upgrade, or its image carries some. If it fails there too, reboot the host.",
            where=Side.HOST,
        )
    if driver_side(facts) is Side.WINDOWS:
        return Fix(
            "Restart WSL, so that the guest gets the libraries of the driver that Windows runs now.",
            ("wsl.exe --shutdown",),
            where=Side.WINDOWS,
            restart=Restart.WSL,
        )
    rebuild = REBUILD_INITRAMFS.get(family_of(facts))
    if driver is not None and rebuild and _rebooted_since(driver):
        return Fix(
            "The machine has been rebooted since the upgrade, so the initial RAM disk still holds the old module. Write"
            " it anew, and reboot.",
            (rebuild, "sudo reboot"),
            root=True,
            restart=Restart.HOST,
        )
    return Fix(
        "Reboot the host, so that the new module is loaded. Reinstalling packages does not help."
        " To keep it from coming back, exclude driver packages from automatic upgrades.",
        ("sudo reboot", *_hold_driver(facts)),
        root=True,
        restart=Restart.HOST,
    )


def _rebooted_since(driver: Driver) -> bool:
    """Whether the machine started on a later day than the last upgrade: logs are in local time, so a day is certain."""
    if isinstance(driver.booted_at, Unknown) or not driver.upgraded_packages:
        return False
    running_s = seconds_between(driver.upgraded_packages[-1], driver.booted_at)
    return running_s is not None and running_s > DAY_S


def _hold_driver(facts: Facts) -> tuple[str, ...]:
    match family_of(facts):
        case Family.UBUNTU | Family.DEBIAN:
            return ("sudo apt-mark hold 'nvidia-driver-*' 'libnvidia-compute-*'",)
        case Family.FEDORA | Family.RHEL:
            return ("sudo dnf versionlock add '*nvidia*'",)
        case _:
            return ()


@check(
    "DRV003",
    "NVML answers",
    symptoms=("Failed to initialize NVML", "Unknown Error", "Insufficient Permissions", "nvidia-smi hangs"),
    causes=(*GPU_USE, *TOOLKIT, *CDI, *CUDA, "CON005", *PYTHON),
)
def nvml_answers(facts: Facts) -> Iterator[Finding]:
    """The management library starts and answers within the deadline.

    Why it matters: nvidia-smi, the Container Toolkit and most GPU programs begin with NVML. A call that hangs means
    a driver that waits for hardware which never answers.
    How it is seen: NVML runs in a child process that is killed at the deadline; its return value, signal or silence
    is the reading.
    Source: NVIDIA, NVML API reference, nvmlReturn_t; NVIDIA, XID errors catalogue.
    """
    a_gpu_in_this_container(facts)
    if isinstance(facts.nvml, Unknown):
        raise NotApplicable(facts.nvml.reason)
    if isinstance(facts.nvml, NvmlFailure):
        yield explain_failure(facts, facts.nvml)


@check(
    "DRV005",
    "The unified memory device node exists",
    covers=("A13",),
    symptoms=("/dev/nvidia-uvm", "Could not load UVM kernel module. Is nvidia-modprobe installed?"),
)
def uvm_node_exists(facts: Facts) -> Iterator[Finding]:
    """/dev/nvidia-uvm is there beside the GPU's own device nodes.

    Why it matters: CUDA needs it. Engines that run without root cannot create it, so after a reboot containers fail
    until some privileged program has used the GPU once.
    How it is seen: device nodes under /dev.
    Source: NVIDIA/nvidia-docker issue 396; NVIDIA/enroot issue 106.
    """
    loaded_driver(facts)
    nodes = driver_of(facts).device_nodes
    if not any(node.removeprefix("/dev/nvidia").isdigit() for node in nodes):
        raise NotApplicable("no GPU has a device node here")
    if "/dev/nvidia-uvm" in nodes:
        return
    yield Finding(
        Severity.WARNING,
        "/dev/nvidia-uvm is missing: CUDA fails until a privileged program creates it",
        Fix(
            "Create the node now, and load the module at every boot; then recreate containers that lack it.",
            ("sudo nvidia-modprobe -u -c=0", "echo nvidia_uvm | sudo tee /etc/modules-load.d/nvidia-uvm.conf"),
            root=True,
        ),
        evidence=(f"under /dev: {', '.join(node.removeprefix('/dev/') for node in nodes)}",),
        confidence=Confidence.LIKELY,
    )
