"""What a command in the running dev container gets: its user, folder and environment, as an editor's terminal has them."""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import FrameType

from devkit.devcontainer.configuration import (
    CONFIG_FILE_LABEL,
    METADATA_LABEL,
    DevContainer,
    MergedSettings,
    find_git_root,
    merge_settings,
    parse_metadata,
    replace_container_variables,
)
from devkit.devcontainer.containers import QUERY_DEADLINE_S, ContainerState, EngineClient, Session
from devkit.probe.host import TIMED_OUT, ProgramResult, run_program

_PROBE_DEADLINE_S = 10.0
_LOGIN_SHELL = """
shell=$(getent passwd "$(id -u)" 2>/dev/null || grep "^[^:]*:[^:]*:$(id -u):" /etc/passwd) && shell=${shell##*:}
[ -x "$shell" ] || shell=/bin/sh
"""
"""Sets `shell` to the login shell of the user."""
_SHELL_OPTIONS = {"loginInteractiveShell": "-lic", "loginShell": "-lc", "interactiveShell": "-ic"}
_OF_THE_PROBE = ("_", "PWD", "OLDPWD", "SHLVL", "DEVKIT_SESSION", "HOSTNAME", "TERM")
_UPDATED = ("remoteUser", "remoteEnv", "userEnvProbe")
"""Settings that take effect without a new container."""
_GIVE_UP_AFTER = 3
"""Ctrl-C this often ends the client, whatever the command inside does."""


@dataclass(frozen=True)
class Entry:
    """A running dev container with the user, the folder and the variables of what is run in it."""

    client: EngineClient
    state: ContainerState
    settings: MergedSettings
    user: str
    folder: str
    env: Mapping[str, str]

    def open_session(self) -> Session:
        """Return a session for one command."""
        return Session.open(self.client, self.state.id, self.user)

    def call(self, *argv: str, deadline_s: float = QUERY_DEADLINE_S) -> ProgramResult:
        """Run a command inside without input, and return what it printed; at the deadline it is ended."""
        session = self.open_session()
        done = run_program(session.build_command(argv, folder=self.folder, env=self.env), deadline_s=deadline_s)
        if done.code == TIMED_OUT:
            session.send("KILL", to_group=True)
        return done

    def build_shell_command(self) -> list[str]:
        """Build the command that becomes the user's login shell."""
        return ["sh", "-c", f'{_LOGIN_SHELL}exec "$shell" -l']


def enter(client: EngineClient, container: DevContainer, state: ContainerState, start: Path | None = None) -> Entry:
    """Return how to enter a running container. `start` is the folder on the host whose counterpart work begins in."""
    # The label of a container that a dev container tool made holds devcontainer.json's settings already.
    is_labeled = CONFIG_FILE_LABEL in state.labels
    own = {key: value for key, value in container.metadata.items() if not is_labeled or key in _UPDATED}
    settings = merge_settings([*parse_metadata(state.labels.get(METADATA_LABEL)), own])
    user = settings.remote_user or state.user
    probed = _probe_environment(client, state, settings, user)
    remote = replace_container_variables(settings.remote_env, state.env)
    return Entry(client, state, settings, user, _find_folder(container, state, start), {**probed, **remote})


def _find_folder(container: DevContainer, state: ContainerState, start: Path | None) -> str:
    """Return the workspace folder, or what is mounted there of a folder below it on the host."""
    if start is not None and start != container.folder:
        for root in (container.folder, find_git_root(container.folder)):
            mounted = [mount for mount in state.mounts if mount.get("Source") == str(root)]
            if mounted and start.is_relative_to(root):
                return str(PurePosixPath(mounted[0]["Destination"], start.relative_to(root).as_posix()))
    return container.workspace_folder


def _probe_environment(
    client: EngineClient, state: ContainerState, settings: MergedSettings, user: str
) -> dict[str, str]:
    """Return what the user's shell adds to the container's environment; {} where it does not answer in time."""
    options = _SHELL_OPTIONS.get(settings.user_env_probe)
    if options is None:
        return {}
    mark = uuid.uuid4().hex
    script = f"{_LOGIN_SHELL}exec \"$shell\" {options} 'printf %s {mark}; cat /proc/self/environ; printf %s {mark}'"
    session = Session.open(client, state.id, user)
    argv = session.build_command(["sh", "-c", script], folder="", env={})
    parts = run_program(argv, deadline_s=_PROBE_DEADLINE_S).out.split(mark)
    if len(parts) != 3:
        return {}
    found = dict(line.partition("=")[::2] for line in parts[1].split("\0") if "=" in line)
    return {name: value for name, value in found.items() if name not in _OF_THE_PROBE and state.env.get(name) != value}


def run_inside(entry: Entry, argv: Sequence[str], *, env: Mapping[str, str] = {}) -> int:
    """Run a command in the dev container with this process's standard streams. Returns its exit code.

    Ctrl-C, SIGTERM and SIGHUP reach the command. It gets a terminal where standard input and output are one.
    """
    session = entry.open_session()
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    variables = {**entry.env, **env, **({"TERM": os.environ["TERM"]} if is_terminal and "TERM" in os.environ else {})}
    command = session.build_command(argv, folder=entry.folder, env=variables, is_terminal=is_terminal, has_input=True)
    # With a terminal, the client reads Ctrl-C as a key. Without one it must not get the signal beside the command.
    process = subprocess.Popen(command, start_new_session=not is_terminal)
    with _pass_signals(session, process):
        while True:
            try:
                code = process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
            return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _pass_signals(session: Session, process: subprocess.Popen[bytes]) -> Iterator[None]:
    interrupts = 0

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += number == signal.SIGINT
        if interrupts >= _GIVE_UP_AFTER:
            process.kill()
            return
        session.send(signal.Signals(number).name.removeprefix("SIG"), to_group=number == signal.SIGINT)

    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    previous = {
        number: signal.signal(number, pass_on) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
