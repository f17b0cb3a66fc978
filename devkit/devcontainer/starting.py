"""Start and stop the dev container of a folder: one of devkit's by Compose, every other by the dev container CLI."""

import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from devkit.devcontainer.build_log import PLAIN_PROGRESS, BuildLog
from devkit.devcontainer.configuration import LOCAL_FOLDER_LABEL, DevContainer
from devkit.devcontainer.engine import ContainerState, EngineClient, Entry, Failure, enter
from devkit.devcontainer.made_container import MadeContainer
from devkit.errors import DevkitError
from devkit.probe.attempts import find_error_lines
from devkit.text import format_count, to_one_line
from devkit.verify.dev_container import LIFECYCLE_COMMANDS, list_commands, require_engine
from devkit.verify.process import CompletedCommand, run_streaming

_MARKERS = ("$HOME/.devcontainer", "$HOME/.vscode-server/data/Machine")
"""Where the dev container CLI and VS Code note which lifecycle commands have run; neither runs one of them again."""

_MAX_LOOKS = 2
_TOGETHER = timedelta(minutes=1)
"""Within which the services of a project start."""
_OF_SERVICES = {"com.docker.compose.oneoff": "False"}
"""Not of `docker compose run`."""
_SETTLING_S = 2.0
"""In which a program ends that cannot work at all: Compose itself waits only until it has started."""
_TIME = re.compile(r"^\[\d{4}-\d\d-\d\dT[\d:.]+Z\] ")
_STEP = re.compile(r"Start: Run: |Running the \w+ from ")
_EXITED = re.compile(r"exited \([1-9]")
_COMMAND_FAILED = "Error: Command failed: "
"""The dev container CLI's log: how a line begins, a step begins, and what it adds in the end, with all words of a command."""

Report = Callable[[str], None]
"""Shows a line; one that ends with " …" stands until the next."""


@dataclass(frozen=True)
class Started:
    """A dev container that runs. `action` is created, recreated, started or kept; `changed` says why it was recreated."""

    entry: Entry
    action: str
    changed: tuple[str, ...] = ()
    built: tuple[str, ...] = ()
    """The steps of the build that were not in its cache."""


def start_dev_container(
    client: EngineClient, report: Report, *, rebuilds: bool = False, no_cache: bool = False
) -> Started | Failure:
    """Start the dev container. Repeating it keeps what is up to date; `rebuilds` always recreates the container.

    Raises DevkitError where the engine has no Compose command.
    """
    before, log = client.find(), BuildLog(report)
    if not client.container.is_generated:
        report("devcontainer up …")
        return _start_by_cli(client, before, log, rebuilds=rebuilds, no_cache=no_cache)
    if client.call("compose", "version").code != 0:
        require_engine(client.host)
        raise DevkitError(f"{client.program} has no Compose command", "Install the Compose plugin.")
    if before is not None and before.is_running and not rebuilds:
        would_end = format_count(before.sessions, "command") if before.sessions else "the editor's settings"
        if before.sessions or LOCAL_FOLDER_LABEL in before.labels:
            report(f"{before.name} stays unchanged, because {would_end} in it; recreate it with devkit up --rebuild")
            return _finish(Started(enter(client, before), "kept"), report)
    if failure := _run_host_command(client.container, report):
        return failure
    build = ("build", *(["--no-cache"] if no_cache else []))
    done = _compose(client, *build, take=log.take)
    if done.code != 0:
        title = f"the build failed at {log.failed.name}" if log.failed else "the image could not be built"
        return Failure(title, tuple(log.lines), log.excerpt)
    lines: list[str] = []
    report("start the container …")
    done = _compose(client, *_choose_start(client, before, rebuilds=rebuilds), take=lines.append)
    if client.container.is_compose_project and done.code == 0:
        time.sleep(_SETTLING_S)
    state = client.find()
    has_ended = client.container.is_compose_project and state is not None and _has_done_its_work(before, state, lines)
    if has_ended and state is not None and MadeContainer(client, "").find_cut_command() is None:
        return Started(enter(client, state), "ended", (), log.built)
    if done.code != 0 or state is None or not state.is_running:
        return _describe_failure(client, state, lines)
    action = _name_action(before, state)
    if action != "kept" and (failure := _find_ended_neighbor(client, state, lines)):
        return failure
    reason = "the image" if before and before.image_id != state.image_id else "its settings"
    changed = (reason,) if action == "recreated" and not rebuilds else ()
    report(f"the container is {action}{f', because {reason} changed' if changed else ''}")
    return _finish(Started(enter(client, state), action, changed, log.built), report)


