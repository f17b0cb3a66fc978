"""Docker daemons on this machine: their settings files, whether the daemon accepts them, and its process."""

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from devkit.facts.engine import DAEMON_FILE_IS_FOLDER, DaemonFile
from devkit.facts.values import Unknown
from devkit.formats.jsonc import format_json_error
from devkit.probe.documents import get_object, get_text, get_texts, parse_object, parse_object_or_empty
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
    return (*by_flag, *get_texts(read_daemon_settings(host)[1], "hosts"))


def _read_daemon_file(host: Host, path: str) -> DaemonFile:
    found = host.stat(path)
    if found is not None and found.kind == "directory":
        return DaemonFile(path, DAEMON_FILE_IS_FOLDER, False)
    text = host.read(path)
    if text is None:
        # The daemon runs as another user, who may.
        return DaemonFile(path, "", Unknown("this user cannot read it"))
    try:
        # The daemon takes a blank file for an empty one. Source: moby/moby, getConflictFreeConfiguration.
        content = parse_object(text.strip() or "{}")
    except ValueError as error:
        return DaemonFile(path, format_json_error(error), False)
    is_systems = path == find_daemon_file(host)
    flags = read_daemon_flags(host) if is_systems else ()
    refusal = _find_missing_runtime(content, flags) or (validate_daemon_file(host, path, flags) if is_systems else "")
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
    others = [flag for before, flag in pairwise(("", *flags)) if before != "--config-file"]
    others = [flag for flag in others if flag != "--config-file" and not flag.startswith("--config-file=")]
    done = host.run((daemon, "--validate", *others, f"--config-file={path}"), deadline_s=_VALIDATE_DEADLINE_S)
    refusal = _REFUSAL.search(done.err or done.out)
    if done.code == 0 or refusal is None or any(word in refusal[1] for word in _OF_THE_ENVIRONMENT):
        return ""
    return refusal[1].strip()


def read_daemon_settings(host: Host) -> tuple[str, dict[str, Any]]:
    """Read the path of the system daemon's settings file and its content; empty where it is not valid."""
    path = find_daemon_file(host)
    return path, parse_object_or_empty(host.read(path))


def find_daemon_paths(host: Host) -> tuple[str, ...]:
    """List every path of a daemon.json that concerns this user: system, rootless, Desktop, snap, Windows."""
    env = host.env
    if profile := env.get("USERPROFILE"):
        return (f"{profile}\\.docker\\daemon.json",)
    paths = [find_daemon_file(host), "/var/snap/docker/current/config/daemon.json"]
    if home := env.get("HOME"):
        paths.insert(1, f"{env.get('XDG_CONFIG_HOME') or home + '/.config'}/docker/daemon.json")
        paths.insert(2, f"{home}/.docker/daemon.json")
    return tuple(dict.fromkeys(paths))


def find_daemon_file(host: Host) -> str:
    """Find the settings file of the system's daemon: the one that its command line names, or else the usual one."""
    flags = read_daemon_flags(host)
    joined = (flag.partition("=")[2] for flag in flags if flag.startswith("--config-file="))
    apart = (value for flag, value in pairwise(flags) if flag == "--config-file")
    return next(joined, next(apart, "")) or SYSTEM_FILE


# The Docker daemon's process on this machine: its environment and the flags that it was started with.

UNIT = "docker.service"
_UNIT_FOLDERS = ("/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/system", "/etc/systemd/system")
"""The later folder's unit is the one that counts. Source: systemd.unit(5)."""


_PID_FILE = "/run/docker.pid"
_BOOTED = "/run/systemd/system"
"""A folder that is there where systemd runs. Source: sd_booted(3)."""


def find_daemon_pid(host: Host, listener: int | None = None) -> str | None:
    """Find the process of dockerd: what listens on the socket, unless that is systemd, or else the system's daemon.

    That is the process whose id lies where dockerd writes it unless told otherwise, or else the first of its name.
    A dockerd that only validates a file, as another probe may do at this moment, is none, nor is one that has just ended.
    """
    candidates = (str(listener or ""), (host.read(_PID_FILE) or "").strip(), *host.list("/proc"))
    processes = (entry for entry in candidates if entry.isdigit())
    named = (entry for entry in processes if (host.read(f"/proc/{entry}/comm") or "").strip() == "dockerd")
    # A process has no command line while it starts, and after it ended.
    lines = ((entry, host.read(f"/proc/{entry}/cmdline")) for entry in named)
    return next((entry for entry, line in lines if line is None or (line and "--validate" not in line)), None)


def read_daemon_environment(host: Host, pid: str | None) -> dict[str, str]:
    """Read the variables of a process, none where this user may not see them."""
    text = host.read(f"/proc/{pid}/environ") if pid else None
    return dict(entry.partition("=")[::2] for entry in (text or "").split("\0"))


def read_daemon_flags(host: Host) -> tuple[str, ...]:
    """Read the flags of the system's dockerd: of its systemd unit and what overrides it, else of the running process.

    A unit counts only where systemd runs, or no process does.
    """
    words = _split_command(next(reversed(tuple(_list_start_commands(host))), ""))
    if not words or host.stat(_BOOTED) is None:
        running = (host.read(f"/proc/{find_daemon_pid(host)}/cmdline") or "").rstrip("\0")
        words = running.split("\0") if running or not words else words
    return tuple(word for word in words[1:] if "$" not in word)


def _list_start_commands(host: Host) -> Iterator[str]:
    units = [f"{folder}/{UNIT}" for folder in _UNIT_FOLDERS if host.stat(f"{folder}/{UNIT}") is not None]
    overrides = {
        name: f"{folder}/{UNIT}.d/{name}"
        for folder in _UNIT_FOLDERS
        for name in host.list(f"{folder}/{UNIT}.d")
        if name.endswith(".conf")
    }
    for path in (*units[-1:], *(overrides[name] for name in sorted(overrides))):
        text = (host.read(path) or "").replace("\\\n", " ")
        for line in text.splitlines():
            if line.strip().startswith("ExecStart="):
                yield line.partition("=")[2].strip()


def _split_command(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
