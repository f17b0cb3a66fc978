"""Checks of the container engine: the right one, new enough, with valid settings, proxy and clock."""

from collections.abc import Iterator
from shlex import quote

from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.cascades import CDI_CODES, CONTAINER_START_CODES, TOOLKIT_CODES
from devkit.doctor.fixes import (
    ENGINE_GUIDE,
    edit_daemon_file,
    find_host_side,
    has_systemd,
    list_commands,
    restart_engine,
)
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.doctor.preconditions import (
    find_platform,
    is_local_engine,
    require,
    require_container_engine,
    require_engine_side,
    require_gpu_engine,
    require_host,
    require_nvidia_gpu,
    require_system,
    require_toolkit,
)
from devkit.doctor.thresholds import CLOCK_SKEW_S
from devkit.facts.engine import DAEMON_FILE_IS_FOLDER
from devkit.facts.model import Clients, Engine, EngineKind, Facts, Platform, Wsl
from devkit.facts.values import Unknown
from devkit.text import join_words

_SNAP_DOCKER = "/snap/bin/docker"

_SET_PROXIES = "d['proxies'] = {'http-proxy': a[1], 'https-proxy': a[1], 'no-proxy': 'localhost,127.0.0.1'}"

_PROXY_GUIDE = "https://docs.docker.com/engine/daemon/proxy/"


@check("ENG002", causes=(*TOOLKIT_CODES, *CDI_CODES, "ENG003"))
def engine_is_not_linux_desktop(facts: Facts) -> Iterator[Finding]:
    engine = require_gpu_engine(facts)
    if engine.kind is not EngineKind.DOCKER_DESKTOP or find_platform(facts) is not Platform.LINUX:
        return
    by_variable = engine.endpoint.chosen_by.startswith("DOCKER_")
    variable = engine.endpoint.chosen_by.partition("=")[0]
    yield Finding(
        Severity.ERROR,
        "the docker command talks to Docker Desktop, whose virtual machine has no GPU on Linux",
        Fix(
            "Use the Docker Engine of the system; install docker-ce first where there is none.",
            (f"unset {quote(variable)}" if by_variable else "docker context use default",),
        ),
        evidence=(f"endpoint {engine.endpoint.url}, chosen by {engine.endpoint.chosen_by}", engine.operating_system),
    )


@check("ENG003", causes=(*TOOLKIT_CODES, *CDI_CODES, "ENG009"))
def docker_is_not_snap(facts: Facts) -> Iterator[Finding]:
    engine = require_gpu_engine(facts)
    if not engine.is_snap:
        return
    offers_gpus = any(runtime.name == "nvidia" for runtime in engine.runtimes)
    yield Finding(
        Severity.WARNING if offers_gpus else Severity.ERROR,
        "Docker runs from a snap, which cannot see the host's NVIDIA libraries and Container Toolkit",
        Fix(
            "Replace the snap by Docker Engine. Its images and volumes go with it: save what you need first.",
            ("sudo snap remove docker", *list_commands(facts, "install_engine")),
            root=True,
            restart=Restart.ENGINE,
            docs=ENGINE_GUIDE,
        ),
        evidence=(f"engine data in {engine.root_dir}",),
    )


@check("ENG004", causes=("ENG012",))
def docker_socket_is_dockers(facts: Facts) -> Iterator[Finding]:
    engine = require_gpu_engine(facts)
    if engine.kind is not EngineKind.PODMAN or "docker.sock" not in engine.endpoint.url:
        return
    version = "of unknown version" if isinstance(engine.version, Unknown) else str(engine.version)
    yield Finding(
        Severity.WARNING,
        "Podman answers behind Docker's socket: `--gpus` may be ignored there",
        Fix(
            "Ask for GPUs by CDI, which Podman understands.",
            ("docker run --rm --device nvidia.com/gpu=all ubuntu nvidia-smi",),
            where=find_host_side(facts),
        ),
        evidence=(f"{engine.endpoint.url} is Podman {version}",),
    )


@check("ENG005")
def compose_can_request_gpus(facts: Facts) -> Iterator[Finding]:
    engine = require_container_engine(facts)
    if engine.kind is EngineKind.PODMAN:
        raise NotApplicable("Podman brings its own Compose provider")
    floor = load_tables().engines.features["compose", "device-reservations"]
    compose = require(facts.compose) if facts.compose is not None else None
    if compose is not None and compose.version >= floor.version:
        return
    yield Finding(
        Severity.WARNING if compose is None else Severity.ERROR,
        "the docker command has no Compose plugin, which dev containers of devkit use"
        if compose is None
        else f"Docker Compose {compose.version} cannot request GPUs; {floor.version} is the first that can",
        Fix(
            "Install the current Compose plugin.",
            list_commands(facts, "install_compose"),
            where=find_host_side(facts),
            root=True,
            docs="https://docs.docker.com/compose/install/linux/",
        ),
        evidence=(f"docker compose version: {compose.version if compose else 'no such command'}",),
    )


