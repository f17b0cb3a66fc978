"""Checks of the engine beside others, its age, its proxy and its clock."""

from collections.abc import Iterator

from devkit.compat.load import tables
from devkit.doctor.applies import (
    an_nvidia_gpu,
    engine_of,
    gpu_engine,
    is_local,
    known,
    outside_of_containers,
    platform_of,
)
from devkit.doctor.checks.chains import CDI, TOOLKIT
from devkit.doctor.limits import CLOCK_SKEW_S
from devkit.doctor.machine import INSTALL_ENGINE, REMOVE_ENGINE, family_of, has_systemd, host_side, restart_engine
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.facts.model import Clients, Engine, EngineKind, Facts, Platform, Wsl
from devkit.facts.values import Unknown
from devkit.text import listed

SNAP = "/snap/bin/docker"
ENGINE_GUIDE = "https://docs.docker.com/engine/install/"
PROXY_GUIDE = "https://docs.docker.com/engine/daemon/proxy/"


@check(
    "ENG008",
    "Editors can tell that this engine gives GPUs",
    covers=("D07",),
    symptoms=("A GPU is required but none was found on this machine", "hostRequirements gpu optional"),
)
def editors_can_tell(facts: Facts) -> Iterator[Finding]:
    """The engine lists a runtime named nvidia, which some tools take for the sign of a GPU.

    Why it matters: Docker Desktop honours `--gpus all` without listing such a runtime. A dev container that only says
    "hostRequirements": {"gpu": "optional"} is then started without a GPU, and nobody says so.
    How it is seen: Docker Desktop on Windows, a GPU, and no runtime of that name. A dev container that asks for the GPU
    itself works all the same, so this only explains.
    Source: microsoft/vscode-remote-release issues 7586 and 9385; tensorchord/envd issue 1133.
    """
    engine = gpu_engine(facts)
    on_windows = platform_of(facts) in (Platform.WSL2, Platform.WINDOWS)
    if engine.kind is not EngineKind.DOCKER_DESKTOP or not on_windows:
        raise NotApplicable("the engine is not Docker Desktop on Windows")
    if any(runtime.name == "nvidia" for runtime in engine.runtimes):
        return
    yield Finding(
        Severity.NOTE,
        "Docker Desktop gives GPUs but lists no runtime named nvidia: tools that look for the name see no GPU",
        Fix(
            'Ask for the GPU in the dev container itself: "runArgs": ["--gpus", "all"], or a device reservation in'
            " Compose. `devkit init` writes it so.",
            where=Side.PROJECT,
        ),
        evidence=(f"engine's runtimes: {listed(runtime.name for runtime in engine.runtimes) or 'none'}",),
        confidence=Confidence.LIKELY,
    )


@check(
    "ENG009",
    "Only one Docker is installed",
    covers=("D06", "E04"),
    symptoms=("works from PowerShell but not in WSL", "snap docker and docker-ce"),
)
def only_one_docker(facts: Facts) -> Iterator[Finding]:
    """No second Docker daemon waits beside the one that answers.

    Why it matters: two daemons take the same socket, and which one wins may change at the next boot or when Docker
    Desktop starts. Each has images, settings and GPU support of its own.
    How it is seen: the daemons installed on this side: of packages, of the snap, and in WSL Docker Desktop's own
    commands. Docker Desktop beside a Docker Engine on plain Linux is told apart by contexts, and no finding.
    Source: NVIDIA/nvidia-docker issue 1711; NVIDIA/nvidia-container-toolkit issue 154; microsoft/WSL issue 10253.
    """
    outside_of_containers(facts)
    an_nvidia_gpu(facts)
    if isinstance(facts.clients, Unknown):
        raise NotApplicable(facts.clients.reason)
    programs = known(facts.clients.engine_programs)
    packaged = tuple(path for path in programs if path != SNAP)
    if packaged and SNAP in programs:
        yield _snap_beside(facts, packaged)
    if packaged and isinstance(facts.wsl, Wsl) and facts.wsl.desktop_tools is True:
        yield _desktop_beside(facts, packaged)


