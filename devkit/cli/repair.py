"""The dialog of `devkit doctor --fix`: changes of files, then the causes that need a person, one by one."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.errors import DevkitError
from devkit.text import escape_text, format_count, join_words

if TYPE_CHECKING:
    from devkit.doctor.model import Fix
    from devkit.doctor.report.report import Report, ReportedFinding
    from devkit.facts.model import Facts
    from devkit.render.repair import FileEdit

    Examine = Callable[[], tuple[Facts, Report]]

_OF_THE_SHELL = re.compile(r"(?:\.|conda activate|deactivate|export|newgrp|source|unset)(?:\s|$)")
"""Commands that change the shell in which they run."""


def apply_repairs(report: "Report", project: Path, *, is_confirmed: bool) -> tuple[str, ...]:
    """Repair the root findings that can be repaired. Returns the codes of the checks for which files were changed.

    The dialog is on standard error: standard output holds the report alone. --yes does not cover findings that are
    only possible, or only a note: somebody has to look at those.
    """
    from devkit.render.diffs import format_unified_diff
    from devkit.render.repair import apply_edit

    repaired = []
    for shown, edits in _find_repairs(report, project):
        finding = shown.finding
        _print(f"{shown.check.code} {finding.message}")
        _print(f"  {finding.fix.summary}")
        for line in "\n".join(format_unified_diff(each.path, each.before, each.after) for each in edits).split("\n"):
            _print(f"    {line}", color={"+": "green", "-": "red"}.get(line[:1]))
        is_safe = finding.severity != "note" and finding.confidence != "possible"
        if not (is_confirmed and is_safe) and not _confirm_edits(edits):
            _print("  devkit left it unchanged")
            continue
        for edit in edits:
            _print(f"  changed {edit.path}; to undo it: {apply_edit(edit)}")
        repaired.append(shown.check.code)
    if not report.roots:
        _print("nothing needs repair")
    return tuple(dict.fromkeys(repaired))


def print_repair_results(codes: tuple[str, ...], after: "Report") -> None:
    """Print which of the repaired findings are gone."""
    found = {shown.check.code for shown in after.findings}
    gone = [code for code in codes if code not in found]
    stayed = [code for code in codes if code in found]
    if gone:
        _print(f"fixed: {join_words(gone)}")
    if stayed:
        _print(f"still found after the change: {join_words(stayed)}; the report lists what remains to do")


def _find_repairs(report: "Report", project: Path) -> "Iterator[tuple[ReportedFinding, tuple[FileEdit, ...]]]":
    """Yield root findings with their edits, computed one by one: an earlier edit may have changed the same file."""
    from devkit.render.repair import compute_edits

    for shown in report.roots:
        if not shown.finding.fix.repairs:
            continue
        try:
            edits = compute_edits(shown.finding.fix.repairs, project.resolve(), home=Path.home())
        except DevkitError as refusal:
            _print(f"{shown.check.code} cannot be repaired from here: {refusal}")
            continue
        if edits:
            yield shown, edits


def _confirm_edits(edits: "tuple[FileEdit, ...]") -> bool:
    if not sys.stdin.isatty():
        _print("  not changed: no terminal to ask on (--yes confirms fixes of certain and likely problems)")
        return False
    return click.confirm(f"  Change {format_count(len(edits), 'file')}?", default=False, err=True)


def print_manual_fixes(report: "Report") -> None:
    """Print the commands of the findings that no change of a file repairs. They are never run."""
    left = [shown for shown in report.roots if _is_by_hand(shown)]
    if left:
        _print("No file change can fix these findings. Fix them manually:")
    for shown in left:
        _print_commands(shown, f"{shown.check.code} by hand ")


def guide_repairs(facts: "Facts", report: "Report", examine: "Examine") -> "tuple[Facts, Report]":
    """Go through the root causes that no file repairs: show the commands, run them or wait for the user, look again.

    Returns the last facts and report. Stops at the first cause that is still found afterwards. Commands that need root,
    restart or remove something, or belong to another side are the user's to run.
    """
    offered: set[tuple[str, str]] = set()
    while shown := next((each for each in report.roots if _is_by_hand(each) and _key(each) not in offered), None):
        offered.add(_key(shown))
        _print(f"{shown.check.code} {shown.finding.message}")
        _print_commands(shown, "  ")
        if any(map(_OF_THE_SHELL.match, shown.finding.fix.commands)):
            _print("  A program cannot change the shell that started it: run it there, then devkit doctor --fix.")
            break
        if not (_run_commands(shown) if _may_run(shown.finding.fix, facts) else _await_user()):
            continue
        facts, report = examine()
        after = next((each for each in report.findings if _key(each) == _key(shown)), None)
        if after is not None:
            _print(f"  {shown.check.code} is still found: {after.finding.message}")
            break
        _print(f"  ✓ {shown.check.code} is fixed", color="green")
    return facts, report


def _key(shown: "ReportedFinding") -> tuple[str, str]:
    return shown.check.code, shown.finding.subject


def _is_by_hand(shown: "ReportedFinding") -> bool:
    return shown.finding.severity != "note" and not shown.finding.fix.repairs


def _print_commands(shown: "ReportedFinding", before: str) -> None:
    fix = shown.finding.fix
    _print(f"{before}({fix.where.value}{', root' if fix.root else ''}): {fix.summary}")
    for command in fix.commands:
        _print(f"      {command}")


def _may_run(fix: "Fix", facts: "Facts") -> bool:
    """Say whether devkit itself may run a fix: on this side, complete, without root, and nothing that others notice."""
    from devkit.doctor.danger import find_harm
    from devkit.doctor.model import Restart, Side
    from devkit.doctor.preconditions import is_in_container, is_in_wsl

    here = Side.CONTAINER if is_in_container(facts) else Side.WSL if is_in_wsl(facts) else Side.HOST
    is_quiet = fix.restart is Restart.NONE and not any(map(find_harm, fix.commands))
    is_root = fix.root or any("sudo " in command for command in fix.commands)
    has_blank = any("<" in command for command in fix.commands)
    return bool(fix.commands) and fix.where in (here, Side.PROJECT) and is_quiet and not is_root and not has_blank


def _run_commands(shown: "ReportedFinding") -> bool:
    """Run the commands if the user says yes. Returns whether there is something new to look at."""
    commands = shown.finding.fix.commands
    if not click.confirm(f"  Run {format_count(len(commands), 'command')}?", default=False, err=True):
        return False
    for command in commands:
        # Standard output holds the report alone.
        if status := subprocess.run(["sh", "-c", command], stdout=2, check=False).returncode:
            _print(f"  `{command}` ended with {status}")
            break
    return True


def _await_user() -> bool:
    answer: str = click.prompt(
        "  Press Enter once it is done, or s to skip it", default="", show_default=False, err=True
    )
    return not answer.lower().startswith("s")


def _print(line: str, *, color: str | None = None) -> None:
    click.secho(escape_text(line), fg=color, err=True)
