"""Checks of the GPUs themselves: present, answering, partitioned, and connected."""

from collections.abc import Iterator

from devkit.doctor.applies import (
    driver_of,
    has_nvidia_gpu,
    known,
    loaded_driver,
    nvml_answer,
    outside_of_containers,
    platform_of,
)
from devkit.doctor.checks.chains import CDI, CUDA, PYTHON
from devkit.doctor.machine import Family, driver_side, family_of
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.facts.model import Facts, FailedGpu, Gpu, Platform
from devkit.facts.values import Release
from devkit.text import count_of, listed

NVML_TIMEOUT = 10
NVML_GPU_IS_LOST = 15
NVML_RESET_REQUIRED = 16


@check("GPU001", "An NVIDIA GPU is present", symptoms=("no GPU", "CPU only"))
def gpu_present(facts: Facts) -> Iterator[Finding]:
    """The machine has an NVIDIA GPU. Without one this is a note, not a problem: devkit works on the CPU too.

    Why it matters: everything about drivers and GPU containers is skipped without a GPU.
    How it is seen: NVIDIA display functions on the PCI bus; under WSL the libraries that Windows provides; NVML.
    Source: PCI class codes 0x0300 and 0x0302 with vendor 0x10de; NVIDIA, CUDA on WSL user guide.
    """
    if known(has_nvidia_gpu(facts)):
        return
    yield Finding(
        Severity.NOTE,
        "no NVIDIA GPU on this machine; plans for other machines and the CPU proof still work",
        Fix(_without_gpu(platform_of(facts)), ("devkit verify --here",), where=driver_side(facts)),
    )


def _without_gpu(platform: Platform | None) -> str:
    match platform:
        case Platform.WSL2:
            return "If Windows has an NVIDIA GPU, install its driver there, never inside WSL. To prove the CPU set-up:"
        case Platform.MACOS:
            return "Nothing to fix: no supported Mac has an NVIDIA GPU. To prove the CPU set-up:"
        case _:
            return "Nothing to fix, unless this machine should have one. To prove the CPU set-up:"


@check(
    "GPU002",
    "Every GPU answers",
    symptoms=("GPU is lost. Reboot the system to recover this GPU", "GPU has fallen off the bus", "Xid 79"),
    causes=("GPU005",),
)
def every_gpu_answers(facts: Facts) -> Iterator[Finding]:
    """NVML can talk to every GPU that it counts.

    Why it matters: a GPU that fell off the bus fails every job that lands on it, and may block others.
    How it is seen: the NVML return value for each GPU; 15 means lost, 16 that a reset is required.
    Source: NVIDIA, NVML API reference, nvmlReturn_t; NVIDIA, XID errors catalogue, Xid 79.
    """
    answer = nvml_answer(facts)
    if not answer.gpus:
        raise NotApplicable("NVML lists no GPU")
    for gpu in answer.gpus:
        if isinstance(gpu, FailedGpu):
            yield Finding(
                Severity.ERROR,
                f"GPU {gpu.index} of {len(answer.gpus)} {_failure(gpu)}",
                _revive(facts, gpu),
                subject=f"GPU {gpu.index}",
                evidence=(f"NVML returned {gpu.code} for GPU {gpu.index}: {gpu.message}",),
                confidence=Confidence.LIKELY if gpu.code == NVML_TIMEOUT else Confidence.CERTAIN,
            )


def _failure(gpu: FailedGpu) -> str:
    return {
        NVML_GPU_IS_LOST: "is lost: it has fallen off the PCI bus",
        NVML_RESET_REQUIRED: "must be reset before it can be used",
    }.get(gpu.code, f"does not answer ({gpu.message})")


def _revive(facts: Facts, gpu: FailedGpu) -> Fix:
    if gpu.code == NVML_RESET_REQUIRED:
        return Fix(
            "Stop every program that uses the GPU, then reset it on the host; reboot if the reset is refused.",
            (f"sudo nvidia-smi --gpu-reset -i {gpu.index}",),
            where=driver_side(facts),
            root=True,
        )
    if driver_side(facts) is Side.WINDOWS:
        return Fix("Restart Windows.", where=Side.WINDOWS, restart=Restart.HOST)
    return Fix(
        "Power the host off and on again; a warm reboot may not bring the GPU back. If it happens again, check power"
        " cables, the slot or riser, and cooling. Until then use the other GPUs by CUDA_VISIBLE_DEVICES.",
        ("journalctl -k -b | grep -iE 'xid|fallen off the bus'", "sudo poweroff"),
        root=True,
        restart=Restart.HOST,
        docs="https://docs.nvidia.com/deploy/xid-errors/",
    )


