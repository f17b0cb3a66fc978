"""The engine's own command, docker or podman: how to inspect a folder's container and run commands inside."""

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any

from devkit.devcontainer.configuration import DevContainer
from devkit.errors import DevkitError
from devkit.probe.documents import get_object
from devkit.probe.engine.client import resolve_endpoint
from devkit.probe.host import TIMED_OUT, Host, ProgramResult
from devkit.text import to_one_line

QUERY_DEADLINE_S = 30.0
ANSWER_DEADLINE_S = 4.0
REFERENCE_CLI = "devcontainer"
_SEND_SIGNAL = """
kill -s "$2" $(grep -lsxz "DEVKIT_SESSION=$1" /proc/[0-9]*/environ | cut -d/ -f3 | sort -n | head -n "$3")
"""
"""The engine passes on no signal to a command without a terminal. Ctrl-C is for all that it started, others for itself."""


@dataclass(frozen=True)
class Failure:
    """A step that failed: its name, the whole output, and the most informative part of it."""

    title: str
    lines: tuple[str, ...]
    excerpt: tuple[str, ...] = ()


@dataclass(frozen=True)
class ContainerState:
    """One container, running or not. `sessions` counts the commands that were started in it."""

    id: str
    name: str
    image: str
    image_id: str
    is_running: bool
    created_at: str
    started_at: str
    user: str
    sessions: int
    labels: Mapping[str, str]
    volumes: tuple[str, ...]
    exit_code: int
    is_restarting: bool
    """Whether it ended, and the engine waits to start it again: for Docker, such a container is running."""


@dataclass(frozen=True)
class EngineClient:
    """The engine's own command for one dev container: short questions, none of which is waited for without end."""

    host: Host
    program: str
    container: DevContainer

    def call(self, *words: str, deadline_s: float = QUERY_DEADLINE_S) -> ProgramResult:
        """Run the engine's command; a failure is the caller's to judge. Raises DevkitError at the deadline."""
        done = self.host.run([self.program, *words], deadline_s=deadline_s)
        if done.code == TIMED_OUT:
            raise DevkitError(f"`{self.program} {words[0]}` did not answer within {deadline_s:g} s", "devkit doctor")
        return done

    def find(self) -> ContainerState | None:
        """Return the state of the container, a running one first; None where none was made."""
        filters = [f"--filter=label={name}={value}" for name, value in self.container.labels.items()]
        ids = self.call("ps", "--all", "--quiet", "--no-trunc", *filters).out.split()
        done = self.call("container", "inspect", *ids) if ids else None
        if done is None or done.code != 0:
            return None
        try:
            states = [_parse_state(each) for each in json.loads(done.out)]
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            shown = f"{self.program} container inspect {ids[0]}"
            raise DevkitError(f"`{self.program} container inspect` printed no container description", shown) from None
        return next((state for state in states if state.is_running), states[0] if states else None)

    def build_cli_command(self, verb: str) -> list[str]:
        """Build the beginning of a command line of the dev container CLI."""
        words = [REFERENCE_CLI, verb, f"--workspace-folder={self.container.folder}", f"--config={self.container.file}"]
        podman = ["--docker-path=podman", "--docker-compose-path=podman-compose"]
        return [*words, *(podman if self.program == "podman" else [])]


def _parse_state(found: dict[str, Any]) -> ContainerState:
    state, settings = found["State"], found.get("Config") or {}
    volumes = [str(mount.get("Name") or "") for mount in found.get("Mounts") or () if mount.get("Type") == "volume"]
    return ContainerState(
        id=str(found["Id"]),
        name=str(found.get("Name", "")).lstrip("/"),
        image=str(found.get("ImageName") or settings.get("Image") or ""),
        image_id=str(found.get("Image", "")).removeprefix("sha256:"),
        is_running=bool(state.get("Running")) and not state.get("Restarting"),
        created_at=str(found.get("Created", "")),
        started_at=str(state.get("StartedAt", "")),
        user=str(settings.get("User") or ""),
        sessions=len(found.get("ExecIDs") or ()),
        labels=settings.get("Labels") or {},
        volumes=tuple(filter(None, volumes)),
        exit_code=int(state.get("ExitCode") or 0),
        is_restarting=bool(state.get("Restarting")),
    )


def require_cli(container: DevContainer) -> None:
    """Raise DevkitError where the dev container CLI is needed and missing."""
    if not container.is_generated and shutil.which(REFERENCE_CLI) is None:
        raise DevkitError(
            f"{container.file} needs the dev container CLI, which is not installed",
            "npm install -g @devcontainers/cli\nor write a dev container that needs only Compose: devkit init",
        )


