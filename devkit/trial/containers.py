"""Containers that are started by each way that is set up, side by side, to see which of them get the GPUs."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import FrameType
from typing import Any

from devkit.facts.engine import Engine, EngineKind
from devkit.facts.machine import Platform
from devkit.facts.model import Facts
from devkit.facts.project import Project
from devkit.facts.runs import Trial, Trials, Way
from devkit.facts.values import Unknown
from devkit.probe.attempts import find_error_lines, find_guilty, find_guilty_variables
from devkit.probe.documents import get_object, get_objects, get_text, get_texts, parse_json
from devkit.probe.engine.cdi import SPEC_FOLDERS
from devkit.probe.engine.client import BUILD_PLUGIN, COMPOSE_PLUGIN, find_plugin
from devkit.probe.engine.compose_config import PODMAN_COMPOSE, resolve_project
from devkit.probe.engine.daemon_files import read_daemon_settings
from devkit.probe.engine.last_words import find_named_settings, flatten, list_podman_settings
from devkit.probe.host import NOT_FOUND, TIMED_OUT, Host, ProgramResult
from devkit.probe.machine.programs import find_program
from devkit.probe.project.places import (
    drop_repeated,
    list_instructions,
    list_noted,
    locate_excerpt,
    locate_setting,
    locate_values,
    take_suggestion,
)
from devkit.trial.builds import OUTLINE, Build, find_build_faults, list_builds
from devkit.trial.image import build_image, has_glibc
from devkit.trial.programs import (
    MOUNTED,
    NO_EXEC,
    NOT_STARTED,
    LookUp,
    list_image_users,
    list_look_ups,
    list_misnamed,
    list_scripts,
    name_images,
)
from devkit.trial.project import (
    FILES,
    MAX_CONTAINERS,
    MAX_REHEARSED,
    Request,
    build_rehearsal,
    list_addresses,
    list_drivers,
    list_joints,
    list_pending,
    list_prerequisites,
    list_requests,
    list_run_arguments,
    list_shared_ports,
    list_taken_ports,
)
from devkit.trial.surroundings import SCRIPT as SHOW_SURROUNDINGS
from devkit.trial.surroundings import find_lacks
from devkit.trial.writers import list_writers

LABEL = "devkit.trial"
"""Of every container, network and image of a trial, so that the next one finds what a killed one left."""
PREFIX = "devkit-trial"
_GPU_KIND = "nvidia.com/gpu"
MAX_LOOK_UPS = 12
"""Of a project's images; services come first."""
_MAX_STARTED = MAX_CONTAINERS + MAX_REHEARSED + MAX_LOOK_UPS
SHORTEST_S = 1.0
"""With less time left nothing is started."""
MAX_OUTPUT_CHARACTERS = 4000
_CLEAN_UP_S = 6.0
_CLIENT_S = 4.0
_ABANDONED_S = 90.0
"""A trial that is older was killed, whatever its process number says."""
_OPTIONS = (
    "--rm",
    "--pull=never",
    "--read-only",
    "--cap-drop=ALL",
    "--cap-add=DAC_OVERRIDE",
)
_SHELL = "--entrypoint=/bin/sh"
_READING = ("sh", "-c", 'file=$1 && shift && exec "$@" <"$file"', "sh")
"""Rootless Podman, in its own user namespace, may not open a file of this process by its name."""
_NO_NETWORK = "--network=none"
_ARGUMENTS = {
    Way.PLAIN: (),
    Way.RUNTIME: ("--runtime=nvidia",),
    Way.GPUS: ("--gpus", "all"),
    Way.CDI: ("--device", "nvidia.com/gpu=all"),
}
_OVERRULED = {
    "default-runtime": ("--runtime=runc",),
    "log-driver": ("--log-driver=none",),
    "seccomp-profile": ("--security-opt=seccomp=unconfined",),
    "init": ("--init=false",),
    "cgroup-parent": ("--cgroup-parent=/devkit-trial",),
    "default-cgroupns-mode": ("--cgroupns=host",),
    "default-ipc-mode": ("--ipc=private",),
}
"""Settings of daemon.json that reach every container, and what overrules each. Source: dockerd and `docker run` references."""
_LISTED = '{{.Names}}\t{{.Ports}}\t{{.Label "com.docker.compose.project.working_dir"}}'
_OWN = '{{.Label "com.docker.compose.project.working_dir"}}\t{{.Label "com.docker.compose.project"}}'
_OURS = frozenset({"image", "labels", "entrypoint", "pull_policy", "healthcheck", "read_only", "stdin_open"})
"""Of a stand-in, what the project has not said."""
_REQUEST = ("--env=NVIDIA_VISIBLE_DEVICES=all", "--env=NVIDIA_DRIVER_CAPABILITIES=compute,utility")
"""What an image for GPUs asks of the runtime nvidia."""
SCRIPT = """
set -f
load() { said=$(LD_PRELOAD=$1 /bin/sh -c : 2>&1); echo devkit $2 ${said:-loaded}; }
gpus=0
set +f
for node in /dev/nvidia* /dev/dxg; do
    [ -e "$node" ] || continue
    echo "devkit node $node"
    case ${node#/dev/nvidia} in [0-9] | [0-9][0-9]) gpus=$((gpus + 1)) ;; esac
done
set -f
if [ ! -e /dev/nvidiactl ]; then echo devkit nvidiactl absent
elif (exec 3<>/dev/nvidiactl) 2>/dev/null; then echo devkit nvidiactl open
else echo devkit nvidiactl refused; fi
if [ "$1" = gpu ]; then load libcuda.so.1 libcuda; load libnvidia-ml.so.1 nvml; fi
if command -v nvidia-smi >/dev/null; then
    said=$(nvidia-smi -L 2>&1)
    named=0
    while read -r word rest; do [ "$word" = GPU ] && named=$((named + 1)); done <<END
$said
END
    if [ $named -gt 0 ]; then gpus=$named; else echo devkit nvidia-smi $said; fi
fi
echo devkit gpus $gpus
echo devkit end
"""
"""Opens /dev/nvidiactl, lets the loader load libcuda and NVML, counts GPUs. It makes no CUDA context."""


