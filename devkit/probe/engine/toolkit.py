"""The NVIDIA Container Toolkit, engines' daemon.json files, and CDI specifications."""

import re
from collections.abc import Iterator
from typing import Any

from devkit.facts.engine import UNREADABLE_SPEC
from devkit.facts.model import CdiSpec, DaemonFile, Toolkit
from devkit.facts.values import Release, Unknown
from devkit.probe.documents import (
    format_json_error,
    get_object,
    get_objects,
    get_scalar,
    parse_json,
    parse_toml,
    parse_yaml,
)
from devkit.probe.host import NOT_FOUND, Host, explain_failure
from devkit.probe.machine.programs import find_program

SPEC_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""The folders that engines read by default; later folders win.

Source: Container Device Interface specification, "Kubernetes and CDI" and cdi.DefaultSpecDirs.
"""
_DRIVER_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so\.(\d+\.\d+(?:\.\d+)?)\b")
_HOST_DRIVER = re.compile(r"--host-driver-version[= ](\d+\.\d+(?:\.\d+)?)")

TOOLKIT_HOOK = "nvidia-container-runtime-hook"
TOOLKIT_VERSION = ("nvidia-ctk", "--version")
TOOLKIT_RUNTIME = "nvidia-container-runtime"
TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"
REFRESH_UNIT = "nvidia-cdi-refresh.path"
UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system")
TARGETS = ("multi-user.target", "graphical.target", "default.target")
NVIDIACTL_NUMBERS = "195:255"
"""Major and minor number of /dev/nvidiactl. Source: Linux, Documentation/admin-guide/devices.txt."""

_NOT_INSTALLED = Unknown("the NVIDIA Container Toolkit is not installed")


def read_cdi(host: Host, *, engine_folders: tuple[str, ...] = ()) -> tuple[CdiSpec, ...]:
    """Read every specification in the standard folders and in the engine's own, unreadable ones with the reason."""
    found: dict[str, str] = {}
    for folder in dict.fromkeys((*SPEC_FOLDERS, *engine_folders)):
        for name in host.list(folder):
            path = f"{folder}/{name}"
            if name.endswith((".json", ".yaml")):
                found.setdefault(host.link(path) or path, path)
    return tuple(_spec(host, path) for path in found.values())


def _spec(host: Host, path: str) -> CdiSpec:
    def unusable(error: str) -> CdiSpec:
        return CdiSpec(path=path, kind="", cdi_version="", devices=(), driver=None, error=error)

    text = host.read(path)
    if text is None:
        return unusable(UNREADABLE_SPEC)
    try:
        content = parse_json(text) if path.endswith(".json") else parse_yaml(text)
    except ValueError as error:
        return unusable(" ".join(str(error).split()))
    if not isinstance(content, dict):
        return unusable("the top level is not an object")
    devices = get_objects(content, "devices")
    driver = _DRIVER_LIBRARY.search(text) or _HOST_DRIVER.search(text)
    return CdiSpec(
        path=path,
        kind=get_scalar(content, "kind"),
        cdi_version=get_scalar(content, "cdiVersion"),
        devices=tuple(get_scalar(device, "name") for device in devices if "name" in device),
        driver=Release.parse(driver[1]) if driver else None,
        error="",
        without_nodes=tuple(str(one["name"]) for one in devices if "name" in one and not _edits(one, "deviceNodes")),
        missing_paths=tuple(_missing_paths(host, content, devices)),
    )


