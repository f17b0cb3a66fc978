"""Checks that every GPU is present, has its memory window, and answers."""

from collections.abc import Iterator

from devkit.doctor.checks.cascades import CDI_CODES, NEEDS_DRIVER_CODES
from devkit.doctor.checks.driver.initialization import FIRMWARE_FAILURE_LINES, FIRMWARE_MISSING_LINES
from devkit.doctor.checks.driver.kernel_module import LEGACY_GPU_LINES, OPEN_MODULE_LINE
from devkit.doctor.danger import find_manager, is_in_job
from devkit.doctor.gpus import MAX_LOG_LINES, find_driver_lines, find_gpu_at, has_missing_gpus
from devkit.doctor.model import Confidence, NotApplicable, Severity, check
from devkit.doctor.preconditions import (
    has_nvidia_gpu,
    is_in_container,
    is_in_wsl,
    require,
    require_driver,
    require_host,
    require_nvml,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import SMALL_WINDOW_BYTES
from devkit.facts.gpu import Amd, Driver, FailedGpu, Gpu, PciGpu
from devkit.facts.machine import System, Tegra
from devkit.facts.model import Facts
from devkit.facts.values import Release, Unknown
from devkit.text import format_bytes, format_count, join_words

_OF_THE_DRIVER = ("PCI I/O region assigned to your NVIDIA", "resize PCIe BARs")
_WINDOW_LOST = (*_OF_THE_DRIVER, "BAR 1")
_NVML_TIMEOUT = 10
_NVML_GPU_IS_LOST = 15
_NVML_RESET_REQUIRED = 16


@check("GPU001")
def gpu_present(facts: Facts) -> Iterator[Problem]:
    if require(has_nvidia_gpu(facts)):
        return
    amd = facts.amd
    if not isinstance(amd, Amd):
        yield problem("none")
        return
    names = join_words(f"{gpu.name} ({gpu.target})" if gpu.name else gpu.target for gpu in amd.gpus)
    evidence = tuple(f"node {gpu.node}: {gpu.target}, PCI device {gpu.device_id}" for gpu in amd.gpus)
    if amd.kfd == "open":
        yield problem("amd", gpus=names, count=format_count(len(amd.gpus), "AMD GPU"), evidence=evidence)
    elif is_in_container(facts):
        yield problem("amd-not-given", gpus=names, error=amd.kfd, evidence=evidence)
    else:
        yield problem("amd-unusable", gpus=names, error=amd.kfd, evidence=(*evidence, f"/dev/kfd: {amd.kfd}"))


@check("GPU002", causes=("GPU005",))
def every_gpu_answers(facts: Facts) -> Iterator[Problem]:
    answer = require_nvml(facts)
    skip_if(not answer.gpus, "NVML does not list a GPU")
    for gpu in answer.gpus:
        if isinstance(gpu, FailedGpu):
            yield problem(
                {_NVML_GPU_IS_LOST: "lost", _NVML_RESET_REQUIRED: "needs-reset"}.get(gpu.code, "silent"),
                index=gpu.index,
                count=len(answer.gpus),
                reason=gpu.message,
                evidence=(f"NVML returned {gpu.code} for GPU {gpu.index}: {gpu.message}",),
                confidence=Confidence.LIKELY if gpu.code == _NVML_TIMEOUT else None,
            )


@check("GPU005", require_host, causes=(*CDI_CODES, "GPU019"))
def nvml_lists_every_gpu(facts: Facts) -> Iterator[Problem]:
    driver = require_driver(facts)
    owned = [gpu for gpu in require(driver.pci_gpus) if gpu.kernel_driver == "nvidia" and gpu.is_excluded is not True]
    counted = len(require_nvml(facts).gpus)
    # A job that was lent some of the GPUs may open those alone.
    withheld = () if isinstance(driver.withheld_nodes, Unknown) else driver.withheld_nodes
    if owned and not counted and len(withheld) >= len(owned):
        evidence = (f"device rules withhold: {join_words(withheld)}", f"NVML count: {counted}")
        yield problem(
            "none-lent",
            owned=format_count(len(owned), "GPU"),
            manager=find_manager(facts) or "this process",
            kind="job" if is_in_job(facts) else "other",
            evidence=evidence,
        )
    elif counted + len(withheld) < len(owned):
        yield problem(
            "missing",
            owned=format_count(len(owned), "GPU"),
            counted=counted,
            evidence=(
                f"owned by nvidia: {join_words(gpu.address for gpu in owned)}",
                f"NVML count: {counted}",
                *find_driver_lines(facts, "RmInitAdapter", "probe routine")[:MAX_LOG_LINES],
            ),
            severity=Severity.WARNING if counted else Severity.ERROR,
        )


@check("GPU036", causes=("GPU005", *NEEDS_DRIVER_CODES))
def expected_gpus_are_here(facts: Facts) -> Iterator[Problem]:
    expected, answering = facts.expected_gpus, len(facts.gpus)
    driver = facts.driver if isinstance(facts.driver, Driver) else None
    on_bus = driver.pci_gpus if driver else Unknown("the driver was not read")
    evidence = [f"GPUs that answer: {answering}"]
    if not isinstance(on_bus, Unknown):
        evidence.append(f"NVIDIA GPUs on the PCI bus: {len(on_bus)}")
    if isinstance(expected, int):
        if answering < expected:
            yield problem("fewer", expected=expected, answering=answering or "none", evidence=evidence)
        return
    require_host(facts)
    has_tegra = isinstance(facts.system, System) and isinstance(facts.system.tegra, Tegra)
    if driver is None or not isinstance(driver.loaded, Release) or is_in_wsl(facts) or has_tegra:
        raise NotApplicable("the number of GPUs that this machine should have is not known (--expect-gpus N)")
    if require(on_bus) == () and not answering and not isinstance(facts.nvml, Unknown):
        evidence.insert(0, f"/sys/module/nvidia/version: {driver.loaded}")
        yield problem("none-on-bus", release=driver.loaded, evidence=evidence)


@check("GPU008", require_host, causes=("DRV001", *NEEDS_DRIVER_CODES))
def bar1_is_assigned(facts: Facts) -> Iterator[Problem]:
    gpus = [
        (gpu, gpu.bar1_bytes)
        for gpu in require(require_driver(facts).pci_gpus)
        if gpu.kernel_driver in ("nvidia", "") and not isinstance(find_gpu_at(facts, gpu.address), Gpu)
    ]
    missing = [(gpu, 0) for gpu, size in gpus if size == 0]
    # A start that fails for a reason that another check knows is not for want of a window.
    known = (*LEGACY_GPU_LINES, *FIRMWARE_MISSING_LINES, *FIRMWARE_FAILURE_LINES, OPEN_MODULE_LINE)
    is_open = has_missing_gpus(facts) and not find_driver_lines(facts, *known)
    small = [
        (gpu, size)
        for gpu, size in gpus
        if is_open and isinstance(size, int) and 0 < size <= SMALL_WINDOW_BYTES and _find_bar1_lines(facts, gpu)
    ]
    for gpu, size in missing or small:
        yield problem(
            "small-window" if size else "no-window",
            address=gpu.address,
            size=format_bytes(size),
            evidence=(f"{gpu.address}/resource: BAR 1 has {size} B", *_find_bar1_lines(facts, gpu)[:MAX_LOG_LINES]),
        )


def _find_bar1_lines(facts: Facts, gpu: PciGpu) -> tuple[str, ...]:
    """Lines about a failed start or a missing window, of this GPU or of the driver as a whole."""
    lines = find_driver_lines(facts, "RmInitAdapter failed", *_WINDOW_LOST)
    return tuple(line for line in lines if gpu.address in line or any(text in line for text in _OF_THE_DRIVER))