@dataclass(frozen=True)
class _Client:
    """A command line up to its verb, and the ways that are set up for its engine."""

    name: str
    command: tuple[str, ...]
    ways: tuple[Way, ...]
    compose: tuple[str, ...] = ()
    """The Compose of this engine, up to its verb; empty where there is none."""
    settings: tuple[tuple[str, str], ...] | None = None
    """File and key of what is set for this engine; None where its containers are not on this system."""
    heeds_seccomp: bool = True
    """Whether its runtime obeys a profile: gVisor and Kata Containers do not."""


def try_containers(
    host: Host, facts: Facts, *, deadline_s: float, project: str = "", reader: Host | None = None
) -> Trials | Unknown:
    """Start a container by each way that is set up, and remove them with the image that they are made of.

    Nothing is pulled: the image is made of files of this machine. The containers have a read-only root, and no network and
    no capability but what the project in the folder `project` asks for, and no CUDA context is made. However this call is left,
    also by Ctrl-C or SIGTERM, they are removed; what a SIGKILL leaves the next call removes.

    Args:
        host: this machine.
        facts: what was read of it, which says the ways.
        deadline_s: the time limit, for all of it.
        project: the folder of a project whose own containers are tried, too: with this image, and what they ask of the
            machine.
        reader: the host that the facts were read by, which still has what Compose resolved.
    """
    ends_at = time.monotonic() + deadline_s
    clients = _list_clients(host, facts)
    if isinstance(clients, Unknown):
        return clients
    if deadline_s < SHORTEST_S:
        return Unknown("no time was left for it")
    image = build_image(host)
    if isinstance(image, Unknown):
        return image
    config = resolve_project(reader or host, project)[0] if project and isinstance(facts.compose_config, tuple) else {}
    requests = tuple(list_requests(host, facts, project.rstrip("/")))
    arguments = tuple(list_run_arguments(facts, requests, project))
    run = _Run(
        host,
        ends_at,
        image,
        _make_owner(),
        project,
        config,
        arguments[:MAX_CONTAINERS],
        tuple(list_prerequisites(config, facts)),
        requests,
    )
    left_out: tuple[str, ...] = ()
    if clients[0].name == "docker" and project:
        builds = list_builds(host, config, facts, project.rstrip("/"), f"{PREFIX}:{run.owner}")
        run = replace(run, builds=tuple(builds)[:MAX_REHEARSED])
    has_services = bool(get_object(config, "services"))
    scripts = list_scripts(config, facts, host, project) if project and facts.container is None else ()
    run = replace(run, look_ups=tuple(scripts))
    if (name_images(config, facts) or "services" in config) and (clients[0].compose or not has_services):
        run, left_out = _rehearse(run, clients[0], facts)
    else:
        run = replace(run, pending=tuple(list_pending(config, facts, ())))
    if isinstance(facts.project, Project) and not (has_services and clients[0].compose):
        is_unread = isinstance(facts.compose_config, Unknown) or not clients[0].compose
        left_out += tuple(each.name for each in facts.project.services if is_unread)
    with _end_politely(), ThreadPoolExecutor(max_workers=8) as pool:
        # The engine of the docker command, which is the first, is the project's.
        each = tuple(pool.map(partial(_try_client, run, pool), clients, range(len(clients))))
    return Trials(
        tuple(trial for tried, _ in each for trial in tried),
        tuple(name for _, left in each for name in left),
        (*left_out, *(f"docker run {' '.join(words)}" for words in arguments[MAX_CONTAINERS:])),
        run.pending,
        tuple(map(str, list_noted(host, project.rstrip("/")))) if project else (),
    )


