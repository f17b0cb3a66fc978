"""`devkit toolkit`: the steps that prepare this machine for GPUs in containers; none of them is run."""

import json
from pathlib import Path

import click

from devkit.cli.output import print_wrapped

SCHEMA = "devkit.toolkit/1"


@click.command()
@click.option(
    "--facts", metavar="FILE", type=click.Path(path_type=Path), help="For a machine saved by `devkit doctor`."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def toolkit(*, facts: Path | None, as_json: bool) -> None:
    """Print the steps for driver, engine and Container Toolkit, with this distribution's commands. Nothing is run."""
    from devkit.doctor.fixes import list_setup_steps
    from devkit.doctor.report.documents import build_fix_document
    from devkit.probe.gather import gather_facts
    from devkit.probe.host import CachingHost
    from devkit.probe.saved_facts import load_saved_facts

    steps = list_setup_steps(load_saved_facts([facts]) if facts else gather_facts(CachingHost()))
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
