"""`devkit template` and `devkit feature`: folders to publish, dev container Templates and the Feature that brings devkit."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli.changes import format_document, format_plan_conflict, print_changes, select_changed
from devkit.cli.runtime import hold_project
from devkit.errors import ExitCode
from devkit.text import format_count

if TYPE_CHECKING:
    from devkit.render.files import Artifact

TEMPLATE_SCHEMA = "devkit.template/1"


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--only", multiple=True, metavar="ID", help="Write this Template alone, such as pytorch-cuda. Repeat.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option("--force", is_flag=True, help="Replace files that are there already.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def template(
    ctx: click.Context, directory: Path, *, only: tuple[str, ...], dry_run: bool, force: bool, as_json: bool
) -> None:
    """Write a folder in DIR for each Template: what `devkit init` writes, with options for the project's name.

    Publish them with the dev container CLI: devcontainer templates publish DIR --namespace OWNER/NAME
    """
    from devkit.cli.plan_options import build_project_request, solve_request
    from devkit.render.project import DevkitProject, PathOptions
    from devkit.render.published_folders import (
        DEVCONTAINER_TEMPLATES,
        find_template,
        render_devcontainer_template,
        select_template_source,
    )
    from devkit.render.wheel import find_devkit_source
    from devkit.solver.plan import Conflict

    if not dry_run:
        ctx.with_resource(hold_project(directory))
    artifacts: list[Artifact] = []
    for each in [find_template(name) for name in only] or DEVCONTAINER_TEMPLATES:
        settings = replace(each.settings, name="my-project")
        request = build_project_request(DevkitProject(Path(), settings, PathOptions()))
        answer = solve_request(request)
        if isinstance(answer, Conflict):
            click.echo(format_plan_conflict(answer, schema=TEMPLATE_SCHEMA, as_json=as_json))
            ctx.exit(ExitCode.ANSWER_IS_NO)
        source = select_template_source(find_devkit_source())
        artifacts += render_devcontainer_template(each, answer, source, request.machines)
    write_published_folders(directory, artifacts, schema=TEMPLATE_SCHEMA, dry_run=dry_run, force=force, as_json=as_json)


def write_published_folders(
    directory: Path, artifacts: "Iterable[Artifact]", *, schema: str, dry_run: bool, force: bool, as_json: bool
) -> None:
    """Write folders that are to be published, and say which files. Raises DevkitError where one would be replaced."""
    from devkit.render.changes import write_changes
    from devkit.render.published_folders import compute_template_changes

    changes = compute_template_changes(directory.absolute(), artifacts, force=force)
    if not dry_run:
        write_changes(directory.absolute(), changes)
    if as_json:
        files = [{"path": change.path, "action": str(change.action)} for change in changes]
        click.echo(format_document({"directory": str(directory), "files": files}, schema=schema))
        return
    print_changes(changes, show_diff=False)
    verb = "would write" if dry_run else "wrote"
    click.echo(f"{verb} {format_count(len(select_changed(changes)), 'file')} in {directory}")


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
    from devkit.render.published_folders import render_devcontainer_feature
    from devkit.render.wheel import build_devkit_wheel

    if not dry_run:
        ctx.with_resource(hold_project(directory))
    artifacts = render_devcontainer_feature(build_devkit_wheel())
    write_published_folders(
        directory, artifacts, schema="devkit.feature/1", dry_run=dry_run, force=force, as_json=as_json
    )
