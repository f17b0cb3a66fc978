"""Lifecycle commands: each runs once for a container, and the next start continues after one that failed."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from devkit.devcontainer.configuration import CREATE_HOOKS, START_HOOK, list_commands
from devkit.devcontainer.entering import Entry
from devkit.verify.process import run_streaming

MARKER_FOLDERS = ("$HOME/.devcontainer", "$HOME/.vscode-server/data/Machine")
"""Where the dev container CLI and VS Code note which commands have run; both then run none of them again."""


@dataclass(frozen=True)
class FailedCommand:
    """A lifecycle command that failed: its name, its exit code (None where it was killed), and what it printed."""

    name: str
    code: int | None
    lines: tuple[str, ...]


def run_lifecycle(
    entry: Entry, *, begin: Callable[[str], None], finish: Callable[[str, bool], None]
) -> FailedCommand | None:
    """Run the lifecycle commands that have not run yet in this container, in the order of the specification.

    `begin` is called before each with its text, `finish` after it with whether it succeeded. Commands of one hook run
    one after the other. Returns the one that failed; those after it wait for the next start.
    """
    for hook in (*CREATE_HOOKS, START_HOOK):
        stamp = entry.state.started_at if hook == START_HOOK else entry.state.created_at
        commands = [pair for command in entry.settings.hooks[hook] for pair in list_commands(command)]
        if not commands or _has_run(entry, hook, stamp):
            continue
        for name, argv in commands:
            shown = argv[-1] if argv[:2] == ["/bin/sh", "-c"] else shlex.join(argv)
            title = f"{hook}{f' {name}' if name else ''}: {' '.join(shown.split())}"
            begin(title)
            failed = _run(entry, title, argv)
            finish(title, failed is None)
            if failed is not None:
                return failed
        _note(entry, hook, stamp)
    return None


def _run(entry: Entry, title: str, argv: list[str]) -> FailedCommand | None:
    session = entry.open_session()
    lines: list[str] = []
    command = session.build_command(argv, folder=entry.folder, env=entry.env)
    try:
        done = run_streaming(command, progress=lines.append, shows_output=True)
    except BaseException:
        # The client is gone, and the command inside would go on beside that of the next start.
        session.send("TERM", to_group=True)
        raise
    return None if done.code == 0 else FailedCommand(title, done.code, tuple(lines))


def _has_run(entry: Entry, hook: str, stamp: str) -> bool:
    tests = " || ".join(f'[ "$(cat "{folder}/.{hook}Marker" 2>/dev/null)" = "$0" ]' for folder in MARKER_FOLDERS)
    return _call(entry, tests, stamp) == 0


def _note(entry: Entry, hook: str, stamp: str) -> None:
    script = "; ".join(
        f'mkdir -p "{folder}" && printf "%s\\n" "$0" >"{folder}/.{hook}Marker"' for folder in MARKER_FOLDERS
    )
    _call(entry, script, stamp)


def _call(entry: Entry, script: str, stamp: str) -> int:
    argv = entry.open_session().build_command(["sh", "-c", script, stamp], folder="", env={})
    return entry.client.call(*argv[1:]).code
