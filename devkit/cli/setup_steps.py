"""`devkit doctor --setup`: the steps that prepare a machine for GPUs in containers; none of them is run."""

import json
from typing import TYPE_CHECKING

import click

from devkit.cli.output import print_wrapped

if TYPE_CHECKING:
    from devkit.facts.model import Facts

SCHEMA = "devkit.toolkit/1"


def print_setup_steps(facts: "Facts", *, as_json: bool) -> None:
    """Print the steps for driver, engine and Container Toolkit, with the distribution's commands."""
    from devkit.doctor.fixes import list_setup_steps
    from devkit.doctor.report.documents import build_fix_document

    steps = list_setup_steps(facts)
    if as_json:
        document = {"schema": SCHEMA, "steps": [build_fix_document(step, "") for step in steps]}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for number, step in enumerate(steps, 1):
        print_wrapped(f"{number}. {step.summary}")
        for command in step.commands:
            click.echo(f"     {command}")
        if step.docs:
            click.echo(f"   See {step.docs}")
