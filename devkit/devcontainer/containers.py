"""The containers of a dev container's folder, as the engine has them, and what runs in them."""

import json
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devkit.devcontainer.configuration import METADATA_LABEL, parse_metadata
from devkit.errors import DevkitError
from devkit.facts.model import Endpoint
from devkit.probe.engine.client import resolve_endpoint
from devkit.probe.host import TIMED_OUT, Host, ProgramResult

QUERY_DEADLINE_S = 30.0
STOP_DEADLINE_S = 90.0
ANSWER_DEADLINE_S = 4.0
COMPOSE_PROJECT_LABEL = "com.docker.compose.project"
COMPOSE_SERVICE_LABEL = "com.docker.compose.service"
INPUTS_LABEL = "devkit.inputs"
"""Files that the container was made of, each with the beginning of its hash: JSON."""


@dataclass(frozen=True)
class EngineClient:
    """The engine's own command, docker or podman, for short questions; none is waited for without end."""

    host: Host
    program: str

    def call(self, *words: str, deadline_s: float = QUERY_DEADLINE_S) -> ProgramResult:
        """Run the engine's command; a failure is the caller's to judge."""
        done = self.host.run([self.program, *words], deadline_s=deadline_s)
        if done.code == TIMED_OUT:
            raise DevkitError(f"`{self.program} {words[0]}` did not answer within {deadline_s:g} s", "devkit doctor")
        return done

    def require(self, *words: str, deadline_s: float = QUERY_DEADLINE_S) -> str:
        """Return what the engine's command printed. Raises DevkitError with its last line where it fails."""
        done = self.call(*words, deadline_s=deadline_s)
        if done.code != 0:
            said = [line for line in done.err.splitlines() if line.strip()] or ["it printed nothing"]
            shown = " ".join(words[:2])
            raise DevkitError(f"`{self.program} {shown}` failed: {said[-1].strip()}", _hint_for(said[-1]))
        return done.out

    def find(self, labels: Mapping[str, str]) -> "ContainerState | None":
        """Return the container with these labels, a running one first; None where there is none."""
        filters = [word for name, value in labels.items() for word in ("--filter", f"label={name}={value}")]
        ids = self.require("ps", "--all", "--quiet", "--no-trunc", *filters).split()
        states = [state for each in ids if (state := self.inspect(each)) is not None]
        return next((state for state in states if state.is_running), states[0] if states else None)

    def inspect(self, container: str) -> "ContainerState | None":
        """Return the state of one container; None when it is gone."""
        found = self._inspect("container", container)
        return None if found is None else _parse_state(found)

    def inspect_image(self, image: str) -> "ImageState | None":
        """Return an image that this engine has; None for one that it does not have."""
        found = self._inspect("image", image)
        if found is None:
            return None
        settings = found.get("Config") or {}
        return ImageState(
            _strip_algorithm(str(found.get("Id", ""))),
            str(settings.get("User") or ""),
            settings.get("Labels") or {},
            tuple(settings.get("Entrypoint") or ()) + tuple(settings.get("Cmd") or ()),
        )

    def _inspect(self, kind: str, name: str) -> dict[str, Any] | None:
        done = self.call(kind, "inspect", name)
        if done.code != 0:
            return None
        try:
            found = json.loads(done.out)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, list) and found and isinstance(found[0], dict):
            return found[0]
        raise DevkitError(
            f"`{self.program} {kind} inspect` printed no description of one", f"{self.program} {kind} inspect {name}"
        )


def find_client(host: Host) -> EngineClient:
    """Return the engine's command if it answers. Raises DevkitError with the doctor's finding and fix if not."""
    client = EngineClient(host, "docker" if shutil.which("docker") else "podman")
    endpoint = resolve_endpoint(host).endpoint
    is_over_ssh = endpoint.url.startswith("ssh://")
    deadline_s = QUERY_DEADLINE_S if is_over_ssh else ANSWER_DEADLINE_S
    done = host.run([client.program, "ps", "--quiet", "--last", "1"], deadline_s=deadline_s)
    if done.code == 0:
        return client
    if is_over_ssh:
        raise explain_ssh_failure(endpoint, done.err)
    # Only where something is wrong: what explains it takes longer to import than a command to run.
    from devkit.verify.engine import explain_hanging_engine, require_engine

    if done.code == TIMED_OUT:
        raise explain_hanging_engine(host, ANSWER_DEADLINE_S)
    return EngineClient(host, require_engine(host).program)


def explain_ssh_failure(endpoint: Endpoint, said: str) -> DevkitError:
    """Explain why an engine behind ssh gave no answer, in ssh's own words where docker repeats them."""
    reason = said.partition("stderr=")[2].strip() or next(
        reversed(said.strip().splitlines()), "it did not answer in time"
    )
    machine = endpoint.url.removeprefix("ssh://").partition("/")[0]
    return DevkitError(
        f"no container engine answers at {endpoint.url}: {reason.splitlines()[0]}",
        f"See that this prints a version without a question, with a key in ssh-agent: ssh {machine} docker version",
    )


