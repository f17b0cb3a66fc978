"""`devkit doctor --setup`: the steps that prepare a machine for GPUs in containers; none of them is run."""

import json
from typing import TYPE_CHECKING

import click

from devkit.cli.output import print_wrapped

if TYPE_CHECKING:
    from devkit.doctor.report.report import Report
    from devkit.facts.model import Facts

SCHEMA = "devkit.toolkit/1"


def print_setup_steps(facts: "Facts", report: "Report", *, as_json: bool) -> None:
    """Print the parts that are ready, and the steps for those that are missing, with the distribution's commands."""
    from devkit.doctor.report.documents import build_fix_document
    from devkit.doctor.setup import plan_setup

    setup = plan_setup(facts, report)
    if as_json:
        steps = [build_fix_document(step, "") for step in setup.steps]
        click.echo(json.dumps({"schema": SCHEMA, "ready": setup.ready, "steps": steps}, indent=2, ensure_ascii=False))
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
