"""Checks of what the project's files ask for against what this machine can give."""

from collections.abc import Iterator

from devkit.compat.load import tables
from devkit.doctor.applies import has_nvidia_gpu, is_local, outside_of_containers
from devkit.doctor.checks.project_units import Unit, placed, units_of
from devkit.doctor.checks.toolkit import has_cdi_gpus, has_nvidia_runtime
from devkit.doctor.model import (
    Confidence,
    Finding,
    Fix,
    Location,
    NotApplicable,
    Repair,
    RepairKind,
    Severity,
    Side,
    check,
)
from devkit.facts.model import (
    Compose,
    Engine,
    EngineKind,
    Facts,
    HostRequirement,
)
from devkit.facts.values import Release

RESERVATION = '[{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]'
"""The request that every Compose since 1.28 understands, as JSON."""

_CLI_SOURCE = "https://github.com/devcontainers/cli/blob/main/src/spec-node/utils.ts"


def wished_gpu(unit: Unit) -> HostRequirement | None:
    """hostRequirements.gpu, when it is a value that the dev container tool hears."""
    found = next((one for one in unit.dev.host_requirements if one.name == "gpu"), None) if unit.dev else None
    if found is None or found.value == "false" or found.kind == "null":
        return None
    return found


def cli_adds_gpu(facts: Facts) -> bool | None:
    """Whether the dev container tool's own test finds GPU support here; None where its command fails or is not known.

    It runs `docker info -f {{.Runtimes.nvidia}}` and looks for nvidia-container-runtime in the answer: nothing else.
    """
    if not isinstance(facts.engine, Engine) or facts.engine.kind is EngineKind.PODMAN:
        return None
    return any(one.name == "nvidia" and "nvidia-container-runtime" in one.path for one in facts.engine.runtimes)


@check(
    "PRJ006",
    "The dev container tool sees the GPU support that the engine has",
    covers=("J03",),
    symptoms=(
        'No GPU support found yet a GPU was required - consider marking it as "optional"',
        "can't evaluate field Runtimes in type system.infoReport",
        "hostRequirements gpu ignored",
    ),
    causes=("CON006",),
)
def tool_sees_gpu_support(facts: Facts) -> Iterator[Finding]:
    """What hostRequirements.gpu brings about on this machine is what the machine can do.

    Why it matters: the dev container tool adds `--gpus all` when `docker info` lists a runtime named nvidia, whatever
    else is there. Engines that give GPUs by CDI or in Docker Desktop's way have none: the container starts without a
    GPU. Where the runtime outlived its GPU, the flag is added and nothing starts. Podman does not know the question.
    How it is seen: that test, repeated on the engine's own answer, beside the GPUs, CDI devices and kind of engine.
    Source: devcontainers/cli, utils.ts, checkDockerSupportForGPU; microsoft/vscode-remote-release issues 9385, 10307
    and 10908.
    """
    outside_of_containers(facts)
    wishes = [(unit, wish) for unit in units_of(facts) if (wish := wished_gpu(unit)) is not None]
    if not wishes:
        raise NotApplicable("no devcontainer.json asks by hostRequirements.gpu")
    engine = _engine(facts)
    for unit, wish in wishes:
        found = _against_engine(facts, engine, unit, wish)
        if found is not None:
            yield found


def _engine(facts: Facts) -> Engine:
    if not isinstance(facts.engine, Engine):
        raise NotApplicable("no container engine answers")
    if not is_local(facts.engine):
        raise NotApplicable("the engine runs on another machine")
    return facts.engine


def _against_engine(facts: Facts, engine: Engine, unit: Unit, wish: HostRequirement) -> Finding | None:
    if engine.kind is EngineKind.PODMAN:
        return _with_podman(wish, unit)
    adds, has_gpu = cli_adds_gpu(facts), has_nvidia_gpu(facts)
    if adds and has_gpu is False:
        return _without_gpu(wish)
    is_desktop = engine.kind is EngineKind.DOCKER_DESKTOP
    if not adds and has_gpu is True and (is_desktop or has_cdi_gpus(facts, engine)) and not unit.requests:
        return _undetected(engine, unit, wish, is_desktop=is_desktop)
    return None


def _with_podman(wish: HostRequirement, unit: Unit) -> Finding:
    return Finding(
        Severity.ERROR,
        "hostRequirements.gpu does not work with Podman: the dev container tool asks `podman info` for a field that"
        " it does not have, and stops",
        Fix(
            "Ask for the GPU by its CDI name, and remove hostRequirements.gpu.",
            where=Side.PROJECT,
            docs="https://github.com/microsoft/vscode-remote-release/issues/10908",
            repairs=(Repair(RepairKind.REMOVE, wish.path, ("hostRequirements", "gpu")), *_cdi_run_args(unit)),
        ),
        subject=placed(wish.path, wish.line),
        evidence=("the engine is Podman", f"hostRequirements.gpu: {wish.value or wish.kind}"),
        confidence=Confidence.LIKELY,
        location=Location(wish.path, wish.line),
    )