@dataclass(frozen=True)
class _Run:
    host: Host
    ends_at: float
    image: bytes
    owner: str
    project: str
    """Its folder."""
    config: Mapping[str, Any]
    """It as Compose resolves it."""
    run_arguments: tuple[tuple[str, ...], ...]
    """Of the project's dev containers."""
    prerequisites: tuple[tuple[str, str], ...]
    """Kinds and names of what has to exist before the project starts."""
    requests: tuple[Request, ...]
    """All that its dev containers say to `docker run`."""
    rehearsal: Mapping[str, Any] = field(default_factory=dict)
    """It as a whole, of stand-ins; empty where Docker's Compose does not start it."""
    look_ups: tuple[LookUp, ...] = ()
    """Of images that are here."""
    builds: tuple[Build, ...] = ()
    images: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Those of the project that are here, as the engine describes them."""
    pending: tuple[str, ...] = ()
    """As Trials has it."""

    @property
    def variables(self) -> list[str]:
        """Variables of the shell that a docker command reads, except DOCKER_CONFIG, without which no plugin is found."""
        return [name for name in self.host.env if name.startswith("DOCKER_") and name != "DOCKER_CONFIG"]

    def ask(self, *words: str, without: Collection[str] = (), share: float = 1.0) -> ProgramResult:
        """Run a client within a share of the time that is left."""
        left_s = self.ends_at - time.monotonic()
        return self.host.run(words, deadline_s=max(0.1, left_s * share), without=without)


def _list_clients(host: Host, facts: Facts) -> tuple[_Client, ...] | Unknown:
    """List the clients of engines on this machine with the ways to try, or say why nothing can be tried."""
    engine = facts.engine
    platform = "" if isinstance(facts.system, Unknown) else facts.system.platform
    if platform not in (Platform.LINUX, Platform.WSL2):
        return Unknown("containers are tried only on Linux")
    if not isinstance(engine, Engine):
        return Unknown("no container engine responds")
    if not engine.endpoint.url.startswith(("unix:", "/")):
        return Unknown("the engine runs on another machine: run devkit there")
    has_gpu = _has_gpu(facts)
    cdi = not isinstance(facts.cdi, Unknown) and any(
        spec.kind == _GPU_KIND and spec.path.startswith(SPEC_FOLDERS) for spec in facts.cdi
    )
    clients = []
    podman = find_program(host, "podman")
    if engine.kind is EngineKind.PODMAN:
        command = ("podman",) if podman else ("docker", "--host", engine.endpoint.url)
        compose = _find_podmans_compose(host, engine.endpoint.url)
        settings = tuple((path, key) for path, key, _ in list_podman_settings(host))
        ways = (Way.PLAIN, *([Way.CDI] if has_gpu else ()))
        clients.append(_Client("podman", command, ways, compose, settings, engine.default_runtime in ("runc", "crun")))
    else:
        ways = (Way.PLAIN, *(_list_docker_ways(engine) if has_gpu else ()))
        command = ("docker", "--host", engine.endpoint.url)
        path, content = read_daemon_settings(host)
        is_here = engine.kind is EngineKind.DOCKER and facts.container is None
        settings = tuple((path, key) for key in content)
        clients.append(_Client("docker", command, ways, (*command, "compose"), settings if is_here else None))
        if podman and _is_podman_in_use(host, facts):
            clients.append(_Client("podman", ("podman",), (Way.PLAIN, *([Way.CDI] if has_gpu and cdi else ()))))
    # By its path, as a shell runs it: exec itself passes over a first file that is not a program.
    able = tuple(
        replace(client, command=(path, *client.command[1:]))
        for client in clients
        if (path := find_program(host, client.command[0]))
    )
    return able or Unknown(f"the command {clients[0].command[0]} is missing here")


def _find_podmans_compose(host: Host, url: str) -> tuple[str, ...]:
    """Find what `podman compose` would hand over to: Docker's Compose where Podman's socket is there, or podman-compose."""
    plugin = find_plugin(host, COMPOSE_PLUGIN)
    if plugin and host.stat(url.removeprefix("unix://")) is not None:
        return "env", f"DOCKER_HOST={url}", plugin
    program = find_program(host, PODMAN_COMPOSE)
    return (program,) if program else ()


def _list_docker_ways(engine: Engine) -> tuple[Way, ...]:
    """List the ways that Docker's settings offer; where they offer none, its refusal of the usual one is telling."""
    ways = []
    if any(runtime.name == "nvidia" for runtime in engine.runtimes):
        ways.append(Way.RUNTIME)
    if engine.hook_on_path is True:
        ways.append(Way.GPUS)
    listed = () if isinstance(engine.cdi_devices, Unknown) else engine.cdi_devices
    if any(device.startswith(f"{_GPU_KIND}=") for device in listed):
        ways.append(Way.CDI)
    # Where the daemon's PATH cannot be read, nobody knows whether it finds the hook.
    is_open = engine.hook_on_path is not False and engine.hook_on_path is not True
    return tuple(ways) if ways and not is_open else (*ways, Way.GPUS)


def _is_podman_in_use(host: Host, facts: Facts) -> bool:
    """Say if this user's Podman has stored something: a first call makes folders, which a trial must not."""
    is_root = not isinstance(facts.system, Unknown) and facts.system.is_root
    home = host.env.get("XDG_DATA_HOME") or f"{host.env.get('HOME', '')}/.local/share"
    return bool(host.list("/var/lib/containers/storage" if is_root else f"{home}/containers/storage"))


def _has_gpu(facts: Facts) -> bool:
    if facts.gpus or (facts.wsl is not None and not isinstance(facts.wsl, Unknown) and facts.wsl.has_dxg):
        return True
    driver = facts.driver
    if isinstance(driver, Unknown):
        return False
    return bool(driver.device_nodes or (not isinstance(driver.pci_gpus, Unknown) and driver.pci_gpus))


def _try_client(
    run: _Run, pool: ThreadPoolExecutor, client: _Client, place: int
) -> tuple[tuple[Trial, ...], tuple[str, ...]]:
    """Try the ways of one engine side by side. Returns the trials, and what could not be removed."""
    image = f"{PREFIX}:{run.owner}"
    stale = pool.submit(_remove_stale, run, client)
    try:
        made = _import(run, client, image)
        if made.code != 0:
            return (_make_trial(client, Way.IMAGE, made, 0),), ()
        is_glibc = has_glibc(run.image)
        # A network that a killed trial left would overlap with this one's.
        stale.result()
        starts: list[Callable[[], Trial | None]]
        starts = [partial(_start, run, client, way, image, is_glibc=is_glibc) for way in client.ways]
        starts += (*_list_project_trials(run, client, image), *_list_lookups(run, client)) if place == 0 else ()
        tried = tuple(filter(None, pool.map(lambda start: start(), starts)))
    finally:
        left = _remove(run, client, image)
        stale.result()
    return tried, left


def _import(run: _Run, client: _Client, image: str) -> ProgramResult:
    """Import the image by a file in memory, which is gone with this process."""
    with _hold_in_memory(run.image) as path:
        # Variables of the shell are tried with the containers: an image of another platform would hide what one asks for.
        words = (*client.command, "import", "--change", f"LABEL {LABEL}={run.owner}", "-", image)
        return run.ask(*_READING, path, *words, without=run.variables)


@contextmanager
def _hold_in_memory(content: bytes) -> Iterator[str]:
    """Yield the path of a file that is gone with this process."""
    file = os.memfd_create(PREFIX)
    try:
        with os.fdopen(os.dup(file), "wb") as writer:
            writer.write(content)
        yield f"/proc/{os.getpid()}/fd/{file}"
    finally:
        os.close(file)


