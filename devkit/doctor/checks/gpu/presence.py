"""Checks that every GPU is present, has its memory window, and answers."""

from collections.abc import Iterator
from shlex import quote

from devkit.doctor.checks.cascades import CDI_CODES, NEEDS_DRIVER_CODES
from devkit.doctor.checks.driver.initialization import FIRMWARE_FAILURE_LINES, FIRMWARE_MISSING_LINES
from devkit.doctor.checks.driver.kernel_module import LEGACY_GPU_LINES, OPEN_MODULE_LINE
from devkit.doctor.fixes import find_driver_side, power_cycle, reset_gpu_or_reboot
from devkit.doctor.gpus import MAX_LOG_LINES, find_driver_lines, find_gpu_at, has_missing_gpus
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.doctor.preconditions import (
    find_platform,
    has_nvidia_gpu,
    is_in_container,
    require,
    require_driver,
    require_host,
    require_nvml,
)
from devkit.doctor.thresholds import SMALL_WINDOW_BYTES
from devkit.facts.model import Amd, Facts, FailedGpu, Gpu, PciGpu, Platform
from devkit.facts.values import Unknown
from devkit.text import format_bytes, format_count, join_words

_OF_THE_DRIVER = ("PCI I/O region assigned to your NVIDIA", "resize PCIe BARs")

_WINDOW_LOST = (*_OF_THE_DRIVER, "BAR 1")

_ROCM_ACCESS = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html"

_ROCM_DOCKER = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html"

_NVML_TIMEOUT = 10

_NVML_GPU_IS_LOST = 15

_NVML_RESET_REQUIRED = 16


@check("GPU001")
def gpu_present(facts: Facts) -> Iterator[Finding]:
    if require(has_nvidia_gpu(facts)):
        return
    if isinstance(facts.amd, Amd):
        yield _amd_finding(facts, facts.amd)
        return
    summary = "Nothing to fix, unless this machine should have one. To prove the CPU set-up:"
    if find_platform(facts) is Platform.WSL2:
        summary = "If Windows has an NVIDIA GPU, install its driver there, never inside WSL. To prove the CPU set-up:"
    if find_platform(facts) is Platform.MACOS:
        summary = "Nothing to fix: no supported Mac has an NVIDIA GPU. To prove the CPU set-up:"
    yield Finding(
        Severity.NOTE,
        "no NVIDIA GPU on this machine; plans for other machines and the CPU proof still work",
        Fix(summary, ("devkit verify --here",), where=find_driver_side(facts)),
    )


def _amd_finding(facts: Facts, amd: Amd) -> Finding:
    names = join_words(f"{gpu.name} ({gpu.target})" if gpu.name else gpu.target for gpu in amd.gpus)
    evidence = tuple(f"node {gpu.node}: {gpu.target}, PCI device {gpu.device_id}" for gpu in amd.gpus)
    if amd.kfd == "open":
        return Finding(
            Severity.NOTE,
            f"{format_count(len(amd.gpus), 'AMD GPU')}: {names}; devkit judges NVIDIA's alone, and plans ROCm for these",
            Fix("Nothing to fix. To plan for ROCm:", ("devkit plan",), where=find_driver_side(facts)),
            evidence=evidence,
        )
    if is_in_container(facts):
        return Finding(
            Severity.NOTE,
            f"the host has {names}, and this container was not given it: /dev/kfd ends with {amd.kfd}",
            Fix("Start the container with /dev/kfd and /dev/dri.", where=Side.PROJECT, docs=_ROCM_DOCKER),
            evidence=evidence,
        )
    is_closed = amd.kfd in ("EACCES", "EPERM")
    return Finding(
        Severity.WARNING,
        f"{names} cannot be used by this user: opening /dev/kfd ends with {amd.kfd}",
        Fix(
            "Join the groups that may open it, and log in again." if is_closed else "Reload the driver amdgpu.",
            ("sudo usermod -aG render,video $USER",) if is_closed else ("sudo modprobe amdgpu",),
            root=True,
            restart=Restart.LOGIN if is_closed else Restart.NONE,
            docs=_ROCM_ACCESS,
        ),
        evidence=(*evidence, f"/dev/kfd: {amd.kfd}"),
    )


