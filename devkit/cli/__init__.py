"""The command line: parse, call, print, exit. It decides nothing about GPUs or versions."""

import contextlib
import errno
import gc
import importlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from devkit import __version__
from devkit.cli import exit_codes
from devkit.cli.runtime import reraise_dropped_interrupts
from devkit.errors import DevkitError
from devkit.text import escape_controls

COMMANDS = {
    "doctor": ("doctor", "Find what stops GPU work on this machine, and say how to fix it."),
    "explain": ("explain", "Say what an error text means, and what to do about it."),
    "plan": ("plan", "Choose versions that fit the driver and GPUs, with reasons."),
    "init": ("init", "Write a dev container that fits this machine."),
    "update": ("update", "Bring a written dev container up to date, and keep your edits."),
    "template": ("template", "Write folders that can be published as dev container Templates."),
    "bundle": ("bundle", "Take everything the image is built from to a place without a network."),
    "estimate": ("estimate", "Say how much GPU memory a model takes, where it fits, and what to change."),
    "verify": ("verify", "Prove the environment: fine-tune and generate with a tiny model."),
    "finetune": ("finetune", "Train an adapter, or a whole model, on your texts."),
    "generate": ("generate", "Let a model, or one with an adapter on it, answer."),
    "export": ("export", "Carry plan and job to Kubernetes, Slurm and launchers."),
    "compare": ("compare", "Say what differs between machines, and which one is the odd one out."),
    "data": ("data", "Show the version tables that answers rest on, and take newer ones."),
}
"""Command name -> (module under devkit.cli, summary). Modules load when their command runs."""

BUG_REPORT_HINT = (
    f"This is a bug in devkit {__version__}. Please report it: the lines above, the command, "
    "and what `devkit doctor --save-facts facts.json` writes."
)


class LazyGroup(click.Group):
    """Loads a command's module only when it is used, so that `--help` stays fast."""

    def make_context(self, *given: Any, **named: Any) -> click.Context:  # noqa: ANN401 - handed on
        """As Click does, which prints help on the way."""
        with _until_the_reader_leaves():
            return super().make_context(*given, **named)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - what a command returns
        """Run the command."""
        with _until_the_reader_leaves():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in the order a newcomer meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command object; None for an unknown name, which Click reports with a suggestion."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"devkit.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command list, from the summaries alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@contextlib.contextmanager
def _until_the_reader_leaves() -> Iterator[None]:
    """`devkit doctor | head` is no failure, which Click would make of it."""
    try:
        yield
    except BrokenPipeError:
        _drop_output()
        raise click.exceptions.Exit(exit_codes.DONE) from None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="devkit")
def devkit() -> None:
    """Make GPU dev containers work the first time: diagnose, plan, generate, prove."""
    from devkit.cli.user_tables import find_user_table
    from devkit.compat.refresh import register_table_reader

    register_table_reader(find_user_table)


def main() -> None:
    """Run the command line and leave with the exit code that the outside contract promises."""
    # Loading makes many objects and drops none: looking for garbage among them takes a twentieth of a short command.
    gc.set_threshold(100_000)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path need not be text in the terminal's encoding: it is shown all the same, as standard error does.
        sys.stdout.reconfigure(errors="backslashreplace")
    reraise_dropped_interrupts()
    code = _exit_code()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        code = code or _not_written(error)
    sys.exit(code)


def _not_written(error: OSError) -> int:
    _drop_output()
    click.echo(f"Error: cannot write {error.filename or 'to standard output'}: {error.strerror}", err=True)
    click.echo("  Make room on that disk, or write somewhere else.", err=True)
    return exit_codes.WRONG_INPUT


def _too_long(error: OSError) -> int:
    """Any flag may name a file, and no file system takes a name of any length."""
    click.echo(f"Error: no file can be called so: {escape_controls(str(error.filename))[:60]}…", err=True)
    click.echo("  The name is too long for this file system.", err=True)
    return exit_codes.WRONG_INPUT


_REFUSED = {errno.ENOSPC: _not_written, errno.ENAMETOOLONG: _too_long}
"""What a file system says no to, whichever command asks it, and who tells of that."""


def _drop_output() -> None:
    """Send what is still to be written to standard output nowhere: Python would complain of it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _mistyped(error: click.ClickException) -> int:
    """Of the processes of a run that were all given the same words, one tells."""
    from devkit.workload.finetune.process import wait_for_local_rank0, write_exit_code

    write_exit_code(exit_codes.WRONG_INPUT)
    wait_for_local_rank0()
    # Click repeats what was typed, however long.
    shown = io.StringIO()
    error.show(shown)
    click.echo("\n".join(escape_controls(line) for line in shown.getvalue().splitlines()), err=True)
    return exit_codes.WRONG_INPUT


def _exit_code() -> int:
    try:
        code = devkit(standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        return _mistyped(error)
    except DevkitError as error:
        # Names and values in it come from anywhere: a file's name may hold a line break or a terminal's escape.
        click.echo(f"Error: {escape_controls(error.message)}", err=True)
        click.echo("\n".join(f"  {escape_controls(line)}" for line in error.hint.splitlines()), err=True)
        return exit_codes.WRONG_INPUT
    except (KeyboardInterrupt, click.Abort):
        click.echo("Interrupted.", err=True)
        return exit_codes.INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _REFUSED:
            return _REFUSED[error.errno](error)
        sys.excepthook(type(error), error, error.__traceback__)
        click.echo(BUG_REPORT_HINT, err=True)
        return exit_codes.BUG
    return code if isinstance(code, int) else exit_codes.DONE
