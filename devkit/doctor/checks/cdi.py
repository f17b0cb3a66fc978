"""Checks of CDI specifications: readable, current, complete, where the engine looks, and the devices that it finds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.cascades import CONTAINER_START_CODES
from devkit.doctor.checks.driver.initialization import list_missing_nodes
from devkit.doctor.model import Confidence, NotApplicable, Severity, check
from devkit.doctor.preconditions import (
    is_in_wsl,
    require,
    require_container_engine,
    require_engine_side,
    require_gpu_engine,
    require_loaded_driver,
    require_nvidia_gpu,
    require_nvml,
    require_toolkit,
    require_toolkit_engine,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import PODMAN_OF_ONE_CDI_FOLDER
from devkit.facts.engine import UNREADABLE_SPEC, CdiSpec, Engine, EngineKind
from devkit.facts.gpu import Gpu
from devkit.facts.model import Facts
from devkit.facts.values import Release, Unknown
from devkit.text import format_count, join_words

_CDI_0_7_0 = Release.parse("0.7.0")
"""The first version that older engines refuse. Source: NVIDIA, Container Toolkit 1.19.1 release notes."""
_SHOWN = 4
_NODES_ON_DEMAND = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
CDI_GPU_KIND = "nvidia.com/gpu"
DEFAULT_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""Later folders win. Source: container-device-interface, cdi.DefaultSpecDirs."""


@dataclass(frozen=True)
class CdiDevices:
    """Qualified names of the devices that requests resolve to, and those that two files of one folder claim."""

    resolved: frozenset[str]
    conflicts: dict[str, tuple[str, str]]
    """Name → the two files. The library drops such a device, even where another folder has it too."""


def resolve_cdi_devices(specs: Iterable[CdiSpec], folders: tuple[str, ...] = DEFAULT_FOLDERS) -> CdiDevices:
    """Resolve the devices of these specifications as an engine that searches `folders` does.

    Source: container-device-interface, pkg/cdi/cache.go, `refresh`.
    """
    priorities = {normalize_folder(folder): priority for priority, folder in enumerate(folders or DEFAULT_FOLDERS)}
    owners: dict[str, CdiSpec] = {}
    conflicts: dict[str, tuple[str, str]] = {}

    def priority_of(spec: CdiSpec) -> int | None:
        return priorities.get(find_folder(spec))

    used = [spec for spec in specs if not spec.error and priority_of(spec) is not None]
    for spec in sorted(used, key=lambda spec: (priority_of(spec), spec.path)):
        for device in spec.devices:
            name = f"{spec.kind}={device}"
            if name in owners and priority_of(owners[name]) == priority_of(spec):
                conflicts[name] = (owners[name].path, spec.path)
            else:
                owners[name] = spec
    return CdiDevices(frozenset(owners) - frozenset(conflicts), conflicts)


def find_folder(spec: CdiSpec) -> str:
    """Return the folder of a specification, under one name for all engines."""
    return normalize_folder(spec.path.rpartition("/")[0])


def normalize_folder(folder: str) -> str:
    """Write a folder as /run/cdi: /var/run is /run on every system of this century."""
    return f"{folder.rstrip('/')}/".replace("/var/run/", "/run/").rstrip("/")


def has_cdi_gpus(facts: Facts, engine: Engine) -> bool:
    """Say if the engine knows GPUs by CDI: it lists them, or it is Podman and has a readable specification."""
    if not isinstance(engine.cdi_devices, Unknown):
        return any(name.startswith(CDI_GPU_KIND) for name in engine.cdi_devices)
    specs = require(facts.cdi)
    if any(spec.error == UNREADABLE_SPEC and "nvidia" in spec.path for spec in specs) and not engine.is_rootless:
        raise NotApplicable("a CDI specification cannot be read by this user, but perhaps by the engine")
    if engine.kind is not EngineKind.PODMAN and not engine.cdi_spec_dirs:
        return False
    names = resolve_cdi_devices(specs, engine.cdi_spec_dirs).resolved
    return any(name.startswith(f"{CDI_GPU_KIND}=") for name in names)


def require_gpu_cdi_specs(facts: Facts) -> tuple[CdiSpec, ...]:
    """Return the CDI specifications for NVIDIA GPUs, the unreadable ones included, or end the check."""
    require_engine_side(facts)
    require_nvidia_gpu(facts)
    specs = require(facts.cdi)
    found = tuple(spec for spec in specs if spec.kind == CDI_GPU_KIND or (spec.error and "nvidia" in spec.path))
    skip_if(not found, "no CDI specification lists nvidia.com/gpu")
    return found


@check("CDI001", causes=("CDI004", *CONTAINER_START_CODES))
def cdi_is_current(facts: Facts) -> Iterator[Problem]:
    specs = require_gpu_cdi_specs(facts)
    release = require_loaded_driver(facts)
    for spec in specs:
        if spec.driver is not None and spec.driver != release:
            evidence = (f"{spec.path}: libraries of {spec.driver}", f"/sys/module/nvidia/version: {release}")
            yield problem("other-driver", path=spec.path, driver=spec.driver, loaded=release, evidence=evidence)


