"""The Docker daemon's process on this machine: its environment and the flags that it was started with."""

import shlex
from collections.abc import Iterator

from devkit.probe.host import Host

UNIT = "docker.service"
_UNIT_FOLDERS = ("/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/system", "/etc/systemd/system")
"""The later folder's unit is the one that counts. Source: systemd.unit(5)."""


def find_daemon_pid(host: Host, listener: int | None = None) -> str | None:
    """Find the process of dockerd: what listens on the socket, unless that is systemd, or else the first of its name."""
    candidates = (str(listener), *host.list("/proc")) if listener else host.list("/proc")
    return next((entry for entry in candidates if entry.isdigit() and _is_dockerd(host, entry)), None)


def read_daemon_environment(host: Host, pid: str | None) -> dict[str, str]:
    """Read the variables of a process, none where this user may not see them."""
    text = host.read(f"/proc/{pid}/environ") if pid else None
    return dict(entry.partition("=")[::2] for entry in (text or "").split("\0"))


def _is_dockerd(host: Host, pid: str) -> bool:
    return (host.read(f"/proc/{pid}/comm") or "").strip() == "dockerd"


def read_daemon_flags(host: Host) -> tuple[str, ...]:
    """Read the flags of the system's dockerd: of its systemd unit and what overrides it, else of the running process."""
    words = _split_command(next(reversed(tuple(_list_start_commands(host))), ""))
    if not words:
        words = (host.read(f"/proc/{find_daemon_pid(host)}/cmdline") or "").rstrip("\0").split("\0")
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