def _check(run: _Run, client: _Client, image: str, request: Request) -> Trial:
    """Let the client parse all that a dev container says, and the engine check it; nothing starts.

    The container is of the image that its file names where that is here. The trial names the settings without which it can be created.
    """
    # The engine would copy what an image has for a volume.
    is_plain = request.image in run.images and not run.images[request.image].get("Volumes")
    made = request.image if is_plain and not request.image.startswith("-") else image
    name = f"{PREFIX}-{run.owner}-{Way.PROJECT}-{_MAX_STARTED + run.requests.index(request)}"

    def attempt(options: Mapping[int, Sequence[str]], without: Collection[str] = ()) -> ProgramResult:
        words = [word for place, each in options.items() if str(place) not in without for word in each]
        if options is parsed:
            # An engine that is not there starts nothing, whatever they say.
            return run.ask(client.command[0], "--host", "unix:///dev/null", "run", "--help", *words)
        named = ("--name", "-".join((name, *without)), "--label", f"{LABEL}={run.owner}")
        return run.ask(*client.command, "create", "--pull=never", _SHELL, *named, *words, made)

    parsed = {place: words for place, (_, words) in enumerate(request.options)}
    created = request.list_created(run.project)
    options, arguments, done = (
        parsed,
        ("run", request.path),
        attempt(parsed) if request.is_whole else ProgramResult(0, "", ""),
    )
    if done.code == 0:
        options, arguments, done = created, ("create", request.path), attempt(created)
    trial = _make_trial(client, Way.PROJECT, done, 0, arguments=arguments)
    if done.code in (0, TIMED_OUT):
        return trial
    guilty = find_guilty([*map(str, options)], lambda without: attempt(options, without).code == 0)
    settings = []
    for key, words in (request.options[int(place)] for place in guilty):
        found = locate_setting(run.host, run.project, (key,), words[-1])
        shown = " ".join(words) if key == "runArgs" else key
        settings.append(str(replace(found, name=shown)) if found else f"{shown} in {request.path}")
    return replace(trial, settings=tuple(settings))


def _list_project_trials(run: _Run, client: _Client, image: str) -> Iterator[Callable[[], Trial | None]]:
    """List what the project asks for: its services by Compose, its dev containers as the dev container CLI would."""
    label, command = f"{LABEL}={run.owner}", ("-c", ":")

    def name(number: int) -> tuple[str, str]:
        return "--name", f"{PREFIX}-{run.owner}-{Way.PROJECT}-{number}"

    def compose(content: Mapping[str, Any], *words: str, arguments: tuple[str, ...]) -> Trial:
        def start(services: Mapping[str, Any]) -> ProgramResult:
            with _hold_in_memory(json.dumps({**content, "services": services}).encode()) as path:
                options = ("--project-name", f"{PREFIX}-{run.owner}", "--file", path)
                return run.ask(*client.compose, *options, *words)

        return _tell_rehearsal(run, client, start, content, arguments)

    def run_service(number: int, service: str, asked: dict[str, Any]) -> Trial:
        network = "host" if asked.get("network_mode") == "host" else "none"
        alone = {"entrypoint": ["/bin/sh", *command], "network_mode": network, "depends_on": {}}
        # podman-compose would leave a pod behind.
        content = {"services": {service: asked | alone}, "x-podman": {"in_pod": False}}
        return compose(content, "run", "--rm", "--no-deps", *name(number), service, arguments=("run", service))

    for number, arguments in enumerate(run.run_arguments):
        words = (*name(number), "--label", label, *arguments, image, *command)
        yield partial(_run_container, run, client, words, arguments)
    if run.builds and (plugin := find_plugin(run.host, BUILD_PLUGIN)):
        yield partial(_read_builds, run, client, plugin)
    for number, look_up in enumerate(run.look_ups, MAX_CONTAINERS + MAX_REHEARSED):
        yield partial(_look_up, run, client, number, look_up)
    if client.name == "docker":
        yield from (partial(_check, run, client, image, each) for each in run.requests[:MAX_CONTAINERS] if each.options)
        if run.rehearsal:
            # A stand-in heeds no signal, and would hold up the next attempt.
            words = ("up", "--detach", "--no-build", "--timeout=0")
            yield partial(compose, run.rehearsal, *words, arguments=("up",))
    else:
        services = get_object(run.rehearsal, "services")
        for number, each in enumerate(services.items(), len(run.run_arguments)):
            yield partial(run_service, number, *each)


def _run_container(run: _Run, client: _Client, words: tuple[str, ...], arguments: tuple[str, ...]) -> Trial:
    """Start a container of a project's arguments, and tell how it ends, with the settings that the engine's words repeat."""

    def ask(*network: str) -> ProgramResult:
        return run.ask(*client.command, "run", *_OPTIONS, _SHELL, *network, *words)

    done = ask() if any(word.startswith("--net") for word in arguments) else _isolate(client, ask)
    trial = _make_trial(client, Way.PROJECT, done, 0, arguments=("run", *arguments))
    # What an engine refuses of a GPU is a matter of its settings, not of the project.
    is_own = done.code not in (0, TIMED_OUT) and not re.search("nvidia|gpu", done.err, re.IGNORECASE)
    places = locate_values(run.host, run.project, done.err) if is_own else ()
    return replace(trial, settings=tuple(map(str, places)), is_suspected=True)


def _tell_rehearsal(
    run: _Run,
    client: _Client,
    start: Callable[[Mapping[str, Any]], ProgramResult],
    content: Mapping[str, Any],
    arguments: tuple[str, ...],
) -> Trial:
    """Start stand-ins of the project and tell how they end, with the settings without which they start.

    Those that the engine names are suspected first. Where it names some and none is guilty, they are reported as suspects.
    """
    done = start(content["services"])
    # In the names that the user's own containers and networks would have.
    done = replace(done, err=re.sub(rf"{PREFIX}-{run.owner}[-_]", "", done.err))
    trial = _make_trial(client, Way.PROJECT, done, 0, arguments=("compose", *arguments))
    # Another doctor may rehearse the same project just now, and have its ranges.
    others: list[str] = []
    with suppress(OSError):
        others = [name for name in _list_names(run.ask, client)[1] if run.owner not in name] if done.code else []
    if "overlap" in done.err and not others and (found := _find_overlap(run, client)):
        return _make_trial(client, Way.PROJECT, ProgramResult(1, "", found[1]), 0, arguments=found[0])
    trial = replace(trial, is_timed_out=trial.is_timed_out or others != [])
    if done.code == 0 or trial.is_timed_out:
        return trial
    asked = {name: {key: each[key] for key in each.keys() - _OURS} for name, each in content["services"].items()}
    files = {kind: get_object(run.config, kind) for kind in FILES}
    values = dict.fromkeys((*flatten(files), *flatten(asked)))
    named = find_named_settings(done.err, (("", key, value) for key, value in values))
    keys = [each.removesuffix(" in ") for each in named]
    every = [f"{name}.{key}" for name, each in asked.items() for key in sorted(each) if each[key] not in ({}, "none")]

    def works(without: Collection[str]) -> bool:
        services = {
            name: {key: each[key] for key in each if f"{name}.{key}" not in without}
            for name, each in content["services"].items()
        }
        for each in services.values():
            each.update({} if "networks" in each else {"network_mode": each.get("network_mode", "none")})
        return time.monotonic() + SHORTEST_S < run.ends_at and start(services).code == 0

    # Compose tells its progress beside an error.
    said = " ".join(find_error_lines(done.err)).lower()

    def count_named(key: str) -> float:
        """Return the share of a key's words that the engine says; 1 also where it repeats the value."""
        words = re.findall(r"[a-z]{3,}(?=s)|[a-z]{3,}", key.rpartition(".")[2])
        repeats = any(f"{each}.".startswith(f"{key}.") for each in keys)
        return 1 if repeats else sum(word in said for word in words) / max(1, len(words))

    suspects = sorted(filter(count_named, every), key=count_named, reverse=True)
    guilty = find_guilty(suspects, works) or find_guilty([each for each in every if each not in suspects], works)
    shown = [each for each in keys if not guilty or each.startswith((*guilty, *FILES))] or [*guilty]
    shown = shown or [each for each in suspects if count_named(each) == 1]
    settings = tuple(dict.fromkeys(_locate(run, key, values) for key in shown))
    return replace(trial, settings=settings, is_suspected=not guilty)


