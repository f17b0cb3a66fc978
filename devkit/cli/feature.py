"""`devkit feature`: write the dev container Feature that brings devkit into any dev container."""

from pathlib import Path

import click

from devkit.cli.runtime import hold_project
from devkit.cli.template import write_published_folders

SCHEMA = "devkit.feature/1"


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option("--force", is_flag=True, help="Replace files that are there already.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def feature(ctx: click.Context, directory: Path, *, dry_run: bool, force: bool, as_json: bool) -> None:
    """Write DIR/devkit, a dev container Feature: the doctor at every start of a container, and devkit inside.

    Use it from the project, with "features": {"./devkit": {}} in .devcontainer/devcontainer.json and DIR .devcontainer,
    or publish it: devcontainer features publish DIR --namespace OWNER/NAME
    """
    from devkit.render.devcontainer_feature import render_devcontainer_feature
    from devkit.render.wheel import build_devkit_wheel

    if not dry_run:
        ctx.with_resource(hold_project(directory))
    artifacts = render_devcontainer_feature(build_devkit_wheel())
    write_published_folders(directory, artifacts, schema=SCHEMA, dry_run=dry_run, force=force, as_json=as_json)
