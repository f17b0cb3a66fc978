"""Checks of what GPUs need from a loaded driver: device nodes, GSP firmware, and CUDA after suspend or without NVSwitch."""

from collections.abc import Iterator

from devkit.doctor.checks.cascades import DEEP_CODES, NEEDS_DRIVER_CODES, NVML_CODES
from devkit.doctor.checks.gpu.fabric import has_no_nvswitch
from devkit.doctor.error_codes import CUDA_SYSTEM_NOT_READY
from devkit.doctor.fixes import DRIVER_GUIDE, list_commands
from devkit.doctor.gpus import MAX_LOG_LINES, find_driver_lines, has_fewer_gpus_than_bus, has_missing_gpus
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, check
from devkit.doctor.preconditions import is_in_container, require, require_driver, require_host, require_loaded_driver
from devkit.facts.model import CudaCall, Deep, Driver, Facts, KernelLog
from devkit.facts.values import Unknown
from devkit.text import join_words

_CUDA_ERROR_UNKNOWN = 999

_CUDA_ERROR_NOT_INITIALIZED = 3

_RELOAD = "sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm"

_PRESERVE = "PreserveVideoMemoryAllocations"

FIRMWARE_MISSING_LINES = ("No firmware image found", "failed with error -2")

FIRMWARE_FAILURE_LINES = ("GSP firmware RM", "GFW_BOOT", "WPR2 already up")


def list_missing_nodes(driver: Driver) -> tuple[str, ...]:
    """List the nodes of GPUs that the driver has taken, and that are not under /dev; nodes are numbered from 0."""
    if isinstance(driver.pci_gpus, Unknown):
        return ()
    taken = sum(gpu.kernel_driver == "nvidia" for gpu in driver.pci_gpus)
    there = {node for node in driver.device_nodes if node.removeprefix("/dev/nvidia").isdigit()}
    # Fewer GPUs than nodes is a node left behind; a number that is skipped is another GPU's.
    if len(there) >= taken:
        return ()
    return tuple(f"/dev/nvidia{number}" for number in range(taken) if f"/dev/nvidia{number}" not in there)


@check("DRV005")
def uvm_node_exists(facts: Facts) -> Iterator[Finding]:
    require_loaded_driver(facts)
    nodes = require_driver(facts).device_nodes
    missing = () if is_in_container(facts) else list_missing_nodes(require_driver(facts))
    if missing:
        yield Finding(
            Severity.WARNING,
            f"{join_words(missing)} is missing, although the driver has the GPU: no program can open it"
            if len(missing) == 1
            else f"{join_words(missing)} are missing, although the driver has the GPUs: no program can open them",
            Fix(
                "Create the nodes, and then recreate containers that lack them.",
                tuple(f"sudo nvidia-modprobe -c={path.removeprefix('/dev/nvidia')}" for path in missing),
                root=True,
            ),
            evidence=(f"under /dev: {', '.join(node.removeprefix('/dev/') for node in nodes) or 'none'}",),
            confidence=Confidence.LIKELY,
        )
    if not missing and not any(node.removeprefix("/dev/nvidia").isdigit() for node in nodes):
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


@check("DRV006", causes=NEEDS_DRIVER_CODES)
def device_nodes_are_accessible(facts: Facts) -> Iterator[Finding]:
    driver = require_driver(facts)
    closed = require(driver.closed_nodes)
    if not closed:
        return
    options = tuple(
        line
        for line in (driver.parameters if isinstance(driver.parameters, tuple) else ())
        if line.startswith(("DeviceFile", "ModifyDeviceFiles"))
    )
    yield Finding(
        Severity.ERROR,
        f"this user may not open {join_words(node.partition(':')[0] for node in closed)}: GPU programs fail as if there"
        " were no GPU",
        Fix(
            "Join the group that owns the nodes and log in again, give that group to the container (--group-add), or"
            " take the options NVreg_DeviceFileMode and NVreg_DeviceFileGID out of the module's configuration.",
            ("ls -l /dev/nvidia*", "grep -rn NVreg_DeviceFile /etc/modprobe.d /usr/lib/modprobe.d"),
            root=True,
            restart=Restart.LOGIN,
        ),
        evidence=(*closed, *options),
    )


