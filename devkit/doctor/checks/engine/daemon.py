"""Checks of the container engine: the right one, new enough, with valid settings, proxy and clock."""

import re
from collections.abc import Iterator

from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.cascades import CDI_CODES, CONTAINER_START_CODES, TOOLKIT_CODES
from devkit.doctor.checks.engine.connection import name_choice
from devkit.doctor.checks.project.containers import find_project_containers
from devkit.doctor.checks.trials import judge_trials
from devkit.doctor.model import NotApplicable, Severity, check
from devkit.doctor.preconditions import (
    find_platform,
    is_local_engine,
    needs_compose,
    require,
    require_container_engine,
    require_engine_side,
    require_gpu_engine,
    require_host,
    require_nvidia_gpu,
    require_toolkit,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import CLOCK_SKEW_S
from devkit.doctor.trials import describe_way
from devkit.facts.engine import DAEMON_FILE_IS_FOLDER, Clients, Engine, EngineKind
from devkit.facts.machine import Platform, Wsl
from devkit.facts.model import Facts
from devkit.facts.runs import Trials, Way
from devkit.facts.values import Unknown
from devkit.text import join_words

_LOOPBACK = re.compile(r"(?:\w+://)?(?:localhost|127\.[\d.]+|\[::1\])(?=[:/]|$)")
_SNAP_DOCKER = "/snap/bin/docker"


@check("ENG002", causes=(*TOOLKIT_CODES, *CDI_CODES, "ENG003"))
def engine_is_not_linux_desktop(facts: Facts) -> Iterator[Problem]:
    engine = require_gpu_engine(facts)
    endpoint = engine.endpoint
    if engine.kind is EngineKind.DOCKER_DESKTOP and find_platform(facts) is Platform.LINUX:
        yield problem(
            "docker-desktop",
            choice=name_choice(endpoint),
            variable=endpoint.chosen_by.partition("=")[0],
            evidence=(f"endpoint {endpoint.url}, chosen by {endpoint.chosen_by}", engine.operating_system),
        )


@check("ENG003", causes=(*TOOLKIT_CODES, *CDI_CODES, "ENG009"))
def docker_is_not_snap(facts: Facts) -> Iterator[Problem]:
    engine = require_gpu_engine(facts)
    if engine.is_snap:
        offers_gpus = any(runtime.name == "nvidia" for runtime in engine.runtimes)
        yield problem(
            "snap",
            severity=Severity.WARNING if offers_gpus else Severity.ERROR,
            evidence=(f"engine data in {engine.root_dir}",),
        )


@check("ENG004", causes=("ENG012",))
def docker_socket_is_dockers(facts: Facts) -> Iterator[Problem]:
    engine = require_gpu_engine(facts)
    if engine.kind is EngineKind.PODMAN and "docker.sock" in engine.endpoint.url:
        version = "of unknown version" if isinstance(engine.version, Unknown) else str(engine.version)
        yield problem("podman-answers", evidence=(f"{engine.endpoint.url} is Podman {version}",))


@check("ENG005")
def compose_can_request_gpus(facts: Facts) -> Iterator[Problem]:
    engine = require_container_engine(facts)
    skip_if(engine.kind is EngineKind.PODMAN, "Podman has its own Compose provider")
    floor = load_tables().engines.features["compose", "device-reservations"].version
    compose = require(facts.compose) if facts.compose is not None else None
    if compose is None:
        severity = Severity.ERROR if needs_compose(facts) else None
        yield problem("no-plugin", severity=severity, evidence=("docker compose version: no such command",))
    elif compose.version < floor:
        evidence = (f"docker compose version: {compose.version}",)
        yield problem("too-old", version=compose.version, floor=floor, evidence=evidence)


@check("ENG006", require_engine_side, causes=("ENG018", "ENG001", *TOOLKIT_CODES))
def daemon_json_is_valid(facts: Facts) -> Iterator[Problem]:
    for file in require_toolkit(facts).daemon_files:
        if file.error:
            yield problem(
                "is-folder" if file.error == DAEMON_FILE_IS_FOLDER else "invalid",
                path=file.path,
                error=file.error,
                owner="root" if file.path.startswith("/etc/") else "user",
                evidence=(f"{file.path}: {file.error}",),
            )


@check("ENG016", require_host, causes=("ENG017", *CONTAINER_START_CODES))
def cgroup_driver_is_there(facts: Facts) -> Iterator[Problem]:
    engine = require_container_engine(facts)
    runs_systemd = require(require(facts.system).runs_systemd)
    if engine.kind is not EngineKind.DOCKER or not is_local_engine(engine):
        raise NotApplicable("the engine does not share this system")
    if engine.cgroup_driver == "systemd" and not runs_systemd:
        yield problem("no-systemd", evidence=("engine: cgroup driver systemd", "/run/systemd/system: not there"))


@check("ENG009", require_host, require_nvidia_gpu)
def only_one_docker(facts: Facts) -> Iterator[Problem]:
    programs = require(require(facts.clients).engine_programs)
    packaged = tuple(path for path in programs if path != _SNAP_DOCKER)
    if packaged and _SNAP_DOCKER in programs:
        yield problem("package-and-snap", evidence=(f"daemons: {join_words((*packaged, _SNAP_DOCKER))}",))
    if packaged and isinstance(facts.wsl, Wsl) and facts.wsl.desktop_tools is True:
        answers = facts.engine.operating_system if isinstance(facts.engine, Engine) else "neither"
        yield problem(
            "engine-beside-desktop",
            evidence=(
                f"daemons: {join_words(packaged)}; Docker Desktop's commands are installed, too",
                f"now answers: {answers}",
            ),
        )


@check("ENG010", causes=(*TOOLKIT_CODES, *CDI_CODES))
def engine_supports_gpus(facts: Facts) -> Iterator[Problem]:
    engine = require_gpu_engine(facts)
    skip_if(engine.kind is not EngineKind.DOCKER, "the engine is not Docker Engine")
    version, floor = require(engine.version), load_tables().engines.features["docker", "gpus-flag"].version
    if version < floor:
        evidence = (f"engine {version}, API {engine.api_version}",)
        yield problem("too-old", version=version, floor=floor, evidence=evidence)


@check("ENG013", require_host)
def engine_has_proxy(facts: Facts) -> Iterator[Problem]:
    engine = require_container_engine(facts)
    if engine.kind is not EngineKind.DOCKER or not is_local_engine(engine):
        raise NotApplicable("the engine gets its proxy from a different source")
    settings = facts.clients.settings if isinstance(facts.clients, Clients) else None
    settings = None if isinstance(settings, Unknown) or (settings and settings.error) else settings
    if settings is not None and not isinstance(settings.proxies, Unknown):
        url = next(filter(_LOOPBACK.match, settings.proxies), "")
        modes = [each.setting("network") for each in find_project_containers(facts) if each.is_started_by_files]
        # Where all containers of the project have this machine's network, loopback is this machine's.
        is_own = bool(modes) and all(mode is not None and mode.value == "host" for mode in modes)
        if url and not is_own:
            yield problem("loopback", path=settings.path, url=url, evidence=(f"{settings.path}: proxies: {url}",))
    proxies = {proxy.variable: proxy.url for proxy in require(require(facts.hub).proxies)}
    variables = [name for name in proxies if name.upper() in ("HTTP_PROXY", "HTTPS_PROXY")]
    if not variables:
        return
    shell = f"{variables[0]}={proxies[variables[0]]}"
    if require(engine.proxy) == "":
        variable = next((name for name in variables if name.upper() == "HTTPS_PROXY"), variables[0])
        # A project whose images are all here pulls none.
        own = facts.trials if isinstance(facts.trials, Trials) else Trials((), ())
        is_needless = any(each.way is Way.PROJECT for each in own.tried) and not own.pending
        severity = Severity.NOTE if is_needless else None
        yield problem(
            "daemon-without-proxy", severity=severity, variable=variable, evidence=(shell, "engine: no proxy")
        )
    if settings is not None and not settings.gives_proxy:
        evidence = (shell, f"{settings.path}: no proxies")
        yield problem("containers-without-proxy", subject=settings.path, evidence=evidence)


@check("ENG015")
def engine_clock_agrees(facts: Facts) -> Iterator[Problem]:
    engine = require_container_engine(facts)
    ahead = require(engine.clock_ahead_s)
    skip_if(not is_local_engine(engine), "the engine runs on another machine")
    if abs(ahead) > CLOCK_SKEW_S:
        yield problem(
            "ahead" if ahead > 0 else "behind",
            seconds=abs(ahead),
            evidence=(f"engine's SystemTime minus the time of the request: {ahead} s",),
        )


@check("ENG017", causes=CONTAINER_START_CODES)
def container_starts(facts: Facts) -> Iterator[Problem]:
    trials = require(facts.trials)
    for left in trials.left_behind:
        engine, _, name = left.partition(" ")
        kind, evidence = "image" if ":" in name else "container", (f"{engine} still lists {name}",)
        yield problem("left-behind", engine=engine, name=name, kind=kind, subject=name, evidence=evidence)
    try:
        plain = tuple(each for each in trials.tried if each.way in (Way.IMAGE, Way.PLAIN))
        is_nvidia = isinstance(facts.engine, Engine) and facts.engine.default_runtime == "nvidia"
        if is_nvidia and any(setting.startswith("default-runtime ") for each in plain for setting in each.settings):
            raise NotApplicable("a different runtime than the default, nvidia, starts it: see CTK013")
        yield from judge_trials(facts, plain)
    except NotApplicable:
        # A check that is skipped has no findings, and a trial that hangs is the one that leaves something behind.
        if not trials.left_behind:
            raise


@check("ENG020", require_host)
def containers_lack_nothing(facts: Facts) -> Iterator[Problem]:
    for trial in require(facts.trials).tried:
        # A newer release may have looked for more.
        for each in (lack for lack in trial.lacks if lack.kind in ("names", "limit", "ids")):
            setting, _, file = each.setting.rpartition(" in ")
            evidence = (f"in {describe_way(trial)}: {each.words}", *filter(None, (each.setting,)))
            kind = trial.engine if setting else f"no setting of {trial.engine}"
            yield problem(each.kind, evidence=evidence, words=each.words, setting=setting, file=file, kind=kind)
