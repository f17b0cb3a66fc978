"""The container engine, read through its API in a child process."""

from datetime import datetime
from typing import Any

from devkit.facts.engine import Endpoint, Engine, EngineEnd, EngineFailure, EngineKind, Runtime
from devkit.facts.runs import ProgramFailure
from devkit.facts.values import Release, Unknown
from devkit.probe.attempts import run_or_explain
from devkit.probe.children.protocol import build_child_command, find_last_line, merge_json_lines
from devkit.probe.documents import (
    get_int,
    get_object,
    get_objects,
    get_text,
    get_texts,
    parse_object_or_empty,
    strip_url_credentials,
)
from devkit.probe.engine.cdi import SPEC_FOLDERS
from devkit.probe.engine.client import resolve_endpoint
from devkit.probe.engine.containers import parse_local_images, parse_running_containers, parse_stopped_containers
from devkit.probe.engine.daemon_files import find_daemon_pid, read_daemon_addresses, read_daemon_environment
from devkit.probe.engine.last_words import add_settings, list_podman_settings, read_last_words
from devkit.probe.engine.pods import find_pod_runtime
from devkit.probe.engine.toolkit import TOOLKIT_HOOK
from devkit.probe.host import SYSTEM_PROGRAM_FOLDERS, TIMED_OUT, Host
from devkit.probe.machine.programs import find_program, find_program_or_path, split_search_path

FIRST_API_THAT_LISTS_DEVICES = Release.parse("1.50")
"""From here on `GET /info` has DiscoveredDevices, and leaves it out when empty. Source: Engine API changelog, v1.50."""
_SCHEMES = ("unix://", "tcp://", "npipe://")
_ENDS = {
    "missing": EngineEnd.NOT_RUNNING,
    "refused": EngineEnd.NOT_RUNNING,
    "denied": EngineEnd.PERMISSION_DENIED,
    "unresolved": EngineEnd.BAD_ENDPOINT,
    "malformed": EngineEnd.BAD_ENDPOINT,
    "unreachable": EngineEnd.NOT_RUNNING,
    "not-an-engine": EngineEnd.BAD_ENDPOINT,
    "tls": EngineEnd.BAD_ENDPOINT,
}


def read_engine(host: Host, *, deadline_s: float) -> Engine | EngineFailure | Unknown:
    """Read the engine behind the docker command, or why none answers within `deadline_s` seconds."""
    chosen = resolve_endpoint(host)
    endpoint = chosen.endpoint
    problem = chosen.problem
    if not problem and endpoint.url.startswith("ssh://"):
        problem = "this engine is on another machine, reached over ssh: run devkit on that machine"
    elif not problem and not endpoint.url.startswith(_SCHEMES):
        problem = f"{endpoint.url!r} is not an address of an engine (unix, tcp, npipe or ssh)"
    if problem:
        return EngineFailure(EngineEnd.BAD_ENDPOINT, endpoint, problem)
    done = host.run(
        build_child_command(host, "ask_engine", endpoint.url, *([chosen.tls_folder] if chosen.tls_folder else [])),
        deadline_s=deadline_s,
    )
    reply = merge_json_lines(done)
    if get_object(reply, "info") and get_object(reply, "version"):
        return _engine(host, endpoint, reply)
    if "info" in reply and "version" in reply:
        return EngineFailure(EngineEnd.BAD_ENDPOINT, endpoint, "the server there speaks HTTP, but is not an engine")
    if done.code == TIMED_OUT:
        return _explain_timeout(endpoint, reply, deadline_s)
    failed = get_text(reply, "failed")
    if failed in ("", "no-sdk"):
        return Unknown(
            f"the engine child ended with status {done.code}: {get_text(reply, 'message') or find_last_line(done)}",
            is_lost=True,
        )
    # What gave its version is an engine, however the rest of its answer came out.
    failed = "error" if failed == "not-an-engine" and get_object(reply, "version") else failed
    end = _ENDS.get(failed, EngineEnd.ERROR)
    if end is EngineEnd.NOT_RUNNING:
        return _explain_silence(host, endpoint, get_text(reply, "message"), failed, deadline_s)
    found = host.stat(endpoint.url.removeprefix("unix://")) if endpoint.url.startswith("unix://") else None
    group = -1 if found is None else found.gid
    return EngineFailure(end, endpoint, get_text(reply, "message"), said=(), socket_kind="", socket_group=group)


