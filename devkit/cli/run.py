"""`devkit run`: run a command in the project's dev container."""

from pathlib import Path

import click

from devkit.cli.dev_container import config_option, open_running
from devkit.errors import DevkitError


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--directory",
    metavar="DIR",
    default=".",
    type=click.Path(path_type=Path),
    help="The project's folder, or one below it. Default: the current one.",
)
@config_option
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
