"""Checks of the container engine: that one answers, and that it is one which can reach the GPU."""

from collections.abc import Iterator

from devkit.compat.load import tables
from devkit.doctor.applies import (
    beside_the_engine,
    engine_of,
    gpu_engine,
    is_in_container,
    known,
    platform_of,
    toolkit_of,
)
from devkit.doctor.checks.chains import CDI, TOOLKIT
from devkit.doctor.checks.engine_silent import why_silent
from devkit.doctor.machine import INSTALL_COMPOSE, INSTALL_ENGINE, family_of, host_side, restart_engine
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, check
from devkit.facts.model import Engine, EngineEnd, EngineFailure, EngineKind, Facts, Platform
from devkit.facts.values import Unknown


@check(
    "ENG001",
    "A container engine answers",
    covers=("E01", "E02", "E14", "D06"),
    symptoms=(
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        "failed to connect to the docker API at unix:///var/run/docker.sock; check if the path is correct",
        "The command 'docker' could not be found in this WSL 2 distro",
        "permission denied while trying to connect to the Docker daemon socket",
    ),
)
def engine_answers(facts: Facts) -> Iterator[Finding]:
    """The container engine that the docker command talks to answers on its API.

    Why it matters: dev containers are built and started by it. Without one, only the proof in place runs.
    How it is seen: the endpoint is chosen as the docker command chooses it, then asked with a deadline; a refused
    permission, a missing socket, silence and a wrong address are told apart.
    Source: docker/cli, context resolution; Docker, "Linux post-installation steps".
    """
    if isinstance(facts.engine, Unknown):
        raise NotApplicable(facts.engine.reason)
    if isinstance(facts.engine, EngineFailure):
        if is_in_container(facts) and _nobody_named(facts.engine):
            raise NotApplicable("a container needs no engine of its own")
        yield why_silent(facts, facts.engine)


def _nobody_named(failure: EngineFailure) -> bool:
    """Whether there is no sign of an engine: no variable or context names one, and no socket was passed in."""
    return failure.endpoint.chosen_by == "default" and failure.end in (EngineEnd.NOT_INSTALLED, EngineEnd.NOT_RUNNING)


@check(
    "ENG002",
    "The engine runs where the GPU is",
    covers=("E03",),
    symptoms=("load library failed: libnvidia-ml.so.1: cannot open shared object file", "desktop-linux"),
    causes=(*TOOLKIT, *CDI, "ENG003"),
)
def engine_runs_where_gpu_is(facts: Facts) -> Iterator[Finding]:
    """On Linux the docker command does not talk to Docker Desktop, whose virtual machine has no GPU.

    Why it matters: containers start, but "libnvidia-ml.so.1: cannot open shared object file" is all a GPU request
    gets; with sudo it works, because root has another Docker context.
    How it is seen: the engine calls itself Docker Desktop although the platform is Linux.
    Source: NVIDIA/nvidia-docker issues 1647 and 1711.
    """
    engine = gpu_engine(facts)
    if engine.kind is not EngineKind.DOCKER_DESKTOP or platform_of(facts) is not Platform.LINUX:
        return
    by_variable = engine.endpoint.chosen_by.startswith("DOCKER_")
    variable = engine.endpoint.chosen_by.partition("=")[0]
    yield Finding(
        Severity.ERROR,
        "the docker command talks to Docker Desktop, whose virtual machine has no GPU on Linux",
        Fix(
            "Use the Docker Engine of the system; install docker-ce first where there is none.",
            (f"unset {variable}" if by_variable else "docker context use default",),
        ),
        evidence=(f"endpoint {engine.endpoint.url}, chosen by {engine.endpoint.chosen_by}", engine.operating_system),
    )


@check(
    "ENG003",
    "Docker is not the snap package",
    covers=("E04",),
    symptoms=("snap docker", "load library failed: libnvidia-ml.so.1"),
    causes=(*TOOLKIT, *CDI, "ENG009"),
)
def docker_is_not_snap(facts: Facts) -> Iterator[Finding]:
    """The Docker that runs is not confined in a snap.

    Why it matters: a snap sees neither the Container Toolkit nor the driver's libraries on the host, and a second
    Docker beside it may take over after the next boot.
    How it is seen: the engine's data directory under /var/snap.
    Source: NVIDIA/nvidia-container-toolkit issue 154; NVIDIA/nvidia-docker issue 1711.
    """
    engine = gpu_engine(facts)
    if not engine.is_snap:
        return
    offers_gpus = any(runtime.name == "nvidia" for runtime in engine.runtimes)
    yield Finding(
        Severity.WARNING if offers_gpus else Severity.ERROR,
        "Docker runs from a snap, which cannot see the host's NVIDIA libraries and Container Toolkit",
        Fix(
            "Replace the snap by Docker Engine. Its images and volumes go with it: save what you need first.",
            ("sudo snap remove docker", *INSTALL_ENGINE.get(family_of(facts), ())),
            root=True,
            restart=Restart.ENGINE,
            docs="https://docs.docker.com/engine/install/",
        ),
        evidence=(f"engine data in {engine.root_dir}",),
    )


