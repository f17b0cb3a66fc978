"""How `devkit doctor` shows its report: in which format, where to, and in which colours."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.errors import DevkitError

if TYPE_CHECKING:
    from devkit.doctor.model import Check
    from devkit.doctor.report.lines import Line, Marks
    from devkit.doctor.report.report import Report
    from devkit.facts.model import Facts

_STYLES: dict[str, dict[str, Any]] = {
    "bad": {"fg": "red", "bold": True},
    "warn": {"fg": "yellow", "bold": True},
    "good": {"fg": "green", "bold": True},
    "quiet": {"dim": True},
    "command": {"fg": "cyan"},
}


@dataclass(frozen=True)
class OutputOptions:
    """The format, one of text, json, sarif, markdown and html, and the file to write, None for standard output."""

    style: str
    output: Path | None
    is_verbose: bool = False


def format_doctor_report(facts: "Facts", report: "Report", printing: OutputOptions, *, exit_code: int) -> str:
    """The report as text of the format asked for.

    Whoever reads the text form sits at the machine and needs the commands with their true paths. Every other form is
    made to be passed on: no names of people and machines, no tokens, no device numbers.
    """
    from devkit.facts.redact import build_redaction, redact_tokens

    if printing.style == "text":
        return _text(redact_tokens(report), printing)
    redaction = build_redaction(facts)
    return _passed_on(redaction.of(facts), redaction.of(report), printing.style, exit_code=exit_code)


def _passed_on(facts: "Facts", report: "Report", style: str, *, exit_code: int) -> str:
    match style:
        case "sarif":
            from devkit.doctor.report.sarif import build_sarif_document

            return format_json(build_sarif_document(report, exit_code=exit_code))
        case "markdown":
            from devkit.doctor.report.markdown import render_markdown_report

            return render_markdown_report(facts, report)
        case "html":
            from devkit.render.report_page import render_report_page

            return render_report_page(facts, report)
        case _:
            return format_json(report.to_document())


def format_json(document: dict[str, Any]) -> str:
    """A JSON document as it is printed."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def format_check_list(checks: "Sequence[Check]", printing: OutputOptions) -> str:
    """What `--list` prints."""
    from devkit.doctor.report.report import build_check_list_document
    from devkit.doctor.report.text import format_checks

    if printing.style == "json":
        return format_json(build_check_list_document(checks))
    return style_lines(format_checks(checks), is_plain=True)


def _text(report: "Report", printing: OutputOptions) -> str:
    import shutil

    from devkit.doctor.report.text import format_report

    width = shutil.get_terminal_size().columns
    lines = format_report(report, width=width, marks=choose_marks(printing), verbose=printing.is_verbose)
    return style_lines(lines, is_plain=printing.output is not None)


def choose_marks(printing: OutputOptions) -> "Marks":
    """The glyphs that the output can show."""
    from devkit.doctor.report.lines import ASCII_MARKS, UNICODE_MARKS

    can_print = printing.output or _prints("".join(vars(UNICODE_MARKS).values()))
    return UNICODE_MARKS if can_print else ASCII_MARKS


def style_lines(lines: "Sequence[Line]", *, is_plain: bool) -> str:
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


def write_output(text: str, printing: OutputOptions) -> None:
    """Print the text, or write it to the file that was asked for. Raises DevkitError."""
    if printing.output:
        _write(text, printing.output)
        return
    encoding = sys.stdout.encoding or "ascii"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False)


def write_facts(facts: "Facts", path: Path) -> None:
    """Write the facts without names and secrets, and say so on standard error. Raises DevkitError."""
    from devkit.facts.store import format_facts, redact_facts

    _write(format_facts(redact_facts(facts)), path)
    click.echo(f"Facts saved to {path}.", err=True)


def _write(text: str, path: Path) -> None:
    try:
        # Names of files and variables need not be text; what is not, is written as JSON and people can read it.
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise DevkitError(
            f"cannot write {path}: {error.strerror}", "Name a file in a folder that you may write to."
        ) from error