def _cdi_run_args(unit: Unit) -> tuple[Repair, ...]:
    if unit.dev is None or unit.is_compose or unit.requests or unit.dev.run_args:
        return ()
    value = '["--device", "nvidia.com/gpu=all"]'
    return (Repair(RepairKind.SET, unit.dev.path, ("runArgs",), value),)


def _without_gpu(wish: HostRequirement) -> Finding:
    return Finding(
        Severity.ERROR,
        "the engine still has the nvidia runtime, but this machine has no NVIDIA GPU: the dev container tool adds"
        " --gpus all all the same, and the container does not start"
        + (" although the GPU is optional" if wish.value == "optional" else ""),
        Fix(
            "Start it with --gpu-availability none, or take the runtime out of the engine's settings.",
            ("devcontainer up --gpu-availability none --workspace-folder .",),
            docs=_CLI_SOURCE,
        ),
        subject=placed(wish.path, wish.line),
        evidence=("docker info: Runtimes.nvidia is nvidia-container-runtime", "no NVIDIA GPU on this machine"),
        location=Location(wish.path, wish.line),
    )


def _undetected(engine: Engine, unit: Unit, wish: HostRequirement, *, is_desktop: bool) -> Finding:
    how = "Docker Desktop passes GPUs on" if is_desktop else "the engine has CDI devices"
    has_runtime = has_nvidia_runtime(engine)
    runtimes = ", ".join(runtime.name for runtime in engine.runtimes)
    return Finding(
        Severity.WARNING,
        f"{how}, but the dev container tool looks for a runtime named nvidia alone"
        + (" with NVIDIA's program behind it" if has_runtime else "")
        + ": hostRequirements.gpu starts the container without a GPU",
        Fix(
            "Ask for the GPU outright instead, or start with --gpu-availability all.",
            ("devcontainer up --gpu-availability all --workspace-folder .",),
            where=Side.PROJECT,
            docs=_CLI_SOURCE,
            repairs=_outright(unit, wish),
        ),
        subject=placed(wish.path, wish.line),
        evidence=(f"docker info: runtimes {runtimes}", f"hostRequirements.gpu: {wish.value or wish.kind}"),
        location=Location(wish.path, wish.line),
    )


def _outright(unit: Unit, wish: HostRequirement) -> tuple[Repair, ...]:
    if unit.dev is None or unit.is_compose or unit.dev.run_args:
        return ()
    return (
        Repair(RepairKind.SET, wish.path, ("runArgs",), '["--gpus", "all"]'),
        Repair(RepairKind.REMOVE, wish.path, ("hostRequirements", "gpu")),
    )


@check(
    "PRJ007",
    "A Compose project asks for its GPU in the Compose file",
    covers=("J04",),
    symptoms=("hostRequirements gpu docker compose no GPU", "NVIDIA_VISIBLE_DEVICES=void"),
)
def compose_asks_itself(facts: Facts) -> Iterator[Finding]:
    """A dev container of Compose has the whole device reservation in its Compose file.

    Why it matters: for Compose the dev container tool writes an override with the capability gpu and neither driver nor
    count. Compose before 2.30 sends a count of zero with that, and the container gets no GPU.
    How it is seen: hostRequirements.gpu and dockerComposeFile, and no request in the Compose files.
    Source: devcontainers/spec issue 469; microsoft/vscode-remote-release issue 10124; compose-spec/compose-go pull
    request 689.
    """
    for unit in units_of(facts):
        wish = wished_gpu(unit)
        if wish is None or not unit.is_compose or unit.requests or unit.service is None:
            continue
        fills_count = isinstance(facts.compose, Compose) and facts.compose.version >= _short_form()
        yield Finding(
            Severity.NOTE if fills_count else Severity.WARNING,
            "hostRequirements.gpu gives a Compose service the capability gpu without driver or count"
            + ("; editors other than VS Code give it nothing" if fills_count else ", which may end in no GPU at all"),
            Fix(
                "Put the whole reservation into the Compose file, and remove hostRequirements.gpu.",
                where=Side.PROJECT,
                docs="https://docs.docker.com/compose/how-tos/gpu-support/",
                repairs=(
                    Repair(
                        RepairKind.SET,
                        unit.service.path,
                        ("services", unit.service.name, "deploy", "resources", "reservations", "devices"),
                        RESERVATION,
                    ),
                    Repair(RepairKind.REMOVE, wish.path, ("hostRequirements", "gpu")),
                ),
            ),
            subject=placed(wish.path, wish.line),
            evidence=(f"{placed(wish.path, wish.line)}: hostRequirements.gpu", f"{unit.service.path}: no request"),
            confidence=Confidence.LIKELY,
            location=Location(wish.path, wish.line),
        )


def _short_form() -> Release:
    return tables().engines.features["compose", "gpus-attribute"].version