@check(
    "GPU003",
    "GPUs in MIG mode have instances",
    symptoms=("No devices were found", "CUDA error 100", "MIG"),
    causes=(*CUDA, *PYTHON),
)
def mig_has_instances(facts: Facts) -> Iterator[Finding]:
    """Every GPU whose MIG mode is on is divided into at least one instance.

    Why it matters: a GPU in MIG mode without instances offers nothing to CUDA, though nvidia-smi shows it.
    How it is seen: MIG mode and MIG devices as NVML lists them.
    Source: NVIDIA, Multi-Instance GPU user guide, "Creating GPU instances".
    """
    gpus = [gpu for gpu in nvml_answer(facts).gpus if isinstance(gpu, Gpu)]
    if not any(gpu.mig_enabled is True for gpu in gpus):
        raise NotApplicable("no GPU is in MIG mode")
    empty = [gpu for gpu in gpus if gpu.mig_enabled is True and not gpu.mig_instances]
    for gpu in empty:
        yield Finding(
            Severity.ERROR if len(empty) == len(gpus) else Severity.WARNING,
            f"GPU {gpu.index} is in MIG mode without a single instance, so CUDA sees nothing of it",
            Fix(
                "Create instances on the host (`nvidia-smi mig -lgip` lists the profiles), or turn MIG off.",
                ("sudo nvidia-smi mig -lgip", f"sudo nvidia-smi -i {gpu.index} -mig 0"),
                root=True,
                docs="https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",
            ),
            subject=f"GPU {gpu.index}",
            evidence=(f"GPU {gpu.index} {gpu.name}: MIG mode on, no MIG devices",),
        )


@check(
    "GPU004",
    "The Fabric Manager runs where there is an NVSwitch",
    symptoms=("Error 802: system not yet initialized", "cudaErrorSystemNotReady"),
    causes=("PYT006",),
)
def fabric_manager_runs(facts: Facts) -> Iterator[Finding]:
    """On machines with an NVSwitch the service nvidia-fabricmanager is active.

    Why it matters: without it every CUDA program ends with error 802, while nvidia-smi looks healthy.
    How it is seen: an NVIDIA bridge of class 0x0680 on the PCI bus, and the state of the service. Machines without
    an NVSwitch need no Fabric Manager and are skipped.
    Source: NVIDIA, Fabric Manager user guide; pytorch/pytorch issue 35710.
    """
    outside_of_containers(facts)
    driver = driver_of(facts)
    if not known(driver.nvswitch_present):
        raise NotApplicable("this machine has no NVSwitch")
    state = known(driver.fabric_manager)
    if state == "active":
        return
    release = loaded_driver(facts)
    yield Finding(
        Severity.ERROR,
        f"this machine has an NVSwitch, but nvidia-fabricmanager is {state}: CUDA ends with error 802",
        Fix(
            f"Install the Fabric Manager of exactly the driver's version, {release}, and start it.",
            _install_fabric_manager(facts, release),
            root=True,
            docs="https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",
        ),
        evidence=(f"systemctl is-active nvidia-fabricmanager: {state}", f"driver {release}"),
    )


def _install_fabric_manager(facts: Facts, release: Release) -> tuple[str, ...]:
    start = "sudo systemctl enable --now nvidia-fabricmanager"
    match family_of(facts):
        case Family.UBUNTU | Family.DEBIAN:
            return (f"sudo apt-get install -y 'nvidia-fabricmanager-{release.major}={release}-*'", start)
        case Family.RHEL | Family.FEDORA:
            return (f"sudo dnf install -y nvidia-fabric-manager-{release}", start)
        case _:
            return (start,)


@check(
    "GPU005",
    "NVML counts every GPU of the driver",
    symptoms=("No devices were found", "fewer GPUs than installed", "RmInitAdapter failed"),
    causes=CDI,
)
def nvml_counts_every_gpu(facts: Facts) -> Iterator[Finding]:
    """NVML lists as many GPUs as the NVIDIA driver owns on the PCI bus.

    Why it matters: a GPU that the driver could not start is silently absent: jobs run on fewer GPUs, or on none.
    How it is seen: PCI functions owned by the driver nvidia, against NVML's count. GPUs held by another driver,
    such as vfio-pci, are not counted.
    Source: NVIDIA/open-gpu-kernel-modules issue 862 (firmware without resizable BAR); NVIDIA/NVSentinel issue 155.
    """
    outside_of_containers(facts)
    owned = [gpu for gpu in known(driver_of(facts).pci_gpus) if gpu.kernel_driver == "nvidia"]
    counted = len(nvml_answer(facts).gpus)
    if counted >= len(owned):
        return
    yield Finding(
        Severity.ERROR if counted == 0 else Severity.WARNING,
        f"the driver owns {count_of(len(owned), 'GPU')} on the PCI bus, but NVML counts {counted}",
        Fix(
            "Read why the driver could not start the rest. Frequent causes: Above 4G Decoding or Resizable BAR is off"
            " in the firmware, a loose power cable, or a GPU newer than the driver.",
            ("journalctl -k -b | grep NVRM",),
            restart=Restart.HOST,
            docs="https://docs.nvidia.com/deploy/xid-errors/",
        ),
        evidence=(f"owned by nvidia: {listed(gpu.address for gpu in owned)}", f"NVML count: {counted}"),
        confidence=Confidence.CERTAIN,
    )
