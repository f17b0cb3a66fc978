"""Containers that are started by each way that is set up, side by side, to see which of them get the GPUs."""

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from devkit.facts.engine import Engine, EngineKind
from devkit.facts.machine import Platform
from devkit.facts.model import Facts
from devkit.facts.project import Project
from devkit.facts.runs import Trial, Trials, Way
from devkit.facts.values import Unknown
from devkit.probe.attempts import find_guilty_variables
from devkit.probe.documents import get_object
from devkit.probe.engine.cdi import SPEC_FOLDERS
from devkit.probe.engine.client import COMPOSE_PLUGIN, find_plugin
from devkit.probe.engine.compose_config import PODMAN_COMPOSE, resolve_project
from devkit.probe.engine.daemon_files import read_daemon_settings
from devkit.probe.engine.last_words import list_podman_settings
from devkit.probe.host import TIMED_OUT, Host, ProgramResult
from devkit.probe.machine.programs import find_program
from devkit.probe.project.places import list_noted
from devkit.trial.builds import list_builds
from devkit.trial.cleanup import CLEAN_UP_S, end_politely, make_owner, remove, remove_stale
from devkit.trial.image import build_image, has_glibc
from devkit.trial.programs import list_scripts, name_images
from devkit.trial.project import (
    MAX_CONTAINERS,
    MAX_REHEARSED,
    list_pending,
    list_prerequisites,
    list_requests,
    list_run_arguments,
)
from devkit.trial.rehearsal import list_lookups, list_project_trials, rehearse
from devkit.trial.run import (
    LABEL,
    NO_NETWORK,
    OPTIONS,
    PREFIX,
    SHELL,
    SHORTEST_S,
    Client,
    Run,
    hold_in_memory,
    isolate,
    list_said,
    make_trial,
)
from devkit.trial.surroundings import SCRIPT as SHOW_SURROUNDINGS
from devkit.trial.surroundings import find_lacks

_SHARE_OF_IMPORT = 0.7
"""It takes a tenth of a second; a client that hangs leaves the rest of the time for what it may have made."""
_HANGING_S = 1.0
_GPU_KIND = "nvidia.com/gpu"
_READING = ("sh", "-c", 'file=$1 && shift && exec "$@" <"$file"', "sh")
"""Rootless Podman, in its own user namespace, may not open a file of this process by its name."""
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
    run = Run(
        host,
        ends_at,
        image,
        make_owner(),
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
        run, left_out = rehearse(run, clients[0], facts)
    else:
        run = replace(run, pending=tuple(list_pending(config, facts, ())))
    if isinstance(facts.project, Project) and not (has_services and clients[0].compose):
        is_unread = isinstance(facts.compose_config, Unknown) or not clients[0].compose
        left_out += tuple(each.name for each in facts.project.services if is_unread)
    with ExitStack() as stack:
        try:
            path = stack.enter_context(hold_in_memory(image))
        except OSError as error:  # such as a limit on the size of files
            return Unknown(f"the image that they are made of cannot be kept in memory: {error.strerror}")
        stack.enter_context(end_politely())
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=8))
        # The engine of the docker command, which is the first, is the project's.
        each = tuple(pool.map(partial(_try_client, run, pool, path), clients, range(len(clients))))
    return Trials(
        tuple(trial for tried, _ in each for trial in tried),
        tuple(name for _, left in each for name in left),
        (*left_out, *(f"docker run {' '.join(words)}" for words in arguments[MAX_CONTAINERS:])),
        run.pending,
        tuple(map(str, list_noted(host, project.rstrip("/")))) if project else (),
    )


