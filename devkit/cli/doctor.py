"""`devkit doctor`: read the machine, judge it, report what is wrong and how to repair it."""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli.command import OUTPUT_FILE, PROJECT, Command, complete_codes, facts_option, section
from devkit.cli.facts import DEFAULT_TIMEOUT_S, read_this_machine, show_steps
from devkit.cli.output import (
    OutputOptions,
    format_check_list,
    format_doctor_report,
    print_next,
    print_wrapped,
    write_facts,
    write_output,
)
from devkit.cli.repair import apply_repairs, guide_repairs, print_manual_fixes, print_repair_results
from devkit.cli.runtime import hold_project
from devkit.errors import DevkitError, ExitCode
from devkit.release import __version__

if TYPE_CHECKING:
    from devkit.doctor.model import Check
    from devkit.doctor.report.report import Report
    from devkit.facts.model import Facts

_NOT_FOR_LISTS = ("sarif", "markdown", "html", "prometheus", "line")
_FOR_PROGRAMS = ("prometheus", "line")
"""Formats that timers ask for, where nobody waits for a trial."""
_OF_TRIALS = ("ENG017", "CTK013")
_NOBODY_WAITS = ("CI", "PRE_COMMIT")
"""Variables of what runs commands without a person in front."""
_FORMATS = ("text", "json", *_NOT_FOR_LISTS)


_REMOVED = {
    "--watch": "Run: watch devkit doctor --no-trial",
    "--every": "Run: watch --interval SECONDS devkit doctor --no-trial",
    "--since-last": "Compare two files of --save-facts: devkit fleet compare BEFORE NOW",
    "--log": "Run: devkit explain FILE",
    "--run": "metrics.jsonl in the folder of the run has each step's time and waiting; --report-to plots them",
    "--verification": "devkit verify itself shows the cause of a failed stage",
}
"""Flags of the last release, and what does their part."""


