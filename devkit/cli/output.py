"""Output of reports: its format, file, glyphs and colors."""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli.runtime import is_drawn
from devkit.text import ESCAPE_ERRORS, wrap_text
from devkit.whole_files import write_whole

if TYPE_CHECKING:
    from devkit.doctor.model import Check
    from devkit.doctor.report.lines import Line, Marks
    from devkit.doctor.report.report import Report
    from devkit.facts.model import Facts

_STYLES: dict[str, dict[str, Any]] = {
    "bad": {"fg": "red", "bold": True},
    "warn": {"fg": "yellow", "bold": True},
    "good": {"fg": "green", "bold": True},
    "unknown": {"fg": "magenta", "bold": True},
    "quiet": {"dim": True},
    "command": {"fg": "cyan"},
}


_CONTROL_IN_JSON = re.compile(r"[\x7f-\x9f\u2028-\u202e\u2066-\u2069]|(?<=#)#(?=(?:vso)?\[)")


@dataclass(frozen=True)
class OutputOptions:
    """The format (text, json, sarif, markdown or html) and the file to write, None for standard output."""

    style: str
    output: Path | None
    is_verbose: bool = False


def format_doctor_report(facts: "Facts", report: "Report", options: OutputOptions, *, exit_code: int) -> str:
    """Format the report.

    The reader of the text form is at the machine and needs the commands with their true paths. All other forms are
    shared with others: they hold no names of people and machines, no tokens, no device numbers.
    """
    from devkit.facts.secrets import build_redaction, redact_tokens

    if options.style == "text":
        from devkit.doctor.report.stack import build_stack
        from devkit.doctor.report.text import format_report

        marks, report = choose_marks(options), redact_tokens(report)
        layers, width = build_stack(facts, report), shutil.get_terminal_size().columns
        lines = format_report(report, layers, width=width, marks=marks, verbose=options.is_verbose)
        return style_lines(lines, is_plain=options.output is not None)
    redaction = build_redaction(facts)
    facts, report = redaction.of(facts), redaction.of(report)
    match options.style:
        case "sarif":
            from devkit.doctor.report.sarif import build_sarif_document

            return format_json(build_sarif_document(report, exit_code=exit_code))
        case "markdown":
            from devkit.doctor.report.markdown import render_markdown_report

            return render_markdown_report(facts, report)
        case "line":
            return f"{report.line}\n"
        case "prometheus":
            from devkit.doctor.report.metrics import format_metrics

            try:
                taken_at_s = datetime.fromisoformat(report.taken_at).timestamp()
            except ValueError:
                taken_at_s = None
            return format_metrics(report, taken_at_s=taken_at_s)
        case "html":
            from devkit.render.html import render_report_page

            return render_report_page(facts, report)
        case _:
            from devkit.doctor.report.stack import build_stack

            return format_json(report.to_document(build_stack(facts, report)))


def format_check_list(checks: "Sequence[Check]", options: OutputOptions) -> str:
    """Format the list of checks that `--list` prints."""
    from devkit.doctor.report.documents import build_check_list_document
    from devkit.doctor.report.text import format_checks

    if options.style == "json":
        return format_json(build_check_list_document(checks))
    return style_lines(format_checks(checks), is_plain=True)


def format_json(document: Mapping[str, Any]) -> str:
    """Format a JSON document as it is printed: without what a terminal or a CI log would act on, which JSON allows in texts."""
    return dump_json(document) + "\n"


def dump_json(document: Mapping[str, Any]) -> str:
    """Do the same, without a line break at the end."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return _CONTROL_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def choose_marks(options: OutputOptions) -> "Marks":
    """Return the glyphs that the output's encoding has."""
    from devkit.doctor.report.lines import ASCII_MARKS, UNICODE_MARKS

    if not options.output:
        try:
            "".join(vars(UNICODE_MARKS).values()).encode(sys.stdout.encoding or "ascii")
        except UnicodeEncodeError:
            return ASCII_MARKS
    return UNICODE_MARKS


def style_lines(lines: "Sequence[Line]", *, is_plain: bool) -> str:
    """Join the lines, in color only where rich draws and without NO_COLOR."""
    is_plain = is_plain or "NO_COLOR" in os.environ or not is_drawn(sys.stdout)
    return "".join(
        (line.text if is_plain else click.style(line.text, **_STYLES.get(line.tone.value, {}))) + "\n" for line in lines
    )


def write_output(text: str, options: OutputOptions) -> None:
    """Print the text, or write it to the file of the options. Raises DevkitError."""
    if options.output:
        _write_file(text, options.output)
        return
    encoding = sys.stdout.encoding or "ascii"
    click.echo(text.encode(encoding, ESCAPE_ERRORS).decode(encoding), nl=False)


def write_facts(facts: "Facts", path: Path) -> None:
    """Write the facts without names and secrets, and say so on standard error. Raises DevkitError."""
    from devkit.facts.model import format_facts
    from devkit.facts.secrets import redact_facts

    _write_file(format_facts(redact_facts(facts)), path)
    click.echo(f"Facts saved to {path}.", err=True)


def _write_file(text: str, path: Path) -> None:
    # Names of files and variables need not be valid text: other bytes are written as escapes.
    write_whole(path, text.encode(errors="backslashreplace"))


def print_wrapped(text: str, *, indent: str = "", hanging: str | None = None) -> None:
    """Print text folded to the terminal's width, with `hanging` before all lines but the first; two spaces for text at the edge."""
    hanging = "" if indent and hanging is None else hanging or "  "
    click.echo(wrap_text(text, width=shutil.get_terminal_size().columns, indent=indent, hanging=hanging))


def print_next(*commands: str, where: str = "") -> None:
    """Print what to paste next. Never with --json, whose standard output holds one document."""
    click.echo("\n".join((f"Next{where and f', {where}'}:", *(f"  {each}" for each in commands))))
