"""Start the dev container of a folder: build its image, make the container or keep it, prepare it, run its commands.

The container has the labels and the settings that the dev container CLI gives one, so that an editor attaches to it.
Source: https://containers.dev/implementors/reference/.
"""

import hashlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from devkit.devcontainer.compose_service import ComposeService
from devkit.devcontainer.configuration import (
    CREATE_HOOKS,
    START_HOOK,
    DevContainer,
    MergedSettings,
    list_commands,
    merge_settings,
)
from devkit.devcontainer.containers import (
    STOP_DEADLINE_S,
    ContainerState,
    EngineClient,
    Failure,
)
from devkit.devcontainer.entering import Entry, enter
from devkit.devcontainer.making import PLAIN_PROGRESS, BuildLog, BuildStep, Maker, Recipe, StartOptions, StepEnd
from devkit.devcontainer.remote import RemoteFolder, is_remote, push_folder, require_remote_engine
from devkit.devcontainer.single_container import SingleContainer
from devkit.errors import DevkitError
from devkit.facts.model import Engine
from devkit.probe.engine.client import resolve_endpoint
from devkit.probe.host import Host
from devkit.text import format_count, format_duration, join_words
from devkit.verify.engine import require_engine
from devkit.verify.process import run_streaming

HEALTH_DEADLINE_S = 300.0
_POLL_S = 0.5
_REFERENCE_CLI = "devcontainer"
_MAX_INPUT_BYTES = 4 << 20

_PREPARE = """
sed -i 's|^\\([[:space:]]*PATH=\\)"\\(/[^"$]*\\)"$|\\1"${PATH:-\\2}"|' /etc/profile 2>/dev/null
[ -n "$1" ] || exit 0
user=$1 uid=$2 gid=$3
shift 3
entry=$(grep "^$user:" /etc/passwd) || exit 0
old_uid=$(echo "$entry" | cut -d: -f3) old_gid=$(echo "$entry" | cut -d: -f4) home=$(echo "$entry" | cut -d: -f6)
[ "$old_uid" != "$uid" ] || exit 0
if cut -d: -f3 /etc/passwd | grep -qx "$uid"; then exit 0; fi
if cut -d: -f3 /etc/group | grep -qx "$gid"; then gid=$old_gid; fi
sed -i "s/^$user:\\([^:]*\\):$old_uid:$old_gid:/$user:\\1:$uid:$gid:/" /etc/passwd
sed -i "s/^\\([^:]*:[^:]*\\):$old_gid:/\\1:$gid:/" /etc/group
find "$home" "$@" -xdev -user "$old_uid" -exec chown -h "$uid:$gid" {} +
"""
"""Keeps the image's PATH in login shells, which Debian's /etc/profile resets, and gives the user the host user's ids.

Folders of the host that are mounted below home are other file systems, and stay as they are.
"""


class Reporter(Protocol):
    """Shows what goes on. Every step that begins ends, with how."""

    def begin(self, title: str) -> None:
        """Show that a step has begun."""

    def end(self, title: str, result: str = "", *, is_failed: bool = False) -> None:
        """Show how the step ended."""

    def drop(self, title: str) -> None:
        """Take a step back that is not worth a line."""

    def say(self, text: str) -> None:
        """Show a line."""


@dataclass(frozen=True)
class Started:
    """A dev container that runs. `action` is created, recreated, started or kept; `changed` says why it was made anew."""

    entry: Entry
    action: str
    changed: tuple[str, ...]
    built: tuple[str, ...]
    """The steps of the build that were not in its cache."""
    remote: RemoteFolder | None = None
    """The copy of the folder on a remote engine's machine."""