@click.command(cls=Command, renamed={"--smoke": "--trial"}, removed=_REMOVED)
@section(
    "What to examine",
    click.option("--project", metavar="DIR", type=PROJECT, help="The project to check. Default: this directory."),
    facts_option("Check a saved machine instead of this one. May be repeated for a host and its container."),
    click.option("--only", metavar="CODE", multiple=True, shell_complete=complete_codes, help="Run only this check."),
    click.option(
        "--expect-gpus",
        metavar="N",
        type=click.IntRange(min=0),
        help="Report an error if fewer GPUs respond, for example on a node that lost one.",
    ),
    click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0.1),
        default=DEFAULT_TIMEOUT_S,
        help="Time limit for reading the machine, including --trial but not --deep. Default: 5.",
    ),
)
@section(
    "Experiments",
    click.option("--deep", is_flag=True, help="Also try CUDA and torch in child processes (up to 90 s)."),
    click.option(
        "--trial/--no-trial",
        default=None,
        envvar="DEVKIT_TRIAL",
        help="Start a container in each configured way, then remove it. Default: yes, except in CI "
        "and with machine-readable formats.",
    ),
)
@section(
    "Report",
    click.option("--format", "style", type=click.Choice(_FORMATS), help="Format of the report. Default: text."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document; short for --format json."),
    click.option("--output", metavar="FILE", type=OUTPUT_FILE, help="Write the report to FILE instead of printing it."),
    click.option(
        "--save-facts", metavar="FILE", type=OUTPUT_FILE, help="Save the facts to FILE, without names or secrets."
    ),
    click.option("--verbose", is_flag=True, help="Show consequences, passed and skipped checks, and each step."),
    click.option("--strict", is_flag=True, help="Exit with 1 on warnings and if the verdict is incomplete."),
    click.option("--list", "show_list", is_flag=True, help="Only list the checks."),
)
@section(
    "Repair",
    click.option(
        "--setup", is_flag=True, help="Print the steps that install the driver, engine and Container Toolkit here."
    ),
    click.option(
        "--fix", is_flag=True, help="Repair the causes one by one: show each change or command, and ask first."
    ),
    click.option("--yes", is_flag=True, help="With --fix: do not ask."),
)
@click.pass_context
def doctor(
    ctx: click.Context,
    *,
    as_json: bool,
    style: str | None,
    output: Path | None,
    project: Path | None,
    facts_files: tuple[Path, ...],
    save_facts: Path | None,
    only: tuple[str, ...],
    expect_gpus: int | None,
    show_list: bool,
    setup: bool,
    deep: bool,
    trial: bool | None,
    fix: bool,
    yes: bool,
    strict: bool,
    timeout: float,
    verbose: bool,
) -> None:
    """Find the cause of GPU problems on this machine, and show how to fix it.

    Changes nothing without --fix. The exit code is 0 if the machine is healthy or has only warnings, and 1 if it has problems.
    If something could not be read, the verdict is "incomplete" and the exit code is 0, or 1 with --strict.
    """
    from devkit.verify.process import interrupt_on_termination

    for message, hint in _find_conflicts(ctx.params):
        raise DevkitError(message, hint)
    options = OutputOptions("json" if as_json else style or "text", output, is_verbose=verbose)
    if show_list:
        write_output(format_check_list(_select_checks(only), options), options)
        ctx.exit(ExitCode.DONE)
    folder = project or Path()
    is_tried = _is_waited_for(ctx.params) if trial is None else trial
    examination = _Examination(
        only,
        partial(read_this_machine, folder, timeout_s=timeout, is_deep=deep, with_trial=is_tried),
        facts_files,
        expect_gpus,
        save_facts,
        is_verbose=verbose,
    )
    if setup:
        _print_setup_steps(*examination.run(), as_json=as_json)
        ctx.exit(ExitCode.DONE)
    if fix:
        ctx.with_resource(hold_project(folder))
    with interrupt_on_termination():
        facts, report = examination.run()
        if fix:
            if repaired := apply_repairs(report, folder, is_confirmed=yes):
                facts, report = examination.run()
                print_repair_results(repaired, report)
            if sys.stdin.isatty() and not yes:
                facts, report = guide_repairs(facts, report, examination.run)
            else:
                print_manual_fixes(report)
    code = _choose_exit_code(report, strict=strict)
    write_output(format_doctor_report(facts, report, options, exit_code=code), options)
    if options.style == "text" and not (output or facts_files or only):
        _print_next(facts, report, folder, is_repair=fix)
    ctx.exit(code)


_OF_PROJECTS = (".git", "pyproject.toml", "requirements.txt", "environment.yml", "setup.py")


def _print_next(facts: "Facts", report: "Report", folder: Path, *, is_repair: bool) -> None:
    """Print what comes next: the repair of problems, and for a project on a machine that is ready, its dev container.

    What a repair has left needs a person.
    """
    from devkit.doctor.report.report import Health
    from devkit.facts.project import Project

    is_ready = report.health in (Health.HEALTHY, Health.WARNINGS) and facts.container is None
    lacks_one = isinstance(facts.project, Project) and not facts.project.dev_containers
    if report.health is Health.PROBLEMS:
        if not is_repair:
            print_next("devkit doctor --fix")
    elif is_ready and lacks_one and any((folder / name).exists() for name in _OF_PROJECTS):
        print_next(shlex.join(["devkit", "init", *([] if folder == Path() else [str(folder)])]))


def _print_setup_steps(facts: "Facts", report: "Report", *, as_json: bool) -> None:
    """Print the parts that are ready, and the steps for those that are missing, with the distribution's commands."""
    from devkit.doctor.report.documents import build_fix_document
    from devkit.doctor.setup import plan_setup

    setup = plan_setup(facts, report)
    if as_json:
        steps = [build_fix_document(step, "") for step in setup.steps]
        click.echo(
            json.dumps(
                {"schema": "devkit.toolkit/1", "ready": setup.ready, "steps": steps}, indent=2, ensure_ascii=False
            )
        )
        return
    for part in setup.ready:
        click.echo(f"✓ {part}")
    if len(setup.steps) <= 1:
        click.echo("Nothing to install.")
    for number, step in enumerate(setup.steps, 1):
        print_wrapped(f"{number}. {step.summary}")
        for command in step.commands:
            click.echo(f"     {command}")
        if step.docs:
            click.echo(f"   See {step.docs}")


def _is_waited_for(flags: Mapping[str, object]) -> bool:
    """Return whether a user waits for this examination, so that it may try containers."""
    if flags["setup"] or flags["facts_files"] or flags["style"] in _FOR_PROGRAMS:
        return False
    if isinstance(only := flags["only"], tuple) and only and not {*only} & {*_OF_TRIALS}:
        return False
    return not any(os.environ.get(name, "") not in ("", "0", "false") for name in _NOBODY_WAITS)


def _choose_exit_code(report: "Report", *, strict: bool) -> int:
    # Imported only now, so that the probes start first.
    from devkit.doctor.report.report import Health

    is_fine = report.health in (Health.HEALTHY, Health.NO_GPU) or (report.health is not Health.PROBLEMS and not strict)
    return ExitCode.DONE if is_fine else ExitCode.ANSWER_IS_NO


@dataclass(frozen=True)
class _Examination:
    """The facts to judge and the checks to run; repeated after a repair."""

    codes: tuple[str, ...]
    read_live: "Callable[..., Facts]"
    facts_files: tuple[Path, ...]
    expected_gpus: int | None
    save_facts: Path | None
    is_verbose: bool

    def run(self) -> "tuple[Facts, Report]":
        """Return the facts, saved where a file is named, and the report on them."""
        if self.codes:
            _select_checks(self.codes)  # a wrong code is an error before anything is read
        facts = self.read()
        if self.expected_gpus is not None:
            facts = replace(facts, expected_gpus=self.expected_gpus)
        # Imported only now, so that the probes start first.
        from devkit.doctor.report.report import build_report
        from devkit.doctor.runner import run_on_host_and_container

        if self.save_facts:
            write_facts(facts, self.save_facts)
        return facts, build_report(
            facts,
            run_on_host_and_container(_select_checks(self.codes), facts, clock=time.perf_counter),
            devkit=__version__,
        )

    def read(self) -> "Facts":
        """Read the facts, saved or of this machine."""
        if self.facts_files:
            from devkit.probe.saved_facts import load_saved_facts

            return load_saved_facts(self.facts_files)
        with show_steps(is_verbose=self.is_verbose) as report_step:
            return self.read_live(report_step=report_step, meanwhile=partial(_select_checks, self.codes))


def _select_checks(codes: Sequence[str]) -> "tuple[Check, ...]":
    # Imported only now, so that the probes start first.
    from devkit.doctor.registry import select_checks

    return select_checks(codes)


_LIVE_ONLY = {"fix": "run it"} | {name: f"save facts with --{name}" for name in ("deep", "trial", "project")}
"""Parameters that need this machine -> what to do on a saved one."""


_NOT_FOR_SETUP = (
    *(("style", "--format"), ("output", "--output"), ("fix", "--fix"), ("save_facts", "--save-facts")),
    *(("deep", "--deep"), ("show_list", "--list"), ("only", "--only")),
)


def _find_conflicts(flags: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield message and hint of each contradiction. `flags` are the command's parameters by name."""
    style, files = flags["style"], flags["facts_files"]
    if flags["as_json"] and style not in (None, "json"):
        yield f"--json and --format {style} contradict each other", "Remove one of them."
    if flags["show_list"] and style in _NOT_FOR_LISTS:
        yield f"--list does not support {style}", "Use --format text or json."
    if flags["show_list"] and flags["fix"]:
        yield "--list only lists the checks, but --fix changes files", "Remove one of them."
    if isinstance(files, tuple) and files:
        for name in filter(flags.get, _LIVE_ONLY):
            hint = f"Remove one, or {_LIVE_ONLY[name]} on the machine itself."
            yield f"--{name} works only on this machine, but --facts checks a saved one", hint
        if len(files) > 2:
            yield f"--facts was given {len(files)} times", "Use one machine, or a host and a container on it."
    if flags["yes"] and not flags["fix"]:
        yield "--yes answers the questions of --fix, which is missing", "Add --fix, or remove --yes."
    if flags["output"] is not None and flags["output"] == flags["save_facts"]:
        yield f"--output and --save-facts are both {flags['output']}", "Name two files."
    for name, flag in _NOT_FOR_SETUP if flags["setup"] else ():
        if flags[name]:
            yield f"--setup prints installation steps, but {flag} is for diagnosis", "Remove one of them."
