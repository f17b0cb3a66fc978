"""`devkit doctor`: read the machine, judge it, say what is wrong and how to repair it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit import __version__
from devkit.cli import exits
from devkit.cli.left_behind import LeftBehind
from devkit.cli.printing import Printing, listed_checks, put, save, shown_report
from devkit.cli.reading import DEFAULT_TIMEOUT_S, Reading, loaded, progress, read_here
from devkit.cli.wrong_flags import refuse_what_does_not_fit
from devkit.errors import DevkitError

if TYPE_CHECKING:
    from devkit.doctor.model import Check
    from devkit.doctor.report import Report
    from devkit.facts.model import Facts

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
    from devkit.verify.process import interruptible

    refuse_what_does_not_fit(ctx.params)
    printing = Printing("json" if as_json else style or "text", output, is_verbose=verbose)
    if show_list:
        put(listed_checks(_chosen(only), printing), printing)
        ctx.exit(exits.DONE)
    reading = Reading(project or Path(), timeout, is_deep=deep, is_smoke=smoke)
    left = LeftBehind(verification, run_folder)
    run = _Run(only, reading, facts_files, left, save_facts, say=progress(is_verbose=verbose))
    with interruptible():
        facts, report = _repaired(run, is_sure=yes) if fix else run.examined()
    code = _exit_code(report, strict=strict)
    put(shown_report(facts, report, printing, exit_code=code), printing)
    ctx.exit(code)


@dataclass(frozen=True)
class _Run:
    """What to judge by which checks; may be asked again after a repair."""

    codes: tuple[str, ...]
    reading: Reading
    facts_files: tuple[Path, ...]
    left_behind: LeftBehind
    save_facts: Path | None
    say: Callable[[str], None]

    def examined(self) -> "tuple[Facts, Report]":
        """The facts, saved where that was asked for, and the report over them."""
        facts = self.left_behind.added_to(self._facts())
        # Only now: what judges is loaded while the machine answers.
        from devkit.doctor.report import report_of
        from devkit.doctor.sides import judge

        if self.save_facts:
            save(facts, self.save_facts)
        return facts, report_of(facts, judge(_chosen(self.codes), facts, clock=time.perf_counter), devkit=__version__)

    def _facts(self) -> "Facts":
        if self.codes:
            _chosen(self.codes)  # a wrong code is said before anything is read
        if self.facts_files:
            return loaded(self.facts_files)
        return read_here(self.reading, say=self.say, meanwhile=partial(_chosen, self.codes))


def _repaired(run: _Run, *, is_sure: bool) -> "tuple[Facts, Report]":
    """Examine, repair what can be repaired, and where that changed anything, examine again."""
    from devkit.cli.repairing import repair, say_what_became

    facts, before = run.examined()
    repaired = repair(before, run.reading.project, is_sure=is_sure)
    if not repaired:
        return facts, before
    facts, after = run.examined()
    say_what_became(repaired, after)
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
    from devkit.doctor.report import Health

    match report.health:
        case Health.HEALTHY:
            return exits.DONE
        case Health.WARNINGS:
            return exits.ANSWER_IS_NO if strict else exits.DONE
        case Health.PROBLEMS:
            return exits.ANSWER_IS_NO
