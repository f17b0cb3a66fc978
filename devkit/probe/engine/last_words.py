"""Why the engine's daemons do not run, in the words of their last start: from the journal, or from the log file."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from devkit.facts.runs import ProgramFailure
from devkit.probe.attempts import find_error_lines, read_error
from devkit.probe.documents import parse_object_or_empty, parse_toml
from devkit.probe.engine.daemon_files import read_daemon_flags, read_daemon_settings
from devkit.probe.host import Host

UNITS = ("containerd.service", "docker.socket", "docker.service")
"""The first cause first: dockerd needs containerd, and its unit the socket."""

LOG_FILES = ("/var/log/docker.log", "/var/log/docker", "/var/log/docker/docker.log", "/var/log/dockerd.log")
"""Where Debian's and Alpine's init scripts, Gentoo's and many hands send dockerd's output."""

_PROPERTIES = ("LoadState", "ActiveState", "Result", "ExecMainStatus")
_SHOWN_LINES = 60
_STARTING = re.compile(r'msg="?Starting up|level=info msg="Starting up"')
_NO_ENTRIES = ("-- No entries --", "No journal files were")
_CONTAINERS_FILES = (
    *("/usr/share/containers/containers.conf", "/etc/containers/containers.conf", "/etc/containers/storage.conf"),
    *("~/.config/containers/containers.conf", "~/.config/containers/storage.conf"),
)
_SETTINGS_FILE = re.compile(r"(?<![\w.-])/[\w./-]+\.(?:conf|toml|json|ya?ml)\b")
_PARTS = re.compile(r"=|://")
"""Before the part of a value that a program repeats alone: the address of tcp://…, the right side of an option."""
_SHORTEST_VALUE = 3
"""Of a setting: shorter words are in every sentence."""


def read_last_words(host: Host, *, is_rootless: bool = False) -> tuple[ProgramFailure, ...]:
    """Read why dockerd and what it needs do not run; nothing where they were stopped, or never started."""
    failures = tuple(_read_units(host, is_rootless=is_rootless)) or tuple(_read_log_files(host))
    settings = tuple(_list_daemon_settings(host))
    return tuple(add_settings(host, failure, settings) for failure in failures)


def _read_units(host: Host, *, is_rootless: bool) -> Iterator[ProgramFailure]:
    scope = ("--user",) if is_rootless else ()
    for unit in UNITS:
        done = host.run(("systemctl", *scope, "show", unit, f"--property={','.join(_PROPERTIES)}"))
        state = dict(line.partition("=")[::2] for line in done.out.splitlines()) if done.code == 0 else {}
        if state.get("LoadState") == "masked":
            yield ProgramFailure(unit, (f"Unit {unit} is masked",), f"systemctl show {unit}", 1)
        elif state.get("LoadState") == "loaded" and (
            state.get("ActiveState") == "failed" or state.get("Result", "success") != "success"
        ):
            status = int(state["ExecMainStatus"]) if state.get("ExecMainStatus", "").isdigit() else 1
            words, read_from = _read_journal(host, scope, unit)
            words = words or (f"{unit}: {state['Result']}, status {status}",)
            yield ProgramFailure(unit, words, read_from, status)


def _read_journal(host: Host, scope: tuple[str, ...], unit: str) -> tuple[tuple[str, ...], str]:
    """Return the error lines of the unit's own processes, without what systemd says of them, and the command."""
    field = "_SYSTEMD_USER_UNIT" if scope else "_SYSTEMD_UNIT"
    command = ("journalctl", *scope, "-b", f"{field}={unit}", "-n", str(_SHOWN_LINES), "-o", "cat", "--no-pager")
    done = host.run(command)
    shown = f"journalctl {' '.join((*scope, '-u'))} {unit.removesuffix('.service')} -n 50 --no-pager"
    if done.code != 0 or any(words in done.out + done.err for words in _NO_ENTRIES):
        return (), shown
    return find_error_lines(_cut_to_last_start(done.out)), shown


def _read_log_files(host: Host) -> Iterator[ProgramFailure]:
    """Yield dockerd's failure where the last line of its log is an error: one that was stopped says so at the end."""
    for path in LOG_FILES:
        found = host.stat(path)
        log = _cut_to_last_start(host.read(path) or "") if found is not None and found.kind == "file" else ""
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        if lines and read_error(lines[-1]):
            yield ProgramFailure("dockerd", find_error_lines("\n".join(lines[-_SHOWN_LINES:])), path)
            return


def _cut_to_last_start(log: str) -> str:
    starts = [match.start() for match in _STARTING.finditer(log)]
    return log[starts[-1] :] if starts else log


# The settings that a failing program repeats: what to correct, whatever the fault is.


def add_settings(host: Host, failure: ProgramFailure, settings: tuple[tuple[str, str, str], ...]) -> ProgramFailure:
    """Return the failure with the settings whose value its last words repeat, and the settings files that they name.

    `settings` are file, key and value.
    """
    said = f" {' '.join(failure.words)} "
    named = find_named_settings(said, settings)
    files = (path for path in _SETTINGS_FILE.findall(said) if host.read(path) is not None)
    return replace(failure, settings=tuple(dict.fromkeys((*named, *files))))


def find_named_settings(said: str, settings: Iterable[tuple[str, str, str]]) -> tuple[str, ...]:
    """Find the settings, as file, key and value, that these words repeat, as "key in file".

    Those whose key they quote come first, then the longest value.
    """

    def is_quoted(key: str) -> bool:
        names = (re.escape(each).replace("_", "[_-]") for each in key.split(".")[-2:])
        return any(re.search(rf"['\"`]{each}['\"`]|--{each}\b", said) for each in names)

    return tuple(
        f"{key} in {path}"
        for path, key, value in sorted(settings, key=lambda each: (is_quoted(each[1]), len(each[2])), reverse=True)
        if is_quoted(key)
        or any(
            len(each) >= _SHORTEST_VALUE and re.search(rf"(?<![\w/.-]){re.escape(each)}(?![\w/-])", said)
            for each in (value, *_PARTS.split(value)[1:])
        )
    )


def _list_daemon_settings(host: Host) -> Iterator[tuple[str, str, str]]:
    path, content = read_daemon_settings(host)
    yield from ((path, key, value) for key, value in flatten(content))
    for flag in read_daemon_flags(host):
        name, equals, value = flag.partition("=")
        if equals and name.startswith("--"):
            yield "the daemon's command line", name, value


def list_podman_settings(host: Host) -> Iterator[tuple[str, str, str]]:
    """Yield file, key and value of what Podman's settings files say."""
    for path in (each.replace("~", host.env.get("HOME", ""), 1) for each in _CONTAINERS_FILES):
        # What is wrong with a file, Podman says.
        content = parse_object_or_empty(host.read(path), parse_toml)
        yield from ((path, key, value) for key, value in flatten(content))


def flatten(content: Any, prefix: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401 - as a file has it
    """Yield the path and the value of each text in a document."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(content, list):
        for value in content:
            yield from flatten(value, prefix)
    elif isinstance(content, str):
        yield prefix, content
