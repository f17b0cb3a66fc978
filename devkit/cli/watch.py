"""What changes on this machine over time: `devkit doctor --watch` and `--since-last`."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import click

from devkit.cli.output import OutputOptions, format_json
from devkit.text import join_words, to_one_line, wrap_text
from devkit.user_folder import require_user_file, write_user_file

if TYPE_CHECKING:
    from devkit.doctor.comparison import Difference
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

    A terminal shows the report on one screen. Elsewhere there is a line for each change.
    """
    before: tuple[Facts, Report] | None = None
    try:
        while True:
            now = examine()
            if sys.stdout.isatty():
                draw_screen([f"{_clock()}, every {every_s:g} s; Ctrl-C ends", "", *format_report(*now).splitlines()])
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


def draw_screen(lines: Sequence[str]) -> None:
    """Replace what a terminal shows by the lines, as many as it has room for."""
    rows = shutil.get_terminal_size().lines
    kept = lines if len(lines) < rows else [*lines[: rows - 2], f"… {len(lines) - rows + 2} more lines"]
    click.echo("\n".join([f"{_CLEAR}{kept[0]}", *kept[1:]]), color=True)


def _list_changes(before: "tuple[Facts, Report] | None", now: "tuple[Facts, Report]") -> Iterator[str]:
    """List the verdict, findings and facts that differ from those before."""
    from devkit.doctor.comparison import list_changes
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
        for each in list_changes(*documents):
            yield f"changed {describe_change(each)}"


def describe_change(each: "Difference") -> str:
    """Describe what became of a field in a line. Its usual value is the earlier one."""
    from devkit.doctor.comparison import format_value, list_missing

    lost, gained = list_missing(each.value, each.usual), list_missing(each.usual, each.value)
    words = [*([f"lost {lost}"] if lost else []), *([f"gained {gained}"] if gained else [])]
    said = (
        "; ".join(words) or f"{format_value(each.usual, each.field)} before, now {format_value(each.value, each.field)}"
    )
    return to_one_line(f"{each.field}: {said}{f' (causes {join_words(each.settles)})' if each.settles else ''}")


# Facts of this machine that `devkit doctor --since-last` keeps from one examination to the next.

KEPT = 10
"""The newest facts of each machine that are kept."""


@dataclass(frozen=True)
class Changes:
    """The fields in which a machine differs from its facts of `since`."""

    since: str
    differences: "tuple[Difference, ...]"


def compare_with_last(facts: "Facts") -> Changes | None:
    """Return what changed since the facts that were kept last, None the first time, and keep these instead.

    Raises DevkitError where they cannot be written.
    """
    from devkit.doctor.comparison import InvalidReport, list_changes
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
            before = json.loads(LocalHost().read(str(path)) or "")
            changes = Changes(str(before["taken_at"]), list_changes(before, json.loads(text)))
            break
    write_user_file(f"{folder}/{facts.taken_at.replace(':', '')}.json", text.encode())
    for path in earlier[KEPT - 1 :]:
        path.unlink(missing_ok=True)
    return changes


def add_changes(text: str, changes: Changes | None, options: OutputOptions) -> str:
    """Return a report in text or JSON with the changes behind it; None is the first time."""
    found = () if changes is None else changes.differences
    if options.style == "json":
        fields = [
            {"field": each.field, "before": each.usual, "now": each.value, "causes": each.settles} for each in found
        ]
        return format_json({**json.loads(text), "changes": {"since": changes and changes.since, "fields": fields}})
    if changes is None:
        return f"{text}\nThese facts are kept for the next --since-last.\n"
    width = shutil.get_terminal_size().columns
    lines = [wrap_text(describe_change(each), width=width, indent="  ", hanging="  ") for each in found]
    return "\n".join(
        [text, f"{'Changed' if lines else 'Nothing changed'} since {changes.since}{':' if lines else ''}", *lines, ""]
    )
