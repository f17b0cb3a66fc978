"""`devkit shell`: enter the project's dev container."""

import sys
from pathlib import Path

import click

from devkit.cli.dev_container import config_option, directory_argument, open_running
from devkit.errors import DevkitError


@click.command()
@directory_argument
@config_option
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