def _snap_beside(facts: Facts, packaged: tuple[str, ...]) -> Finding:
    return Finding(
        Severity.WARNING,
        "Docker is installed twice, as a package and as a snap: after a reboot the other one may answer, without GPUs",
        Fix(
            "Remove the snap. Its images and volumes go with it: save what you need first.",
            ("sudo snap remove docker", *restart_engine(facts, None)),
            root=True,
            restart=Restart.ENGINE,
            docs=ENGINE_GUIDE,
        ),
        evidence=(f"daemons: {listed((*packaged, SNAP))}",),
    )


def _desktop_beside(facts: Facts, packaged: tuple[str, ...]) -> Finding:
    answers = facts.engine.operating_system if isinstance(facts.engine, Engine) else "neither"
    remove = REMOVE_ENGINE.get(family_of(facts))
    return Finding(
        Severity.WARNING,
        "this distribution has a Docker Engine of its own beside Docker Desktop's integration: they take turns",
        Fix(
            "Keep one. Either switch this distribution off in Docker Desktop, under Settings, Resources, WSL"
            " integration; or remove the engine from the distribution.",
            (remove,) if remove else (),
            where=Side.WSL,
            root=bool(remove),
            docs="https://docs.docker.com/desktop/features/wsl/",
        ),
        evidence=(f"daemons: {listed(packaged)}; Docker Desktop's commands are here too", f"now answers: {answers}"),
        confidence=Confidence.LIKELY,
    )


@check(
    "ENG010",
    "The engine is new enough to give GPUs",
    covers=("E09",),
    symptoms=("could not select device driver", "client version is too new. Maximum supported API version is"),
    causes=(*TOOLKIT, *CDI),
)
def engine_knows_gpus(facts: Facts) -> Iterator[Finding]:
    """The Docker daemon knows device requests, which `--gpus` and Compose send.

    Why it matters: an older daemon gives GPUs to nobody but those who name an old runtime.
    How it is seen: the version that the engine says, against the version table.
    Source: Docker Engine release notes, 19.03; NVIDIA/nvidia-docker issue 1165.
    """
    engine = gpu_engine(facts)
    if engine.kind is not EngineKind.DOCKER:
        raise NotApplicable("the engine is not Docker Engine")
    version, floor = known(engine.version), tables().engines.features["docker", "gpus-flag"]
    if version >= floor.version:
        return
    yield Finding(
        Severity.ERROR,
        f"Docker {version} cannot give GPUs by request; {floor.version} is the first that can",
        Fix(
            "Install a current Docker Engine.",
            INSTALL_ENGINE.get(family_of(facts), ()),
            where=host_side(facts),
            root=True,
            restart=Restart.ENGINE,
            docs=ENGINE_GUIDE,
        ),
        evidence=(f"engine {version}, API {engine.api_version}",),
    )


@check(
    "ENG013",
    "The engine has the proxy that this shell has",
    covers=("E12",),
    symptoms=(
        "net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)",
        "failed to resolve reference: dial tcp: i/o timeout",
    ),
)
def engine_has_the_proxy(facts: Facts) -> Iterator[Finding]:
    """Where this shell reaches the web through a proxy, the Docker daemon does too, and containers are told of it.

    Why it matters: images are pulled by the daemon, which does not see the shell's variables. Pulls then time out
    although curl works; builds and containers have no way to package indexes.
    How it is seen: the proxy variables here, the proxy in the engine's own description, and `proxies` in the docker
    command's config.json. Docker Desktop and Podman take theirs from elsewhere and are not judged.
    Source: Docker, "Daemon proxy configuration" and "Use a proxy server with the Docker CLI".
    """
    outside_of_containers(facts)
    engine = engine_of(facts)
    if engine.kind is not EngineKind.DOCKER or not is_local(engine):
        raise NotApplicable("the engine takes its proxy from elsewhere")
    if isinstance(facts.hub, Unknown):
        raise NotApplicable(facts.hub.reason)
    proxies = [proxy for proxy in known(facts.hub.proxies) if proxy.variable.upper() != "ALL_PROXY"]
    if not proxies:
        return
    evidence = f"{proxies[0].variable}={proxies[0].url}"
    if known(engine.proxy) == "":
        yield Finding(
            Severity.WARNING,
            "this shell goes through a proxy, the Docker daemon does not: images may not be pulled",
            _give_proxy(facts, engine),
            evidence=(evidence, "engine: no proxy"),
            confidence=Confidence.LIKELY,
        )
    yield from _containers_without(facts, evidence)


