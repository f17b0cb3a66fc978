"""The software stack below a GPU workload, layer by layer, with the readings and findings of each."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations_with_replacement

from devkit.doctor.gpus import find_connection, find_driver_gpus
from devkit.doctor.model import Check, Crashed, Outcome, Passed, Severity
from devkit.doctor.preconditions import has_gpu_to_judge, has_nvidia_gpu
from devkit.doctor.report.report import Report, ReportedFinding
from devkit.doctor.trials import describe_trials, describe_way, find_fault, list_trials
from devkit.facts.engine import Compose, Engine, EngineFailure, Toolkit
from devkit.facts.gpu import Amd, Driver, FailedGpu, GpuHealth, NvmlAnswer, NvmlFailure
from devkit.facts.machine import Container, Distribution, Platform, Python, Storage, System, Torch, Wsl, name_container
from devkit.facts.model import Facts
from devkit.facts.project import Project
from devkit.facts.runs import Hub
from devkit.facts.values import Release, Unknown
from devkit.text import format_bytes, format_count, join_words, to_one_line

_MAX_CDI_SPECS = 4


@dataclass(frozen=True)
class LayerReading:
    """One reading in a few words: ("module loaded", "580.95.05").

    `summary` is what the one line about the layer says of it, "" for nothing.
    """

    name: str
    value: str
    summary: str = ""


def _read_hardware(facts: Facts) -> Iterator[LayerReading]:
    if isinstance(facts.nvml, NvmlAnswer) and facts.nvml.gpus:
        found = Counter(
            "GPU that does not respond"
            if isinstance(gpu, FailedGpu)
            else f"{gpu.name}, {format_bytes(gpu.memory_bytes)}"
            if isinstance(gpu.memory_bytes, int)
            else gpu.name
            for gpu in facts.nvml.gpus
        )
        for name, count in found.items():
            shown = name if count == 1 else f"{count} × {name}"  # noqa: RUF001 - a times sign
            yield LayerReading("GPU", shown, shown)
        yield from _read_connections(facts)
    elif isinstance(facts.driver, Driver) and isinstance(facts.driver.pci_gpus, tuple):
        found = Counter(
            f"GPU {gpu.device_id}" if isinstance(gpu.name, Unknown) else gpu.name for gpu in facts.driver.pci_gpus
        )
        shown = join_words(f"{count} × {name}" for name, count in found.items()) or "no NVIDIA GPU"  # noqa: RUF001
        yield LayerReading("PCI", shown, f"{shown} on the PCI bus")
    elif has_nvidia_gpu(facts) is False:
        yield LayerReading("GPU", "no NVIDIA GPU", "no NVIDIA GPU")
    if isinstance(facts.amd, Amd):
        for name, count in Counter(gpu.name or f"AMD {gpu.target}" for gpu in facts.amd.gpus).items():
            shown = name if count == 1 else f"{count} × {name}"  # noqa: RUF001
            yield LayerReading("GPU", shown, shown)


def _read_connections(facts: Facts) -> Iterator[LayerReading]:
    """Yield how many NVLinks are up, and over what pairs of GPUs are connected on PCIe."""
    links = {gpu.health.nvlink_active for gpu in facts.gpus if isinstance(gpu.health, GpuHealth)}
    counts = sorted(count for count in links if isinstance(count, int))
    if counts and counts[-1]:
        yield LayerReading("NVLinks up", f"{counts[0]} to {counts[-1]}" if counts[0] != counts[-1] else str(counts[0]))
    # GPUs of one switch are alike: only one pair of them is compared.
    alike = Counter(replace(gpu, address="") for gpu in find_driver_gpus(facts))
    kinds: Counter[str | Unknown] = Counter()
    for (one, count), (other, more) in combinations_with_replacement(alike.items(), 2):
        kinds[find_connection(one, other)] += count * more if one is not other else count * (count - 1) // 2
    pairs = [f"{count} {kind}" for kind, count in kinds.items() if isinstance(kind, str) and count]
    if pairs:
        yield LayerReading("pairs of GPUs", join_words(pairs))


def _read_kernel(facts: Facts) -> Iterator[LayerReading]:
    if isinstance(facts.system, System):
        distribution = facts.system.distribution
        if isinstance(distribution, Distribution):
            yield LayerReading("system", distribution.name, distribution.name)
        if facts.system.kernel:
            yield LayerReading("kernel", facts.system.kernel)
    if isinstance(facts.driver, Driver):
        flavors = {True: " (open)", False: " (closed)"}
        flavor = flavors[facts.driver.is_open] if isinstance(facts.driver.is_open, bool) else ""
        yield from _read_version(
            "module loaded", facts.driver.loaded, absent="not loaded", suffix=flavor, label="module"
        )
        if facts.driver.on_disk != facts.driver.loaded:
            yield from _read_version("module on disk", facts.driver.on_disk, absent="none", label="on disk")


def _read_libraries(facts: Facts) -> Iterator[LayerReading]:
    if isinstance(facts.driver, Driver):
        yield from _read_version("libnvidia-ml", facts.driver.libnvidia_ml, absent="not found")
        yield from _read_version("libcuda", facts.driver.libcuda, absent="not found", label="libcuda")
    if isinstance(facts.nvml, NvmlAnswer):
        yield from _read_version("NVML answers for driver", facts.nvml.driver, absent="none", label="driver")
        yield from _read_version("newest CUDA", facts.nvml.cuda, absent="none", label="CUDA up to")
    elif isinstance(facts.nvml, NvmlFailure):
        end = facts.nvml.end.value
        shown = f"NVML: {end.replace('-', ' ')}"
        yield LayerReading("NVML", f"{end} in {facts.nvml.call}" if facts.nvml.call else end, shown)


def _read_windows(facts: Facts) -> Iterator[LayerReading]:
    if isinstance(facts.wsl, Wsl):
        dxg = "there" if facts.wsl.has_dxg else "missing"
        yield LayerReading("/dev/dxg", dxg, f"/dev/dxg {dxg}")
        yield LayerReading("libraries from Windows", str(len(facts.wsl.libraries)))


def _read_engine(facts: Facts) -> Iterator[LayerReading]:
    if isinstance(facts.engine, Engine):
        version = facts.engine.version
        shown = f" {version}" if isinstance(version, Release) else ""
        shown = f"{shown}{', rootless' if facts.engine.is_rootless else ''}"
        kind = facts.engine.kind.value.replace("-", " ").title()
        yield LayerReading(facts.engine.kind.value, shown.strip(), f"{kind}{shown}")
        yield LayerReading("runtimes", join_words(runtime.name for runtime in facts.engine.runtimes))
    elif isinstance(facts.engine, EngineFailure):
        yield LayerReading("engine", facts.engine.end.value, facts.engine.end.value.replace("-", " "))
    if isinstance(facts.compose, Compose):
        yield LayerReading("Compose", str(facts.compose.version), f"Compose {facts.compose.version}")


def _read_toolkit(facts: Facts) -> Iterator[LayerReading]:
    if isinstance(facts.toolkit, Toolkit):
        yield from _read_version(
            "NVIDIA Container Toolkit", facts.toolkit.version, absent="not installed", label="toolkit"
        )
        if isinstance(facts.toolkit.mode, str) and facts.toolkit.mode and facts.toolkit.version is not None:
            yield LayerReading("mode", facts.toolkit.mode)
    if isinstance(facts.cdi, tuple):
        for spec in facts.cdi[:_MAX_CDI_SPECS]:
            driver = f" for {spec.driver}" if spec.driver else ""
            shown = f"{format_count(len(spec.devices), 'device')}{driver}" if not spec.error else "unreadable"
            yield LayerReading("CDI", shown, f"CDI: {shown}")


def _read_trials(facts: Facts) -> Iterator[LayerReading]:
    said = describe_trials(facts)
    yield LayerReading("containers", said, said)
    for each in list_trials(facts):
        yield LayerReading(describe_way(each), find_fault(each, facts) or f"{each.ms} ms")


def _read_container(facts: Facts) -> Iterator[LayerReading]:
    side = _find_workload_facts(facts)
    if isinstance(side.container, Container):
        yield LayerReading("kind", side.container.kind, f"inside this {name_container(side.container.kind)}")
        yield LayerReading("NVIDIA_VISIBLE_DEVICES", side.container.visible_devices or "unset")
        if isinstance(side.container.shm_bytes, int):
            yield LayerReading("/dev/shm", format_bytes(side.container.shm_bytes))  # noqa: S108 - a name to show


def _read_cuda(facts: Facts) -> Iterator[LayerReading]:
    side = _find_workload_facts(facts)
    if isinstance(side.nvml, NvmlAnswer):
        yield from _read_version("driver's CUDA", side.nvml.cuda, absent="none", label="driver up to")
    if isinstance(side.python, Python) and isinstance(side.python.torch, Torch):
        yield from _read_version(
            "torch's CUDA", side.python.torch.cuda, absent="none (CPU build)", label="torch built for"
        )
    if isinstance(side.container, Container) and side.container.require_cuda:
        required = side.container.require_cuda
        yield LayerReading("the image requires", required, f"the image requires {required}")


def _read_python(facts: Facts) -> Iterator[LayerReading]:
    side = _find_workload_facts(facts)
    if isinstance(side.python, Python):
        yield LayerReading("Python", str(side.python.version), f"Python {side.python.version}")
        if isinstance(side.python.torch, Torch):
            yield LayerReading("torch", side.python.torch.version, f"torch {side.python.torch.version}")
        elif side.python.torch is None:
            yield LayerReading("torch", "not installed", "no torch")
        for package in side.python.packages:
            if package.name in ("transformers", "peft", "bitsandbytes", "flash-attn", "triton"):
                yield LayerReading(package.name, package.version)


def _read_project(facts: Facts) -> Iterator[LayerReading]:
    if isinstance(facts.project, Project):
        yield LayerReading("files read", str(len(facts.project.files)))
    if isinstance(facts.hub, Hub) and facts.hub.is_offline:
        yield LayerReading("hub", "offline")
    if isinstance(facts.storage, Storage):
        for directory in facts.storage.directories:
            if isinstance(directory.free_bytes, int):
                free = format_bytes(directory.free_bytes)
                summary = f"{free} free" if directory.purpose == "workspace" else ""
                yield LayerReading(f"free for {directory.purpose}", free, summary)


def _find_workload_facts(facts: Facts) -> Facts:
    """Return the facts of the dev container where they were read, else those of the host."""
    return facts.inside if isinstance(facts.inside, Facts) else facts


def _read_version(
    name: str, version: object, *, absent: str, suffix: str = "", label: str = ""
) -> Iterator[LayerReading]:
    if not isinstance(version, Unknown):
        shown = absent if version is None else f"{version}{suffix}"
        yield LayerReading(name, shown, f"{label} {shown}" if label else "")


LAYER_READINGS: Mapping[str, Callable[[Facts], Iterator[LayerReading]]] = {
    "hardware": _read_hardware,
    "kernel": _read_kernel,
    "libraries": _read_libraries,
    "windows": _read_windows,
    "engine": _read_engine,
    "toolkit": _read_toolkit,
    "trials": _read_trials,
    "container": _read_container,
    "cuda": _read_cuda,
    "python": _read_python,
    "project": _read_project,
}
"""By the name of the layer."""


class LayerState(StrEnum):
    """The state of a layer, in the words shown next to its glyph."""

    CAUSE = "root cause"
    PROBLEM = "problem"
    WARNING = "warning"
    FOLLOWS = "consequence"
    FINE = "fine"
    UNJUDGED = "not judged"


@dataclass(frozen=True)
class StackLayer:
    """One layer: its state, its readings, and the outcomes of its checks."""

    name: str
    title: str
    about: str
    state: LayerState
    readings: tuple[LayerReading, ...]
    roots: tuple[ReportedFinding, ...]
    consequences: tuple[ReportedFinding, ...]
    others: tuple[Outcome, ...]
    """Outcomes without findings: passed, skipped, crashed."""

    @property
    def summary(self) -> str:
        """The readings there, in one line; its state where nothing was read."""
        return ", ".join(reading.summary for reading in self.readings if reading.summary) or self.state.value

    @property
    def passed(self) -> int:
        """The number of its checks that passed."""
        return sum(isinstance(outcome.verdict, Passed) for outcome in self.others)


STACK_LAYERS = (
    ("hardware", "Hardware", "GPUs on the PCI bus", "GPU"),
    ("windows", "WSL and Windows", "how the guest reaches the GPU", "WSL"),
    ("kernel", "Kernel driver", "the nvidia module and its device nodes", "DRV"),
    ("libraries", "NVML and libcuda", "the driver's own libraries", "DRV002 DRV003 CUD003"),
    ("engine", "Container engine", "Docker or Podman", "ENG"),
    ("toolkit", "Container Toolkit and CDI", "how the engine exposes GPUs to containers", "CTK CDI POD"),
    ("trials", "Trial containers", "whether a container starts and gets the GPUs", "ENG017 ENG020 CTK013"),
    ("container", "Container", "what the container received", "CON MEM NET"),
    ("cuda", "CUDA", "image and wheel compared with the driver", "CUD"),
    ("python", "Python and torch", "the workload's libraries", "PYT"),
    ("project", "Project, hub and storage", "settings, models, disk space", "PRJ HUB STO"),
)
"""From the hardware up: name, title, description, and the prefixes or codes of its checks, of which a code counts first."""
_LAYERS = {code: name for name, _, _, codes in STACK_LAYERS for code in codes.split()}


def find_layer(check: Check) -> str:
    """Find the name of the layer that a check looks at."""
    return _LAYERS.get(check.code) or _LAYERS[check.code[:3]]


def build_stack(facts: Facts, report: Report) -> tuple[StackLayer, ...]:
    """Build the layers that this machine has, from the hardware up."""
    platform = facts.system.platform if isinstance(facts.system, System) else None
    has_windows = isinstance(facts.wsl, Wsl) or platform in (Platform.WSL2, Platform.WSL1, Platform.WINDOWS)
    layers = []
    for name, title, about, _ in STACK_LAYERS:
        if name == "windows" and not has_windows:
            continue
        findings = [shown for shown in report.findings if find_layer(shown.check) == name]
        roots = tuple(shown for shown in report.roots if find_layer(shown.check) == name)
        consequences = tuple(shown for shown in findings if shown.finding.follows_from is not None)
        with_findings = {shown.check.code for shown in findings}
        others = tuple(
            outcome
            for outcome in report.outcomes
            if find_layer(outcome.check) == name and outcome.check.code not in with_findings
        )
        state = _find_state(report, roots, consequences, others)
        is_absent = {"hardware": not has_gpu_to_judge(facts), "engine": not isinstance(facts.engine, Engine)}.get(
            name, False
        )
        if state is LayerState.FINE and is_absent:
            state = LayerState.UNJUDGED
        readings = tuple(
            LayerReading(to_one_line(reading.name), to_one_line(reading.value), to_one_line(reading.summary))
            for reading in LAYER_READINGS[name](facts)
        )
        layers.append(StackLayer(name, title, about, state, readings, roots, consequences, others))
    return tuple(layers)


def _find_state(
    report: Report,
    roots: tuple[ReportedFinding, ...],
    consequences: tuple[ReportedFinding, ...],
    others: tuple[Outcome, ...],
) -> LayerState:
    severities = {shown.finding.severity for shown in roots}
    first = next(iter(report.roots), None)
    if Severity.ERROR in severities:
        return LayerState.CAUSE if first in roots else LayerState.PROBLEM
    if any(shown.finding.severity is not Severity.NOTE for shown in consequences):
        return LayerState.FOLLOWS
    if Severity.WARNING in severities or any(isinstance(outcome.verdict, Crashed) for outcome in others):
        return LayerState.WARNING
    if roots or any(isinstance(outcome.verdict, Passed) for outcome in others):
        return LayerState.FINE
    return LayerState.UNJUDGED
