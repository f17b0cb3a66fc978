"""Podman without its API socket, which its own command does not need."""

from devkit.facts.model import Endpoint, Engine, EngineKind
from devkit.facts.values import Release, Unknown
from devkit.probe.documents import get_object, get_text, parse_json
from devkit.probe.engine.cdi import SPEC_FOLDERS
from devkit.probe.host import Host
from devkit.probe.machine.programs import find_program

_NO_SOCKET = Unknown("Podman's API socket is off, and its command does not say")


def read_podman(host: Host, *, deadline_s: float) -> Engine | None:
    """Read Podman as `podman info` describes it; None where there is no Podman, or Docker's daemon is installed too."""
    podman = find_program(host, "podman")
    if not podman or find_program(host, "dockerd"):
        return None
    done = host.run((podman, "info", "--format=json"), deadline_s=deadline_s)
    try:
        info = parse_json(done.out) if done.code == 0 else None
    except ValueError:
        info = None
    if not isinstance(info, dict):
        return None
    machine, store = get_object(info, "host"), get_object(info, "store")
    socket = get_text(get_object(machine, "remoteSocket"), "path").removeprefix("unix://")
    distribution = get_object(machine, "distribution")
    return Engine(
        endpoint=Endpoint(f"unix://{socket or '/run/podman/podman.sock'}", "podman info"),
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
        containers=_NO_SOCKET,
        stopped=_NO_SOCKET,
        images=_NO_SOCKET,
        runc=_NO_SOCKET,
        min_api_version=_NO_SOCKET,
        proxy=_NO_SOCKET,
        clock_ahead_s=_NO_SOCKET,
    )
