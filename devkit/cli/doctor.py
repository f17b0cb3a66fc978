"""`devkit doctor`: read the machine, judge it, say what is wrong and how to repair it."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit import __version__
from devkit.cli import exit_codes
from devkit.cli.facts import DEFAULT_TIMEOUT_S, ReadOptions, load_saved_facts, make_progress_printer, read_this_machine
from devkit.cli.output import OutputOptions, format_check_list, format_doctor_report, write_facts, write_output
from devkit.errors import DevkitError
from devkit.text import format_count, join_words

if TYPE_CHECKING:
    from devkit.doctor.model import Check
    from devkit.doctor.report.report import Report, ReportedFinding
    from devkit.facts.model import Facts, TrainingRun
    from devkit.render.repair import FileEdit

# What the workload left behind, for `devkit doctor` to judge: a report of verify, the folder of a finetune run.


@dataclass(frozen=True)
class SavedReports:
    """The files that were named; None for those that were not."""

    verification: Path | None
    run: Path | None

    def added_to(self, facts: "Facts") -> "Facts":
        """The facts with what the files say. Raises DevkitError for a file that is not what it should be."""
        if self.verification is not None:
            from devkit.cli.verify import read_verification_report
            from devkit.probe.reports import parse_verification

            facts = replace(facts, verification=parse_verification(read_verification_report(self.verification)))
        if self.run is not None:
            facts = replace(facts, training=_training_run(self.run))
        return facts


def _training_run(folder: Path) -> "TrainingRun":
    from devkit.facts.values import Unknown
    from devkit.probe.host import LocalHost
    from devkit.probe.reports import read_training_run

    found = read_training_run(LocalHost(), str(folder))
    if isinstance(found, Unknown):
        raise DevkitError(found.reason, "Name the folder that devkit finetune --output was given.")
    return found


# The dialogue of `devkit doctor --fix`: what would change, whether it may, and what became of it.


def apply_repairs(report: "Report", project: Path, *, is_sure: bool) -> tuple[str, ...]:
    """Repair what the root findings allow. Returns the codes of the checks for which files were changed.

    Everything is said on standard error: standard output holds the report alone.
    """
    from devkit.render.repair import apply_edit

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
            _say(f"  changed {edit.path}; to undo it: {apply_edit(edit)}")
        repaired.append(shown.check.code)
    if not report.roots:
        _say("there is nothing to repair")
    _say_what_is_left(report, frozenset(repaired))
    return tuple(dict.fromkeys(repaired))


def report_repairs(codes: tuple[str, ...], after: "Report") -> None:
    """After a repair: which of the findings are gone."""
    still = {shown.check.code for shown in after.findings}
    gone = [code for code in codes if code not in still]
    stayed = [code for code in codes if code in still]
    if gone:
        _say(f"fixed: {join_words(gone)}")
    if stayed:
        _say(f"still found after the change: {join_words(stayed)}; the report says what is left to do")


def _repairable(report: "Report", project: Path) -> "Iterator[tuple[ReportedFinding, tuple[FileEdit, ...]]]":
    """Root findings with the edits that repair them, each looked at anew: an earlier one may have touched its file."""
    from devkit.render.repair import CannotRepair, compute_edits

    for shown in report.roots:
        if not shown.finding.fix.repairs:
            continue
        try:
            edits = compute_edits(shown.finding.fix.repairs, project.resolve(), home=Path.home())
        except CannotRepair as refusal:
            _say(f"{shown.check.code} cannot be repaired from here: {refusal}")
            continue
        if edits:
            yield shown, edits


def _is_safe(shown: "ReportedFinding") -> bool:
    """Whether --yes covers it: what is only possible, or only a note, is changed by nobody who did not look."""
    return shown.finding.severity != "note" and shown.finding.confidence != "possible"


def _may(edits: "tuple[FileEdit, ...]") -> bool:
    """Ask, where there is somebody to ask; silence is a no."""
    if not sys.stdin.isatty():
        _say("  not changed: there is no terminal to ask at (--yes answers for problems that are certain or likely)")
        return False
    return click.confirm(f"  Change {format_count(len(edits), 'file')}?", default=False, err=True)


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


def _say_diff(edit: "FileEdit") -> None:
    for line in edit.format_diff().split("\n"):
        colour = {"+": "green", "-": "red"}.get(line[:1])
        _say(click.style(f"    {line}", fg=colour) if colour else f"    {line}")


def _say(line: str) -> None:
    click.echo(line, err=True)


# Flags of `devkit doctor` that contradict each other: refused at once, before anything is read.

_OF_THIS_MACHINE = (
    ("fix", "--fix", "run it on the machine itself"),
    ("deep", "--deep", "save facts with --deep on the machine itself"),
    ("smoke", "--smoke", "save facts with --smoke on the machine itself"),
    ("project", "--project", "save facts with --project on the machine itself"),
)


def refuse_conflicting_options(flags: Mapping[str, object]) -> None:
    """Raises DevkitError for the first contradiction. `flags` are the command's parameters by name."""
    for message, hint in _contradictions(flags):
        raise DevkitError(message, hint)


