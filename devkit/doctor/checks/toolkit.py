"""Checks of the NVIDIA Container Toolkit and of how it is wired into the engine."""

from collections.abc import Iterator

from devkit.doctor.applies import known, toolkit_engine, toolkit_of
from devkit.doctor.checks.chains import ATTEMPTS, CDI
from devkit.doctor.machine import (
    CDI_GUIDE,
    INSTALL_TOOLKIT,
    TOOLKIT_GUIDE,
    configure_runtime,
    family_of,
    host_side,
    restart_engine,
)
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, check
from devkit.facts.engine import UNREADABLE
from devkit.facts.model import Engine, EngineKind, Facts
from devkit.facts.values import Unknown
from devkit.text import listed

GPU_KIND = "nvidia.com/gpu"


def has_cdi_gpus(facts: Facts, engine: Engine) -> bool:
    """Whether the engine knows GPUs by CDI: it lists them, or it is Podman and a readable specification is there."""
    if not isinstance(engine.cdi_devices, Unknown):
        return any(name.startswith(GPU_KIND) for name in engine.cdi_devices)
    specs = known(facts.cdi)
    if any(spec.error == UNREADABLE and "nvidia" in spec.path for spec in specs) and not engine.is_rootless:
        raise NotApplicable("a CDI specification cannot be read by this user, but perhaps by the engine")
    names_gpus = any(spec.kind == GPU_KIND and spec.devices and not spec.error for spec in specs)
    return names_gpus and (engine.kind is EngineKind.PODMAN or bool(engine.cdi_spec_dirs))


def has_nvidia_runtime(engine: Engine) -> bool:
    """Whether the engine has a container runtime named nvidia."""
    return any(runtime.name == "nvidia" for runtime in engine.runtimes)


@check(
    "CTK001",
    "The NVIDIA Container Toolkit is installed where the engine looks",
    covers=("E05",),
    symptoms=('could not select device driver "" with capabilities: [[gpu]]',),
    causes=("CTK002", "CTK003", "CTK004", "CTK005", "CTK009", "CTK010", "CTK011", *CDI, *ATTEMPTS),
)
def toolkit_installed(facts: Facts) -> Iterator[Finding]:
    """The Container Toolkit is on this machine, and the engine's daemon finds its hook.

    Why it matters: without it `docker run --gpus all` ends with "could not select device driver", the most frequent
    failure of all.
    How it is seen: nvidia-ctk, and nvidia-container-runtime-hook on the daemon's own PATH; Docker needs the hook for
    `--gpus` and for Compose's device requests even where the nvidia runtime is registered. An engine that lists CDI
    GPUs passes however it came to do so.
    Source: NVIDIA/nvidia-docker issue 1034; NVIDIA, Container Toolkit install guide.
    """
    engine = toolkit_engine(facts)
    has_runtime = has_nvidia_runtime(engine) and engine.kind is not EngineKind.PODMAN
    if has_cdi_gpus(facts, engine) or (has_runtime and engine.hook_on_path is not False):
        return
    if toolkit_of(facts).version is None:
        yield Finding(
            Severity.ERROR,
            "the NVIDIA Container Toolkit is not installed, so no container can get a GPU",
            _install(facts, engine),
            evidence=("nvidia-ctk: no such program", _offers(facts, engine)),
        )
    elif engine.hook_on_path is False and engine.kind is EngineKind.DOCKER:
        yield Finding(
            Severity.ERROR,
            "the Container Toolkit is installed, but the Docker daemon does not find its hook",
            Fix(
                "Install the whole toolkit, because its base package has no hook, and restart the engine, which looks"
                " for the hook only when it starts.",
                (*INSTALL_TOOLKIT.get(family_of(facts), ()), *restart_engine(facts, engine)),
                where=host_side(facts),
                root=True,
                restart=Restart.ENGINE,
                docs=TOOLKIT_GUIDE,
            ),
            evidence=("nvidia-container-runtime-hook is not on the daemon's PATH", _offers(facts, engine)),
        )


def _install(facts: Facts, engine: Engine) -> Fix:
    return Fix(
        "Install the toolkit, connect it to the engine, and restart that.",
        (*INSTALL_TOOLKIT.get(family_of(facts), ()), *configure_runtime(facts, engine)),
        where=host_side(facts),
        root=True,
        restart=Restart.NONE if engine.kind is EngineKind.PODMAN else Restart.ENGINE,
        docs=TOOLKIT_GUIDE,
    )