@check("GPU002", causes=("GPU005",))
def every_gpu_answers(facts: Facts) -> Iterator[Finding]:
    answer = require_nvml(facts)
    if not answer.gpus:
        raise NotApplicable("NVML lists no GPU")
    for gpu in answer.gpus:
        if isinstance(gpu, FailedGpu):
            failure = {
                _NVML_GPU_IS_LOST: "is lost: it has fallen off the PCI bus",
                _NVML_RESET_REQUIRED: "must be reset before it can be used",
            }.get(gpu.code, f"does not answer ({gpu.message})")
            yield Finding(
                Severity.ERROR,
                f"GPU {gpu.index} of {len(answer.gpus)} {failure}",
                reset_gpu_or_reboot(facts, gpu) if gpu.code == _NVML_RESET_REQUIRED else power_cycle(facts),
                subject=f"GPU {gpu.index}",
                evidence=(f"NVML returned {gpu.code} for GPU {gpu.index}: {gpu.message}",),
                confidence=Confidence.LIKELY if gpu.code == _NVML_TIMEOUT else Confidence.CERTAIN,
            )


@check("GPU005", causes=(*CDI_CODES, "GPU019"))
def nvml_lists_every_gpu(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    owned = [gpu for gpu in require(require_driver(facts).pci_gpus) if gpu.kernel_driver == "nvidia"]
    counted = len(require_nvml(facts).gpus)
    if counted >= len(owned):
        return
    yield Finding(
        Severity.ERROR if counted == 0 else Severity.WARNING,
        f"the driver owns {format_count(len(owned), 'GPU')} on the PCI bus, but NVML counts {counted}",
        Fix(
            "Read why the driver could not start the rest. Frequent causes: a loose power cable, a GPU that is not"
            " seated, a GPU that must be powered off once, or a GPU newer than the driver.",
            ("journalctl -k -b | grep NVRM", "sudo poweroff"),
            root=True,
            restart=Restart.HOST,
            docs="https://docs.nvidia.com/deploy/xid-errors/",
        ),
        evidence=(
            f"owned by nvidia: {join_words(gpu.address for gpu in owned)}",
            f"NVML count: {counted}",
            *find_driver_lines(facts, "RmInitAdapter", "probe routine")[:MAX_LOG_LINES],
        ),
        confidence=Confidence.CERTAIN,
    )


@check("GPU008", causes=("DRV001", *NEEDS_DRIVER_CODES))
def bar1_is_assigned(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    driver = require_driver(facts)
    gpus = [
        gpu
        for gpu in require(driver.pci_gpus)
        if gpu.kernel_driver in ("nvidia", "") and not isinstance(find_gpu_at(facts, gpu.address), Gpu)
    ]
    missing = [gpu for gpu in gpus if gpu.bar1_bytes == 0]
    small = [
        gpu
        for gpu in gpus
        if (isinstance(gpu.bar1_bytes, int) and 0 < gpu.bar1_bytes <= SMALL_WINDOW_BYTES.value)
        and _is_not_started(facts, gpu)
    ]
    for gpu in missing or small:
        window = (
            "no memory window (BAR 1)"
            if not gpu.bar1_bytes or isinstance(gpu.bar1_bytes, Unknown)
            else f"a memory window (BAR 1) of only {format_bytes(gpu.bar1_bytes)}"
        )
        yield Finding(
            Severity.ERROR,
            f"GPU {gpu.address} has {window}, and the driver cannot start it",
            Fix(
                "Switch Above 4G Decoding and Resizable BAR on in the firmware (BIOS); both want UEFI without CSM."
                " In a virtual machine, give it a larger MMIO window.",
                (f"lspci -vs {quote(gpu.address)}", "systemctl reboot --firmware-setup"),
                root=True,
                restart=Restart.HOST,
            ),
            subject=gpu.address,
            evidence=(
                f"{gpu.address}/resource: BAR 1 has {gpu.bar1_bytes} B",
                *_find_bar1_lines(facts, gpu)[:MAX_LOG_LINES],
            ),
            confidence=Confidence.CERTAIN if gpu.bar1_bytes == 0 else Confidence.LIKELY,
        )


def _is_not_started(facts: Facts, gpu: PciGpu) -> bool:
    """Say if the log names this GPU's failed start for want of a window, or of no reason that another check knows."""
    if not has_missing_gpus(facts) or find_driver_lines(
        facts, *LEGACY_GPU_LINES, *FIRMWARE_MISSING_LINES, *FIRMWARE_FAILURE_LINES
    ):
        return False
    if find_driver_lines(facts, OPEN_MODULE_LINE):
        return False
    return bool(_find_bar1_lines(facts, gpu))


def _find_bar1_lines(facts: Facts, gpu: PciGpu) -> tuple[str, ...]:
    """Lines about a failed start or a missing window, of this GPU or of the driver as a whole."""
    lines = find_driver_lines(facts, "RmInitAdapter failed", *_WINDOW_LOST)
    return tuple(line for line in lines if gpu.address in line or any(text in line for text in _OF_THE_DRIVER))