def start_dev_container(
    host: Host, container: DevContainer, options: StartOptions, report: Reporter
) -> Started | Failure:
    """Start the dev container, as often as wanted: what is up to date is kept.

    Raises:
        DevkitError: for what cannot be started from here, and for what the engine refuses.
    """
    endpoint = resolve_endpoint(host).endpoint
    is_elsewhere = is_remote(endpoint)
    engine = require_remote_engine(host, endpoint) if is_elsewhere else require_engine(host)
    if shutil.which(engine.program) is None:
        raise DevkitError(
            f"the engine answers, but the command {engine.program} is not on PATH", "Add its folder to PATH."
        )
    client = EngineClient(host, engine.program)
    if container.properties.get("features"):
        return start_with_features(client, container, options, report, is_elsewhere=is_elsewhere)
    if failure := _run_host_command(container, report):
        return failure
    make = ComposeService if container.compose_files else SingleContainer
    maker = make(client, engine, container, is_remote=is_elsewhere)
    return _Start(client, engine.facts, container, maker, options, report).run()


@dataclass(frozen=True)
class _Start:
    """One start of a dev container whose engine answers."""

    client: EngineClient
    engine: Engine
    container: DevContainer
    maker: Maker
    options: StartOptions
    report: Reporter

    def run(self) -> Started | Failure:
        """Build, then make the container, make it anew, start it or keep it."""
        before = self.maker.find()
        if before is not None and before.is_running and before.inputs is None and not self.options.rebuilds:
            self.report.say(f"{before.name} was started by another tool and is left as it is; --rebuild makes it anew")
            return self._finish(before, "kept")
        inputs = _hash_inputs(self.maker.list_inputs(), self.container.folder)
        known = before.inputs if before is not None else None
        changed: tuple[str, ...] = ()
        if known is not None:
            changed = tuple(name for name in sorted({*known, *inputs}) if known.get(name) != inputs.get(name))
        if changed:
            self.report.say(f"changed since the container was made: {join_words(changed)}")
            self._refuse_to_interrupt(before)
        built = self._build()
        if isinstance(built, Failure):
            return built
        image = self.maker.find_image()
        if before is not None and not changed and image is not None and image.id != before.image_id:
            changed = ("the image",)
            self.report.say(f"the image was built anew: {join_words(built) or 'its base changed'}")
        action = "created" if before is None else "recreated" if changed or self.options.rebuilds else "started"
        if before is not None and before.is_running and action == "started":
            return self._finish(before, "kept")
        if action == "recreated":
            self._refuse_to_interrupt(before)
        settings = merge_settings([*(image.metadata if image else []), self.container.metadata])
        state = self._make(before, action, Recipe(settings, image, inputs))
        return state if isinstance(state, Failure) else self._finish(state, action, changed, built)

    def _build(self) -> tuple[str, ...] | Failure:
        """Build the image. Returns the steps that were not in the cache."""
        log, title = watch_build(self.report), "get the image"
        self.report.begin(title)
        done = self.maker.build(self.options, log)
        is_failed = done is not None and done.code != 0
        log.close(is_failed=is_failed)
        if done is None or log.steps:
            self.report.drop(title)
        else:
            self.report.end(title, is_failed=is_failed)
        if is_failed:
            step = log.failed
            excerpt = tuple(step.output) if step else ()
            title = f"the build failed at {step.name}" if step else "the image can be neither built nor pulled"
            return Failure(title, tuple(log.lines), excerpt)
        if cached := sum(step.end is StepEnd.CACHED for step in log.steps):
            self.report.say(f"the build took {format_count(cached, 'step')} from its cache")
        return tuple(step.name for step in log.steps if step.end is StepEnd.DONE and _is_work(step))

    def _refuse_to_interrupt(self, before: ContainerState | None) -> None:
        if before is not None and before.is_running and before.sessions and not self.options.rebuilds:
            raise DevkitError(
                f"{before.name} must be made anew, and {format_count(before.sessions, 'command')} in it would end",
                "Let them end first, or end them with it: devkit up --rebuild",
            )

    def _make(self, before: ContainerState | None, action: str, recipe: Recipe) -> ContainerState | Failure:
        title = f"start the container ({action})"
        self.report.begin(title)
        done = self.maker.start(before, action, recipe)
        state = self.maker.find() if done.code == 0 else None
        reason = "the container could not be started" if state is None else _wait_until_healthy(self.client, state)
        self.report.end(title, is_failed=bool(reason))
        if state is None:
            return Failure(reason, (*done.out.splitlines(), *done.log))
        if reason:
            logs = self.client.call("logs", "--tail", "100", state.id)
            return Failure(reason, (*logs.out.splitlines(), *logs.err.splitlines()))
        if action != "started":
            _prepare(self.client, self.engine, self.container, recipe.settings, state)
        return self.client.inspect(state.id) or state

    def _finish(
        self, state: ContainerState, action: str, changed: tuple[str, ...] = (), built: tuple[str, ...] = ()
    ) -> Started | Failure:
        """Run the lifecycle commands that have not run yet."""
        container, inside = self.container, self.container.workspace_folder
        entry = enter(self.client, container, state)
        if self.maker.remote is not None:
            title = "copy this folder to the engine's machine"
            self.report.begin(title)
            done = push_folder(self.client, container, state, self.maker.remote, entry.user)
            self.report.end(title)
            for line in done:
                self.report.say(line)
        if container.file.parent != container.folder:
            test = ("test", "-e", f"{inside}/{container.file.parent.relative_to(container.folder).as_posix()}")
            if self.client.call("exec", state.id, *test).code == 1:
                self.report.say(f"{inside} inside is not this folder: the engine sees other files than this machine")

        def finish(title: str, is_good: bool) -> None:
            self.report.end(title, is_failed=not is_good)

        failed = run_lifecycle(entry, begin=self.report.begin, finish=finish)
        if failed is not None:
            return Failure(f"{failed.name} ended with status {failed.code}; the container runs", failed.lines)
        return Started(entry, action, changed, built, self.maker.remote)


