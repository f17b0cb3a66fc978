"""Checks of CDI specifications: readable, current, complete, where the engine looks, and the devices that it finds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from shlex import quote

from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.cascades import CONTAINER_START_CODES
from devkit.doctor.checks.driver.initialization import list_missing_nodes
from devkit.doctor.fixes import CDI_GUIDE, edit_daemon_file, find_host_side, refresh_cdi, restart_engine
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, check
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
)
from devkit.doctor.thresholds import PODMAN_OF_ONE_CDI_FOLDER
from devkit.facts.engine import UNREADABLE_SPEC
from devkit.facts.model import CdiSpec, Engine, EngineKind, Facts, Gpu
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
    if not found:
        raise NotApplicable("there is no CDI specification for nvidia.com/gpu")
    return found


def regenerate_cdi_spec(facts: Facts, spec: CdiSpec) -> tuple[str, ...]:
    """List the commands that regenerate this specification."""
    commands = refresh_cdi(facts)
    return tuple(command.replace("/etc/cdi/nvidia.yaml", quote(spec.path)) for command in commands)


@check("CDI001", causes=("CDI004", *CONTAINER_START_CODES))
def cdi_is_current(facts: Facts) -> Iterator[Finding]:
    specs = require_gpu_cdi_specs(facts)
    release = require_loaded_driver(facts)
    for spec in specs:
        if spec.driver is not None and spec.driver != release:
            yield Finding(
                Severity.ERROR,
                f"{spec.path} describes driver {spec.driver}, but {release} is loaded",
                Fix(
                    "Regenerate the CDI specification, and recreate containers that were made with the old one.",
                    regenerate_cdi_spec(facts, spec),
                    where=find_host_side(facts),
                    root=True,
                    docs=CDI_GUIDE,
                ),
                subject=spec.path,
                evidence=(f"{spec.path}: libraries of {spec.driver}", f"/sys/module/nvidia/version: {release}"),
            )


@check("CDI002", causes=CONTAINER_START_CODES)
def engine_reads_cdi_version(facts: Facts) -> Iterator[Finding]:
    specs = require_gpu_cdi_specs(facts)
    engine = require_gpu_engine(facts)
    name = "podman" if engine.kind is EngineKind.PODMAN else "docker"
    floor = load_tables().engines.features[name, "cdi-spec-0.7"]
    version = require(engine.version)
    if version >= floor.version:
        return
    for spec in specs:
        if not spec.error and _is_070(spec):
            yield Finding(
                Severity.ERROR if name == "podman" else Severity.WARNING,
                f"{spec.path} is CDI {spec.cdi_version}, which {name} {version} cannot read; {floor.version} can",
                Fix(
                    f"Update {name}, or write the specification in the older version.",
                    (
                        "sudo nvidia-ctk cdi generate --feature-flag no-additional-gids-for-device-nodes"
                        f" --output={quote(spec.path)}",
                    ),
                    where=find_host_side(facts),
                    root=True,
                    docs=CDI_GUIDE,
                ),
                subject=spec.path,
                evidence=(f"{spec.path}: cdiVersion {spec.cdi_version}", f"{name} {version}"),
            )


def _is_070(spec: CdiSpec) -> bool:
    try:
        return Release.parse(spec.cdi_version) >= _CDI_0_7_0
    except ValueError:
        return False


@check("CDI003", causes=("CTK002", "CDI010", *CONTAINER_START_CODES))
def cdi_is_readable(facts: Facts) -> Iterator[Finding]:
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
            yield Finding(
                Severity.ERROR if is_only_way else Severity.WARNING,
                f"{spec.path} cannot be used: {spec.error or 'it names no device'}",
                Fix(
                    "Regenerate the CDI specification, readable by every user."
                    if spec is kept
                    else f"Put the file aside: {kept.path} describes the GPUs.",
                    (*regenerate_cdi_spec(facts, spec), f"sudo chmod 644 {quote(spec.path)}")
                    if spec is kept
                    else (f"sudo mv {quote(spec.path)} {quote(spec.path)}.bak",),
                    where=find_host_side(facts),
                    root=True,
                    docs=CDI_GUIDE,
                ),
                subject=spec.path,
                evidence=(f"{spec.path}: {spec.error or 'no devices'}",),
            )


def _regenerate_fix(facts: Facts, spec: CdiSpec) -> Fix:
    return Fix(
        "Regenerate the CDI specification, and recreate containers that were made with the old one.",
        regenerate_cdi_spec(facts, spec),
        where=find_host_side(facts),
        root=True,
        docs=CDI_GUIDE,
    )


def _needs_cdi(engine: Engine) -> bool:
    """Say if CDI is this engine's only way to a GPU."""
    has_runtime = any(runtime.name == "nvidia" and runtime.program != "" for runtime in engine.runtimes)
    return engine.kind is EngineKind.PODMAN or (engine.hook_on_path is False and not has_runtime)