def _describe_failure(client: EngineClient, state: ContainerState | None, lines: Sequence[str]) -> Failure:
    if not _describe_end(state) and (sick := _list_unhealthy(client)):
        return Failure(sick[0], (*lines, *sick), sick)
    logs: list[str] = []
    if state is not None:
        _compose(client, "logs", "--tail", "50", take=logs.append)
    return Failure(_describe_end(state) or "the container could not be started", (*lines, *logs), tuple(logs))


def _has_done_its_work(before: ContainerState | None, state: ContainerState, said: Sequence[str]) -> bool:
    """Say if the service has ended with status 0 since it was started, and Compose tells of no other that failed."""
    is_new = before is None or before.started_at != state.started_at
    return is_new and bool(_describe_end(state)) and state.exit_code == 0 and not any(map(_EXITED.search, said))


def _describe_end(state: ContainerState | None) -> str:
    """Describe how a container ended; "" for one that runs or was never started."""
    ended = state is not None and not state.is_running and not state.started_at.startswith("0001")
    return f"the container {state.name} exited with status {state.exit_code}" if state and ended else ""


def _choose_start(client: EngineClient, before: ContainerState | None, *, rebuilds: bool) -> tuple[str, ...]:
    if before is not None and not rebuilds:
        image = client.call("image", "inspect", "--format", "{{.Id}}", before.image).out.strip().removeprefix("sha256:")
        # An editor adds its own settings to a container, and podman-compose's `up` recreates every container.
        if LOCAL_FOLDER_LABEL in before.labels or (client.program == "podman" and image == before.image_id):
            return ("start",)
    waits = () if client.program == "podman" else ("--wait",)
    return ("up", "--detach", *waits, "--no-build", *(("--force-recreate",) if rebuilds else ()))


def _name_action(before: ContainerState | None, after: ContainerState) -> str:
    if before is None or before.id != after.id:
        return "created" if before is None else "recreated"
    return "kept" if before.is_running and before.started_at == after.started_at else "started"


def _compose(client: EngineClient, *words: str, take: Report) -> CompletedCommand:
    files = [word for file in client.container.compose_files for word in ("--file", str(file))]
    argv, folder = [client.program, "compose", *files, *words], client.container.folder
    return run_streaming(argv, progress=take, on_output=take, folder=folder, environment=PLAIN_PROGRESS)


def _run_host_command(container: DevContainer, report: Report) -> Failure | None:
    """Run initializeCommand on this machine: devkit's chooses how the container gets its GPU."""
    for argv in list_commands(container.properties.get("initializeCommand")):
        words = ["cmd", "/c", argv[-1]] if sys.platform == "win32" and argv[0] == "sh" else argv

        def take(line: str) -> None:
            report(to_one_line(line))

        try:
            done = run_streaming(words, progress=take, on_output=take, folder=container.folder)
        except OSError as error:
            return Failure(f"initializeCommand cannot be run: {error.strerror}", ())
        if done.code != 0:
            return Failure(f"initializeCommand ended with status {done.code}", (*done.out.splitlines(), *done.log))
    return None


