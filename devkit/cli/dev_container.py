"""What `up`, `shell`, `run`, `down` and `onboard` share: their options, the steps that they show, and failures."""

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

from devkit.cli.terminal import is_drawn
from devkit.errors import DevkitError
from devkit.text import format_duration, to_one_line

if TYPE_CHECKING:
    from devkit.devcontainer.configuration import DevContainer
    from devkit.devcontainer.containers import Failure
    from devkit.devcontainer.entering import Entry

MAX_SHOWN_LINES = 12
PIPED_WIDTH = 120
NAMED_AFTER_S = 5.0
Command = TypeVar("Command", bound=Callable[..., Any])

directory_argument = click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The devcontainer.json. Default: that of DIR, or of the nearest folder above it.",
)


class BuildSteps:
    """Prints each step on standard error: on a terminal a line that becomes its result, otherwise its result alone.

    Where lines are piped, a step that takes long is named before its result, so that its log does not seem to hang.
    """

    def __init__(self) -> None:
        self._is_live = is_drawn(sys.stderr)
        self._has_colors = self._is_live and "NO_COLOR" not in os.environ
        self._begun: dict[str, float] = {}
        self._named: set[str] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._tick, daemon=True).start()

    def begin(self, title: str) -> None:
        """Show that a step has begun."""
        with self._lock:
            self._begun[title] = time.monotonic()
            self._show_current()

    def end(self, title: str, result: str = "", *, is_failed: bool = False) -> None:
        """Show how the step ended, with its duration."""
        with self._lock:
            seconds = time.monotonic() - self._begun.pop(title, time.monotonic())
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
            if self._is_live:
                click.echo("\r\x1b[K", err=True, nl=False)
            return
        title, began = list(self._begun.items())[-1]
        seconds = time.monotonic() - began
        if self._is_live:
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
    matches = [match for match in find_known_errors(text) if match.follows_from is None] if text else []
    said = [line for line in failure.excerpt or failure.lines if line.strip()]
    for line in said[-MAX_SHOWN_LINES:]:
        click.echo(f"  {to_one_line(line)}", err=True)
    if matches:
        width = max(40, min(shutil.get_terminal_size().columns, 100))
        lines = format_matches(tuple(matches[:1]), width=width, marks=choose_marks(OutputOptions("text", None)))
        click.echo("\n" + style_lines(lines, is_plain=not sys.stderr.isatty()), err=True, nl=False)
    if log is not None:
        hint = "" if matches else f"; no known error is in it: devkit explain - < {shlex.quote(str(log))}"
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