@check("CDI004", causes=("CDI005", *CONTAINER_START_CODES))
def cdi_paths_exist(facts: Facts) -> Iterator[Finding]:
    specs = require_gpu_cdi_specs(facts)
    engine = require_container_engine(facts)
    for spec in specs:
        if isinstance(spec.missing_paths, Unknown) or spec.error:
            continue
        # A node that the driver makes on demand is not to be left out of the specification: DRV005 brings it back.
        on_demand = () if isinstance(facts.driver, Unknown) else (*_NODES_ON_DEMAND, *list_missing_nodes(facts.driver))
        missing = tuple(path for path in spec.missing_paths if path not in on_demand)
        if not missing:
            continue
        shown = missing[:_SHOWN]
        more = len(missing) - len(shown)
        yield Finding(
            Severity.ERROR if _needs_cdi(engine) else Severity.WARNING,
            f"{spec.path} names {shown[0]}, which is not there: containers that ask for the GPU by CDI do not start",
            _regenerate_fix(facts, spec),
            subject=spec.path,
            evidence=(*(f"{path}: no such file" for path in shown), *((f"and {more} more",) if more > 0 else ())),
            confidence=Confidence.LIKELY,
        )


@check("CDI005", causes=CONTAINER_START_CODES)
def cdi_describes_every_gpu(facts: Facts) -> Iterator[Finding]:
    specs = [spec for spec in require_gpu_cdi_specs(facts) if not spec.error and spec.devices]
    require_container_engine(facts)
    gpus = [gpu for gpu in require_nvml(facts).gpus if isinstance(gpu, Gpu)]
    if is_in_wsl(facts):
        raise NotApplicable("in WSL every GPU is the one node /dev/dxg")
    for spec in specs:
        numbered = {name for name in spec.devices if name.isdigit()}
        empty = () if isinstance(spec.without_nodes, Unknown) else spec.without_nodes
        has_mig = any(gpu.mig_enabled is True for gpu in gpus)
        if empty:
            yield _incomplete_finding(
                facts,
                spec,
                f"{spec.path} gives no device node for {join_words(empty[:_SHOWN])}: containers get libraries but no GPU",
            )
        elif "all" not in spec.devices and spec.kind == CDI_GPU_KIND:
            yield _incomplete_finding(
                facts, spec, f"{spec.path} names no device all, for which most requests ask: it may be cut off"
            )
        elif numbered and len(numbered) < len(gpus) and not has_mig:
            yield _incomplete_finding(
                facts, spec, f"{spec.path} describes {format_count(len(numbered), 'GPU')}, but there are {len(gpus)}"
            )


def _incomplete_finding(facts: Facts, spec: CdiSpec, message: str) -> Finding:
    return Finding(
        Severity.WARNING,
        message,
        _regenerate_fix(facts, spec),
        subject=spec.path,
        evidence=(f"{spec.path}: devices {join_words(spec.devices[:8])}", f"NVML counts {len(facts.gpus)}"),
    )


@check("CDI006")
def cdi_refresh_is_enabled(facts: Facts) -> Iterator[Finding]:
    require_gpu_cdi_specs(facts)
    engine = require_toolkit_engine(facts)
    state = require(require_toolkit(facts).cdi_refresh)
    if not state:
        raise NotApplicable("this toolkit has no unit that renews CDI specifications")
    if state == "enabled":
        return
    yield Finding(
        Severity.WARNING if _needs_cdi(engine) else Severity.NOTE,
        f"nvidia-cdi-refresh.path is {state}: the next driver update makes the CDI specification stale",
        Fix(
            "Switch the unit on.",
            (
                *(("sudo systemctl unmask nvidia-cdi-refresh.path nvidia-cdi-refresh.service",) * (state == "masked")),
                "sudo systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service",
            ),
            where=find_host_side(facts),
            root=True,
            docs=CDI_GUIDE,
        ),
        evidence=(f"nvidia-cdi-refresh.path: {state}",),
    )


@check("CDI007", causes=("CTK002", "CDI002", *CONTAINER_START_CODES))
def engine_supports_cdi(facts: Facts) -> Iterator[Finding]:
    engine = require_gpu_engine(facts)
    if engine.kind is not EngineKind.PODMAN:
        raise NotApplicable("Docker has other ways to a GPU")
    version, floor = require(engine.version), load_tables().engines.features["podman", "cdi"].version
    if version >= floor:
        return
    yield Finding(
        Severity.ERROR,
        f"Podman {version} knows no CDI, its only way to a GPU; {floor} does",
        Fix("Update Podman.", where=find_host_side(facts), root=True, docs=CDI_GUIDE),
        evidence=(f"podman {version}",),
    )