def _list_clients(host: Host, facts: Facts) -> tuple[Client, ...] | Unknown:
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
        clients.append(Client("podman", command, ways, compose, settings, engine.default_runtime in ("runc", "crun")))
    else:
        ways = (Way.PLAIN, *(_list_docker_ways(engine) if has_gpu else ()))
        command = ("docker", "--host", engine.endpoint.url)
        path, content = read_daemon_settings(host)
        is_here = engine.kind is EngineKind.DOCKER and facts.container is None
        settings = tuple((path, key) for key in content)
        clients.append(Client("docker", command, ways, (*command, "compose"), settings if is_here else None))
        if podman and _is_podman_in_use(host, facts):
            clients.append(Client("podman", ("podman",), (Way.PLAIN, *([Way.CDI] if has_gpu and cdi else ()))))
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
    run: Run, pool: ThreadPoolExecutor, path: str, client: Client, place: int
) -> tuple[tuple[Trial, ...], tuple[str, ...]]:
    """Try the ways of one engine side by side. Returns the trials, and what could not be removed."""
    image = f"{PREFIX}:{run.owner}"
    stale = pool.submit(remove_stale, run, client)
    limit_s = CLEAN_UP_S
    try:
        made = _import(run, client, path, image)
        tried: tuple[Trial, ...] = (make_trial(client, Way.IMAGE, made, 0),)
        if made.code != 0:
            # A client that refuses made nothing; one that hangs or is killed may have.
            limit_s = _HANGING_S if made.code == TIMED_OUT or made.code < 0 else 0.0
        else:
            tried = _try_ways(run, pool, client, stale, is_first=place == 0)
    finally:
        left = remove(run, client, image, limit_s=limit_s) if limit_s else ()
        stale.result()
    return tried, left


def _try_ways(
    run: Run, pool: ThreadPoolExecutor, client: Client, stale: Future[None], *, is_first: bool
) -> tuple[Trial, ...]:
    """Start the containers of one engine side by side, of its image, and what the project asks of the first one."""
    image, is_glibc = f"{PREFIX}:{run.owner}", has_glibc(run.image)
    # A network that a killed trial left would overlap with this one's.
    stale.result()
    starts: list[Callable[[], Trial | None]]
    starts = [partial(_start, run, client, way, image, is_glibc=is_glibc) for way in client.ways]
    starts += (*list_project_trials(run, client, image), *list_lookups(run, client)) if is_first else ()
    return tuple(filter(None, pool.map(lambda start: start(), starts)))


def _import(run: Run, client: Client, path: str, image: str) -> ProgramResult:
    """Import the image by a file in memory, which is gone with this process."""
    # Variables of the shell are tried with the containers: an image of another platform would hide what one asks for.
    words = (*client.command, "import", "--change", f"LABEL {LABEL}={run.owner}", "-", image)
    return run.ask(*_READING, path, *words, without=run.variables, share=_SHARE_OF_IMPORT)


def _start(run: Run, client: Client, way: Way, image: str, *, is_glibc: bool) -> Trial:
    name = f"{PREFIX}-{run.owner}-{way}"
    request = _REQUEST if way is Way.RUNTIME else ()
    naming = ("--name", name, "--label", f"{LABEL}={run.owner}")
    asked = "gpu" if way is not Way.PLAIN and is_glibc else "plain"
    started_at = time.monotonic()
    script = SCRIPT if way is not Way.PLAIN else f"{SHOW_SURROUNDINGS}{SCRIPT}"
    words = (*_ARGUMENTS[way], *request, image, "-c", script, "sh", asked)

    def ask(
        *options: str, without: Collection[str] = (), share: float = 1.0, network: str = NO_NETWORK
    ) -> ProgramResult:
        command = (*client.command, "run", *OPTIONS, SHELL, network, *naming, *options, *words)
        return run.ask(*command, without=without, share=share)

    path, suspects = _list_suspects(run.host) if way is Way.PLAIN and client.name == "docker" else ("", {})
    done = isolate(client, lambda network: ask(share=0.5 if suspects else 1.0, network=network))
    ms = round((time.monotonic() - started_at) * 1000)
    trial = make_trial(client, way, done, ms, arguments=_ARGUMENTS[way])
    if way is Way.PLAIN and client.settings is not None:
        trial = replace(trial, lacks=tuple(find_lacks(run.host, list_said(done), client.settings)))
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


def _list_suspects(host: Host) -> tuple[str, dict[str, tuple[str, ...]]]:
    """List the settings of the daemon that reach every container, with the options of `run` that overrule them."""
    path, content = read_daemon_settings(host)
    limits = tuple(f"--ulimit={name}=1024" for name in get_object(content, "default-ulimits"))
    overruled = {**_OVERRULED, "default-ulimits": limits}
    return path, {key: overruled[key] for key in content if key in overruled}