def start_with_features(
    client: EngineClient, container: DevContainer, options: StartOptions, report: Reporter, *, is_elsewhere: bool
) -> Started | Failure:
    """Start a dev container with Features through the dev container CLI, which builds them.

    Raises:
        DevkitError: where that CLI is not installed, and for an engine on another machine.
    """
    names = join_words(str(name) for name in container.properties["features"])
    if is_elsewhere:
        raise DevkitError(
            f"{container.file} installs Features ({names}), which the dev container CLI builds for this machine's engine",
            "Run devkit on the engine's machine.",
        )
    if shutil.which(_REFERENCE_CLI) is None:
        raise DevkitError(
            f"{container.file} installs Features ({names}), which the dev container CLI builds",
            "Install it, and repeat: npm install --global @devcontainers/cli",
        )
    before = client.find(container.labels)
    report.say(f"Features ({names}): the dev container CLI builds and starts it")
    words = ["up", "--workspace-folder", str(container.folder), "--config", str(container.file)]
    words += ["--docker-path", client.program]
    words += ["--remove-existing-container"] if options.rebuilds else []
    words += ["--build-no-cache"] if options.no_cache else []
    log = watch_build(report)
    # Its log is on standard error, its result the last line of standard output.
    done = run_streaming(
        [_REFERENCE_CLI, *words], progress=log.take, folder=container.folder, environment=PLAIN_PROGRESS
    )
    log.close(is_failed=done.code != 0)
    after = client.find(container.labels)
    if done.code != 0 or after is None:
        return Failure(f"devcontainer up ended with status {done.code}", tuple(log.lines))
    is_same = before is not None and before.id == after.id
    action = (
        ("kept" if before.is_running else "started") if before and is_same else "recreated" if before else "created"
    )
    built = tuple(step.name for step in log.steps if step.end is StepEnd.DONE and _is_work(step))
    return Started(enter(client, container, after), action, (), built)


def _run_host_command(container: DevContainer, report: Reporter) -> Failure | None:
    """Run initializeCommand on this machine; in devkit's own dev containers it chooses the GPU overlay."""
    for _, argv in list_commands(container.properties.get("initializeCommand")):
        words = ["cmd", "/c", argv[-1]] if sys.platform == "win32" and argv[:2] == ["/bin/sh", "-c"] else argv
        shown = " ".join(words[2:] if argv[:2] == ["/bin/sh", "-c"] else words)
        title = f"initializeCommand: {shown}"
        lines: list[str] = []
        report.begin(title)
        try:
            done = run_streaming(words, progress=lines.append, folder=container.folder, shows_output=True)
        except OSError as error:
            report.end(title, is_failed=True)
            return Failure(f"initializeCommand cannot be run: {error.strerror}", ())
        report.end(title, is_failed=done.code != 0)
        if done.code != 0:
            return Failure(f"initializeCommand ended with status {done.code}", tuple(lines))
        for line in lines:
            report.say(line)
    return None