def _finish(started: Started, report: Report) -> Started | Failure:
    """Run the lifecycle commands that have not run yet, each once for a container or a start of it."""
    entry, state, container = started.entry, started.entry.state, started.entry.client.container
    inside = f"{entry.workspace}/{os.path.relpath(container.file, container.folder)}"
    if container.is_compose_project:
        return started
    if entry.client.call("exec", state.id, "test", "-e", inside).code == 1:
        report(f"{entry.workspace} inside is not this folder: the engine's machine has different files there")
    for hook in (*LIFECYCLE_COMMANDS, "postStartCommand"):
        stamp = state.started_at if hook == "postStartCommand" else state.created_at
        commands = list_commands(container.properties.get(hook))
        test = " || ".join(f'[ "$(cat "{folder}/.{hook}Marker" 2>/dev/null)" = "$0" ]' for folder in _MARKERS)
        if not commands or _call(entry, test, stamp) == 0:
            continue
        for argv in commands:
            title = f"{hook}: {to_one_line(argv[-1] if argv[0] == 'sh' else shlex.join(argv))}"
            report(f"{title} …")
            if failure := _run_hook(entry, title, argv):
                return failure
            report(f"{title}  done")
        mark = "; ".join(f'mkdir -p "{folder}" && echo "$0" >"{folder}/.{hook}Marker"' for folder in _MARKERS)
        _call(entry, mark, stamp)
    return started


def _call(entry: Entry, script: str, stamp: str) -> int:
    return entry.client.call(*entry.build_command(["sh", "-c", script, stamp])[1:]).code


def _run_hook(entry: Entry, title: str, argv: Sequence[str]) -> Failure | None:
    lines: list[str] = []
    command = entry.build_command(argv, {"DEVKIT_SESSION": entry.token})
    try:
        done = run_streaming(command, progress=lines.append, on_output=lines.append)
    except BaseException:
        # The client is gone, and the command inside would go on beside that of the next start.
        entry.send(signal.SIGTERM)
        raise
    return (
        Failure(f"{title} failed with status {done.code}; the container is running", tuple(lines))
        if done.code
        else None
    )


def _start_by_cli(
    client: EngineClient, before: ContainerState | None, log: BuildLog, *, rebuilds: bool, no_cache: bool
) -> Started | Failure:
    words = ["--remove-existing-container"] if rebuilds else []
    words += ["--build-no-cache"] if no_cache else []
    # Its log is on standard error, its result the last line of standard output.
    argv = [*client.build_cli_command("up"), *words]
    folder = client.container.folder
    take = lambda line: log.take(_TIME.sub("", line))  # noqa: E731
    done = run_streaming(argv, progress=take, folder=folder, environment=PLAIN_PROGRESS)
    try:
        result: dict[str, Any] = dict(json.loads(done.out.splitlines()[-1]))
    except (ValueError, TypeError, IndexError):
        result = {}
    if done.code == 0 and (before is None or not before.is_running or rebuilds):
        time.sleep(_SETTLING_S)
    after = client.find()
    if done.code != 0 or after is None or not after.is_running:
        said = str(result.get("description") or result.get("message") or f"it ended with status {done.code}")
        if end := _describe_end(after):
            answer = client.call("logs", "--tail", "50", after.id if after else "")
            said_there = (*answer.out.splitlines(), *answer.err.splitlines())
            # Its own line before it waits.
            logs = tuple(line for line in said_there if line != "Container started")
            return Failure(end, (*log.lines, *logs), logs or (end,))
        if sick := _list_unhealthy(client):
            return Failure(sick[0], (*log.lines, *sick), sick)
        # The dev container CLI says nothing of a service for which the dev container waited.
        if "Docker Compose up" in said and (ended := _find_ended(client)):
            name, code, logs = ended
            return Failure(f"the container {name} exited with status {code}", (*log.lines, *logs), logs)
        steps = [place for place, line in enumerate(log.lines, 1) if _STEP.match(line)]
        lines = (
            [*takewhile(lambda line: not line.startswith(_COMMAND_FAILED), log.lines[steps[-1] :])]
            if steps
            else find_error_lines("\n".join(log.lines))
        )
        # Where the step that failed says nothing, no earlier one says it.
        return Failure(f"devcontainer up failed: {said}", tuple(log.lines), log.excerpt or tuple(lines) or (said,))
    action = _name_action(before, after)
    if action != "kept" and (failure := _find_ended_neighbor(client, after, log.lines)):
        return failure
    entry = Entry(client, after, str(result.get("remoteUser", "")), str(result.get("remoteWorkspaceFolder", "")))
    return Started(entry, action, (), log.built)