def _locate(run: _Run, key: str, values: Iterable[tuple[str, str]]) -> str:
    """Locate a setting of a service, or of a file that services read, in the files of the project."""
    path = key.split(".") if key.startswith(FILES) else ["services", *key.split(".")]
    value = next((value for name, value in values if name == key), "")
    place = locate_setting(run.host, run.project, path, value)
    if place and key.endswith(".depends_on"):
        # The stand-ins themselves are healthy, and end as they should.
        remedy = "give the service that it waits for a healthcheck, or wait for service_started"
        place = replace(place, note="it waits for a health check that no file has", remedy=remedy)
    return str(replace(place, name=key)) if place else f"{key} in the project"


def _find_overlap(run: _Run, client: _Client) -> tuple[tuple[str, ...], str] | None:
    """Find the network of the engine that already has a range of the project's, as arguments of a trial and its fault."""
    networks = get_object(run.rehearsal, "networks").values()
    wanted = [
        get_text(each, "subnet") for network in networks for each in get_objects(get_object(network, "ipam"), "config")
    ]
    names = run.ask(*client.command, "network", "ls", "--format", "{{.Name}}").out.split()
    shown = "{{.Name}} {{range .IPAM.Config}}{{.Subnet}} {{end}}"
    rows = run.ask(*client.command, "network", "inspect", "--format", shown, *names).out.splitlines() if names else []
    for name, *ranges in filter(None, map(str.split, rows)):
        for subnet in wanted:
            with suppress(ValueError):
                if any(ip_network(subnet).overlaps(ip_network(each)) for each in ranges if ":" not in each):
                    return (
                        "network",
                        "create",
                        "--subnet",
                        name,
                    ), f"the network {name} already has addresses of {subnet}"
    return None


def _look_up(run: _Run, client: _Client, number: int, wanted: LookUp) -> Trial | None:
    """Let the runtime look up what is wanted in an image of the project, and not run it.

    None where the engine refuses the profile that forbids running it: then nothing is known.
    """
    named = ("--name", f"{PREFIX}-{run.owner}-{Way.PROJECT}-{number}", "--label", f"{LABEL}={run.owner}")
    done = ProgramResult(0, "", "")
    if wanted.judge is not None:
        done = run.ask(*client.command, "run", *_OPTIONS, _NO_NETWORK, *named, *wanted.words)
        found = wanted.judge(_list_said(done)) if done.code == 0 else None
        return (
            _make_trial(client, Way.PROJECT, ProgramResult(1, "", found[1]), 0, arguments=found[0]) if found else None
        )
    if wanted.words:
        with _hold_in_memory(json.dumps(NO_EXEC).encode()) as path:
            profile = (f"--security-opt=seccomp={path}", *(("--runtime=runc",) if client.name == "docker" else ()))
            done = run.ask(*client.command, "run", *_OPTIONS, _NO_NETWORK, *profile, *named, *wanted.words)
    if done.code in NOT_STARTED and "seccomp" in done.err:
        return None
    is_refused, arguments = done.code in NOT_STARTED, wanted.arguments
    place = next((each for each in wanted.mounts if f'at "{each}"' in done.err), "")
    # What the engine refuses for another reason says nothing of what is looked up.
    is_reported = arguments[0] == "compose" or place or arguments[-1] in done.err or done.code == TIMED_OUT
    if is_refused and not is_reported:
        return None
    fault = wanted.mounts.get(place, done.err) if is_refused else ""
    arguments = (*MOUNTED, place) if place else arguments
    if wanted.absence:
        fault = "" if is_refused else wanted.absence
    code = TIMED_OUT if done.code == TIMED_OUT else (done.code if is_refused else 1) if fault else 0
    trial = _make_trial(client, Way.PROJECT, ProgramResult(code, "", fault), 0, arguments=arguments)
    is_named = arguments[0] == "compose" and "executable file not found" in fault
    places = locate_values(run.host, run.project, fault) if is_named else ()
    return replace(trial, settings=tuple(map(str, places)), is_suspected=True)


