"""`devkit up`, `shell`, `run` and `down`: the project's dev container, with the steps that they show, and failures."""

import json
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from devkit.cli.runtime import is_drawn
from devkit.errors import DevkitError, ExitCode
from devkit.text import format_duration, to_one_line

if TYPE_CHECKING:
    from devkit.devcontainer.configuration import DevContainer
    from devkit.devcontainer.containers import Failure
    from devkit.devcontainer.entering import Entry

MAX_SHOWN_LINES = 12
PIPED_WIDTH = 120
NAMED_AFTER_S = 5.0
_HOST = "devkit.host"
Command = TypeVar("Command", bound=Callable[..., Any])

directory_argument = click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The devcontainer.json. Default: that of DIR, or of the nearest folder above it.",
)


def _choose_engine(ctx: click.Context, option: click.Parameter, host: str | None) -> None:
    """Set for this process, and for all that it starts, what the docker command reads."""
    if host:
        ctx.meta[_HOST] = f" --host {shlex.quote(host)}"
        os.environ.pop("DOCKER_HOST", None)
        os.environ["DOCKER_HOST" if "://" in host else "DOCKER_CONTEXT"] = host


def format_host() -> str:
    """Return the option --host of this command, for the commands that it suggests; "" where it was not given."""
    return str(click.get_current_context().meta.get(_HOST, ""))


host_option = click.option(
    "--host",
    metavar="ssh://HOST|CONTEXT",
    expose_value=False,
    callback=_choose_engine,
    help="Another machine's engine, over ssh or a Docker context. Default: the one that the docker command uses.",
)


class BuildSteps:
    """Prints each step on standard error: on a terminal a line that becomes its result, otherwise its result alone.

    Where lines are piped, a step that takes long is named before its result, so that its log does not seem to hang.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._has_line = False
        self._is_live = is_drawn(sys.stderr)
        self._has_colors = self._is_live and "NO_COLOR" not in os.environ
        self._begun: dict[str, float] = {}
        self._named: set[str] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._tick, daemon=True).start()

    def begin(self, title: str) -> None:
        """Show that a step has begun."""
        with self._lock:
            self._begun[title] = self._clock()
            self._show_current()

    def end(self, title: str, result: str = "", *, is_failed: bool = False) -> None:
        """Show how the step ended, with its duration."""
        with self._lock:
            seconds = self._clock() - self._begun.pop(title, self._clock())
            took = result or f"{'failed after ' if is_failed else ''}{format_duration(seconds)}"
            self._print("✗" if is_failed else "✓", title, took, "red" if is_failed else "green")
            self._show_current()

    def drop(self, title: str) -> None:
        """Take a step back that is not worth a line."""
        with self._lock:
            self._begun.pop(title, None)
            self._show_current()

    def say(self, text: str) -> None:
        """Show a line."""
        with self._lock:
            self._print(" ", text, "", None)
            self._show_current()

    def _tick(self) -> None:
        while True:
            time.sleep(1)
            with self._lock:
                self._show_current()

    def _print(self, mark: str, title: str, result: str, color: str | None) -> None:
        shown = click.style(mark, fg=color) if color and self._has_colors else mark
        start = "\r\x1b[K" if self._is_live else ""
        width = shutil.get_terminal_size().columns if self._is_live and sys.stdout.isatty() else PIPED_WIDTH
        text = to_one_line(title)
        line = f"{_shorten(text, width - len(result) - 4)}  {result}".rstrip() if result else text
        encoding = sys.stderr.encoding or "ascii"
        click.echo(f"{start}{shown} {line}".encode(encoding, "replace").decode(encoding), err=True)

    def _show_current(self) -> None:
        """Show the newest step that runs; piped, one that has run for a while."""
        if not self._begun:
            if self._has_line:
                click.echo("\r\x1b[K", err=True, nl=False)
            self._has_line = False
            return
        title, began = list(self._begun.items())[-1]
        seconds = self._clock() - began
        if self._is_live:
            self._has_line = True
            width = shutil.get_terminal_size().columns
            took = format_duration(seconds)
            click.echo(f"\r\x1b[K… {_shorten(to_one_line(title), width - len(took) - 5)}  {took}", err=True, nl=False)
        elif seconds > NAMED_AFTER_S and title not in self._named:
            self._named.add(title)
            click.echo(f"  {_shorten(to_one_line(title), PIPED_WIDTH)} …", err=True)


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(1, width - 1)]}…"


def find_project_container(directory: Path, config: Path | None) -> "DevContainer":
    """Return the dev container of the directory. Raises DevkitError when there is none."""
    from devkit.devcontainer.configuration import find_dev_container

    return find_dev_container(directory, config, env=os.environ)


def open_running(directory: Path, config: Path | None) -> "tuple[DevContainer, Entry]":
    """Return the directory's dev container, and how to enter it. Raises DevkitError when it does not run."""
    from devkit.devcontainer.containers import find_client
    from devkit.devcontainer.entering import enter
    from devkit.devcontainer.stopping import find_running
    from devkit.probe.host import LocalHost

    container = find_project_container(directory, config)
    client = find_client(LocalHost())
    state = find_running(client, container)
    if state is None or not state.is_running:
        raise DevkitError(f"the dev container of {container.folder} does not run", f"Start it: devkit up {directory}")
    return container, enter(client, container, state, directory.resolve())


