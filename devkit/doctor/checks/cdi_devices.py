"""Checks of what CDI specifications say: paths that exist, every GPU, in a folder where the engine looks."""

from collections.abc import Iterator

from devkit.compat.load import tables
from devkit.doctor.applies import engine_of, gpu_engine, is_in_wsl, known, nvml_answer, toolkit_engine, toolkit_of
from devkit.doctor.checks.cdi import gpu_specs, rewrite
from devkit.doctor.checks.chains import ATTEMPTS
from devkit.doctor.machine import CDI_GUIDE, host_side
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, check
from devkit.facts.model import CdiSpec, Engine, EngineKind, Facts, Gpu
from devkit.facts.values import Unknown
from devkit.text import count_of, listed

_SHOWN = 4


def _write_anew(facts: Facts, spec: CdiSpec) -> Fix:
    return Fix(
        "Write the CDI specification anew, and recreate containers that were made with the old one.",
        rewrite(facts, spec),
        where=host_side(facts),
        root=True,
        docs=CDI_GUIDE,
    )


def _needs_cdi(engine: Engine) -> bool:
    """Whether CDI is this engine's only way to a GPU."""
    has_runtime = any(runtime.name == "nvidia" for runtime in engine.runtimes)
    return engine.kind is EngineKind.PODMAN or (engine.hook_on_path is False and not has_runtime)


@check(
    "CDI004",
    "What CDI specifications name exists",
    covers=("F13", "F14"),
    symptoms=('failed to stat CDI host device "/dev/dri/renderD129": no such file or directory',),
    causes=("CDI005", *ATTEMPTS),
)
def cdi_paths_exist(facts: Facts) -> Iterator[Finding]:
    """Every device node, library and hook program that a CDI specification names is on this machine.

    Why it matters: a container that asks for the device does not start when one of them is gone: render nodes change
    their number when a card is added, libraries go with a driver update, hooks with the toolkit.
    How it is seen: each host path in the specification is looked up.
    Source: NVIDIA/nvidia-container-toolkit issue 885; NVIDIA, Container Toolkit, "Support for CDI".
    """
    specs = gpu_specs(facts)
    engine = engine_of(facts)
    for spec in specs:
        if isinstance(spec.missing_paths, Unknown) or not spec.missing_paths:
            continue
        shown = spec.missing_paths[:_SHOWN]
        more = len(spec.missing_paths) - len(shown)
        yield Finding(
            Severity.ERROR if _needs_cdi(engine) else Severity.WARNING,
            f"{spec.path} names {shown[0]}, which is not there: containers that ask for the GPU by CDI do not start",
            _write_anew(facts, spec),
            subject=spec.path,
            evidence=(*(f"{path}: no such file" for path in shown), *((f"and {more} more",) if more > 0 else ())),
            confidence=Confidence.LIKELY,
        )


@check(
    "CDI005",
    "CDI specifications describe every GPU",
    covers=("F12",),
    symptoms=("invalid device, empty device edits", "No devices found. Waiting indefinitely."),
    causes=ATTEMPTS,
)
def cdi_describes_every_gpu(facts: Facts) -> Iterator[Finding]:
    """Each GPU that NVML counts has its device in the CDI specification, and each device brings a device node.

    Why it matters: a specification that was written while the driver did not answer names libraries and no GPU, and one
    from before a card was added leaves that out; containers then start with too little.
    How it is seen: devices of the specification that are named by number, and their device nodes, against NVML. With
    MIG the names are others, so nothing is counted.
    Source: kaito-project/kaito issue 2326; NVIDIA, Container Toolkit, "Support for CDI".
    """
    specs = [spec for spec in gpu_specs(facts) if not spec.error and spec.devices]
    engine_of(facts)
    gpus = [gpu for gpu in nvml_answer(facts).gpus if isinstance(gpu, Gpu)]
    if is_in_wsl(facts):
        raise NotApplicable("in WSL every GPU is the one node /dev/dxg")
    for spec in specs:
        numbered = {name for name in spec.devices if name.isdigit()}
        empty = () if isinstance(spec.without_nodes, Unknown) else spec.without_nodes
        has_mig = any(gpu.mig_enabled is True for gpu in gpus)
        if empty:
            yield _poor(
                facts,
                spec,
                f"{spec.path} gives no device node for {listed(empty[:_SHOWN])}: containers get libraries but no GPU",
            )
        elif numbered and len(numbered) < len(gpus) and not has_mig:
            yield _poor(
                facts, spec, f"{spec.path} describes {count_of(len(numbered), 'GPU')}, but there are {len(gpus)}"
            )