def _contradictions(flags: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    project, output = flags["project"], flags["output"]
    yield from _of_format(flags)
    yield from _of_saved_facts(flags)
    if flags["yes"] and not flags["fix"]:
        yield "--yes answers the questions of --fix, which was not given", "Add --fix, or leave --yes away."
    if isinstance(project, Path) and not project.is_dir():
        yield f"{project} is no directory", "Name the project's folder: devkit doctor --project DIR"
    if output is not None and output == flags["save_facts"]:
        yield f"--output and --save-facts both name {output}", "Name two files."


def _of_format(flags: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    style = flags["style"]
    if flags["as_json"] and style not in (None, "json"):
        yield f"--json and --format {style} contradict each other", "Give one of the two."
    if flags["show_list"] and style in ("sarif", "markdown", "html"):
        yield f"--list has no {style} form", "Take --format text or json."
    if flags["show_list"] and flags["fix"]:
        yield "--list only lists the checks, and --fix changes files", "Give one of the two."


def _of_saved_facts(flags: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    files = flags["facts_files"]
    if not isinstance(files, tuple) or not files:
        return
    for name, flag, instead in _OF_THIS_MACHINE:
        if flags[name]:
            yield f"{flag} works on this machine, and --facts judges a saved one", f"Leave one away, or {instead}."
    if len(files) > 2:
        yield f"--facts was given {len(files)} times", "Give one machine, or a host and a container on it."


_FILE = click.Path(path_type=Path)
_FOLDER = click.Path(path_type=Path, file_okay=False)
_SECONDS = click.FloatRange(min=0.1)
_FORMATS = ("text", "json", "sarif", "markdown", "html")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; short for --format json.")
@click.option("--format", "style", type=click.Choice(_FORMATS), help="How to show the report. Default: text.")
@click.option("--output", metavar="FILE", type=_FILE, help="Write the report to FILE instead of printing it.")
@click.option("--project", metavar="DIR", type=_FOLDER, help="The project to look into. Default: this directory.")
@click.option(
    "--facts",
    "facts_files",
    metavar="FILE",
    type=_FILE,
    multiple=True,
    help="Judge a saved machine instead of this one; twice for a host and its container.",
)
@click.option("--verification", metavar="FILE", type=_FILE, help="Also judge a report of devkit verify.")
@click.option("--run", "run_folder", metavar="DIR", type=_FOLDER, help="Also judge a run of devkit finetune.")
@click.option("--save-facts", metavar="FILE", type=_FILE, help="Save what was read, without names and secrets.")
@click.option("--only", metavar="CODE", multiple=True, help="Run only this check. May be repeated.")
@click.option("--list", "show_list", is_flag=True, help="List the checks and do nothing else.")
@click.option("--deep", is_flag=True, help="Also try CUDA and torch, in processes of their own (up to 90 s).")
@click.option("--smoke", is_flag=True, help="Also start a throw-away container with a GPU (up to 60 s).")
@click.option("--fix", is_flag=True, help="Repair what is in files of yours: shows each change, asks, keeps a copy.")
@click.option("--yes", is_flag=True, help="With --fix: do not ask.")
@click.option("--strict", is_flag=True, help="End with 1 on warnings too.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=_SECONDS,
    default=DEFAULT_TIMEOUT_S,
    help="Longest time for reading, --deep and --smoke aside. Default: 5.",
)
@click.option("--verbose", is_flag=True, help="Show consequences, passed and skipped checks, and each step.")
@click.pass_context
def doctor(
    ctx: click.Context,
    *,
    as_json: bool,
    style: str | None,
    output: Path | None,
    project: Path | None,
    facts_files: tuple[Path, ...],
    verification: Path | None,
    run_folder: Path | None,
    save_facts: Path | None,
    only: tuple[str, ...],
    show_list: bool,
    deep: bool,
    smoke: bool,
    fix: bool,
    yes: bool,
    strict: bool,
    timeout: float,
    verbose: bool,
) -> None:
    """Find what stops GPU work on this machine, and say how to fix it.

    Only reads, unless --fix is given. Ends with 0 when healthy, warnings allowed, and with 1 on problems.
    """
    from devkit.verify.process import interrupt_on_termination

    refuse_conflicting_options(ctx.params)
    printing = OutputOptions("json" if as_json else style or "text", output, is_verbose=verbose)
    if show_list:
        write_output(format_check_list(_chosen(only), printing), printing)
        ctx.exit(exit_codes.DONE)
    reading = ReadOptions(project or Path(), timeout, is_deep=deep, is_smoke=smoke)
    left = SavedReports(verification, run_folder)
    run = _Run(only, reading, facts_files, left, save_facts, say=make_progress_printer(is_verbose=verbose))
    with interrupt_on_termination():
        facts, report = _repaired(run, is_sure=yes) if fix else run.examined()
    code = _exit_code(report, strict=strict)
    write_output(format_doctor_report(facts, report, printing, exit_code=code), printing)
    ctx.exit(code)


@dataclass(frozen=True)
class _Run:
    """What to judge by which checks; may be asked again after a repair."""

    codes: tuple[str, ...]
    reading: ReadOptions
    facts_files: tuple[Path, ...]
    left_behind: SavedReports
    save_facts: Path | None
    say: Callable[[str], None]

    def examined(self) -> "tuple[Facts, Report]":
        """The facts, saved where that was asked for, and the report over them."""
        facts = self.left_behind.added_to(self._facts())
        # Only now: what judges is loaded while the machine answers.
        from devkit.doctor.report.report import build_report
        from devkit.doctor.runner import run_on_host_and_container

        if self.save_facts:
            write_facts(facts, self.save_facts)
        return facts, build_report(
            facts, run_on_host_and_container(_chosen(self.codes), facts, clock=time.perf_counter), devkit=__version__
        )

    def _facts(self) -> "Facts":
        if self.codes:
            _chosen(self.codes)  # a wrong code is said before anything is read
        if self.facts_files:
            return load_saved_facts(self.facts_files)
        return read_this_machine(self.reading, say=self.say, meanwhile=partial(_chosen, self.codes))


def _repaired(run: _Run, *, is_sure: bool) -> "tuple[Facts, Report]":
    """Examine, repair what can be repaired, and where that changed anything, examine again."""

    facts, before = run.examined()
    repaired = apply_repairs(before, run.reading.project, is_sure=is_sure)
    if not repaired:
        return facts, before
    facts, after = run.examined()
    report_repairs(repaired, after)
    return facts, after


def _chosen(codes: Sequence[str]) -> "tuple[Check, ...]":
    """The checks to run, in print order. Raises DevkitError for a code that no check has."""
    from devkit.doctor.registry import BY_CODE, CHECKS

    wanted = {code.upper() for code in codes}
    if wanted - set(BY_CODE):
        from difflib import get_close_matches

        code = min(wanted - set(BY_CODE))
        close = get_close_matches(code, BY_CODE, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        raise DevkitError(f"no check has the code {code!r}", f"{hint}`devkit doctor --list` shows all codes.")
    return tuple(check for check in CHECKS if not wanted or check.code in wanted)


def _exit_code(report: "Report", *, strict: bool) -> int:
    from devkit.doctor.report.report import Health

    match report.health:
        case Health.HEALTHY:
            return exit_codes.DONE
        case Health.WARNINGS:
            return exit_codes.ANSWER_IS_NO if strict else exit_codes.DONE
        case Health.PROBLEMS:
            return exit_codes.ANSWER_IS_NO