@check(
    "ENG004",
    "The docker command talks to Docker",
    covers=("E10",),
    symptoms=("Emulate Docker CLI using podman",),
    causes=("ENG012",),
)
def docker_talks_to_docker(facts: Facts) -> Iterator[Finding]:
    """The socket named for Docker belongs to Docker, not to Podman.

    Why it matters: older Podman accepts `--gpus all` and ignores it, so the container starts without a GPU.
    How it is seen: the engine's /version names Podman Engine while the socket is docker.sock.
    Source: NVIDIA/nvidia-container-runtime issue 190, where a maintainer calls the flag a no-op.
    """
    engine = gpu_engine(facts)
    if engine.kind is not EngineKind.PODMAN or "docker.sock" not in engine.endpoint.url:
        return
    yield Finding(
        Severity.WARNING,
        "Podman answers behind Docker's socket: `--gpus` may be ignored there",
        Fix(
            "Ask for GPUs by CDI, which Podman understands.",
            ("docker run --rm --device nvidia.com/gpu=all ubuntu nvidia-smi",),
            where=host_side(facts),
        ),
        evidence=(f"{engine.endpoint.url} is Podman {_text(engine)}",),
    )


@check(
    "ENG005",
    "Docker Compose can request GPUs",
    symptoms=("Additional properties are not allowed ('devices' was unexpected)", "docker-compose"),
)
def compose_can_request_gpus(facts: Facts) -> Iterator[Finding]:
    """The Compose plugin is installed and new enough for device reservations.

    Why it matters: devkit's dev containers are Compose projects. Old Compose refuses the GPU request with
    "Additional properties are not allowed ('devices' was unexpected)".
    How it is seen: the version that `docker compose version` prints, against the version table.
    Source: Compose specification, "services"; docker/compose pull request 7929.
    """
    engine = engine_of(facts)
    if engine.kind is EngineKind.PODMAN:
        raise NotApplicable("Podman brings its own Compose provider")
    floor = tables().engines.features["compose", "device-reservations"]
    compose = known(facts.compose) if facts.compose is not None else None
    if compose is not None and compose.version >= floor.version:
        return
    yield Finding(
        Severity.WARNING if compose is None else Severity.ERROR,
        "the docker command has no Compose plugin, which dev containers of devkit use"
        if compose is None
        else f"Docker Compose {compose.version} cannot request GPUs; {floor.version} is the first that can",
        Fix(
            "Install the current Compose plugin.",
            INSTALL_COMPOSE.get(family_of(facts), ()),
            where=host_side(facts),
            root=True,
            docs="https://docs.docker.com/compose/install/linux/",
        ),
        evidence=(f"docker compose version: {compose.version if compose else 'no such command'}",),
    )


@check(
    "ENG006",
    "The engine's settings files are valid",
    covers=("E08",),
    symptoms=("unable to configure the Docker daemon with file /etc/docker/daemon.json: invalid character",),
    causes=("ENG001", *TOOLKIT),
)
def settings_files_are_valid(facts: Facts) -> Iterator[Finding]:
    """Every daemon.json that concerns this user is valid JSON.

    Why it matters: with a syntax error in it the daemon does not start again, often not before the next reboot.
    How it is seen: devkit parses the files itself and reports line and column.
    Source: NVIDIA/nvidia-docker issue 542; dockerd reference, `--validate`.
    """
    beside_the_engine(facts)
    engine = facts.engine if isinstance(facts.engine, Engine) else None
    for file in toolkit_of(facts).daemon_files:
        if file.error:
            yield Finding(
                Severity.ERROR,
                f"{file.path} is not valid, so Docker will not start with it: {file.error}",
                Fix(
                    "Correct the file, check it, and restart Docker.",
                    (f"dockerd --validate --config-file={file.path}", *restart_engine(facts, engine)),
                    where=host_side(facts),
                    root=file.path.startswith("/etc/"),
                    restart=Restart.ENGINE,
                ),
                subject=file.path,
                evidence=(f"{file.path}: {file.error}",),
            )


@check("ENG007", "The engine is on this machine", covers=("E14",), symptoms=("DOCKER_HOST", "bind mounts are empty"))
def engine_is_here(facts: Facts) -> Iterator[Finding]:
    """The docker command talks to an engine on this machine.

    Why it matters: GPUs, mounts and images are those of the engine's machine. Checks here say nothing about it.
    How it is seen: the endpoint's scheme is neither a local socket nor a pipe.
    Source: microsoft/vscode-remote-release issue 345.
    """
    engine = engine_of(facts)
    if engine.endpoint.url.startswith(("unix:", "npipe:", "/")):
        return
    yield Finding(
        Severity.NOTE,
        f"the engine is on another machine ({engine.endpoint.url}): its GPUs count, not the ones here",
        Fix("Run devkit doctor on that machine too.", ("devkit doctor",)),
        evidence=(f"chosen by {engine.endpoint.chosen_by}",),
        confidence=Confidence.LIKELY,
    )


def _text(engine: Engine) -> str:
    return "of unknown version" if isinstance(engine.version, Unknown) else str(engine.version)
