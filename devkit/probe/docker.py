"""The container engine, asked through its API in a child process."""

from typing import Any

from devkit.facts.model import Endpoint, Engine, EngineEnd, EngineFailure, EngineKind, Runtime
from devkit.facts.values import Release, Unknown
from devkit.probe.children import asking, last_line, lines_of
from devkit.probe.containers import local_images, running_containers, stopped_containers
from devkit.probe.endpoint import choose_endpoint
from devkit.probe.engine_traits import clock_ahead_s, min_api_version, proxy
from devkit.probe.host import TIMED_OUT, Done, Host
from devkit.probe.programs import SYSTEM_PROGRAM_FOLDERS, find_program, path_folders
from devkit.probe.shapes import number, part, parts, text, texts
from devkit.probe.toolkit import HOOK

FIRST_API_THAT_LISTS_DEVICES = Release.read("1.50")
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
_ENGINE_PROGRAMS = ("docker", "dockerd", "podman")


def read_engine(host: Host, *, deadline_s: float) -> Engine | EngineFailure | Unknown:
    """The engine behind the docker command, or why none answers within `deadline_s` seconds."""
    chosen = choose_endpoint(host)
    endpoint = chosen.endpoint
    if problem := chosen.problem or _unusable(endpoint.url):
        return EngineFailure(EngineEnd.BAD_ENDPOINT, endpoint, problem)
    done = host.run(
        asking(host, "ask_engine", endpoint.url, *([chosen.tls_folder] if chosen.tls_folder else [])),
        deadline_s=deadline_s,
    )
    said = _said(done)
    if part(said, "info") and part(said, "version"):
        return _engine(host, endpoint, said)
    if "info" in said and "version" in said:
        return EngineFailure(EngineEnd.BAD_ENDPOINT, endpoint, "what answers there speaks HTTP, but is no engine")
    if done.code == TIMED_OUT and not said:
        return Unknown(f"the engine child had not yet begun after {deadline_s:g} s")
    if done.code == TIMED_OUT:
        step = "its version but not its settings" if "version" in said else "nothing"
        return EngineFailure(EngineEnd.TIMED_OUT, endpoint, f"the engine answered {step} within {deadline_s:g} s")
    failed = text(said, "failed")
    if failed in ("", "no-sdk"):
        return Unknown(f"the engine child ended with status {done.code}: {text(said, 'message') or last_line(done)}")
    # Whoever has told its version is an engine, however the rest of its answer came out.
    failed = "error" if failed == "not-an-engine" and part(said, "version") else failed
    return EngineFailure(_end(host, endpoint, failed), endpoint, text(said, "message"))


def _unusable(url: str) -> str:
    """Why no API request can be sent to `url`, "" when one can."""
    if url.startswith("ssh://"):
        return "this engine is on another machine, reached over ssh: run devkit on that machine"
    return "" if url.startswith(_SCHEMES) else f"{url!r} is not an address of an engine (unix, tcp, npipe or ssh)"


def _said(done: Done) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for words in lines_of(done):
        said.update(words)
    return said


def _end(host: Host, endpoint: Endpoint, failed: str) -> EngineEnd:
    by_default = endpoint.chosen_by == "default"
    if failed == "missing" and by_default and not any(find_program(host, name) for name in _ENGINE_PROGRAMS):
        return EngineEnd.NOT_INSTALLED
    return _ENDS.get(failed, EngineEnd.ERROR)