def _containers_without(facts: Facts, evidence: str) -> Iterator[Finding]:
    settings = facts.clients.settings if isinstance(facts.clients, Clients) else None
    if settings is not None and not isinstance(settings, Unknown) and not settings.error and not settings.gives_proxy:
        yield Finding(
            Severity.NOTE,
            "containers and builds are not told of the proxy: package indexes and the hub may be out of reach in them",
            Fix(
                "Name the proxy under `proxies` in the docker command's settings; an address of this machine itself"
                " (127.0.0.1) does not work in there.",
                where=host_side(facts),
                docs="https://docs.docker.com/engine/cli/proxy/",
            ),
            subject=settings.path,
            evidence=(evidence, f"{settings.path}: no proxies"),
            confidence=Confidence.POSSIBLE,
        )


def _give_proxy(facts: Facts, engine: Engine) -> Fix:
    variables = '[Service]\\nEnvironment="HTTP_PROXY=%s" "HTTPS_PROXY=%s" "NO_PROXY=localhost,127.0.0.1"\\n'
    folder, manager, sudo = "/etc/systemd/system", "sudo systemctl", "sudo "
    if engine.is_rootless:
        folder, manager, sudo = "$HOME/.config/systemd/user", "systemctl --user", ""
    commands = (
        f"{sudo}mkdir -p {folder}/docker.service.d",
        f'printf \'{variables}\' "$HTTPS_PROXY" "$HTTPS_PROXY" | {sudo}tee {folder}/docker.service.d/proxy.conf',
        f"{manager} daemon-reload",
        *restart_engine(facts, engine),
    )
    return Fix(
        "Give the daemon the proxy, and restart it. Without systemd, name it under `proxies` in daemon.json.",
        commands if has_systemd(facts) else restart_engine(facts, engine),
        where=host_side(facts),
        root=not engine.is_rootless,
        restart=Restart.ENGINE,
        docs=PROXY_GUIDE,
    )


@check(
    "ENG015",
    "The engine's clock agrees with this one",
    covers=("K05",),
    symptoms=("x509: certificate has expired or is not yet valid", "Release file is not valid yet"),
)
def engine_clock_agrees(facts: Facts) -> Iterator[Finding]:
    """The clock of the machine that containers run on agrees with the one here.

    Why it matters: the virtual machine of Docker Desktop may sleep and wake with an old time. In its containers
    certificates are then not yet valid, and package indexes refused.
    How it is seen: the time that a local engine tells, against the moment at which it was asked.
    Source: Docker Engine API, GET /info, SystemTime; microsoft/WSL issue 10006.
    """
    engine = engine_of(facts)
    ahead = known(engine.clock_ahead_s)
    if not is_local(engine):
        raise NotApplicable("the engine runs on another machine")
    if abs(ahead) <= CLOCK_SKEW_S.value:
        return
    desktop = engine.kind is EngineKind.DOCKER_DESKTOP
    yield Finding(
        Severity.WARNING,
        f"the engine's clock is {abs(ahead)} s {'ahead of' if ahead > 0 else 'behind'} this one: certificates fail in"
        " containers",
        Fix(
            "Restart Docker Desktop, which sets the clock of its virtual machine." if desktop else "Set the clock.",
            restart_engine(facts, engine) if desktop else ("sudo hwclock -s",),
            where=host_side(facts),
            root=not desktop,
            restart=Restart.ENGINE if desktop else Restart.NONE,
        ),
        evidence=(f"engine's SystemTime minus the time of asking: {ahead} s",),
    )