@check("CDI002", causes=CONTAINER_START_CODES)
def engine_reads_cdi_version(facts: Facts) -> Iterator[Problem]:
    specs = require_gpu_cdi_specs(facts)
    engine = require_gpu_engine(facts)
    program = "podman" if engine.kind is EngineKind.PODMAN else "docker"
    floor = load_tables().engines.features[program, "cdi-spec-0.7"].version
    version = require(engine.version)
    if version >= floor:
        return
    for spec in specs:
        if not spec.error and (named := Release.find(spec.cdi_version)) and named >= _CDI_0_7_0:
            yield problem(
                "too-new",
                severity=None if program == "podman" else Severity.WARNING,
                path=spec.path,
                cdi_version=spec.cdi_version,
                program=program,
                version=version,
                floor=floor,
                evidence=(f"{spec.path}: cdiVersion {spec.cdi_version}", f"{program} {version}"),
            )


@check("CDI003", causes=("CTK002", "CDI010", *CONTAINER_START_CODES))
def cdi_is_readable(facts: Facts) -> Iterator[Problem]:
    specs = require_gpu_cdi_specs(facts)
    engine = require_container_engine(facts)
    for spec in specs:
        # Another user's engine may read what this user may not.
        is_judged = spec.error != UNREADABLE_SPEC or engine.is_rootless
        is_only_way = is_judged and _needs_cdi(engine) and not has_cdi_gpus(facts, engine)
        if spec.error or not spec.devices:
            # Written again beside another one, it would describe the same devices, and the engine drop both.
            kept = min(
                (one for one in specs if find_folder(one) == find_folder(spec)),
                key=lambda one: bool(one.error or not one.devices),
            )
            yield problem(
                "not-readable" if spec.error else "no-device",
                severity=None if is_only_way else Severity.WARNING,
                path=spec.path,
                error=spec.error,
                other="" if spec is kept else kept.path,
                evidence=(f"{spec.path}: {spec.error or 'no devices'}",),
            )


def _needs_cdi(engine: Engine) -> bool:
    """Say if CDI is this engine's only way to a GPU."""
    has_runtime = any(runtime.name == "nvidia" and runtime.program != "" for runtime in engine.runtimes)
    return engine.kind is EngineKind.PODMAN or (engine.hook_on_path is False and not has_runtime)


@check("CDI004", causes=("CDI005", *CONTAINER_START_CODES))
def cdi_paths_exist(facts: Facts) -> Iterator[Problem]:
    specs = require_gpu_cdi_specs(facts)
    engine = require_container_engine(facts)
    # A node that the driver makes on demand is not to be left out of the specification: DRV005 brings it back.
    on_demand = () if isinstance(facts.driver, Unknown) else (*_NODES_ON_DEMAND, *list_missing_nodes(facts.driver))
    for spec in specs:
        if isinstance(spec.missing_paths, Unknown) or spec.error:
            continue
        missing = [path for path in spec.missing_paths if path not in on_demand]
        if missing:
            more = len(missing) - _SHOWN
            yield problem(
                "missing-path",
                severity=None if _needs_cdi(engine) else Severity.WARNING,
                path=spec.path,
                missing=missing[0],
                evidence=[f"{path}: no such file" for path in missing[:_SHOWN]] + [f"and {more} more"] * (more > 0),
            )


@check("CDI005", causes=CONTAINER_START_CODES)
def cdi_describes_every_gpu(facts: Facts) -> Iterator[Problem]:
    specs = [spec for spec in require_gpu_cdi_specs(facts) if not spec.error and spec.devices]
    require_container_engine(facts)
    gpus = [gpu for gpu in require_nvml(facts).gpus if isinstance(gpu, Gpu)]
    skip_if(is_in_wsl(facts), "in WSL, all GPUs share the node /dev/dxg")
    has_mig = any(gpu.mig_enabled is True for gpu in gpus)
    for spec in specs:
        path, numbered = spec.path, {name for name in spec.devices if name.isdigit()}
        empty = () if isinstance(spec.without_nodes, Unknown) else spec.without_nodes
        evidence = (f"{path}: devices {join_words(spec.devices[:8])}", f"NVML counts {len(facts.gpus)}")
        if empty:
            yield problem("no-node", path=path, devices=join_words(empty[:_SHOWN]), evidence=evidence)
        elif "all" not in spec.devices and spec.kind == CDI_GPU_KIND:
            yield problem("no-all", path=path, evidence=evidence)
        elif numbered and len(numbered) < len(gpus) and not has_mig:
            described = format_count(len(numbered), "GPU")
            yield problem("too-few", path=path, described=described, count=len(gpus), evidence=evidence)