def _find_ended_neighbor(client: EngineClient, state: ContainerState, lines: Sequence[str]) -> Failure | None:
    """Return how a container that was started with this one ended, or that the engine starts it again and again."""
    labels = {"com.docker.compose.project": state.labels.get("com.docker.compose.project"), **_OF_SERVICES}
    filters = [f"--filter=label={name}={value}" for name, value in labels.items()]
    ids = client.call("ps", "--all", "--quiet", "--no-trunc", *filters).out.split()
    others = [each for each in ids if each != state.id]
    for _ in range(_MAX_LOOKS) if others else ():
        time.sleep(_SETTLING_S)
        done = client.call("container", "inspect", *others)
        for each in json.loads(done.out) if done.code == 0 else ():
            name, end = str(each["Name"]).removeprefix("/"), each["State"]
            is_new = datetime.fromisoformat(end["StartedAt"]) > datetime.fromisoformat(state.started_at) - _TOGETHER
            if is_new and end["ExitCode"] and end["Status"] in ("exited", "restarting"):
                answer = client.call("logs", "--tail", "50", name)
                logs = (*answer.out.splitlines(), *answer.err.splitlines())
                title = f"the container {name} exited with status {end['ExitCode']}; {state.name} runs"
                return Failure(title, (*lines, *logs), logs or (title,))
    return None


def _find_ended(client: EngineClient) -> tuple[str, int, tuple[str, ...]] | None:
    """Return the name, the exit code and the log of a service that ended before the dev container began: first one that failed."""
    ids = _list_services(client, "--all", "--filter=status=exited")
    done = client.call("container", "inspect", *ids) if ids else None
    found = json.loads(done.out) if done and done.code == 0 else []
    for each in sorted(found, key=lambda each: each["State"]["ExitCode"] == 0)[:1]:
        name, answer = str(each["Name"]).removeprefix("/"), client.call("logs", "--tail", "50", each["Id"])
        return name, each["State"]["ExitCode"], (*answer.out.splitlines(), *answer.err.splitlines())
    return None


def _list_services(client: EngineClient, *options: str) -> list[str]:
    """List the containers of the folder's Compose project."""
    files = client.container.compose_files
    folder = files[0].resolve().parent if files else client.container.folder
    label = f"label=com.docker.compose.project.working_dir={folder}"
    return client.call("ps", "--quiet", "--no-trunc", f"--filter={label}", *options).out.split()


def _list_unhealthy(client: EngineClient) -> tuple[str, ...]:
    """Return what the health checks say of the folder's services that Compose waits for in vain, and which service it is."""
    ids = _list_services(client, "--filter=health=unhealthy")
    if not ids:
        return ()
    form = "the container {{.Name}} is unhealthy{{range .State.Health.Log}}\n{{.Output}}{{end}}"
    found = client.call("container", "inspect", f"--format={form}", ids[0]).out.splitlines()
    return tuple(dict.fromkeys(line.replace("container /", "container ", 1) for line in found if line.strip()))


def stop_dev_container(client: EngineClient, state: ContainerState, *, removes: bool) -> Failure | None:
    """Stop the dev container and the services beside it; with `removes` also remove them and their volumes."""
    if project := state.labels.get("com.docker.compose.project"):
        words = ["down", "--volumes", "--remove-orphans"] if removes else ["stop"]
        lines: list[str] = []
        done = _compose(client, "--project-name", project, *words, take=lines.append)
        return Failure(f"compose {words[0]} ended with status {done.code}", tuple(lines)) if done.code else None
    calls: list[tuple[str, ...]] = [("rm", "--force", "--volumes", state.id) if removes else ("stop", state.id)]
    calls += [("volume", "rm", "--force", *state.volumes)] if removes and state.volumes else []
    for call in calls:
        answer = client.call(*call)
        if answer.code != 0:
            return Failure(f"{client.program} {call[0]} ended with status {answer.code}", (answer.err,))
    return None
