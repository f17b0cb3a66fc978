"""What changes on this machine over time: `devkit doctor --watch` and `--since-last`."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING
from zlib import crc32

import click

from devkit.cli.output import OutputOptions, format_json
from devkit.text import wrap_text
from devkit.user_folder import require_user_file, write_user_file

if TYPE_CHECKING:
    from devkit.doctor.comparison.report import Changes
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
    from devkit.doctor.comparison.report import find_changes
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


# Facts of this machine that `devkit doctor --since-last` keeps from one examination to the next.

KEPT = 10
"""The newest facts of each machine that are kept."""


def compare_with_last(facts: "Facts") -> "Changes | None":
    """Return what changed since the facts that were kept last, None the first time, and keep these instead.

    Raises DevkitError where they cannot be written.
    """
    from devkit.doctor.comparison.documents import InvalidReport
    from devkit.doctor.comparison.report import find_changes
    from devkit.facts.model import System
    from devkit.facts.redact import redact_facts
    from devkit.facts.store import format_facts
    from devkit.probe.host import LocalHost

    # A home folder may be shared by the nodes of a cluster, and by a host and its containers.
    name = str(facts.system.host_name) if isinstance(facts.system, System) else ""
    folder = f"facts/{crc32(name.encode(errors='surrogateescape')):08x}"
    text = format_facts(redact_facts(facts))
    earlier = sorted(require_user_file(folder).glob("*.json"), reverse=True)
    changes = None
    for path in earlier:
        # A file that is damaged, or of an older devkit, is passed over.
        with suppress(OSError, ValueError, RecursionError, InvalidReport):
            changes = find_changes(json.loads(LocalHost().read(str(path)) or ""), json.loads(text))
            break
    write_user_file(f"{folder}/{facts.taken_at.replace(':', '')}.json", text.encode())
    for path in earlier[KEPT - 1 :]:
        path.unlink(missing_ok=True)
    return changes


def add_changes(text: str, changes: "Changes | None", options: OutputOptions) -> str:
    """Return a report in text or JSON with the changes behind it; None is the first time."""
    if options.style == "json":
        document = {"since": None, "fields": []} if changes is None else changes.to_document()
        return format_json({**json.loads(text), "changes": document})
    if changes is None:
        return f"{text}\nThese facts are kept for the next --since-last.\n"
    lines = [
        wrap_text(line, width=shutil.get_terminal_size().columns, indent="  ", hanging="  ")
        for line in changes.describe()
    ]
    return "\n".join(
        [text, f"{'Changed' if lines else 'Nothing changed'} since {changes.since}{':' if lines else ''}", *lines, ""]
    )
