"""`devkit up`, `shell`, `run` and `down`: the project's dev container, with the steps that they show, and failures."""

import json
import os
import shlex
import sys
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli.command import FILE, FOLDER, PROJECT, Command
from devkit.cli.terminal import StepPrinter
from devkit.errors import DevkitError, ExitCode
from devkit.text import to_one_line

if TYPE_CHECKING:
    from devkit.devcontainer.configuration import DevContainer
    from devkit.devcontainer.engine import EngineClient, Entry, Failure
    from devkit.devcontainer.starting import Started

MAX_SHOWN_LINES = 12

directory_argument = click.argument("directory", metavar="[DIR]", default=".", type=PROJECT)
_subfolder_argument = click.argument("directory", metavar="[DIR]", default=".", type=FOLDER)
config_option = click.option(
    "--config",
    metavar="FILE",
    type=FILE,
    help="The devcontainer.json. Default: the one in DIR, or in the nearest folder above it.",
)


def _choose_context(_ctx: click.Context, _option: click.Parameter, context: str | None) -> None:
    """Set what the docker command reads, for this process and all that it starts. Raises DevkitError for an unknown context."""
    if context:
        from devkit.probe.engine.client import resolve_endpoint
        from devkit.probe.host import LocalHost

        os.environ.pop("DOCKER_HOST", None)
        os.environ["DOCKER_CONTEXT"] = context
        if problem := resolve_endpoint(LocalHost()).problem:
            raise DevkitError(problem, "List the contexts: docker context ls")


context_option = click.option(
    "--context",
    metavar="NAME",
    expose_value=False,
    callback=_choose_context,
    help="Docker context of the engine to use. Default: the docker command's context.",
)


def find_project_container(directory: Path, config: Path | None, *, takes_compose: bool = False) -> "DevContainer":
    """Return the dev container of the directory, else its Compose project if asked. Raises DevkitError when there is none."""
    from devkit.devcontainer.configuration import find_dev_container

    return find_dev_container(directory, config, env=os.environ, takes_compose=takes_compose)


def _find_made(directory: Path, config: Path | None, words: tuple[str, ...] = ()) -> "DevContainer":
    """Return the dev container that a command expects: without one, the user is in another folder, and `words` may name it."""
    from devkit.devcontainer.configuration import NoDevContainerError

    try:
        return find_project_container(directory, config, takes_compose=True)
    except NoDevContainerError as error:
        is_folder = bool(words) and Path(words[0]).is_dir()
        inside = [f"{each}" for each in sorted(directory.iterdir()) if (each / ".devcontainer").is_dir()]
        if not (words or inside or directory == Path()):
            raise  # the user named this folder
        folder = shlex.quote(words[0] if is_folder else [*inside, "DIR"][0])
        shown = f"--directory {folder} -- {shlex.join(words[is_folder:]) or 'COMMAND'}" if words else folder
        hint = f"Name the project's folder: {click.get_current_context().command_path} {shown}"
        raise DevkitError(error.message, hint) from None


def _open_running(directory: Path, config: Path | None, words: tuple[str, ...] = ()) -> "Entry":
    """Return how to enter the directory's dev container. Raises DevkitError when it does not run."""
    from devkit.devcontainer.engine import enter, find_client, require_cli
    from devkit.probe.host import LocalHost

    container = _find_made(directory, config, words)
    require_cli(container)
    client = find_client(LocalHost(), container)
    state = client.find()
    if state is None or not state.is_running:
        raise DevkitError(f"the dev container of {container.folder} is not running", f"Start it: devkit up {directory}")
    return enter(client, state, directory.resolve())


def start(container: "DevContainer", *, rebuilds: bool = False, no_cache: bool = False) -> "Started | None":
    """Start the dev container and show its steps; None, with the failure explained, where it cannot be started."""
    from devkit.devcontainer.engine import Failure, find_client, require_cli
    from devkit.devcontainer.starting import start_dev_container
    from devkit.probe.host import LocalHost
    from devkit.verify.process import interrupt_on_termination

    require_cli(container)
    client = find_client(LocalHost(), container)
    with interrupt_on_termination(), closing(StepPrinter()) as printer:
        try:
            started = start_dev_container(client, printer, rebuilds=rebuilds, no_cache=no_cache)
        except KeyboardInterrupt:
            click.echo("\nBuilt steps are kept: the next `devkit up` continues.", err=True)
            raise
    if isinstance(started, Failure):
        _print_failure(started, client)
        return None
    return started


def _print_failure(failure: "Failure", client: "EngineClient") -> None:
    """Print why something failed with the lines of the project that it leads to, the fix, the last lines, and the file with all."""
    from devkit.devcontainer.verdict import judge_failure

    verdict = judge_failure(client.host, client.container, failure, client)
    click.echo(f"Error: {to_one_line(verdict.headline)}", err=True)
    shown = [line for line in verdict.shown if line.strip()][-MAX_SHOWN_LINES:]
    for line in dict.fromkeys((*verdict.list_lines(), failure.title, *shown)):
        click.echo(f"  {to_one_line(line)}", err=True)
    for line in verdict.list_steps():
        click.echo(to_one_line(line), err=True)
    with suppress(OSError), tempfile.NamedTemporaryFile("wb", prefix="devkit-", suffix=".log", delete=False) as log:
        log.write("\n".join(failure.lines).encode(errors="replace"))
        click.echo(f"The whole output: {to_one_line(log.name)}", err=True)