def _read_builds(run: _Run, client: _Client, plugin: str) -> Trial:
    """Let BuildKit read the project's Dockerfiles; the first fault is that of the trial."""
    content = {"target": {f"b{number}": each.target for number, each in enumerate(run.builds)}}
    ours = ("local://*", f"docker-image://docker.io/library/{PREFIX}:*")
    rules = [("DENY", "*"), *(("ALLOW", each) for each in ours)]
    policy = {"rules": [{"action": action, "selector": {"identifier": each}} for action, each in rules]}
    with (
        _hold_in_memory(json.dumps(content).encode()) as path,
        _hold_in_memory(json.dumps(policy).encode()) as policy_path,
    ):
        settings = (f"DOCKER_HOST={client.command[-1]}", f"EXPERIMENTAL_BUILDKIT_SOURCE_POLICY={policy_path}")
        options = ("--builder=default", *OUTLINE, f"--file={path}")
        words = ("env", *settings, plugin, "bake", *options, *content["target"])
        done = run.ask(*words, without=("DOCKER_CONTEXT", "BUILDX_CONFIG"))
    faults = (
        (each, *found)
        for number, each in enumerate(run.builds)
        for found in find_build_faults(run.host, each, done, f"b{number}")
    )
    build, fault, known = next(faults, (None, "", ()))
    written = [each for each, _ in list_instructions(run.host, run.project)]
    last = {each.file: each.line for each in written if each.name == "FROM"}
    able = [each for each in run.builds if "target" not in each.target]
    # Of a stage before the last one, a build may need nothing.
    noted = [(build, one) for build in able for one in written if one.note and one.file == build.dockerfile]
    noted = [(build, one) for build, one in noted if one.line >= last.get(one.file, 0)]
    # A variable without a value may be fine, and a command on this machine may make a file.
    is_lasting = locate_setting(run.host, run.project, ("initializeCommand",)) is None
    lacking = [each for each in noted if each[1].name in ("COPY", "ADD") and "$" not in each[1].text and is_lasting]
    if build is None and lacking:
        build, fault = lacking[0][0], lacking[0][1].note
    if done.code == TIMED_OUT or build is None:
        done = done if done.code == TIMED_OUT else ProgramResult(0, "", "")
        return _make_trial(client, Way.PROJECT, done, 0, arguments=("build",))
    # What was built before starts without a build.
    arguments = known or (
        *(("build", "--file") if build.image in run.images else ("compose", "build")),
        build.dockerfile,
    )
    trial = _make_trial(client, Way.PROJECT, ProgramResult(1, "", fault), 0, arguments=arguments)
    if known:
        return trial
    target, key = get_text(build.target, "target"), f"services.{build.service}.build.target"
    is_named = bool(target) and target in fault
    number = re.search(r"\bline (\d+)", fault)
    own = [each for each in written if each.file == build.dockerfile and number and each.line == int(number[1])]
    found = (
        locate_setting(run.host, run.project, key.split("."), target) if is_named and build.service else None,
        locate_excerpt(run.host, run.project, done.err),
        *(take_suggestion(each, fault) for each in own),
        *(one for each, one in lacking or noted if each is build),
        *locate_values(run.host, run.project, fault),
    )
    return replace(trial, settings=tuple(map(str, drop_repeated(filter(None, found)))), is_suspected=True)


def _list_lookups(run: _Run, client: _Client) -> Iterator[Callable[[], Trial]]:
    """List what the project needs of the engine before it starts: what it expects to exist, and names and ports that are free.

    No container joins a network, has one of the names or publishes a port.
    """

    def tell(done: ProgramResult, fault: str, *arguments: str) -> Trial:
        end = done if done.code else ProgramResult(int(bool(fault)), "", fault)
        return _make_trial(client, Way.PROJECT, end, 0, arguments=arguments)

    def inspect(kind: str, wanted: str) -> Trial:
        return tell(run.ask(*client.command, kind, "inspect", wanted), "", "inspect", "--type", kind, wanted)

    def list_containers() -> tuple[ProgramResult, list[tuple[str, str, bool]]]:
        # The dev container CLI gives the project a different name than Compose; the folder is the same.
        done = run.ask(*client.command, "ps", "--all", "--format", _LISTED)
        rows = [line.split("\t") for line in done.out.splitlines() if line.count("\t") == 2]
        return done, [(name, ports, f"{folder}/".startswith(f"{run.project}/")) for name, ports, folder in rows]

    def find_owner(wanted: str) -> Trial:
        done, found = list_containers()
        is_taken = any(name == wanted and not is_own for name, _, is_own in found)
        fault = f"another container has the name {wanted}" if is_taken else ""
        return tell(done, fault, "create", "--name", wanted)

    def find_listener(port: str) -> Trial:
        done, found = list_containers()
        is_ours = any(f":{port}->" in ports and is_own for _, ports, is_own in found)
        fault = "" if is_ours else f"another program already listens on port {port}"
        return tell(done, fault, "run", "--publish", port)

    def find_rival(port: str) -> Trial:
        return tell(ProgramResult(0, "", ""), f"two services publish port {port}", "run", "--publish", port)

    def find_address(network: str, address: str) -> Trial:
        ranges = "{{range .IPAM.Config}}{{.Subnet}} {{end}}"
        done = run.ask(*client.command, "network", "inspect", "--format", ranges, network)
        # What is not there, another lookup says.
        is_fine = done.code != 0
        with suppress(ValueError):
            is_fine |= any(ip_address(address) in ip_network(each) for each in done.out.split())
        fault = "" if is_fine else f"the network {network}, {done.out.strip()}, does not have the address {address}"
        return tell(ProgramResult(0, "", ""), fault, "run", "--network", network, "--ip", address)

    def find_driver(kind: str, name: str) -> Trial:
        done = run.ask(*client.command, "info", "--format", f"{{{{json .Plugins.{kind}}}}}")
        try:
            known = parse_json(done.out)
        except ValueError:
            known = None
        is_fine = not isinstance(known, list) or name in known or f"{name}:latest" in known
        fault = "" if is_fine else f"the engine has no {kind.lower()} driver {name}"
        words = ("run", "--log-driver") if kind == "Log" else (kind.lower(), "create", "--driver")
        return tell(ProgramResult(0, "", ""), fault, *words, name)

    yield from (partial(find_address, *each) for each in list_addresses(run.config))
    yield from (partial(find_driver, *each) for each in list_drivers(run.config) if client.name == "docker")
    if client.name == "docker":
        yield from (partial(find_listener, port) for port in list_taken_ports(run.host, run.config))
        yield from (partial(find_rival, port) for port in list_shared_ports(run.config))
        services = get_object(run.config, "services").values()
        yield from (partial(find_owner, name) for each in services if (name := get_text(each, "container_name")))
    for kind, required in run.prerequisites:
        yield partial(inspect, kind, required)