def _poor(facts: Facts, spec: CdiSpec, message: str) -> Finding:
    return Finding(
        Severity.WARNING,
        message,
        _write_anew(facts, spec),
        subject=spec.path,
        evidence=(f"{spec.path}: devices {listed(spec.devices[:8])}", f"NVML counts {len(facts.gpus)}"),
    )


@check(
    "CDI006",
    "CDI specifications are renewed after a driver update",
    covers=("F13",),
    symptoms=("nvidia-cdi-refresh.service", "stale CDI spec"),
)
def cdi_is_renewed(facts: Facts) -> Iterator[Finding]:
    """Where the toolkit brings a unit that renews CDI specifications, it is switched on.

    Why it matters: the next driver update makes the specification stale, and containers fail on a morning when nobody
    touched them.
    How it is seen: the links that systemd keeps for nvidia-cdi-refresh.path, which the toolkit has since 1.18.0.
    Source: NVIDIA, Container Toolkit, "Support for CDI".
    """
    gpu_specs(facts)
    engine = toolkit_engine(facts)
    state = known(toolkit_of(facts).cdi_refresh)
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
            where=host_side(facts),
            root=True,
            docs=CDI_GUIDE,
        ),
        evidence=(f"nvidia-cdi-refresh.path: {state}",),
    )


@check(
    "CDI007",
    "The engine is new enough for CDI",
    covers=("F08",),
    symptoms=("stat nvidia.com/gpu=all: no such file or directory", "unresolvable CDI devices nvidia.com/gpu=all"),
    causes=("CTK002", "CDI002", *ATTEMPTS),
)
def engine_knows_cdi(facts: Facts) -> Iterator[Finding]:
    """Podman is of a version that knows CDI, its only way to a GPU.

    Why it matters: an older one takes nvidia.com/gpu=all for a path, and says that there is no such file.
    How it is seen: the engine's version against the table of engine features.
    Source: Podman 4.1.0 release notes; docker/cli issue 3864.
    """
    engine = gpu_engine(facts)
    if engine.kind is not EngineKind.PODMAN:
        raise NotApplicable("Docker has other ways to a GPU")
    version, floor = known(engine.version), tables().engines.features["podman", "cdi"].version
    if version >= floor:
        return
    yield Finding(
        Severity.ERROR,
        f"Podman {version} knows no CDI, its only way to a GPU; {floor} does",
        Fix("Update Podman.", where=host_side(facts), root=True, docs=CDI_GUIDE),
        evidence=(f"podman {version}",),
    )


@check(
    "CDI008",
    "CDI specifications lie where the engine looks",
    covers=("F08",),
    symptoms=("unresolvable CDI devices nvidia.com/gpu=all",),
    causes=ATTEMPTS,
)
def cdi_lies_where_engine_looks(facts: Facts) -> Iterator[Finding]:
    """At least one CDI specification for NVIDIA GPUs is in a folder that the engine searches.

    Why it matters: rootless engines and hand-written daemon.json files search other folders than the toolkit writes to;
    the specification is perfect, and the device "unresolvable".
    How it is seen: the folders that the engine names in its settings, against where the specifications are.
    Source: Docker Engine API, `CDISpecDirs`; NVIDIA/nvidia-container-toolkit issue 63.
    """
    specs = gpu_specs(facts)
    engine = gpu_engine(facts)
    if not engine.cdi_spec_dirs:
        raise NotApplicable("the engine does not name its CDI folders")
    folders = {_plain(folder) for folder in engine.cdi_spec_dirs}
    if any(_plain(spec.path.rpartition("/")[0]) in folders for spec in specs):
        return
    if not isinstance(engine.cdi_devices, Unknown) and engine.cdi_devices:
        return
    target = f"{engine.cdi_spec_dirs[0]}/nvidia.yaml"
    yield Finding(
        Severity.ERROR if _needs_cdi(engine) else Severity.WARNING,
        f"{specs[0].path} lies where this engine does not look: it searches {listed(engine.cdi_spec_dirs)}",
        Fix(
            "Write the specification where the engine looks.",
            (f"sudo nvidia-ctk cdi generate --output={target}",),
            where=host_side(facts),
            root=True,
            docs=CDI_GUIDE,
        ),
        subject=specs[0].path,
        evidence=(f"engine: CDISpecDirs {listed(engine.cdi_spec_dirs)}", *(spec.path for spec in specs)),
    )


def _plain(folder: str) -> str:
    """/var/run is /run on every system of this century."""
    return folder.rstrip("/").replace("/var/run/", "/run/")
