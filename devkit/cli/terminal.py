"""What people watch on a terminal, drawn by rich: tables, panels, colored diffs, spinners. Pipes and files get plain text.

rich is imported where it draws, never at start-up: see docs/decisions/0023.
"""

import contextlib
import io
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

import click

from devkit.cli.runtime import is_drawn

if TYPE_CHECKING:
    from rich.console import Console

    from devkit.estimate.report import EstimateReport

MIN_WIDTH, MAX_WIDTH = 40, 200
SPINNER_DELAY_S = 1.0
"""What ends earlier needs no spinner."""

_ENDINGS = {" passed": "green", " failed": "bold red", " skipped": "dim"}


def make_console(stream: TextIO, *, width: int | None = None, record: bool = False) -> "Console":
    """Make rich's console: without highlighting and markup, which would change what paths and messages say."""
    import shutil

    from rich.console import Console

    columns = width or shutil.get_terminal_size().columns
    return Console(
        file=stream,
        width=max(MIN_WIDTH, min(columns, MAX_WIDTH)),
        force_terminal=True,
        color_system=None if "NO_COLOR" in os.environ else "auto",
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        record=record,
    )


def draw_plan(console: "Console", text: str) -> None:
    """Draw the text of a plan: its choices up to the first empty line, each value in color and its reason dim."""
    from rich.text import Text

    choices, _, rest = text.partition("\n\n")
    for line in choices.splitlines():
        drawn = Text(line, "dim" if line.startswith(" ") else "")
        if found := re.match(r"(\w+ +)(.*?)(  .*)?$", line):
            drawn = Text.assemble((found[1], "bold"), (found[2], "cyan"), (found[3] or "", "dim"))
        console.print(drawn, soft_wrap=True)
    draw_text(console, f"\n{rest}")


def draw_text(console: "Console", text: str) -> None:
    """Draw lines of text, colored by their first word or sign."""
    from rich.text import Text

    for line in text.splitlines():
        start = line.lstrip()[:1]
        style = {"✓": "green", "✗": "bold red", "!": "yellow"}.get(start, "")
        console.print(Text(line, style), soft_wrap=True)


def draw_bar(share: float, width: int) -> str:
    """Draw how far a run has come, for a line that moves."""
    from rich.progress_bar import ProgressBar

    console = make_console(io.StringIO())
    with console.capture() as drawn:
        console.print(ProgressBar(total=1.0, completed=share, width=width), end="")
    return drawn.get()


def draw_estimate(console: "Console", report: "EstimateReport", text: str) -> None:
    """Draw the verdict on each GPU with a bar of its memory, in place of its line, then the text of the report."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    from devkit.estimate.report import describe_fit

    table = Table.grid(padding=(0, 2, 0, 0))
    for each in report.gpus:
        verdict, name, peak = describe_fit(each, report)
        share = report.estimate.device_peak_bytes.upper / each.memory_bytes
        mark, color = {"fits": ("✓", "green"), "tight": ("!", "yellow")}.get(each.verdict.value, ("✗", "bold red"))
        bar = ProgressBar(total=1.0, completed=min(1.0, share), width=8, complete_style=color, finished_style=color)
        table.add_row(Text(f"{mark} {name}", color), bar, f"{verdict}: {peak}")
    if report.gpus:
        console.print(table)
        console.print()
        text = text.partition("\n\n")[2]
    draw_text(console, text)


def draw_diff(console: "Console", text: str) -> None:
    """Draw a unified diff in color."""
    from rich.text import Text

    for line in text.splitlines():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        console.print(Text(line, style), soft_wrap=True)


@contextlib.contextmanager
def show_status(text: str) -> Iterator[None]:
    """Show a spinner on standard error while the block runs, from its second second on; nothing without a terminal."""
    if not is_drawn(sys.stderr):
        yield
        return
    spinner = Spinner(text)
    try:
        yield
    finally:
        spinner.stop()


class Spinner:
    """A spinner that starts after SPINNER_DELAY_S, so that short work neither flickers nor imports rich."""

    def __init__(self, text: str) -> None:
        self._status: Any = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(SPINNER_DELAY_S, self._start, [text])
        self._timer.daemon = True
        self._timer.start()

    def _start(self, text: str) -> None:
        with self._lock:
            if self._timer is None:
                return
            from rich.status import Status

            self._status = Status(text, console=make_console(sys.stderr))
            self._status.start()

    def stop(self) -> None:
        """Remove the spinner, and never start one that has not started."""
        self._timer.cancel()
        with self._lock:
            self._timer = None  # type: ignore[assignment]  # it is over
            if self._status is not None:
                self._status.stop()


class StepPrinter:
    """Prints the steps of long work on standard error: "NAME …" spins until the next line, which is its result."""

    def __init__(self) -> None:
        self._is_drawn = is_drawn(sys.stderr)
        self._spinner: Spinner | None = None

    def __call__(self, line: str) -> None:
        """Print the next line."""
        if not self._is_drawn:
            click.echo(line, err=True)
            return
        self.close()
        if line.endswith(" …"):
            self._spinner = Spinner(line)
            return
        style = next((style for words, style in _ENDINGS.items() if words in line), "")
        from rich.text import Text

        make_console(sys.stderr).print(Text(line, style), soft_wrap=True)

    def close(self) -> None:
        """End the spinner."""
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None