def _parse_images(said: str, wanted: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Parse how each wanted image that the engine has is configured, by the name that the project has for it."""
    found: dict[str, Mapping[str, Any]] = {}
    try:
        listed = parse_json(said)  # Podman 4 answers with a list, over many lines
    except ValueError:
        listed = None
    every = listed if isinstance(listed, list) else map(_parse, said.splitlines())
    for image in (each for each in every if isinstance(each, dict)):
        names = {_shorten(each) for key in ("RepoTags", "RepoDigests") for each in get_texts(image, key)}
        found |= {each: get_object(image, "Config") for each in wanted if _shorten(each) in names}
    return found


def _list_refusals(run: _Run, client: _Client, images: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each name of an image that the engine cannot parse, with its words."""
    for image in images:
        said = run.ask(*client.command, "image", "inspect", "--", image).err
        if "invalid reference" in said:
            yield image, f"invalid reference{said.partition('invalid reference')[2].rstrip()}"


def _parse(line: str) -> dict[str, Any]:
    """Parse what an engine says of an image; empty where that is not an object."""
    try:
        content = parse_json(line)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _shorten(image: str) -> str:
    """Return the name of an image as engines shorten it, with its tag."""
    name = image.removeprefix("localhost/").removeprefix("docker.io/").removeprefix("library/")
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _rehearse(run: _Run, client: _Client, facts: Facts) -> tuple[_Run, tuple[str, ...]]:
    """Build the project of stand-ins beside what the engine already has of it, and say what is left out."""
    networks, image, label = get_object(run.config, "networks"), f"{PREFIX}:{run.owner}", f"{LABEL}={run.owner}"
    wanted = name_images(run.config, facts)
    questions = (
        ("image", "inspect", "--format", "{{json .}}", "--", *sorted(wanted)),
        ("ps", "--all", "--format", _OWN),
        ("network", "ls", "--format", "{{.Name}}"),
        ("volume", "ls", "--format", "{{.Name}}"),
    )
    with ThreadPoolExecutor(len(questions)) as pool:
        said, listed, there, volumes = (
            each.out for each in pool.map(lambda words: run.ask(*client.command, *words), questions)
        )
    images = _parse_images(said, wanted)
    refusals = dict(_list_refusals(run, client, wanted - images.keys()))
    # The dev container CLI gives the project a different name than Compose; the folder is the same.
    rows = [row.partition("\t") for row in listed.splitlines()]
    started = {name for folder, _, name in rows if f"{folder}/".startswith(f"{run.project}/")}
    present = {
        key
        for key in networks
        if not {get_text(get_object(networks, key), "name"), *(f"{each}_{key}" for each in started)}.isdisjoint(
            there.split()
        )
    }

    def has_health_check(image: str) -> bool | None:
        return bool(images[image].get("Healthcheck")) if image in images else None

    # Podman starts each of its services alone.
    is_whole = client.name == "docker"
    rehearsal, left_out = build_rehearsal(
        run.config,
        image,
        label=label,
        folder=run.project,
        present=present if is_whole else networks,
        has_health_check=has_health_check if is_whole else lambda _image: True,
    )
    # Services of one program are one trial.
    host = run.host if client.settings is not None else None
    names = {
        key for key, each in get_object(run.config, "volumes").items() if get_text(each, "name") in volumes.split()
    }
    found = (
        *(list_look_ups(run.config, images, facts, host, run.project) if client.heeds_seccomp else ()),
        *list_image_users(images, (each.dockerfile for each in run.builds), run.host, run.project),
    )
    misnamed, existing = list_misnamed(run.config, facts, refusals), {*volumes.split(), *names}
    is_here = host is not None and facts.container is None
    writers = list_writers(run.config, images, facts, run.host, run.project, existing) if is_here else ()
    look_ups = tuple({each.words or each.arguments: each for each in (*misnamed, *found, *writers)}.values())
    left_out += tuple(f"what {' '.join(each.arguments)} needs of its image" for each in look_ups[MAX_LOOK_UPS:])
    left_out += () if is_whole else tuple(list_joints(run.config))
    rehearsal = rehearsal if rehearsal["services"] else {}
    pending = tuple(list_pending(run.config, facts, {*images, *refusals}))
    look_ups = (*run.look_ups, *look_ups[:MAX_LOOK_UPS])
    return replace(run, rehearsal=rehearsal, look_ups=look_ups, pending=pending, images=images), left_out


def _start(run: _Run, client: _Client, way: Way, image: str, *, is_glibc: bool) -> Trial:
    name = f"{PREFIX}-{run.owner}-{way}"
    request = _REQUEST if way is Way.RUNTIME else ()
    naming = ("--name", name, "--label", f"{LABEL}={run.owner}")
    asked = "gpu" if way is not Way.PLAIN and is_glibc else "plain"
    started_at = time.monotonic()
    script = SCRIPT if way is not Way.PLAIN else f"{SHOW_SURROUNDINGS}{SCRIPT}"
    words = (*_ARGUMENTS[way], *request, image, "-c", script, "sh", asked)

    def ask(
        *options: str, without: Collection[str] = (), share: float = 1.0, network: str = _NO_NETWORK
    ) -> ProgramResult:
        command = (*client.command, "run", *_OPTIONS, _SHELL, network, *naming, *options, *words)
        return run.ask(*command, without=without, share=share)

    path, suspects = _list_suspects(run.host) if way is Way.PLAIN and client.name == "docker" else ("", {})
    done = _isolate(client, lambda network: ask(share=0.5 if suspects else 1.0, network=network))
    ms = round((time.monotonic() - started_at) * 1000)
    trial = _make_trial(client, way, done, ms, arguments=_ARGUMENTS[way])
    if way is Way.PLAIN and client.settings is not None:
        trial = replace(trial, lacks=tuple(find_lacks(run.host, _list_said(done), client.settings)))
    if way is not Way.PLAIN or done.code == 0:
        return trial

    def works(without: Collection[str], *options: str) -> bool:
        began = time.monotonic()
        is_fine = began < run.ends_at and ask(*options, without=without).code == 0
        # On a busy machine, the first one may merely have been cut off.
        return is_fine and (done.code != TIMED_OUT or (time.monotonic() - began) * 2000 < ms)

    guilty = next((key for key, options in suspects.items() if works((), *options)), "")
    if guilty or done.code == TIMED_OUT:
        return replace(trial, settings=(f"{guilty} in {path}",) if guilty else ())
    return replace(trial, works_without=find_guilty_variables(run.host, works, family="DOCKER_"))


def _isolate(client: _Client, ask: Callable[[str], ProgramResult]) -> ProgramResult:
    """Start a container without a network, and with the host's where this machine refuses Podman a separate one."""
    done = ask(_NO_NETWORK)
    if done.code in (0, TIMED_OUT) or client.name != "podman":
        return done
    usual = ask("--network=host")
    return usual if usual.code == 0 else done


def _list_suspects(host: Host) -> tuple[str, dict[str, tuple[str, ...]]]:
    """List the settings of the daemon that reach every container, with the options of `run` that overrule them."""
    path, content = read_daemon_settings(host)
    limits = tuple(f"--ulimit={name}=1024" for name in get_object(content, "default-ulimits"))
    overruled = {**_OVERRULED, "default-ulimits": limits}
    return path, {key: overruled[key] for key in content if key in overruled}


def _list_said(done: ProgramResult) -> list[list[str]]:
    """List the names and values that the script printed in a container."""
    return [line.split(" ", 2)[1:] for line in done.out.splitlines() if line.startswith("devkit ")]


def _make_trial(client: _Client, way: Way, done: ProgramResult, ms: int, *, arguments: tuple[str, ...] = ()) -> Trial:
    said = _list_said(done)
    found = {fields[0]: fields[1] for fields in said if len(fields) == 2}
    unseen = Unknown("the container did not get that far")
    is_whole = ["end"] in said
    return Trial(
        engine=client.name,
        way=way,
        arguments=arguments,
        code=done.code,
        err=done.err[:MAX_OUTPUT_CHARACTERS],
        ms=ms,
        is_timed_out=done.code == TIMED_OUT,
        device_nodes=tuple(fields[1] for fields in said if fields[0] == "node") if is_whole else unseen,
        nvidiactl=found.get("nvidiactl", unseen),
        libcuda=found.get("libcuda", "") if is_whole else unseen,
        nvml=found.get("nvml", "") if is_whole else unseen,
        nvidia_smi=found.get("nvidia-smi", "") if is_whole else unseen,
        gpu_count=int(found.get("gpus", "0")) if is_whole else unseen,
    )


# What is removed, and when.


def _make_owner() -> str:
    """Name this process so that another one can tell if it still runs: namespace, number, and time."""
    space = re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))
    return f"{space}-{os.getpid()}-{int(time.time())}"