@check("CDI008", causes=("CTK002", "CDI010", *CONTAINER_START_CODES))
def cdi_is_where_engine_looks(facts: Facts) -> Iterator[Finding]:
    specs = require_gpu_cdi_specs(facts)
    engine = require_gpu_engine(facts)
    searched = engine.cdi_spec_dirs
    is_of_one = (
        engine.kind is EngineKind.PODMAN
        and isinstance(engine.version, Release)
        and engine.version.numbers[:2] == PODMAN_OF_ONE_CDI_FOLDER.value
    )
    if is_of_one:
        searched = ("/etc/cdi",)
    if not searched:
        raise NotApplicable("the engine does not name its CDI folders")
    folders = {normalize_folder(folder) for folder in searched}
    if any(find_folder(spec) in folders for spec in specs):
        return
    if not isinstance(engine.cdi_devices, Unknown) and engine.cdi_devices:
        return
    target = f"{searched[0]}/nvidia.yaml"
    yield Finding(
        Severity.ERROR if _needs_cdi(engine) else Severity.WARNING,
        f"{specs[0].path} is not in a folder that this engine searches: {join_words(searched)}",
        Fix(
            "Write the specification where the engine looks.",
            (f"sudo nvidia-ctk cdi generate --output={quote(target)}",),
            where=find_host_side(facts),
            root=True,
            docs=CDI_GUIDE,
        ),
        subject=specs[0].path,
        evidence=(
            f"Podman {engine.version} searches /etc/cdi alone"
            if is_of_one
            else f"engine: CDISpecDirs {join_words(searched)}",
            *(spec.path for spec in specs),
        ),
        confidence=Confidence.LIKELY if is_of_one else Confidence.CERTAIN,
    )


@check("CDI009", causes=("CTK002", "CDI010", *CONTAINER_START_CODES))
def cdi_devices_are_unique(facts: Facts) -> Iterator[Finding]:
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
        yield Finding(
            Severity.ERROR if _needs_cdi(engine) else Severity.WARNING,
            f"{first} and {second} describe the same devices, so that no request finds them: {join_words(names[:_SHOWN])}",
            Fix(
                "Keep one of the files: engines read names that end with .yaml or .json.",
                (f"sudo mv {quote(spare)} {quote(spare)}.bak",),
                where=find_host_side(facts),
                root=True,
                docs=CDI_GUIDE,
            ),
            subject=spare,
            evidence=(f"{first} and {second}: {format_count(len(names), 'device')} of one name", _list_known(engine)),
        )


def _list_known(engine: Engine) -> str:
    if isinstance(engine.cdi_devices, Unknown):
        return f"engine: {engine.cdi_devices.reason}"
    return f"CDI devices that the engine lists: {join_words(engine.cdi_devices[:_SHOWN]) or 'none'}"


_SWITCH_CDI_ON = edit_daemon_file("d.setdefault('features', {})['cdi'] = True")
"""`nvidia-ctk runtime configure --cdi.enabled` would also register the nvidia runtime, whose hook such a machine may lack."""


@check("CDI010", causes=("CTK002", *CONTAINER_START_CODES))
def engine_knows_cdi_gpus(facts: Facts) -> Iterator[Finding]:
    engine = require_toolkit_engine(facts)
    specs = tuple(spec for spec in require(facts.cdi) if spec.driver is not None or spec.kind == CDI_GPU_KIND)
    if not specs:
        raise NotApplicable("there is no CDI specification of the driver's libraries")
    if not _needs_cdi(engine) or has_cdi_gpus(facts, engine):
        return
    others = tuple(spec for spec in specs if spec.kind and spec.kind != CDI_GPU_KIND)
    summary, commands, restart = (
        "Restart the engine, so that it reads the folder again.",
        restart_engine(facts, engine),
        True,
    )
    message = f"the engine lists none of the GPUs that {specs[0].path} describes"
    if engine.kind is EngineKind.DOCKER and not engine.cdi_spec_dirs:
        message = "CDI is switched off in this Docker, and it has no other way to a GPU"
        summary = 'Switch CDI on ("features": {"cdi": true} in daemon.json), and restart.'
        commands = (_SWITCH_CDI_ON, *commands)
    elif len(others) == len(specs):
        message = f"{others[0].path} describes {others[0].kind}, but requests name {CDI_GPU_KIND}"
        summary, commands, restart = "Write the specification for NVIDIA's own name.", refresh_cdi(facts), False
    yield Finding(
        Severity.ERROR,
        message,
        Fix(
            summary,
            commands,
            where=find_host_side(facts),
            root=True,
            restart=Restart.ENGINE if restart else Restart.NONE,
            docs=CDI_GUIDE,
        ),
        evidence=(
            _list_known(engine),
            f"engine: CDISpecDirs {join_words(engine.cdi_spec_dirs) or 'none'}",
            *(f"{spec.path}: {spec.kind or spec.error}" for spec in specs),
        ),
    )