@check("ENG006", causes=("ENG001", *TOOLKIT_CODES))
def daemon_json_is_valid(facts: Facts) -> Iterator[Finding]:
    require_engine_side(facts)
    engine = facts.engine if isinstance(facts.engine, Engine) else None
    for file in require_toolkit(facts).daemon_files:
        if file.error:
            is_folder = file.error == DAEMON_FILE_IS_FOLDER
            yield Finding(
                Severity.ERROR,
                f"{file.path} is not valid, so Docker will not start with it: {file.error}",
                Fix(
                    "Remove the folder, and restart Docker."
                    if is_folder
                    else "Correct the file, check it, and restart Docker.",
                    (
                        f"sudo rmdir {quote(file.path)}"
                        if is_folder
                        else f"dockerd --validate --config-file={quote(file.path)}",
                        *restart_engine(facts, engine),
                    ),
                    where=find_host_side(facts),
                    root=file.path.startswith("/etc/"),
                    restart=Restart.ENGINE,
                ),
                subject=file.path,
                evidence=(f"{file.path}: {file.error}",),
            )


_TAKE_CGROUPFS = "sudo sed -i 's/native.cgroupdriver=systemd/native.cgroupdriver=cgroupfs/' /etc/docker/daemon.json"


@check("ENG016", causes=CONTAINER_START_CODES)
def cgroup_driver_is_there(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    engine = require_container_engine(facts)
    runs_systemd = require(require_system(facts).runs_systemd)
    if engine.kind is not EngineKind.DOCKER or not is_local_engine(engine):
        raise NotApplicable("the engine does not share this system")
    if engine.cgroup_driver != "systemd" or runs_systemd:
        return
    yield Finding(
        Severity.ERROR,
        "Docker leaves control groups to systemd, which does not run here: no container starts",
        Fix(
            'Write "native.cgroupdriver=cgroupfs" in exec-opts of daemon.json, and restart Docker.',
            (_TAKE_CGROUPFS, *restart_engine(facts, engine)),
            where=find_host_side(facts),
            root=True,
            restart=Restart.ENGINE,
        ),
        evidence=("engine: cgroup driver systemd", "/run/systemd/system: not there"),
    )


@check("ENG008")
def engine_lists_nvidia_runtime(facts: Facts) -> Iterator[Finding]:
    engine = require_gpu_engine(facts)
    on_windows = find_platform(facts) in (Platform.WSL2, Platform.WINDOWS)
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
        evidence=(f"engine's runtimes: {join_words(runtime.name for runtime in engine.runtimes) or 'none'}",),
        confidence=Confidence.LIKELY,
    )


