"""`devkit doctor`: read the machine, judge it, say what is wrong and how to repair it."""

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit import __version__
from devkit.cli import exits
from devkit.errors import DevkitError

if TYPE_CHECKING:
    from devkit.doctor.model import Check
    from devkit.doctor.report import Report
    from devkit.doctor.report_text import Line
    from devkit.facts.model import Facts

_FILE = click.Path(path_type=Path)
_SECONDS = click.FloatRange(min=0.1)
_STYLES: dict[str, dict[str, Any]] = {
    "bad": {"fg": "red", "bold": True},
    "warn": {"fg": "yellow", "bold": True},
    "good": {"fg": "green", "bold": True},
    "quiet": {"dim": True},
    "command": {"fg": "cyan"},
}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; short for --format json.")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", help="How to print the report.")
@click.option("--output", metavar="FILE", type=_FILE, help="Write the report to FILE instead of printing it.")
@click.option("--facts", "facts_file", metavar="FILE", type=_FILE, help="Judge a saved machine instead of this one.")
@click.option("--save-facts", metavar="FILE", type=_FILE, help="Save what was read, without names and secrets.")
@click.option("--only", metavar="CODE", multiple=True, help="Run only this check. May be repeated.")
@click.option("--list", "show_list", is_flag=True, help="List the checks and do nothing else.")
@click.option("--strict", is_flag=True, help="End with 1 on warnings too.")
@click.option(
    "--timeout", metavar="SECONDS", type=_SECONDS, default=10.0, help="Longest wait for a reading. Default: 10."
)
@click.option("--verbose", is_flag=True, help="Show consequences, and passed and skipped checks.")
@click.pass_context
def doctor(
    ctx: click.Context,
    *,
    as_json: bool,
    style: str,
    output: Path | None,
    facts_file: Path | None,
    save_facts: Path | None,
    only: tuple[str, ...],
    show_list: bool,
    strict: bool,
    timeout: float,
    verbose: bool,
) -> None:
    """Find what stops GPU work on this machine, and say how to fix it.

    Reads only: nothing on the machine is changed. Ends with 0 when healthy, warnings allowed, and with 1 on problems.
    """
    from devkit.doctor.report import report_of
    from devkit.doctor.run import run

    checks = _chosen(only)
    as_json = as_json or style == "json"
    if show_list:
        _put(_listed(checks, as_json=as_json), output)
        ctx.exit(exits.DONE)
    facts = _loaded(facts_file) if facts_file else _read_here(timeout)
    if save_facts:
        _save(facts, save_facts)
    report = report_of(facts, run(checks, facts, clock=time.perf_counter), devkit=__version__)
    _put(_document(report.to_document()) if as_json else _text(report, verbose=verbose, output=output), output)
    ctx.exit(_exit_code(report, strict=strict))


def _chosen(codes: Sequence[str]) -> "tuple[Check, ...]":
    """The checks to run, in print order. Raises DevkitError for a code that no check has."""
    from devkit.doctor.registry import BY_CODE, CHECKS

    wanted = {code.upper() for code in codes}
    for code in sorted(wanted - set(BY_CODE)):
        close = get_close_matches(code, BY_CODE, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        raise DevkitError(f"no check has the code {code!r}", f"{hint}`devkit doctor --list` shows all codes.")
    return tuple(check for check in CHECKS if not wanted or check.code in wanted)


def _read_here(timeout_s: float) -> "Facts":
    from devkit.probe.gather import gather
    from devkit.probe.host import LocalHost

    return gather(LocalHost(), deadline_s=timeout_s)


def _loaded(path: Path) -> "Facts":
    """Facts from a file. Raises DevkitError for a file that is not there or holds no facts."""
    from devkit.facts.store import WrongFacts, from_json

    try:
        return from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DevkitError(f"cannot read {path}: {error.strerror}", _HOW_TO_SAVE) from error
    except (WrongFacts, UnicodeDecodeError) as error:
        raise DevkitError(f"{path} holds no facts of a machine: {error}", _HOW_TO_SAVE) from error


_HOW_TO_SAVE = "Save facts on the machine in question: devkit doctor --save-facts FILE"


def _save(facts: "Facts", path: Path) -> None:
    from devkit.facts.store import redacted, to_json

    _write(to_json(redacted(facts)), path)
    click.echo(f"Facts saved to {path}.", err=True)


def _document(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _text(report: "Report", *, verbose: bool, output: Path | None) -> str:
    from devkit.doctor.report_text import ASCII_MARKS, UNICODE_MARKS, report_text

    marks = UNICODE_MARKS if output or _prints("".join(vars(UNICODE_MARKS).values())) else ASCII_MARKS
    width = shutil.get_terminal_size().columns
    return _painted(report_text(report, width=width, marks=marks, verbose=verbose), is_plain=output is not None)


def _listed(checks: "Sequence[Check]", *, as_json: bool) -> str:
    from devkit.doctor.report import list_document
    from devkit.doctor.report_text import list_text

    return _document(list_document(checks)) if as_json else _painted(list_text(checks), is_plain=True)


def _painted(lines: "Sequence[Line]", *, is_plain: bool) -> str:
    """The lines as one text, coloured only for a terminal whose user did not refuse."""
    is_plain = is_plain or "NO_COLOR" in os.environ or not sys.stdout.isatty()
    return "".join(
        (line.text if is_plain else click.style(line.text, **_STYLES.get(line.tone.value, {}))) + "\n" for line in lines
    )


def _prints(text: str) -> bool:
    """Whether standard output's encoding has these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _put(text: str, output: Path | None) -> None:
    if output:
        _write(text, output)
        return
    encoding = sys.stdout.encoding or "ascii"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False)


def _write(text: str, path: Path) -> None:
    """Raises DevkitError when the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DevkitError(
            f"cannot write {path}: {error.strerror}", "Name a file in a folder that you may write to."
        ) from error


def _exit_code(report: "Report", *, strict: bool) -> int:
    from devkit.doctor.report import Health

    match report.health:
        case Health.HEALTHY:
            return exits.DONE
        case Health.WARNINGS:
            return exits.ANSWER_IS_NO if strict else exits.DONE
        case Health.PROBLEMS:
            return exits.ANSWER_IS_NO
