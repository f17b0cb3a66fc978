"""`devkit doctor --watch`: examine this machine again and again, and show what changes."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from devkit.doctor.report.report import Report
    from devkit.facts.model import Facts

_CLEAR = "\x1b[2J\x1b[H"


def watch(
    examine: "Callable[[], tuple[Facts, Report]]",
    format_report: "Callable[[Facts, Report], str]",
    *,
    every_s: float,
) -> "Report":
    """Examine until Ctrl-C, and return the last report. Before the first one Ctrl-C is raised.

    A terminal shows the report on one screen, of which only the lines that change are drawn again. Elsewhere there is a
    line for each change.
    """
    screen = _Screen() if sys.stdout.isatty() else None
    before: tuple[Facts, Report] | None = None
    try:
        while True:
            now = examine()
            if screen is not None:
                screen.draw([f"{_clock()}, every {every_s:g} s; Ctrl-C ends", "", *format_report(*now).splitlines()])
            else:
                for line in _list_changes(before, now):
                    click.echo(f"{_clock()} {line}")
                sys.stdout.flush()
            before = now
            time.sleep(every_s)
    except KeyboardInterrupt:
        if before is None:
            raise
    return before[1]


def _clock() -> str:
    return time.strftime("%H:%M:%S")


class _Screen:
    """One screen of a terminal, of which only changed lines are written."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._size = (0, 0)

    def draw(self, lines: Sequence[str]) -> None:
        """Show the lines, as many as the terminal has."""
        columns, rows = size = shutil.get_terminal_size()
        kept = list(lines if len(lines) < rows else [*lines[: rows - 2], f"… {len(lines) - rows + 2} more lines"])
        if (columns, rows) != self._size:
            click.echo(_CLEAR, nl=False, color=True)
            self._shown, self._size = [], (size.columns, size.lines)
        for row, (before, now) in enumerate(zip_longest(self._shown, kept, fillvalue=""), 1):
            if before != now:
                click.echo(f"\x1b[{row};1H\x1b[2K{now}", nl=False, color=True)
        click.echo(f"\x1b[{len(kept) + 1};1H", nl=False, color=True)
        sys.stdout.flush()
        self._shown = kept


def _list_changes(before: "tuple[Facts, Report] | None", now: "tuple[Facts, Report]") -> Iterator[str]:
    """List the verdict, findings and facts that differ from those before."""
    from devkit.doctor.comparison.changes import find_changes
    from devkit.facts.redact import redact_facts
    from devkit.facts.store import format_facts

    report = now[1]
    if before is None or before[1].health is not report.health:
        yield f"verdict: {report.health.value}"
    # A message may hold a temperature or a number of bytes: a finding is the same by its check and subject.
    old = {} if before is None else {(each.check.code, each.finding.subject): each for each in before[1].roots}
    new = {(each.check.code, each.finding.subject): each for each in report.roots}
    for key in new.keys() - old.keys():
        yield f"found {key[0]}: {new[key].finding.message}"
    for key in old.keys() - new.keys():
        yield f"gone {key[0]}: {old[key].finding.message}"
    if before is not None:
        documents = [json.loads(format_facts(redact_facts(facts))) for facts in (before[0], now[0])]
        for line in find_changes(*documents).describe():
            yield f"changed {line}"