def print_failure(failure: "Failure", log: Path | None) -> None:
    """Print what failed: the first known cause with its fix, the last lines, and where all of them are."""
    from devkit.cli.output import OutputOptions, choose_marks, style_lines
    from devkit.doctor.known_errors import find_known_errors, format_matches

    click.echo(f"Error: {to_one_line(failure.title)}", err=True)
    text = "\n".join(failure.lines)
    matches = [match for match in find_known_errors(text, is_ours=True) if match.follows_from is None] if text else []
    said = [line for line in failure.excerpt or failure.lines if line.strip()]
    for line in said[-MAX_SHOWN_LINES:]:
        click.echo(f"  {to_one_line(line)}", err=True)
    if matches:
        width = max(40, min(shutil.get_terminal_size().columns, 100))
        lines = format_matches(tuple(matches[:1]), width=width, marks=choose_marks(OutputOptions("text", None)))
        click.echo("\n" + style_lines(lines, is_plain=not sys.stderr.isatty()), err=True, nl=False)
    if log is not None:
        hint = "" if matches else f"; no known error is in it: devkit explain {shlex.quote(str(log))}"
        click.echo(f"The whole output: {log}{hint}", err=True)


def write_log(container: "DevContainer", failure: "Failure") -> Path | None:
    """Write the output of what failed into the user's own folder; None where that cannot be written."""
    from devkit.user_folder import find_user_file

    named = find_user_file(f"containers/{container.key}.log")
    if named is None or not failure.lines:
        return None
    try:
        Path(named).parent.mkdir(parents=True, exist_ok=True)
        Path(named).write_text("\n".join(failure.lines) + "\n", encoding="utf-8", errors="replace")
    except OSError:
        return None
    return Path(named)


def _refuse_cluster(_ctx: click.Context, _option: click.Parameter, cluster: str | None) -> None:
    """Raise DevkitError for an engine that builds no image."""
    if cluster:
        raise DevkitError(
            f"devkit up builds an image and starts it, and {cluster!r} runs one that is published",
            "Publish it, write a job that waits, and enter it:"
            " devkit export kubernetes --image REGISTRY/NAME:TAG -- devkit launch --idle 7200"
            " (or export slurm or skypilot). Another machine's engine: devkit up --host ssh://HOST",
        )


