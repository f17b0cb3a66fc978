"""The dialogue of `devkit doctor --fix`: what would change, whether it may, and what became of it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.text import count_of, listed

if TYPE_CHECKING:
    from devkit.doctor.report import Report, Shown
    from devkit.render.repair import Edit


def repair(report: "Report", project: Path, *, is_sure: bool) -> tuple[str, ...]:
    """Repair what the root findings allow. Returns the codes of the checks for which files were changed.

    Everything is said on standard error: standard output holds the report alone.
    """
    from devkit.render.repair import apply

    repaired = []
    for shown, edits in _repairable(report, project):
        _say(f"{shown.check.code} {shown.finding.message}")
        _say(f"  {shown.finding.fix.summary}")
        for edit in edits:
            _say_diff(edit)
        if not (is_sure and _is_safe(shown)) and not _may(edits):
            _say("  it stays as it is")
            continue
        for edit in edits:
            _say(f"  changed {edit.path}; to undo it: {apply(edit)}")
        repaired.append(shown.check.code)
    if not report.roots:
        _say("there is nothing to repair")
    _say_what_is_left(report, frozenset(repaired))
    return tuple(dict.fromkeys(repaired))


def say_what_became(codes: tuple[str, ...], after: "Report") -> None:
    """After a repair: which of the findings are gone."""
    still = {shown.check.code for shown in after.findings}
    gone = [code for code in codes if code not in still]
    stayed = [code for code in codes if code in still]
    if gone:
        _say(f"fixed: {listed(gone)}")
    if stayed:
        _say(f"still found after the change: {listed(stayed)}; the report says what is left to do")


def _repairable(report: "Report", project: Path) -> "Iterator[tuple[Shown, tuple[Edit, ...]]]":
    """Root findings with the edits that repair them, each looked at anew: an earlier one may have touched its file."""
    from devkit.render.repair import CannotRepair, edits_of

    for shown in report.roots:
        if not shown.finding.fix.repairs:
            continue
        try:
            edits = edits_of(shown.finding.fix.repairs, project.resolve(), home=Path.home())
        except CannotRepair as refusal:
            _say(f"{shown.check.code} cannot be repaired from here: {refusal}")
            continue
        if edits:
            yield shown, edits


def _is_safe(shown: "Shown") -> bool:
    """Whether --yes covers it: what is only possible, or only a note, is changed by nobody who did not look."""
    return shown.finding.severity != "note" and shown.finding.confidence != "possible"


def _may(edits: "tuple[Edit, ...]") -> bool:
    """Ask, where there is somebody to ask; silence is a no."""
    if not sys.stdin.isatty():
        _say("  not changed: there is no terminal to ask at (--yes answers for problems that are certain or likely)")
        return False
    return click.confirm(f"  Change {count_of(len(edits), 'file')}?", default=False, err=True)


def _say_what_is_left(report: "Report", repaired: frozenset[str]) -> None:
    """The commands of the findings that no change of a file repairs: printed, never run."""
    left = [
        shown
        for shown in report.roots
        if shown.finding.severity != "note" and shown.check.code not in repaired and not shown.finding.fix.repairs
    ]
    if left and not repaired:
        _say("Nothing here can be repaired by a change of a file. To be done by hand:")
    for shown in left:
        place = f"{shown.finding.fix.where.value}{', root' if shown.finding.fix.root else ''}"
        _say(f"{shown.check.code} by hand ({place}): {shown.finding.fix.summary}")
        for command in shown.finding.fix.commands:
            _say(f"      {command}")


def _say_diff(edit: "Edit") -> None:
    for line in edit.diff().split("\n"):
        colour = {"+": "green", "-": "red"}.get(line[:1])
        _say(click.style(f"    {line}", fg=colour) if colour else f"    {line}")


def _say(line: str) -> None:
    click.echo(line, err=True)