@check("ENG009")
def only_one_docker(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    require_nvidia_gpu(facts)
    if isinstance(facts.clients, Unknown):
        raise NotApplicable(facts.clients.reason, is_lost=facts.clients.is_lost)
    programs = require(facts.clients.engine_programs)
    packaged = tuple(path for path in programs if path != _SNAP_DOCKER)
    if packaged and _SNAP_DOCKER in programs:
        yield Finding(
            Severity.WARNING,
            "Docker is installed twice, as a package and as a snap: after a reboot the other one may answer, without GPUs",
            Fix(
                "Remove the snap. Its images and volumes go with it: save what you need first.",
                ("sudo snap remove docker", *restart_engine(facts, None)),
                root=True,
                restart=Restart.ENGINE,
                docs=ENGINE_GUIDE,
            ),
            evidence=(f"daemons: {join_words((*packaged, _SNAP_DOCKER))}",),
        )
    if packaged and isinstance(facts.wsl, Wsl) and facts.wsl.desktop_tools is True:
        answers = facts.engine.operating_system if isinstance(facts.engine, Engine) else "neither"
        remove = list_commands(facts, "remove_engine")
        yield Finding(
            Severity.WARNING,
            "this distribution has a Docker Engine of its own beside Docker Desktop's integration: they take turns",
            Fix(
                "Keep one. Either switch this distribution off in Docker Desktop, under Settings, Resources, WSL"
                " integration; or remove the engine from the distribution.",
                remove,
                where=Side.WSL,
                root=bool(remove),
                docs="https://docs.docker.com/desktop/features/wsl/",
            ),
            evidence=(
                f"daemons: {join_words(packaged)}; Docker Desktop's commands are here too",
                f"now answers: {answers}",
            ),
            confidence=Confidence.LIKELY,
        )


@check("ENG010", causes=(*TOOLKIT_CODES, *CDI_CODES))
def engine_supports_gpus(facts: Facts) -> Iterator[Finding]:
    engine = require_gpu_engine(facts)
    if engine.kind is not EngineKind.DOCKER:
        raise NotApplicable("the engine is not Docker Engine")
    version, floor = require(engine.version), load_tables().engines.features["docker", "gpus-flag"]
    if version >= floor.version:
        return
    yield Finding(
        Severity.ERROR,
        f"Docker {version} cannot give GPUs by request; {floor.version} is the first that can",
        Fix(
            "Install a current Docker Engine.",
            list_commands(facts, "install_engine"),
            where=find_host_side(facts),
            root=True,
            restart=Restart.ENGINE,
            docs=ENGINE_GUIDE,
        ),
        evidence=(f"engine {version}, API {engine.api_version}",),
    )


@check("ENG013")
def engine_has_proxy(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    engine = require_container_engine(facts)
    if engine.kind is not EngineKind.DOCKER or not is_local_engine(engine):
        raise NotApplicable("the engine takes its proxy from elsewhere")
    if isinstance(facts.hub, Unknown):
        raise NotApplicable(facts.hub.reason, is_lost=facts.hub.is_lost)
    proxies = [proxy for proxy in require(facts.hub.proxies) if proxy.variable.upper() in ("HTTP_PROXY", "HTTPS_PROXY")]
    if not proxies:
        return
    evidence = f"{proxies[0].variable}={proxies[0].url}"
    if require(engine.proxy) == "":
        variables = '[Service]\\nEnvironment="HTTP_PROXY=%s" "HTTPS_PROXY=%s" "NO_PROXY=localhost,127.0.0.1"\\n'
        # As the shell names it, so that a password in it is not printed.
        proxy = f'"${next((one.variable for one in proxies if one.variable.upper() == "HTTPS_PROXY"), proxies[0].variable)}"'
        folder, manager, sudo = "/etc/systemd/system", "sudo systemctl", "sudo "
        if engine.is_rootless:
            folder, manager, sudo = "$HOME/.config/systemd/user", "systemctl --user", ""
        commands: tuple[str, ...] = (
            f"{sudo}mkdir -p {folder}/docker.service.d",
            f"printf '{variables}' {proxy} {proxy} | {sudo}tee {folder}/docker.service.d/proxy.conf",
            f"{manager} daemon-reload",
        )
        if not has_systemd(facts):
            commands = (edit_daemon_file(_SET_PROXIES, proxy),)
        yield Finding(
            Severity.WARNING,
            "this shell goes through a proxy, the Docker daemon does not: images may not be pulled",
            Fix(
                "Give the daemon the proxy, and restart it.",
                (*commands, *restart_engine(facts, engine)),
                where=find_host_side(facts),
                root=not engine.is_rootless,
                restart=Restart.ENGINE,
                docs=_PROXY_GUIDE,
            ),
            evidence=(evidence, "engine: no proxy"),
            confidence=Confidence.LIKELY,
        )
    settings = facts.clients.settings if isinstance(facts.clients, Clients) else None
    if settings is not None and not isinstance(settings, Unknown) and not settings.error and not settings.gives_proxy:
        yield Finding(
            Severity.NOTE,
            "containers and builds do not know the proxy: package indexes and the hub may be out of reach in them",
            Fix(
                "Name the proxy under `proxies` in the docker command's settings; an address of this machine itself"
                " (127.0.0.1) does not work in there.",
                where=find_host_side(facts),
                docs="https://docs.docker.com/engine/cli/proxy/",
            ),
            subject=settings.path,
            evidence=(evidence, f"{settings.path}: no proxies"),
            confidence=Confidence.POSSIBLE,
        )


@check("ENG015")
def engine_clock_agrees(facts: Facts) -> Iterator[Finding]:
    engine = require_container_engine(facts)
    ahead = require(engine.clock_ahead_s)
    if not is_local_engine(engine):
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
            where=find_host_side(facts),
            root=not desktop,
            restart=Restart.ENGINE if desktop else Restart.NONE,
        ),
        evidence=(f"engine's SystemTime minus the time of the request: {ahead} s",),
    )
