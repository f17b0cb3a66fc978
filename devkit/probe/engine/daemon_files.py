"""Docker daemons' settings files, and whether the daemon accepts them."""

import re
from itertools import pairwise
from typing import Any

from devkit.facts.engine import DAEMON_FILE_IS_FOLDER
from devkit.facts.model import DaemonFile
from devkit.facts.values import Unknown
from devkit.probe.documents import format_json_error, get_object, get_text, get_texts, parse_json
from devkit.probe.engine.daemon_process import read_daemon_flags
from devkit.probe.host import Host
from devkit.probe.machine.programs import find_program

SYSTEM_FILE = "/etc/docker/daemon.json"
_VALIDATE_DEADLINE_S = 2.0
_REFUSAL = re.compile(r"unable to configure the Docker daemon with file \S+: (.+)")
_OF_THE_ENVIRONMENT = ("userland-proxy-path",)
"""Refusals that come from how devkit starts dockerd, not from the file: it looks for docker-proxy on its own PATH."""
_BUILT_IN_RUNTIMES = ("", "runc")


def read_daemon_files(host: Host) -> tuple[DaemonFile, ...]:
    """Read every settings file of a daemon that concerns this user."""
    return tuple(_read_daemon_file(host, path) for path in find_daemon_paths(host) if host.stat(path) is not None)


def read_daemon_addresses(host: Host) -> tuple[str, ...]:
    """Read the addresses that the system's daemon was configured to listen on: of its flags, and of `hosts` in its file."""
    flags = read_daemon_flags(host)
    by_flag = [word for flag, word in pairwise(flags) if flag in ("-H", "--host")]
    by_flag += [flag.partition("=")[2] for flag in flags if flag.startswith(("-H=", "--host="))]
    try:
        content = parse_json(host.read(SYSTEM_FILE) or "{}")
    except ValueError:
        content = {}
    return (*by_flag, *(get_texts(content, "hosts") if isinstance(content, dict) else ()))


def _read_daemon_file(host: Host, path: str) -> DaemonFile:
    found = host.stat(path)
    if found is not None and found.kind == "directory":
        return DaemonFile(path, DAEMON_FILE_IS_FOLDER, False)
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
    flags = read_daemon_flags(host) if path == SYSTEM_FILE else ()
    refusal = _find_missing_runtime(content, flags) or (
        validate_daemon_file(host, path, flags) if path == SYSTEM_FILE else ""
    )
    return DaemonFile(path, refusal, "nvidia" in get_object(content, "runtimes"))


def _find_missing_runtime(content: dict[str, Any], flags: tuple[str, ...]) -> str:
    """Return what dockerd says at its start, and not with --validate, of a default runtime that nothing registers.

    Names with a dot and absolute paths are programs of containerd, which need no row.
    Source: moby/moby, daemon/runtime_unix.go.
    """
    name = get_text(content, "default-runtime")
    if name in _BUILT_IN_RUNTIMES or "." in name or name.startswith("/") or name in get_object(content, "runtimes"):
        return ""
    if any(f"{name}=" in flag for flag in flags):  # --add-runtime
        return ""
    return f"specified default runtime {name!r} does not exist: no row of runtimes has this name"


def validate_daemon_file(host: Host, path: str, flags: tuple[str, ...]) -> str:
    """Return why dockerd refuses the file beside its flags, "" where it does not, or is older than 23.0 and cannot say."""
    daemon = find_program(host, "dockerd")
    if not daemon:
        return ""
    if any(word.startswith("--config-file") for word in flags):
        return ""  # this daemon reads another file
    done = host.run((daemon, "--validate", *flags, f"--config-file={path}"), deadline_s=_VALIDATE_DEADLINE_S)
    refusal = _REFUSAL.search(done.err or done.out)
    if done.code == 0 or refusal is None or any(word in refusal[1] for word in _OF_THE_ENVIRONMENT):
        return ""
    return refusal[1].strip()


def find_daemon_paths(host: Host) -> tuple[str, ...]:
    """List every path of a daemon.json that concerns this user: system, rootless, Desktop, snap, Windows."""
    env = host.env
    if profile := env.get("USERPROFILE"):
        return (f"{profile}\\.docker\\daemon.json",)
    paths = [SYSTEM_FILE, "/var/snap/docker/current/config/daemon.json"]
    if home := env.get("HOME"):
        paths.insert(1, f"{env.get('XDG_CONFIG_HOME') or home + '/.config'}/docker/daemon.json")
        paths.insert(2, f"{home}/.docker/daemon.json")
    return tuple(dict.fromkeys(paths))