def watch_build(report: Reporter) -> BuildLog:
    """Return what takes a build's lines and shows its steps."""

    def show(step: BuildStep) -> None:
        title = f"build {step.name}"
        if step.end is None:
            report.begin(title)
        elif step.end is StepEnd.CACHED or (step.end is StepEnd.DONE and not _is_work(step)):
            report.drop(title)
        else:
            took = format_duration(step.seconds) if step.end is StepEnd.DONE and step.seconds else ""
            report.end(title, took, is_failed=step.end is StepEnd.FAILED)

    return BuildLog(show)


def _is_work(step: BuildStep) -> bool:
    return not step.name.split(" ", 1)[-1].startswith("FROM")


def _hash_inputs(files: Sequence[Path], folder: Path) -> dict[str, str]:
    """Return the beginning of each file's hash by its path from `folder`; what cannot be read is left out."""
    found = {}
    for file in files:
        try:
            if file.stat().st_size <= _MAX_INPUT_BYTES:
                found[os.path.relpath(file, folder)] = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        except OSError:
            continue
    return found


def _wait_until_healthy(client: EngineClient, state: ContainerState) -> str:
    """Wait for a health check to succeed. Returns why the container is of no use, "" for a good one."""
    ends_at = time.monotonic() + HEALTH_DEADLINE_S
    while True:
        now = client.inspect(state.id)
        if now is None or not now.is_running:
            return f"the container ended at once, with status {now.exit_code if now else 'unknown'}"
        if now.health in ("", "healthy"):
            return ""
        if now.health == "unhealthy" or time.monotonic() > ends_at:
            return f"the container's health check says {now.health}"
        time.sleep(_POLL_S)


def _prepare(
    client: EngineClient, engine: Engine, container: DevContainer, settings: MergedSettings, state: ContainerState
) -> None:
    user = (settings.remote_user or state.user).partition(":")[0]
    ids = ("", "", "")
    if sys.platform == "linux" and settings.updates_uid and not engine.is_rootless and user not in ("", "root"):
        # Root starts it for the folder's owner.
        owner = container.folder.stat()
        uid, gid = (os.getuid(), os.getgid()) if os.getuid() else (owner.st_uid, owner.st_gid)
        ids = (user, str(uid), str(gid)) if uid and not user.isdigit() else ids
    volumes = [str(mount["Destination"]) for mount in state.mounts if mount.get("Type") == "volume"]
    words = ["sh", "-c", _PREPARE, "sh", *ids, *volumes]
    client.call("exec", "--user", "0", state.id, *words, deadline_s=STOP_DEADLINE_S)


# Lifecycle commands: each runs once for a container, and the next start continues after one that failed.

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
        has_run = " || ".join(f'[ "$(cat "{folder}/.{hook}Marker" 2>/dev/null)" = "$0" ]' for folder in MARKER_FOLDERS)
        if not commands or _call(entry, has_run, stamp) == 0:
            continue
        for name, argv in commands:
            shown = argv[-1] if argv[:2] == ["/bin/sh", "-c"] else shlex.join(argv)
            title = f"{hook}{f' {name}' if name else ''}: {' '.join(shown.split())}"
            begin(title)
            failed = _run(entry, title, argv)
            finish(title, failed is None)
            if failed is not None:
                return failed
        mark = "; ".join(
            f'mkdir -p "{folder}" && printf "%s\\n" "$0" >"{folder}/.{hook}Marker"' for folder in MARKER_FOLDERS
        )
        _call(entry, mark, stamp)
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


def _call(entry: Entry, script: str, stamp: str) -> int:
    argv = entry.open_session().build_command(["sh", "-c", script, stamp], folder="", env={})
    return entry.client.call(*argv[1:]).code