def _offers(facts: Facts, engine: Engine) -> str:
    runtimes = listed(runtime.name for runtime in engine.runtimes) or "none"
    return f"engine's runtimes: {runtimes}; its CDI GPUs: {'some' if has_cdi_gpus(facts, engine) else 'none'}"


@check(
    "CTK002",
    "The engine has a way to give GPUs to containers",
    covers=("E06", "F08"),
    symptoms=(
        "failed to discover GPU vendor from CDI: no known GPU vendor found",
        "unresolvable CDI devices nvidia.com/gpu=all",
    ),
    causes=("CTK003", "CTK004", *ATTEMPTS),
)
def engine_offers_gpus(facts: Facts) -> Iterator[Finding]:
    """The engine offers GPUs in at least one way: the runtime named nvidia, Docker's own `--gpus`, or CDI devices.

    Why it matters: with none of them every request for a GPU is refused, whatever the Compose file says.
    How it is seen: the engine's runtimes and CDI devices as its API lists them, and the hook on the daemon's PATH.
    Docker Desktop honours `--gpus` without listing a runtime and is not judged by name. Podman knows CDI only.
    Source: ShaneIsrael/fireshare issue 689; NVIDIA, Container Toolkit, "Support for CDI".
    """
    engine = toolkit_engine(facts)
    if has_cdi_gpus(facts, engine):
        return
    if engine.kind is not EngineKind.PODMAN and (has_nvidia_runtime(engine) or engine.hook_on_path is not False):
        return
    yield Finding(
        Severity.ERROR,
        "Podman knows no CDI device nvidia.com/gpu, its only way to a GPU"
        if engine.kind is EngineKind.PODMAN
        else "the engine offers no GPU: it has no runtime named nvidia, no hook, and no CDI device",
        Fix(
            "Write the CDI specification; it must be readable by every user."
            if engine.kind is EngineKind.PODMAN
            else "Register the runtime with the engine and restart it.",
            configure_runtime(facts, engine),
            where=host_side(facts),
            root=True,
            restart=Restart.NONE if engine.kind is EngineKind.PODMAN else Restart.ENGINE,
            docs=CDI_GUIDE,
        ),
        evidence=(_offers(facts, engine), f"CDI folders: {', '.join(engine.cdi_spec_dirs) or 'none'}"),
    )


@check(
    "CTK003",
    "The nvidia runtime that is configured is registered",
    covers=("E07",),
    causes=ATTEMPTS,
    symptoms=("unknown or invalid runtime name: nvidia", "Unknown runtime specified nvidia"),
)
def runtime_registered(facts: Facts) -> Iterator[Finding]:
    """The running engine knows the runtime that its settings file registers; without CDI there must be one.

    Why it matters: `runtime: nvidia` ends with "unknown or invalid runtime name", and editors that look for the name
    conclude that the machine has no GPU.
    How it is seen: the engine's runtimes against the settings files. It need not be the default runtime.
    Source: NVIDIA/nvidia-container-toolkit issue 150; devcontainers/cli, `checkDockerSupportForGPU`.
    """
    engine = toolkit_engine(facts)
    toolkit = toolkit_of(facts)
    if engine.kind is EngineKind.PODMAN:
        raise NotApplicable("Podman takes GPUs by CDI and needs no runtime")
    if has_nvidia_runtime(engine):
        return
    waiting = [file.path for file in toolkit.daemon_files if file.registers_nvidia is True and not file.error]
    if not waiting and has_cdi_gpus(facts, engine):
        return
    runtimes = listed(runtime.name for runtime in engine.runtimes) or "none"
    yield Finding(
        Severity.WARNING,
        f"{waiting[0]} registers the nvidia runtime, but the running engine does not know it"
        if waiting
        else "the engine has no runtime named nvidia: `--gpus` may work, but `runtime: nvidia` and some editors fail",
        Fix(
            "Restart the engine, so that it reads its settings file." if waiting else "Register the runtime.",
            restart_engine(facts, engine) if waiting else configure_runtime(facts, engine),
            where=host_side(facts),
            root=not engine.is_rootless,
            restart=Restart.ENGINE,
            docs=TOOLKIT_GUIDE,
        ),
        evidence=(f"engine's runtimes: {runtimes}", *(f"{path} registers nvidia" for path in waiting)),
        # A rootless daemon reads another file than the system's.
        confidence=Confidence.CERTAIN if len(toolkit.daemon_files) < 2 else Confidence.LIKELY,
    )