def _is_abandoned(name: str) -> bool:
    """Say if the process that named something is gone, or took far too long."""
    found = re.search(r"(\d+)-(\d+)-(\d+)", name)
    if found is None:
        return False
    space, number, started_at = found.groups()
    is_here = _make_owner().startswith(f"{space}-")
    return time.time() - int(started_at) > _ABANDONED_S or (is_here and not Path("/proc", number).exists())


_KINDS = (
    (("ps", "--all"), "{{.Names}}", ("rm", "--force", "--volumes")),
    (("network", "ls"), "{{.Name}}", ("network", "rm")),
    (("image", "ls"), "{{.Repository}}:{{.Tag}}", ("image", "rm", "--force")),
)
"""How each kind of what a trial makes is listed and removed, in the order of removal."""


def _list_names(ask: Callable[..., ProgramResult], client: _Client) -> list[list[str]]:
    """List containers, networks and images of trials. Raises OSError where the engine does not say."""
    only = ("--filter", f"label={LABEL}", "--format")
    listed = [ask(*client.command, *words, *only, shown) for words, shown, _ in _KINDS]
    if any(each.code for each in listed):
        raise OSError("the engine does not list what it has")
    return [each.out.split() for each in listed]


def _remove_stale(run: _Run, client: _Client) -> None:
    """Remove what trials left that were killed."""
    with suppress(OSError):
        ask = partial(run.ask, without=run.variables)
        listed = _list_names(ask, client)
        _delete(ask, client, [[name for name in names if _is_abandoned(name)] for names in listed])


def _remove(run: _Run, client: _Client, image: str) -> tuple[str, ...]:
    """Remove what this trial made. Returns what is still there, or may be.

    An engine may still be making a container when its client is gone, so that it is looked for twice.
    """
    ends_at = time.monotonic() + _CLEAN_UP_S

    def ask(*words: str) -> ProgramResult:
        return run.host.run(words, deadline_s=_CLIENT_S, without=run.variables)

    own = (f"{Way.PROJECT}-{number}" for number in range(_MAX_STARTED + MAX_CONTAINERS))
    names = [f"{PREFIX}-{run.owner}-{way}" for way in (*client.ways, *own)]
    is_alone = not run.rehearsal and not any(each.options for each in run.requests)
    while True:
        # An image that goes had no container.
        if is_alone and ask(*client.command, "image", "rm", image).code in (0, NOT_FOUND):
            return ()
        try:
            left = [[name for name in group if run.owner in name] for group in _list_names(ask, client)]
        except OSError:
            left = [names, [], [image]]
        if not any(left):
            return ()
        if time.monotonic() > ends_at:
            return tuple(f"{client.name} {name}" for group in left for name in group)
        is_alone = _delete(ask, client, left[:2])


def _delete(ask: Callable[..., ProgramResult], client: _Client, groups: Iterable[Sequence[str]]) -> bool:
    """Remove the names of each kind. Returns whether all of them are gone."""
    named = [(remove, names) for (*_, remove), names in zip(_KINDS, groups, strict=False) if names]
    return all(ask(*client.command, *remove, *names).code == 0 for remove, names in named)


@contextmanager
def _end_politely() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does. Signals can be caught on the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
