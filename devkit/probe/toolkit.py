"""The NVIDIA Container Toolkit and what engines' configuration files say of it."""

import json
import tomllib
from typing import Any

from devkit.facts.model import DaemonFile, Toolkit
from devkit.facts.values import Release, Unknown
from devkit.probe.host import NOT_FOUND, Host
from devkit.probe.programs import find_program

TOOLKIT_VERSION = ("nvidia-ctk", "--version")
HOOK = "nvidia-container-runtime-hook"
RUNTIME = "nvidia-container-runtime"
CONFIG = "/etc/nvidia-container-runtime/config.toml"


def read_toolkit(host: Host) -> Toolkit:
    """Whether the toolkit is installed, how it is set, and which engines know its runtime."""
    version = _version(host)
    mode, no_cgroups, root = _settings(host) if version is not None else (_NOT_INSTALLED,) * 3
    return Toolkit(
        version=version,
        hook_path=find_program(host, HOOK),
        runtime_path=find_program(host, RUNTIME),
        mode=mode,
        no_cgroups=no_cgroups,
        driver_root=root,
        daemon_files=tuple(_daemon_file(host, path) for path in daemon_paths(host) if host.stat(path) is not None),
    )


_NOT_INSTALLED = Unknown("the NVIDIA Container Toolkit is not installed")


def _version(host: Host) -> Release | Unknown | None:
    done = host.run(TOOLKIT_VERSION)
    if done.code == NOT_FOUND:
        return None
    try:
        return Release.read(done.out.partition("version")[2])
    except ValueError:
        return Unknown(f"nvidia-ctk --version ended with status {done.code}: {(done.err or done.out).strip()}")


def _settings(host: Host) -> tuple[str | Unknown, bool | Unknown, str | Unknown]:
    """`mode`, `no-cgroups` and the driver root of config.toml, with the toolkit's defaults where it is silent."""
    text = host.read(CONFIG)
    if text is None and host.stat(CONFIG) is not None:
        unread = Unknown(f"{CONFIG} cannot be read by this user")
        return unread, unread, unread
    try:
        config: dict[str, Any] = tomllib.loads(text or "")
    except tomllib.TOMLDecodeError as error:
        broken = Unknown(f"{CONFIG} is not valid TOML: {error}")
        return broken, broken, broken
    runtime, command = _section(config, RUNTIME), _section(config, "nvidia-container-cli")
    return (
        str(runtime.get("mode", "auto")),
        bool(command.get("no-cgroups", False)),
        str(command.get("root", "")),
    )


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def daemon_paths(host: Host) -> tuple[str, ...]:
    """Every place a daemon.json that concerns this user may be: system, rootless, Desktop, snap, Windows."""
    env = host.env
    if profile := env.get("USERPROFILE"):
        return (f"{profile}\\.docker\\daemon.json",)
    paths = ["/etc/docker/daemon.json", "/var/snap/docker/current/config/daemon.json"]
    if home := env.get("HOME"):
        paths.insert(1, f"{env.get('XDG_CONFIG_HOME') or home + '/.config'}/docker/daemon.json")
        paths.insert(2, f"{home}/.docker/daemon.json")
    return tuple(dict.fromkeys(paths))


def _daemon_file(host: Host, path: str) -> DaemonFile:
    text = host.read(path)
    if text is None:
        return DaemonFile(path, "this user may not read it", False)
    try:
        content = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        return DaemonFile(path, f"line {error.lineno}, column {error.colno}: {error.msg}", False)
    if not isinstance(content, dict):
        return DaemonFile(path, "the top level is not an object", False)
    runtimes = content.get("runtimes")
    return DaemonFile(path, "", isinstance(runtimes, dict) and "nvidia" in runtimes)