def _edits(owner: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The entries under `containerEdits.<key>` of a specification or of one of its devices."""
    return get_objects(get_object(owner, "containerEdits"), key)


def _missing_paths(host: Host, content: dict[str, Any], devices: list[dict[str, Any]]) -> Iterator[str]:
    """Host paths of nodes and mounts that are not here. A hook's program counts too: it runs on the host."""
    seen: set[str] = set()
    for owner in (content, *devices):
        nodes = (node.get("hostPath") or node.get("path") for node in _edits(owner, "deviceNodes"))
        mounts = (mount.get("hostPath") for mount in _edits(owner, "mounts"))
        hooks = (hook.get("path") for hook in _edits(owner, "hooks"))
        for path in (*nodes, *mounts, *hooks):
            if isinstance(path, str) and path.startswith("/") and path not in seen:
                seen.add(path)
                if host.stat(path) is None:
                    yield path


def read_toolkit(host: Host) -> Toolkit:
    """Read the toolkit's version and configuration, and the engines that know its runtime."""
    done = host.run(TOOLKIT_VERSION)
    reason = f"nvidia-ctk --version ended with status {done.code}: {(done.err or done.out).strip()}"
    version: Release | Unknown | None = None
    if done.code != NOT_FOUND:
        version = Release.find(done.out.partition("version")[2]) or explain_failure(TOOLKIT_VERSION, done, reason)
    config = _config(host) if version is not None else _NOT_INSTALLED
    runtime, command = _section(config, TOOLKIT_RUNTIME), _section(config, "nvidia-container-cli")
    ldconfig, features = _of(command, "ldconfig", ""), _section(config, "features")
    # An @ means "on the host"; without it the path is the container's, which is not visible from here.
    ldconfig_exists: bool | Unknown = Unknown("config.toml names no ldconfig of the host")
    if isinstance(ldconfig, Unknown):
        ldconfig_exists = ldconfig
    elif ldconfig.startswith("@"):
        ldconfig = ldconfig.lstrip("@")
        ldconfig_exists = host.stat(ldconfig) is not None
    config_error: str | Unknown = ""
    if isinstance(config, Unknown):
        config_error = config.reason if "not valid TOML" in config.reason else config
    return Toolkit(
        version=version,
        hook_path=find_program(host, TOOLKIT_HOOK),
        runtime_path=find_program(host, TOOLKIT_RUNTIME),
        mode=_of(runtime, "mode", "auto"),
        no_cgroups=command if isinstance(command, Unknown) else command.get("no-cgroups", False) is True,
        driver_root=_of(command, "root", ""),
        daemon_files=tuple(_daemon_file(host, path) for path in find_daemon_paths(host) if host.stat(path) is not None),
        config_error=config_error,
        ldconfig=ldconfig,
        ldconfig_exists=ldconfig_exists,
        features=features
        if isinstance(features, Unknown)
        else tuple(sorted(k for k, v in features.items() if v is True)),
        cdi_refresh=_cdi_refresh(host),
        # udev's names by number, which some releases of runc hand to systemd.
        char_links=host.stat(f"/dev/char/{NVIDIACTL_NUMBERS}") is not None
        if host.stat("/dev/nvidiactl") is not None and host.list("/dev/char")
        else Unknown("there is no /dev/nvidiactl, or no /dev/char"),
    )


def _config(host: Host) -> dict[str, Any] | Unknown:
    """config.toml, empty where there is none: the toolkit has a default for everything."""
    text = host.read(TOOLKIT_CONFIG)
    if text is None and host.stat(TOOLKIT_CONFIG) is not None:
        return Unknown(f"{TOOLKIT_CONFIG} cannot be read by this user")
    try:
        return parse_toml(text or "")
    except ValueError as error:
        return Unknown(f"{TOOLKIT_CONFIG} is not valid TOML: {error}")


def _section(config: dict[str, Any] | Unknown, name: str) -> dict[str, Any] | Unknown:
    return config if isinstance(config, Unknown) else get_object(config, name)


def _of(section: dict[str, Any] | Unknown, key: str, default: str) -> str | Unknown:
    return section if isinstance(section, Unknown) else str(section.get(key, default))


def _daemon_file(host: Host, path: str) -> DaemonFile:
    text = host.read(path)
    if text is None:
        # The daemon runs as another user, who may.
        return DaemonFile(path, "", Unknown("this user may not read it"))
    try:
        # The daemon takes a blank file for an empty one. Source: moby/moby, getConflictFreeConfiguration.
        content = parse_json(text.strip() or "{}")
    except ValueError as error:
        return DaemonFile(path, format_json_error(error), False)
    if not isinstance(content, dict):
        return DaemonFile(path, "the top level is not an object", False)
    return DaemonFile(path, "", "nvidia" in get_object(content, "runtimes"))


def _cdi_refresh(host: Host) -> str:
    """Return how the unit that renews CDI specifications is set, by the files that systemd itself reads."""
    if any((host.link(f"{folder}/{REFRESH_UNIT}") or "") == "/dev/null" for folder in UNIT_FOLDERS):
        return "masked"
    if all(host.stat(f"{folder}/{REFRESH_UNIT}") is None for folder in UNIT_FOLDERS):
        return ""
    wants = (f"{folder}/{target}.wants/{REFRESH_UNIT}" for folder in UNIT_FOLDERS for target in TARGETS)
    return "enabled" if any(host.stat(path) is not None for path in wants) else "disabled"


def find_daemon_paths(host: Host) -> tuple[str, ...]:
    """List every path of a daemon.json that concerns this user: system, rootless, Desktop, snap, Windows."""
    env = host.env
    if profile := env.get("USERPROFILE"):
        return (f"{profile}\\.docker\\daemon.json",)
    paths = ["/etc/docker/daemon.json", "/var/snap/docker/current/config/daemon.json"]
    if home := env.get("HOME"):
        paths.insert(1, f"{env.get('XDG_CONFIG_HOME') or home + '/.config'}/docker/daemon.json")
        paths.insert(2, f"{home}/.docker/daemon.json")
    return tuple(dict.fromkeys(paths))
