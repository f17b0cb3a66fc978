"""Checks of CUDA failing to start over a driver that NVML finds healthy: after suspend, and for want of a fabric."""

from collections.abc import Iterator

from devkit.doctor.applies import driver_of, known, loaded_driver, outside_of_containers
from devkit.doctor.checks.chains import TRIED
from devkit.doctor.checks.fabric import has_no_switch
from devkit.doctor.cuda_codes import NOT_READY
from devkit.doctor.machine import DRIVER_GUIDE
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, check
from devkit.facts.model import CudaCall, Deep, Driver, Facts, KernelLog
from devkit.facts.values import Unknown

CUDA_UNKNOWN = 999
NOT_INITIALISED = 3

_RELOAD = "sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm"
_PRESERVE = "PreserveVideoMemoryAllocations"


@check(
    "DRV009",
    "CUDA starts after the machine has slept",
    covers=("A12",),
    symptoms=(
        "CUDA unknown error - this may be due to an incorrectly set up environment",
        "Setting the available devices to be zero",
        "cuInit(0) failed: CUDA_ERROR_UNKNOWN",
    ),
    causes=TRIED,
)
def cuda_survives_sleep(facts: Facts) -> Iterator[Finding]:
    """cuInit works on this host, also after suspend; or at least the driver keeps its memory over one.

    Why it matters: the module nvidia_uvm may lose its state while the machine sleeps. nvidia-smi stays healthy, and
    torch blames the environment variables, which is wrong.
    How it is seen: with --deep, cuInit returns 999 on the host; the kernel log tells whether the machine has slept.
    Without --deep a machine that has slept and does not preserve GPU memory gets a note.
    Source: pytorch/pytorch issues 49081, 88639 and 115340; NVIDIA, driver README, "Configuring Power Management
    Support".
    """
    outside_of_containers(facts)
    loaded_driver(facts)
    driver = driver_of(facts)
    woke = facts.kernel_log.resumed_at if isinstance(facts.kernel_log, KernelLog) else Unknown("not known")
    code = _code(facts)
    slept = isinstance(woke, str)
    if code is not None and woke is None:
        raise NotApplicable("the machine has not slept since it started")
    if code == CUDA_UNKNOWN:
        yield Finding(
            Severity.ERROR,
            "CUDA ends with error 999 on this host, though NVML is healthy"
            + (f": nvidia_uvm has most likely lost its state when the machine slept (until {woke})" if slept else ""),
            _reload(driver),
            evidence=(f"cuInit returned {code}", f"woke from suspend: {woke if slept else 'not seen'}"),
            confidence=Confidence.LIKELY if slept else Confidence.POSSIBLE,
        )
    elif code is None and slept and f"{_PRESERVE}: 0" in known(driver.parameters):
        yield Finding(
            Severity.NOTE,
            "the machine has slept, and its driver does not keep GPU memory over that: CUDA may end with error 999",
            _reload(driver),
            evidence=(f"woke from suspend: {woke}", f"{_PRESERVE}: 0"),
            confidence=Confidence.POSSIBLE,
        )
    elif code is None:
        raise NotApplicable("cuInit was not tried; run devkit doctor --deep")


def _code(facts: Facts) -> int | None:
    """What cuInit returned; None where it was not tried."""
    cuda = facts.deep.cuda if isinstance(facts.deep, Deep) else None
    return cuda.code if isinstance(cuda, CudaCall) else None


def _reload(driver: Driver) -> Fix:
    return Fix(
        "End all CUDA programs and load the module anew; a reboot does the same. To keep it from coming back, let the"
        " driver save GPU memory when the machine sleeps.",
        (
            _RELOAD,
            f"echo 'options nvidia NVreg_{_PRESERVE}=1' | sudo tee /etc/modprobe.d/nvidia-suspend.conf",
            "sudo systemctl enable nvidia-suspend nvidia-resume nvidia-hibernate",
        ),
        root=True,
        docs=DRIVER_GUIDE,
    )


@check(
    "DRV010",
    "CUDA starts on machines without an NVSwitch",
    covers=("A14",),
    symptoms=("system not yet initialized", "CUDA_ERROR_NOT_INITIALIZED: initialization", "uvm_disable_hmm"),
    causes=TRIED,
)
def cuda_starts_without_switch(facts: Facts) -> Iterator[Finding]:
    """Without an NVSwitch, cuInit returns neither "system not yet initialized" nor "not initialized".

    Why it matters: on some kernels the module nvidia_uvm fails while it sets up shared memory management (HMM), and
    every CUDA program with it. The error reads like a missing Fabric Manager, which such a machine does not need.
    How it is seen: with --deep, cuInit returns 802 or 3, on a machine whose bus has no NVSwitch and whose GPUs do not
    wait for a fabric.
    Source: NVIDIA/open-gpu-kernel-modules issues 797, 901 and 947; wilicc/gpu-burn issue 133; CUDA release notes, known
    issues.
    """
    outside_of_containers(facts)
    release = loaded_driver(facts)
    code = _code(facts)
    if code is None:
        raise NotApplicable("cuInit was not tried; run devkit doctor --deep")
    if code not in (NOT_READY, NOT_INITIALISED):
        return
    if not known(has_no_switch(facts)):
        raise NotApplicable("this machine has an NVSwitch, whose Fabric Manager another check looks at")
    is_open = driver_of(facts).is_open is True
    yield Finding(
        Severity.ERROR,
        f"CUDA ends with error {code} although this machine has no NVSwitch: driver {release} and this kernel most"
        " likely disagree about shared memory management (HMM)",
        Fix(
            "Update the driver first. If that does not help, switch HMM off in nvidia_uvm and load it anew; as a last"
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
        confidence=Confidence.LIKELY if is_open and code == NOT_INITIALISED else Confidence.POSSIBLE,
    )