def _explain_silence(
    host: Host, endpoint: Endpoint, message: str, failed: str, deadline_s: float
) -> Engine | EngineFailure:
    """Return Podman where it works without a socket; else why nothing listens, in the words of what should."""
    is_default = endpoint.chosen_by == "default"
    if is_default or "/podman/" in endpoint.url:
        podman = read_podman(host, deadline_s=deadline_s)
        if isinstance(podman, ProgramFailure):
            at = Endpoint(f"unix://{PODMAN_SOCKET}", "podman info")
            return EngineFailure(EngineEnd.CANNOT_START, at, podman.message, said=(podman,), socket_kind="")
        if podman is not None:
            return podman
    has_program = any(find_program(host, name) for name in ("docker", "dockerd", "podman"))
    if failed == "missing" and is_default and not has_program:
        return EngineFailure(
            EngineEnd.NOT_INSTALLED, endpoint, message, pod_runtime=find_pod_runtime(host), said=(), socket_kind=""
        )
    is_local = endpoint.url.startswith("unix://")
    if daemon := find_daemon_pid(host):
        listens_on = read_daemon_addresses(host)
        elsewhere = tuple(address for address in listens_on if address.startswith(("tcp://", "unix://")))
        elsewhere = () if endpoint.url in elsewhere else elsewhere
    said: tuple[ProgramFailure, ...] = ()
    if is_local and not daemon and find_program(host, "dockerd"):
        said = read_last_words(host, is_rootless="/run/user/" in endpoint.url)
    end = EngineEnd.CANNOT_START if said else EngineEnd.NOT_RUNNING
    found = host.stat(endpoint.url.removeprefix("unix://")) if is_local else None
    kind = found.kind if found is not None and found.kind != "socket" else ""
    return EngineFailure(end, endpoint, message, elsewhere if daemon else (), said=said, socket_kind=kind)


def _explain_timeout(endpoint: Endpoint, reply: dict[str, Any], deadline_s: float) -> EngineFailure | Unknown:
    if get_text(reply, "waiting_for") in ("", "the Docker SDK") and "version" not in reply:
        return Unknown(f"the engine child had not yet begun after {deadline_s:g} s", is_lost=True)
    if "version" in reply:
        # It works, and takes long over its settings: each specification among hundreds is read for them.
        return Unknown(f"the engine reported its version, but not its settings within {deadline_s:g} s", is_lost=True)
    return EngineFailure(EngineEnd.TIMED_OUT, endpoint, f"the engine did not respond within {deadline_s:g} s")


def _engine(host: Host, endpoint: Endpoint, reply: dict[str, Any]) -> Engine:
    version, info = get_object(reply, "version"), get_object(reply, "info")
    components = {get_text(one, "Name"): get_text(one, "Version") for one in get_objects(version, "Components")}
    kind = EngineKind.PODMAN if "Podman Engine" in components else EngineKind.DOCKER
    if kind is EngineKind.DOCKER and "Docker Desktop" in get_text(info, "OperatingSystem"):
        kind = EngineKind.DOCKER_DESKTOP
    cdi_devices: tuple[str, ...] | Unknown = ()
    if info.get("DiscoveredDevices") is not None:
        discovered = get_objects(info, "DiscoveredDevices")
        cdi_devices = tuple(get_text(device, "ID") for device in discovered if device.get("Source") == "cdi")
    elif (api := Release.find(get_text(version, "ApiVersion"))) is None or api < FIRST_API_THAT_LISTS_DEVICES:
        cdi_devices = Unknown("this engine's API does not list CDI devices")
    runtimes = get_object(info, "Runtimes")
    options = " ".join(get_texts(info, "SecurityOptions"))
    root_dir = get_text(info, "DockerRootDir")
    is_snap = root_dir.startswith("/var/snap/")
    folders = _find_daemon_folders(host, endpoint, kind, pid=get_int(reply, "listener_pid"), is_snap=is_snap)
    paths = {name: get_text(get_object(runtimes, name), "path") for name in sorted(runtimes)}
    return Engine(
        endpoint=endpoint,
        kind=kind,
        version=Release.find(get_text(version, "Version")) or Unknown("the engine did not report its version"),
        api_version=get_text(version, "ApiVersion"),
        operating_system=get_text(info, "OperatingSystem"),
        machine=get_text(info, "Architecture"),
        runtimes=tuple(Runtime(name, path, _find_runtime(host, path, folders)) for name, path in paths.items()),
        default_runtime=get_text(info, "DefaultRuntime"),
        cdi_spec_dirs=get_texts(info, "CDISpecDirs"),
        cdi_devices=cdi_devices,
        is_rootless="name=rootless" in options,
        has_selinux="name=selinux" in options,
        cgroup_driver=get_text(info, "CgroupDriver"),
        cgroup_version=get_text(info, "CgroupVersion"),
        root_dir=root_dir,
        is_snap=is_snap,
        hook_on_path=folders
        if isinstance(folders, Unknown)
        else find_program(host, TOOLKIT_HOOK, folders=folders) != "",
        min_api_version=str(version.get("MinAPIVersion") or ""),
        proxy=parse_proxy(info),
        clock_ahead_s=compute_engine_clock_skew_s(info, reply.get("read_at")),
        containers=parse_running_containers(reply),
        stopped=parse_stopped_containers(reply),
        images=parse_local_images(reply),
        runc=Release.find(components.get("runc", "")) or Unknown("the engine does not report the version of its runc"),
    )