@click.command()
@directory_argument
@config_option
@host_option
@click.option(
    "--on",
    "cluster",
    hidden=True,
    expose_value=False,
    callback=_refuse_cluster,
    help="Named by those who look for it: a cluster runs an image that is published first.",
)
@click.option("--rebuild", is_flag=True, help="Make the container anew, and end what runs in it.")
@click.option("--no-cache", is_flag=True, help="Build the image without its cache, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def up(
    ctx: click.Context, directory: Path, *, config: Path | None, rebuild: bool, no_cache: bool, as_json: bool
) -> None:
    """Start the dev container of DIR: build it, wait until it is healthy, run its lifecycle commands once.

    It is the container that VS Code and the dev container CLI then attach to. Repeat it as you like: what is up to date
    is kept, and what changed is built again and named. On another machine's engine it works in a copy of the folder,
    which every `up` brings up to date.
    """
    from devkit.devcontainer.containers import Failure
    from devkit.devcontainer.making import StartOptions
    from devkit.devcontainer.starting import start_dev_container
    from devkit.probe.host import LocalHost
    from devkit.verify.process import interrupt_on_termination

    container = find_project_container(directory, config)
    options = StartOptions(rebuilds=rebuild or no_cache, no_cache=no_cache)
    with interrupt_on_termination():
        try:
            started = start_dev_container(LocalHost(), container, options, BuildSteps())
        except KeyboardInterrupt:
            click.echo("\nWhat was built so far is kept: the next `devkit up` continues.", err=True)
            raise
    if isinstance(started, Failure):
        print_failure(started, write_log(container, started))
        ctx.exit(ExitCode.ANSWER_IS_NO)
    entry = started.entry
    if as_json:
        document = {
            "schema": "devkit.up/1",
            "action": started.action,
            "container": entry.state.name,
            "container_id": entry.state.id,
            "image_id": entry.state.image_id,
            "user": entry.user,
            "workspace_folder": entry.folder,
            "changed": list(started.changed),
            "built": list(started.built),
            "volume": started.remote.volume if started.remote else None,
        }
        click.echo(json.dumps(document, indent=2))
        return
    done = "runs already" if started.action == "kept" else "runs"
    click.echo(f"The dev container of {container.name} {done}: {entry.state.name}")
    host = format_host()
    click.echo(f"  enter it:    devkit shell{host}\n  run in it:   devkit run{host} -- COMMAND")
    click.echo(f"  stop it:     devkit down{host}")
    if started.remote is None:
        click.echo('  in VS Code:  "Dev Containers: Reopen in Container" attaches to it')
        return
    click.echo(
        f"  its files:   the volume {started.remote.volume} on the engine's machine, a copy of {started.remote.root}"
    )
    click.echo(f"  bring back:  devkit run{host} -- tar -c OUTPUT | tar -x")
    click.echo('  in VS Code:  "Dev Containers: Attach to Running Container", with the same Docker context')


@click.command()
@directory_argument
@config_option
@host_option
@click.pass_context
def shell(ctx: click.Context, directory: Path, *, config: Path | None) -> None:
    """Open a login shell in the running dev container of DIR, as its user, in the counterpart of DIR.

    Ends with the shell's exit code.
    """
    from devkit.devcontainer.entering import run_inside

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise DevkitError("a shell needs a terminal", "Run a command instead: devkit run -- COMMAND")
    _, entry = open_running(directory, config)
    ctx.exit(run_inside(entry, entry.build_shell_command()))


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--directory",
    metavar="DIR",
    default=".",
    type=click.Path(path_type=Path),
    help="The project's folder, or one below it. Default: the current one.",
)
@config_option
@host_option
@click.option("--env", "variables", metavar="NAME=VALUE", multiple=True, help="Environment variable. Repeat.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- COMMAND")
@click.pass_context
def run(
    ctx: click.Context, *, directory: Path, config: Path | None, variables: tuple[str, ...], command: tuple[str, ...]
) -> None:
    """Run a command in the running dev container, as its user, in the counterpart of the current folder.

    Standard input, output, Ctrl-C and other signals are passed on, and the exit code is the command's.
    """
    from devkit.devcontainer.entering import run_inside

    pairs = [variable.partition("=") for variable in variables]
    if wrong := next((name for name, separator, _ in pairs if not (name and separator)), None):
        raise DevkitError(f"--env {wrong} has no value", "Write it as --env NAME=VALUE.")
    _, entry = open_running(directory, config)
    ctx.exit(run_inside(entry, command, env={name: value for name, _, value in pairs}))


@click.command()
@directory_argument
@config_option
@host_option
@click.option("--volumes", is_flag=True, help="Also remove the container and its volumes, with the caches in them.")
@click.pass_context
def down(ctx: click.Context, directory: Path, *, config: Path | None, volumes: bool) -> None:
    """Stop the dev container of DIR and the services beside it. The next `devkit up` starts it as it was."""
    from devkit.devcontainer.containers import find_client
    from devkit.devcontainer.stopping import find_running, stop_dev_container
    from devkit.probe.host import LocalHost

    container = find_project_container(directory, config)
    client = find_client(LocalHost())
    state = find_running(client, container)
    if state is None or not (state.is_running or volumes):
        click.echo(f"The dev container of {container.name} does not run.")
        return
    steps, title = BuildSteps(), f"{'remove' if volumes else 'stop'} {state.name}"
    steps.begin(title)
    failure = stop_dev_container(client, container, state, removes=volumes)
    steps.end(title, is_failed=failure is not None)
    if failure:
        print_failure(failure, None)
        ctx.exit(ExitCode.ANSWER_IS_NO)
    done = "is removed, with its volumes" if volumes else "is stopped"
    click.echo(f"The dev container of {container.name} {done}.")
