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
        said = (
            f": {report.note}." if report.note else " hears everything in these files." if not report.dropped else ":"
        )
        click.echo(wrapped(f"{report.title}{said}", width=width))
        for each in report.dropped:
            doubt = "" if each.is_sure else " (not checked at its source)"
            line = f"  {each.key}: {each.tool} {each.effect}; {each.instead}{doubt}. {each.source}"
            click.echo(wrapped(line, width=width))


def editor_fields(choices: "Choices") -> dict[str, object]:
    """The same for a JSON document; {} when no editor was chosen by name."""
    from devkit.render.devcontainer import reports_of

    reports = reports_of(choices)
    return {"editors": [asdict(report) for report in reports]} if reports else {}
