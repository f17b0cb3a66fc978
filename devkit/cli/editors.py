"""What the chosen editors make of the written files: which keys each passes over, and what becomes of them there."""

import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from devkit.text import wrapped

if TYPE_CHECKING:
    from devkit.render.choices import Choices


def print_editors(choices: "Choices") -> None:
    """For each editor that was chosen by name: what to know, and what it drops, with the source."""
    from devkit.render.devcontainer import reports_of

    width = shutil.get_terminal_size().columns
    for report in reports_of(choices):
        said = f"{report.title}: {report.note}" if report.note else f"{report.title}:"
        click.echo(wrapped(said, width=width, hanging="  "))
        for each in report.dropped:
            doubt = "" if each.is_sure else " (not checked at its source)"
            line = f"{each.key}: {each.tool} {each.effect}; {each.instead}{doubt}"
            click.echo(wrapped(line, width=width, indent="  ", hanging="  "))
        for source in dict.fromkeys(each.source for each in report.dropped):
            click.echo(f"  see {source}")


def editor_fields(choices: "Choices") -> dict[str, object]:
    """The same for a JSON document; {} when no editor was chosen by name."""
    from devkit.render.devcontainer import reports_of

    reports = reports_of(choices)
    return {"editors": [asdict(report) for report in reports]} if reports else {}
