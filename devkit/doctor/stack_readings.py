"""What is worth showing of each layer of the stack: names and versions, a few words each."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from devkit.facts.model import (
    Compose,
    Container,
    Distribution,
    Driver,
    Engine,
    EngineFailure,
    Facts,
    FailedGpu,
    Hub,
    NvmlAnswer,
    NvmlFailure,
    Project,
    Python,
    Storage,
    System,
    Toolkit,
    Torch,
    Wsl,
)
from devkit.facts.record import record
from devkit.facts.values import Release, Unknown
from devkit.text import count_of, human_bytes, listed

_MOST_CDI = 4


@record
class Value:
    """One reading as people say it: ("loaded", "580.95.05")."""

    name: str
    value: str


def _hardware(facts: Facts) -> Iterator[Value]:
    if isinstance(facts.nvml, NvmlAnswer) and facts.nvml.gpus:
        for name, count in Counter(map(_gpu, facts.nvml.gpus)).items():
            yield Value("GPU", name if count == 1 else f"{count} × {name}")  # noqa: RUF001 - a times sign
    elif isinstance(facts.driver, Driver) and isinstance(facts.driver.pci_gpus, tuple):
        found = Counter(gpu.device_id for gpu in facts.driver.pci_gpus)
        yield Value("PCI", listed(f"{count} × {name}" for name, count in found.items()) or "no NVIDIA GPU")  # noqa: RUF001


def _gpu(gpu: object) -> str:
    if isinstance(gpu, FailedGpu):
        return "GPU that does not answer"
    memory = getattr(gpu, "memory_bytes", None)
    size = f", {human_bytes(memory)}" if isinstance(memory, int) else ""
    return f"{getattr(gpu, 'name', 'GPU')}{size}"


def _kernel(facts: Facts) -> Iterator[Value]:
    if isinstance(facts.system, System):
        distribution = facts.system.distribution
        if isinstance(distribution, Distribution):
            yield Value("system", distribution.name)
        if facts.system.kernel:
            yield Value("kernel", facts.system.kernel)
    if isinstance(facts.driver, Driver):
        flavours = {True: " (open)", False: " (closed)"}
        flavour = flavours[facts.driver.is_open] if isinstance(facts.driver.is_open, bool) else ""
        yield from _version("module loaded", facts.driver.loaded, absent="no", suffix=flavour)
        if facts.driver.on_disk != facts.driver.loaded:
            yield from _version("module on disk", facts.driver.on_disk, absent="none")


def _libraries(facts: Facts) -> Iterator[Value]:
    if isinstance(facts.driver, Driver):
        yield from _version("libnvidia-ml", facts.driver.libnvidia_ml, absent="not found")
        yield from _version("libcuda", facts.driver.libcuda, absent="not found")
    if isinstance(facts.nvml, NvmlAnswer):
        yield from _version("NVML answers for driver", facts.nvml.driver, absent="none")
        yield from _version("newest CUDA", facts.nvml.cuda, absent="none")
    elif isinstance(facts.nvml, NvmlFailure):
        yield Value("NVML", f"{facts.nvml.end.value} in {facts.nvml.call}" if facts.nvml.call else facts.nvml.end.value)


def _windows(facts: Facts) -> Iterator[Value]:
    if isinstance(facts.wsl, Wsl):
        yield Value("/dev/dxg", "there" if facts.wsl.has_dxg else "missing")
        yield Value("libraries from Windows", str(len(facts.wsl.libraries)))


def _engine(facts: Facts) -> Iterator[Value]:
    if isinstance(facts.engine, Engine):
        version = facts.engine.version
        shown = f" {version}" if isinstance(version, Release) else ""
        yield Value(facts.engine.kind.value, f"{shown}{', rootless' if facts.engine.is_rootless else ''}".strip())
        yield Value("runtimes", listed(runtime.name for runtime in facts.engine.runtimes))
    elif isinstance(facts.engine, EngineFailure):
        yield Value("engine", facts.engine.end.value)
    if isinstance(facts.compose, Compose):
        yield Value("Compose", str(facts.compose.version))


def _toolkit(facts: Facts) -> Iterator[Value]:
    if isinstance(facts.toolkit, Toolkit):
        yield from _version("NVIDIA Container Toolkit", facts.toolkit.version, absent="not installed")
        if isinstance(facts.toolkit.mode, str) and facts.toolkit.mode and facts.toolkit.version is not None:
            yield Value("mode", facts.toolkit.mode)
    if isinstance(facts.cdi, tuple):
        for spec in facts.cdi[:_MOST_CDI]:
            driver = f" for {spec.driver}" if spec.driver else ""
            yield Value("CDI", f"{count_of(len(spec.devices), 'device')}{driver}" if not spec.error else "unreadable")


def _container(facts: Facts) -> Iterator[Value]:
    side = _workload(facts)
    if isinstance(side.container, Container):
        yield Value("kind", side.container.kind)
        yield Value("NVIDIA_VISIBLE_DEVICES", side.container.visible_devices or "unset")
        if isinstance(side.container.shm_bytes, int):
            yield Value("/dev/shm", human_bytes(side.container.shm_bytes))  # noqa: S108 - a name to show


def _cuda(facts: Facts) -> Iterator[Value]:
    side = _workload(facts)
    if isinstance(side.nvml, NvmlAnswer):
        yield from _version("driver's CUDA", side.nvml.cuda, absent="none")
    if isinstance(side.python, Python) and isinstance(side.python.torch, Torch):
        yield from _version("torch's CUDA", side.python.torch.cuda, absent="none (CPU build)")
    if isinstance(side.container, Container) and side.container.require_cuda:
        yield Value("the image asks for", side.container.require_cuda)


def _python(facts: Facts) -> Iterator[Value]:
    side = _workload(facts)
    if isinstance(side.python, Python):
        yield Value("Python", str(side.python.version))
        if isinstance(side.python.torch, Torch):
            yield Value("torch", side.python.torch.version)
        elif side.python.torch is None:
            yield Value("torch", "not installed")
        for package in side.python.packages:
            if package.name in ("transformers", "peft", "bitsandbytes", "flash-attn", "triton"):
                yield Value(package.name, package.version)


def _project(facts: Facts) -> Iterator[Value]:
    if isinstance(facts.project, Project):
        yield Value("files read", str(len(facts.project.files)))
    if isinstance(facts.hub, Hub) and facts.hub.is_offline:
        yield Value("hub", "offline")
    if isinstance(facts.storage, Storage):
        for directory in facts.storage.directories:
            if isinstance(directory.free_bytes, int):
                yield Value(f"free for {directory.purpose}", human_bytes(directory.free_bytes))


def _workload(facts: Facts) -> Facts:
    """The side on which the workload runs: the dev container where it was looked into."""
    return facts.inside if isinstance(facts.inside, Facts) else facts


def _version(name: str, version: object, *, absent: str, suffix: str = "") -> Iterator[Value]:
    if not isinstance(version, Unknown):
        yield Value(name, absent if version is None else f"{version}{suffix}")


READINGS: Mapping[str, Callable[[Facts], Iterator[Value]]] = {
    "hardware": _hardware,
    "kernel": _kernel,
    "libraries": _libraries,
    "windows": _windows,
    "engine": _engine,
    "toolkit": _toolkit,
    "container": _container,
    "cuda": _cuda,
    "python": _python,
    "project": _project,
}
"""By the name of the layer."""