def _find_runtime(host: Host, path: str, folders: tuple[str, ...] | Unknown) -> str | Unknown:
    if isinstance(folders, Unknown):
        return folders
    return (
        find_program_or_path(host, path, folders=folders) if path else Unknown("this runtime is a shim of containerd")
    )


def _find_daemon_folders(
    host: Host, endpoint: Endpoint, kind: EngineKind, *, pid: int | None, is_snap: bool
) -> tuple[str, ...] | Unknown:
    """Find the folders where the daemon looks for programs: its own PATH where readable, else systemd's default one."""
    if kind is not EngineKind.DOCKER or is_snap:
        return Unknown("only a Docker daemon installed on this system looks for the hook here")
    if not endpoint.url.startswith("unix://"):
        return Unknown("the engine is not on this machine")
    daemon = find_daemon_pid(host, pid)
    if daemon is None and host.stat("/proc/self") is not None:
        return Unknown("the daemon's process is not visible from here")
    return split_search_path(read_daemon_environment(host, daemon).get("PATH", "")) or SYSTEM_PROGRAM_FOLDERS


def parse_proxy(info: dict[str, Any]) -> str | Unknown:
    """Parse the proxy that the engine pulls through, without its login; "" for none."""
    if "HttpsProxy" not in info and "HttpProxy" not in info:
        return Unknown("this engine does not report whether it uses a proxy")
    return strip_url_credentials(str(info.get("HttpsProxy") or info.get("HttpProxy") or ""))


def compute_engine_clock_skew_s(info: dict[str, Any], read_at: object) -> int | Unknown:
    """Return how far the engine's clock is ahead of the one that read `read_at`, in seconds."""
    if not isinstance(read_at, int | float):
        return Unknown("the time of the request was not recorded")
    try:
        # Go prints nanoseconds, of which Python takes no more than six digits.
        engine_time = datetime.fromisoformat(str(info.get("SystemTime", "")))
        return round(engine_time.timestamp() - read_at)
    except (ValueError, OverflowError):
        return Unknown("the engine does not report its time")


# Podman without its API socket, which its own command does not need.

PODMAN_SOCKET = "/run/podman/podman.sock"
_OF_SOCKET = ("containers", "stopped", "images", "runc", "min_api_version", "proxy", "clock_ahead_s")
_NO_SOCKET = Unknown("Podman's API socket is off, and its command does not report them")


def read_podman(host: Host, *, deadline_s: float) -> Engine | ProgramFailure | None:
    """Read Podman as `podman info` describes it, or why that fails.

    None where there is no Podman, or Docker's daemon is installed too.
    """
    podman = find_program(host, "podman")
    if not podman or find_program(host, "dockerd"):
        return None
    done, failure = run_or_explain(
        host,
        (podman, "info", "--format=json"),
        deadline_s=deadline_s,
        name="podman",
        family="CONTAINER",
        works=lambda done: done.code == 0 and bool(parse_object_or_empty(done.out)),
    )
    if failure is not None:
        return add_settings(host, failure, tuple(list_podman_settings(host)))
    info = parse_object_or_empty(done.out)
    machine, store = get_object(info, "host"), get_object(info, "store")
    socket = get_text(get_object(machine, "remoteSocket"), "path").removeprefix("unix://")
    distribution = get_object(machine, "distribution")
    return Engine(
        endpoint=Endpoint(f"unix://{socket or PODMAN_SOCKET}", "podman info"),
        kind=EngineKind.PODMAN,
        version=Release.find(get_text(get_object(info, "version"), "Version")) or _NO_SOCKET,
        api_version="",
        operating_system=f"{get_text(distribution, 'distribution')} {get_text(distribution, 'version')}".strip(),
        machine=get_text(machine, "arch"),
        runtimes=(),
        default_runtime=get_text(get_object(machine, "ociRuntime"), "name"),
        cdi_spec_dirs=SPEC_FOLDERS,
        cdi_devices=_NO_SOCKET,
        is_rootless=get_object(machine, "security").get("rootless") is True,
        has_selinux=get_object(machine, "security").get("selinuxEnabled") is True,
        cgroup_driver=get_text(machine, "cgroupManager"),
        cgroup_version=get_text(machine, "cgroupVersion").removeprefix("v"),
        root_dir=get_text(store, "graphRoot"),
        is_snap=False,
        hook_on_path=_NO_SOCKET,
        **dict.fromkeys(_OF_SOCKET, _NO_SOCKET),
    )