@click.command(cls=Command)
@_subfolder_argument
@config_option
@context_option
@click.option("--rebuild", is_flag=True, help="Recreate the container, which ends its programs.")
@click.option("--no-cache", is_flag=True, help="Also build the image without its cache.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def up(
    ctx: click.Context, directory: Path, *, config: Path | None, rebuild: bool, no_cache: bool, as_json: bool
) -> None:
    """Start the dev container of DIR: build it, wait until it is healthy, and run its lifecycle commands once.

    Compose starts dev containers that devkit wrote, and folders that have only a Compose file. The dev container CLI starts
    all other dev containers. Running it again keeps everything that is up to date. Editors attach to the same container.
    If something fails, the last lines name the cause, its line in the project's files, and the fix.
    """
    container = find_project_container(directory, config, takes_compose=True)
    started = start(container, rebuilds=rebuild or no_cache, no_cache=no_cache)
    if started is None:
        ctx.exit(ExitCode.ANSWER_IS_NO)
    entry, state = started.entry, started.entry.state
    if as_json:
        document = {
            "schema": "devkit.up/1",
            "action": started.action,
            "container": state.name,
            "container_id": state.id,
            "image_id": state.image_id,
            "user": entry.user,
            "workspace_folder": entry.workspace,
            "changed": list(started.changed),
            "built": list(started.built),
            "volume": None,
        }
        click.echo(json.dumps(document, indent=2))
        return
    done = {"kept": "runs already", "ended": "has ended with status 0"}.get(started.action, "runs")
    click.echo(f"The dev container of {container.name} {done}: {state.name}")
    if started.action == "ended":
        return
    click.echo("  enter it:    devkit shell\n  run in it:   devkit run -- COMMAND\n  stop it:     devkit down")


@click.command(cls=Command)
@_subfolder_argument
@config_option
@context_option
@click.pass_context
def shell(ctx: click.Context, directory: Path, *, config: Path | None) -> None:
    """Open a shell in DIR's running dev container as its user, in the folder that matches the current one.

    The exit code is the shell's.
    """
    _find_made(directory, config)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise DevkitError("a shell needs a terminal", "Run a command instead: devkit run -- COMMAND")
    find_shell = 'shell=$(getent passwd "$(id -u)" 2>/dev/null | cut -d: -f7); exec "${shell:-/bin/sh}"'
    ctx.exit(_open_running(directory, config).run(["sh", "-c", find_shell]))


@click.command(cls=Command, context_settings={"allow_interspersed_args": False})
@click.option(
    "--directory",
    metavar="DIR",
    default=".",
    type=FOLDER,
    help="The project's folder, or a subfolder. Default: the current one.",
)
@config_option
@context_option
@click.option(
    "--env", "variables", metavar="NAME=VALUE", multiple=True, help="Environment variable to set. May be repeated."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- COMMAND")
@click.pass_context
def run(
    ctx: click.Context, *, directory: Path, config: Path | None, variables: tuple[str, ...], command: tuple[str, ...]
) -> None:
    """Run a command in the running dev container as its user, in the folder that matches the current one.

    Connects standard input and output, and forwards Ctrl-C and other signals. The exit code is the command's.
    """
    pairs = [variable.partition("=") for variable in variables]
    if wrong := next((name for name, separator, _ in pairs if not (name and separator)), None):
        raise DevkitError(f"--env {wrong} has no value", "Write it as --env NAME=VALUE.")
    ctx.exit(_open_running(directory, config, command).run(command, env={name: value for name, _, value in pairs}))


@click.command(cls=Command)
@_subfolder_argument
@config_option
@context_option
@click.option("--volumes", is_flag=True, help="Also remove the container and its volumes, including their caches.")
@click.pass_context
def down(ctx: click.Context, directory: Path, *, config: Path | None, volumes: bool) -> None:
    """Stop DIR's dev container and its services. The next `devkit up` starts it as it was."""
    from devkit.devcontainer.engine import find_client
    from devkit.devcontainer.starting import stop_dev_container
    from devkit.probe.host import LocalHost

    container = _find_made(directory, config)
    client = find_client(LocalHost(), container)
    state = client.find()
    if state is None or not (state.is_running or state.is_restarting or volumes):
        click.echo(f"The dev container of {container.name} is not running.")
        return
    with closing(StepPrinter()) as printer:
        printer(f"{'remove' if volumes else 'stop'} {state.name} …")
        failure = stop_dev_container(client, state, removes=volumes)
    if failure:
        _print_failure(failure, client)
        ctx.exit(ExitCode.ANSWER_IS_NO)
    click.echo(f"The dev container of {container.name} is {'removed, with its volumes' if volumes else 'stopped'}.")