@dataclass(frozen=True)
class Failure:
    """A step that failed: what it was, the whole output, and the part of it that says most."""

    title: str
    lines: tuple[str, ...]
    excerpt: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageState:
    """A local image: its id, its user ("" for root), its labels, and the command that it starts."""

    id: str
    user: str
    labels: Mapping[str, str]
    command: tuple[str, ...]

    @property
    def metadata(self) -> list[dict[str, Any]]:
        """The dev container metadata that the image carries."""
        return parse_metadata(self.labels.get(METADATA_LABEL))


@dataclass(frozen=True)
class ContainerState:
    """One container: `health` is "" without a health check, `sessions` counts the commands that were started in it."""

    id: str
    name: str
    image_id: str
    is_running: bool
    health: str
    exit_code: int
    created_at: str
    started_at: str
    user: str
    labels: Mapping[str, str]
    env: Mapping[str, str]
    sessions: int
    mounts: tuple[Mapping[str, Any], ...]

    @property
    def inputs(self) -> dict[str, str] | None:
        """The files that the container was made of, by their hashes; None for a container of another tool."""
        try:
            found = json.loads(self.labels.get(INPUTS_LABEL, ""))
        except ValueError:
            return None
        return {str(name): str(digest) for name, digest in found.items()} if isinstance(found, dict) else None


def _parse_state(found: dict[str, Any]) -> ContainerState:
    state, settings = found.get("State") or {}, found.get("Config") or {}
    health = state.get("Health") or state.get("Healthcheck") or {}
    return ContainerState(
        id=str(found["Id"]),
        name=str(found.get("Name", "")).lstrip("/"),
        image_id=_strip_algorithm(str(found.get("Image", ""))),
        is_running=bool(state.get("Running")),
        health=str(health.get("Status") or ""),
        exit_code=int(state.get("ExitCode") or 0),
        created_at=str(found.get("Created", "")),
        started_at=str(state.get("StartedAt", "")),
        user=str(settings.get("User") or ""),
        labels=settings.get("Labels") or {},
        env=dict(line.partition("=")[::2] for line in settings.get("Env") or ()),
        sessions=len(found.get("ExecIDs") or ()),
        mounts=tuple(found.get("Mounts") or ()),
    )


def _strip_algorithm(image_id: str) -> str:
    return image_id.removeprefix("sha256:")


def _hint_for(error: str) -> str:
    """Say what to do about an engine's error: the cause that `devkit explain` knows, else where to look it up."""
    from devkit.doctor.known_errors import find_known_errors

    matches = find_known_errors(error, is_ours=True)
    if matches:
        return "\n".join((matches[0].cause, matches[0].fix.summary, *matches[0].fix.commands))
    return "devkit doctor looks at the engine and the project"


_SIGNAL_SCRIPT = """
found= leader=
for folder in /proc/[0-9]*; do
    if tr '\\0' '\\n' <"$folder/environ" | grep -qx "DEVKIT_SESSION=$1"; then
        found="$found ${folder#/proc/}"
        if grep -q '^PPid:[[:space:]]*0$' "$folder/status"; then leader=${folder#/proc/}; fi
    fi
done 2>/dev/null
if [ "$3" = group ] || [ -z "$leader" ]; then leader=$found; fi
kill -s "$2" $leader
"""
"""Signal the first process of a session, which the engine started and no process inside, or all of the session's."""


@dataclass(frozen=True)
class Session:
    """One command in a running container. The engine's client passes no signal on, so that `send` does."""

    client: EngineClient
    container: str
    user: str
    token: str

    @classmethod
    def open(cls, client: EngineClient, container: str, user: str) -> "Session":
        """Return a session of its own for one command."""
        return cls(client, container, user, uuid.uuid4().hex)

    def build_command(
        self,
        argv: Sequence[str],
        *,
        folder: str,
        env: Mapping[str, str],
        is_terminal: bool = False,
        has_input: bool = False,
    ) -> list[str]:
        """Build the command line that runs `argv` inside."""
        options = [*(["--interactive"] if has_input else []), *(["--tty"] if is_terminal else [])]
        options += ["--user", self.user] if self.user else []
        options += ["--workdir", folder] if folder else []
        variables = {**env, "DEVKIT_SESSION": self.token}
        options += [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        return [self.client.program, "exec", *options, self.container, *argv]

    def send(self, signal_name: str, *, to_group: bool) -> None:
        """Send a signal such as "TERM" to the command inside, or to all of its processes, as Ctrl-C does."""
        user = ["--user", self.user] if self.user else []
        words = ["sh", "-c", _SIGNAL_SCRIPT, "sh", self.token, signal_name, "group" if to_group else "one"]
        self.client.call("exec", *user, self.container, *words)