def _engine(host: Host, endpoint: Endpoint, said: dict[str, Any]) -> Engine:
    version, info = part(said, "version"), part(said, "info")
    kind = _kind(version, info)
    options = " ".join(texts(info, "SecurityOptions"))
    root_dir = text(info, "DockerRootDir")
    is_snap = root_dir.startswith("/var/snap/")
    return Engine(
        endpoint=endpoint,
        kind=kind,
        version=_version(version),
        api_version=text(version, "ApiVersion"),
        operating_system=text(info, "OperatingSystem"),
        machine=text(info, "Architecture"),
        runtimes=_runtimes(info),
        default_runtime=text(info, "DefaultRuntime"),
        cdi_spec_dirs=texts(info, "CDISpecDirs"),
        cdi_devices=_cdi_devices(version, info),
        is_rootless="name=rootless" in options,
        has_selinux="name=selinux" in options,
        cgroup_driver=text(info, "CgroupDriver"),
        cgroup_version=text(info, "CgroupVersion"),
        root_dir=root_dir,
        is_snap=is_snap,
        hook_on_path=_hook_on_path(host, endpoint, kind, pid=number(said, "listener_pid"), is_snap=is_snap),
        min_api_version=min_api_version(version),
        proxy=proxy(info),
        clock_ahead_s=clock_ahead_s(info, said.get("asked_at")),
        containers=running_containers(said),
        stopped=stopped_containers(said),
        images=local_images(said),
        runc=_component(version, "runc"),
    )


def _kind(version: dict[str, Any], info: dict[str, Any]) -> EngineKind:
    names = {text(component, "Name") for component in parts(version, "Components")}
    if "Podman Engine" in names:
        return EngineKind.PODMAN
    if "Docker Desktop" in text(info, "OperatingSystem"):
        return EngineKind.DOCKER_DESKTOP
    return EngineKind.DOCKER


def _version(version: dict[str, Any]) -> Release | Unknown:
    try:
        return Release.read(text(version, "Version"))
    except ValueError:
        return Unknown("the engine did not say its version")


def _component(version: dict[str, Any], name: str) -> Release | Unknown:
    """The version of one of the engine's parts."""
    found = [component for component in parts(version, "Components") if text(component, "Name") == name]
    try:
        return Release.read(text(found[0], "Version"))
    except (IndexError, ValueError):
        return Unknown(f"the engine does not say the version of its {name}")


def _runtimes(info: dict[str, Any]) -> tuple[Runtime, ...]:
    runtimes = part(info, "Runtimes")
    return tuple(Runtime(name, text(part(runtimes, name), "path")) for name in sorted(runtimes))


def _cdi_devices(version: dict[str, Any], info: dict[str, Any]) -> tuple[str, ...] | Unknown:
    if info.get("DiscoveredDevices") is not None:
        devices = parts(info, "DiscoveredDevices")
        return tuple(text(device, "ID") for device in devices if device.get("Source") == "cdi")
    try:
        lists_devices = Release.read(text(version, "ApiVersion")) >= FIRST_API_THAT_LISTS_DEVICES
    except ValueError:
        lists_devices = False
    return () if lists_devices else Unknown("this engine's API does not list CDI devices")


def _hook_on_path(
    host: Host, endpoint: Endpoint, kind: EngineKind, *, pid: int | None, is_snap: bool
) -> bool | Unknown:
    """Whether the daemon would find the hook: on its own PATH where readable, else on systemd's default one."""
    if kind is not EngineKind.DOCKER or is_snap:
        return Unknown("only a Docker daemon installed on this system looks for the hook here")
    if not endpoint.url.startswith("unix://"):
        return Unknown("the engine is not on this machine")
    environment = host.read(f"/proc/{pid}/environ") if pid and _is_dockerd(host, str(pid)) else None
    if environment is None:
        daemon = next((entry for entry in host.list("/proc") if entry.isdigit() and _is_dockerd(host, entry)), None)
        if daemon is None and host.stat("/proc/self") is not None:
            return Unknown("the daemon's process is not visible from here")
        environment = host.read(f"/proc/{daemon}/environ")
    variables = dict(entry.partition("=")[::2] for entry in (environment or "").split("\0"))
    folders = path_folders(variables.get("PATH", "")) or SYSTEM_PROGRAM_FOLDERS
    return find_program(host, HOOK, folders=folders) != ""


def _is_dockerd(host: Host, pid: str) -> bool:
    return (host.read(f"/proc/{pid}/comm") or "").strip() == "dockerd"