def find_client(host: Host, container: DevContainer) -> EngineClient:
    """Return the engine's command if it answers. Raises DevkitError with the doctor's finding and fix if not."""
    client = EngineClient(host, "docker" if shutil.which("docker") else "podman", container)
    url = resolve_endpoint(host).endpoint.url
    deadline_s = QUERY_DEADLINE_S if url.startswith("ssh://") else ANSWER_DEADLINE_S
    done = host.run([client.program, "ps", "--quiet", "--last", "1"], deadline_s=deadline_s)
    if done.code == 0:
        return client
    if url.startswith("ssh://"):
        said = to_one_line(done.err.rpartition("stderr=")[2]) or "it did not answer in time"
        raise DevkitError(
            f"no container engine answers at {url}: {said}", f"ssh must not prompt: ssh {url} docker version"
        )
    # Only where something is wrong: what explains it takes longer to import than a command to run.
    from devkit.verify.dev_container import explain_hanging_engine, require_engine

    if done.code == TIMED_OUT:
        raise explain_hanging_engine(host, ANSWER_DEADLINE_S)
    return EngineClient(host, require_engine(host).program, container)


@dataclass(frozen=True)
class Entry:
    """A running dev container with the user, the folder and the variables of what is run in it."""

    client: EngineClient
    state: ContainerState
    user: str
    workspace: str
    below: str = "."
    """The folder to work in, relative to the workspace folder."""
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Marks the processes of this entry, so that signals find them."""

    def build_command(self, argv: Sequence[str], env: Mapping[str, str] = {}, options: Sequence[str] = ()) -> list[str]:
        """Build the command line that runs `argv` inside."""
        if self.client.container.is_generated:
            remote = get_object(dict(self.client.container.properties), "remoteEnv")
            variables = {**{name: value for name, value in remote.items() if value is not None}, **env}
            words = [self.client.program, "exec", *options, *(["--user", self.user] if self.user else [])]
            words += ["--workdir", str(PurePosixPath(self.workspace, self.below))] if self.workspace else []
            words += [f"--env={name}={value}" for name, value in variables.items()]
            return [*words, self.state.id, *argv]
        words = self.client.build_cli_command("exec")
        words += [f"--remote-env={name}={value}" for name, value in env.items()]
        in_folder = [] if self.below == "." else ["sh", "-c", 'cd "$0" && exec "$@"', self.below]
        return [*words, *in_folder, *argv]

    def send(self, number: int) -> None:
        """Send a signal to the processes of this entry."""
        name = signal.Signals(number).name.removeprefix("SIG")
        count = "99999" if number == signal.SIGINT else "1"
        argv = self.build_command(["sh", "-c", _SEND_SIGNAL, "sh", self.token, name, count])
        self.client.host.run(argv, deadline_s=QUERY_DEADLINE_S)

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] = {}) -> int:
        """Run a command inside with this process's standard streams. Returns its exit code.

        Ctrl-C, SIGTERM and SIGHUP reach the command. It gets a terminal where standard input and output are one.
        """
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        term = {"TERM": os.environ["TERM"]} if is_terminal and "TERM" in os.environ else {}
        options = ["--interactive", *(["--tty"] if is_terminal else [])]
        command = self.build_command(argv, {**term, **env, "DEVKIT_SESSION": self.token}, options)
        # With a terminal, the client reads Ctrl-C as a key. Without one it must not get the signal beside the command.
        process = subprocess.Popen(command, start_new_session=not is_terminal)
        interrupts = 0

        def pass_on(number: int, _frame: FrameType | None) -> None:
            nonlocal interrupts
            interrupts += number == signal.SIGINT
            if interrupts >= 3:  # whatever the command inside does
                process.kill()
            else:
                self.send(number)

        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, pass_on)
        while True:
            with suppress(subprocess.TimeoutExpired):  # in slices, so that signals are handled on every platform
                code = process.wait(0.2)
                return code if code >= 0 else 128 - code


def enter(client: EngineClient, state: ContainerState, start: Path | None = None) -> Entry:
    """Return how to enter a running container. `start` is the folder on the host whose counterpart work begins in."""
    container = client.container
    below = start.relative_to(container.folder) if start and start.is_relative_to(container.folder) else Path()
    user = str(container.properties.get("remoteUser") or state.user)
    usual = "" if container.is_compose_project else "/"
    return Entry(client, state, user, str(container.properties.get("workspaceFolder") or usual), below.as_posix())