@check("DRV007", causes=(*NVML_CODES, "GPU002", "GPU005", "GPU006"))
def gsp_starts(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    release = require_loaded_driver(facts)
    driver = require_driver(facts)
    has_lost_gpus = has_fewer_gpus_than_bus(facts)
    unfound = find_driver_lines(facts, *FIRMWARE_MISSING_LINES)
    failing = find_driver_lines(facts, *FIRMWARE_FAILURE_LINES)
    if unfound or (driver.firmware_present is False and driver.is_open is True and has_missing_gpus(facts)):
        install = list_commands(facts, "reinstall_firmware", branch=release.major)
        present = (
            "not known"
            if isinstance(driver.firmware_present, Unknown)
            else "present"
            if driver.firmware_present
            else "no gsp*.bin"
        )
        yield Finding(
            Severity.ERROR if has_lost_gpus else Severity.WARNING,
            f"the GSP firmware of driver {release} was not found, so the GPU does not start",
            Fix(
                f"Install the firmware of exactly {release} again, write it into the initial RAM disk, and reboot.",
                (*install, *list_commands(facts, "rebuild_initramfs"), "sudo reboot"),
                root=True,
                restart=Restart.HOST,
            ),
            evidence=(*unfound[:MAX_LOG_LINES], f"/lib/firmware/nvidia/{release}: {present}"),
            confidence=Confidence.CERTAIN if unfound else Confidence.LIKELY,
        )
    elif failing and has_lost_gpus:
        yield Finding(
            Severity.ERROR,
            "the GPU's own processor (GSP) did not start: the GPU is stuck, or its firmware does not fit the driver",
            Fix(
                "Switch the machine off, take its power away for half a minute, and start it again: a warm reboot"
                " leaves the processor as it is. If that does not help, try another driver branch, then another slot.",
                ("sudo poweroff",),
                root=True,
                restart=Restart.HOST,
                docs=DRIVER_GUIDE,
            ),
            evidence=failing[:MAX_LOG_LINES],
            confidence=Confidence.LIKELY,
        )


def _find_cu_init_code(facts: Facts) -> int | None:
    """What cuInit returned; None where it was not tried."""
    cuda = facts.deep.cuda if isinstance(facts.deep, Deep) else None
    return cuda.code if isinstance(cuda, CudaCall) else None


@check("DRV009", causes=DEEP_CODES)
def cuda_survives_suspend(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    require_loaded_driver(facts)
    driver = require_driver(facts)
    woke = facts.kernel_log.resumed_at if isinstance(facts.kernel_log, KernelLog) else Unknown("not known")
    code = _find_cu_init_code(facts)
    slept = isinstance(woke, str)
    if code is not None and woke is None:
        raise NotApplicable("the machine has not slept since it started")
    if code == _CUDA_ERROR_UNKNOWN:
        yield Finding(
            Severity.ERROR,
            "CUDA ends with error 999 on this host, though NVML is healthy"
            + (f": nvidia_uvm has most likely lost its state when the machine slept (until {woke})" if slept else ""),
            _reload_fix(driver),
            evidence=(f"cuInit returned {code}", f"woke from suspend: {woke if slept else 'not seen'}"),
            confidence=Confidence.LIKELY if slept else Confidence.POSSIBLE,
        )
    elif code is None and slept and f"{_PRESERVE}: 0" in require(driver.parameters):
        yield Finding(
            Severity.NOTE,
            "the machine has slept, and its driver does not keep GPU memory over that: CUDA may end with error 999",
            _reload_fix(driver),
            evidence=(f"woke from suspend: {woke}", f"{_PRESERVE}: 0"),
            confidence=Confidence.POSSIBLE,
        )
    elif code is None:
        raise NotApplicable("cuInit was not tried; run devkit doctor --deep")


def _reload_fix(driver: Driver) -> Fix:
    return Fix(
        "End all CUDA programs and reload the module; a reboot does the same. To keep it from coming back, let the"
        " driver save GPU memory when the machine sleeps.",
        (
            _RELOAD,
            f"echo 'options nvidia NVreg_{_PRESERVE}=1' | sudo tee /etc/modprobe.d/nvidia-suspend.conf",
            "sudo systemctl enable nvidia-suspend nvidia-resume nvidia-hibernate",
        ),
        root=True,
        docs=DRIVER_GUIDE,
    )


@check("DRV010", causes=DEEP_CODES)
def cuda_starts_without_nvswitch(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    release = require_loaded_driver(facts)
    code = _find_cu_init_code(facts)
    if code is None:
        raise NotApplicable("cuInit was not tried; run devkit doctor --deep")
    if code not in (CUDA_SYSTEM_NOT_READY, _CUDA_ERROR_NOT_INITIALIZED):
        return
    if not require(has_no_nvswitch(facts)):
        raise NotApplicable("this machine has an NVSwitch, whose Fabric Manager another check looks at")
    is_open = require_driver(facts).is_open is True
    yield Finding(
        Severity.ERROR,
        f"CUDA ends with error {code} although this machine has no NVSwitch: driver {release} and this kernel most"
        " likely disagree about shared memory management (HMM)",
        Fix(
            "Update the driver first. If that does not help, switch HMM off in nvidia_uvm and reload it; as a last"
            " resort start the kernel with nokaslr.",
            (
                "echo 'options nvidia_uvm uvm_disable_hmm=1' | sudo tee /etc/modprobe.d/nvidia-uvm-hmm.conf",
                _RELOAD,
            ),
            root=True,
            restart=Restart.NONE,
            docs="https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/",
        ),
        evidence=(f"cuInit returned {code}", "no PCI function of class 0x0680", f"driver {release}"),
        confidence=Confidence.LIKELY if is_open and code == _CUDA_ERROR_NOT_INITIALIZED else Confidence.POSSIBLE,
    )