@check("CDI006", require_gpu_cdi_specs)
def cdi_refresh_is_enabled(facts: Facts) -> Iterator[Problem]:
    engine = require_toolkit_engine(facts)
    state = require(require_toolkit(facts).cdi_refresh)
    skip_if(not state, "this toolkit has no unit that renews CDI specifications")
    if state != "enabled":
        severity = None if _needs_cdi(engine) else Severity.NOTE
        yield problem("not-enabled", severity=severity, state=state, evidence=(f"nvidia-cdi-refresh.path: {state}",))


@check("CDI007", causes=("CTK002", "CDI002", *CONTAINER_START_CODES))
def engine_supports_cdi(facts: Facts) -> Iterator[Problem]:
    engine = require_gpu_engine(facts)
    skip_if(engine.kind is not EngineKind.PODMAN, "Docker has other ways to a GPU")
    version, floor = require(engine.version), load_tables().engines.features["podman", "cdi"].version
    if version < floor:
        yield problem("too-old", version=version, floor=floor, evidence=(f"podman {version}",))


@check("CDI008", causes=("CTK002", "CDI010", *CONTAINER_START_CODES))
def cdi_is_where_engine_looks(facts: Facts) -> Iterator[Problem]:
    specs = require_gpu_cdi_specs(facts)
    engine = require_gpu_engine(facts)
    is_of_one = (
        engine.kind is EngineKind.PODMAN
        and isinstance(engine.version, Release)
        and engine.version.numbers[:2] == PODMAN_OF_ONE_CDI_FOLDER
    )
    searched = ("/etc/cdi",) if is_of_one else engine.cdi_spec_dirs
    skip_if(not searched, "the engine does not list its CDI folders")
    folders = {normalize_folder(folder) for folder in searched}
    if any(find_folder(spec) in folders for spec in specs):
        return
    if not isinstance(engine.cdi_devices, Unknown) and engine.cdi_devices:
        return
    searched_by = (
        f"Podman {engine.version} searches only /etc/cdi"
        if is_of_one
        else f"engine: CDISpecDirs {join_words(searched)}"
    )
    yield problem(
        "elsewhere",
        severity=None if _needs_cdi(engine) else Severity.WARNING,
        confidence=Confidence.LIKELY if is_of_one else None,
        path=specs[0].path,
        folders=join_words(searched),
        folder=searched[0],
        evidence=(searched_by, *(spec.path for spec in specs)),
    )


@check("CDI009", causes=("CTK002", "CDI010", *CONTAINER_START_CODES))
def cdi_devices_are_unique(facts: Facts) -> Iterator[Problem]:
    specs = require_gpu_cdi_specs(facts)
    engine = require_toolkit_engine(facts)
    conflicts = {
        name: files
        for name, files in resolve_cdi_devices(specs, engine.cdi_spec_dirs).conflicts.items()
        if isinstance(engine.cdi_devices, Unknown) or name not in engine.cdi_devices
    }
    for first, second in dict.fromkeys(conflicts.values()):
        names = [name for name, files in conflicts.items() if files == (first, second)]
        spare = first if second.endswith("/nvidia.yaml") else second
        yield problem(
            "described-twice",
            severity=None if _needs_cdi(engine) else Severity.WARNING,
            first=first,
            second=second,
            devices=join_words(names[:_SHOWN]),
            spare=spare,
            subject=spare,
            evidence=(f"{first} and {second}: {format_count(len(names), 'device')} of one name", _list_known(engine)),
        )


def _list_known(engine: Engine) -> str:
    if isinstance(engine.cdi_devices, Unknown):
        return f"engine: {engine.cdi_devices.reason}"
    return f"CDI devices that the engine lists: {join_words(engine.cdi_devices[:_SHOWN]) or 'none'}"


@check("CDI010", causes=("CTK002", *CONTAINER_START_CODES))
def engine_knows_cdi_gpus(facts: Facts) -> Iterator[Problem]:
    engine = require_toolkit_engine(facts)
    specs = tuple(spec for spec in require(facts.cdi) if spec.driver is not None or spec.kind == CDI_GPU_KIND)
    skip_if(not specs, "no CDI specification lists the driver's libraries")
    if not _needs_cdi(engine) or has_cdi_gpus(facts, engine):
        return
    evidence = (
        _list_known(engine),
        f"engine: CDISpecDirs {join_words(engine.cdi_spec_dirs) or 'none'}",
        *(f"{spec.path}: {spec.kind or spec.error}" for spec in specs),
    )
    if engine.kind is EngineKind.DOCKER and not engine.cdi_spec_dirs:
        yield problem("switched-off", evidence=evidence)
    elif all(spec.kind and spec.kind != CDI_GPU_KIND for spec in specs):
        yield problem("other-kind", path=specs[0].path, found=specs[0].kind, evidence=evidence)
    else:
        yield problem("not-listed", path=specs[0].path, evidence=evidence)
