"""`devkit init`: solve, render, show what would change, write."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli.changes import (
    build_editor_fields,
    build_image_fields,
    build_plan_fields,
    confirm_replacing,
    format_document,
    print_changes,
    print_editor_reports,
    print_image_size,
    print_plan,
    require_plan,
    select_changed,
)
from devkit.cli.existing_container import WriteOptions, repair_existing_container
from devkit.cli.locks import LockOptions, lock_options, lock_project
from devkit.cli.options.plan import (
    ContainerOptions,
    PlanOptions,
    build_project_request,
    build_settings_from_options,
    container_options,
    plan_options,
    solve_request,
)
from devkit.text import format_count

if TYPE_CHECKING:
    from devkit.render.changes import FileChange
    from devkit.render.project import DevkitProject
    from devkit.solver.plan import Plan

SCHEMA = "devkit.init/1"


@click.command()
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@plan_options
@container_options
@lock_options
@click.option("--yes", is_flag=True, help="Replace files without asking.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option("--diff", "show_diff", is_flag=True, help="Show every change line by line.")
@click.option("--force", is_flag=True, help="Replace devkit's own files even where they were edited.")
@click.option("--report", is_flag=True, help="Say how large the built image is, and what made it so.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def init(
    ctx: click.Context,
    directory: Path,
    *,
    selection: PlanOptions,
    container: ContainerOptions,
    locking: LockOptions,
    yes: bool,
    dry_run: bool,
    show_diff: bool,
    force: bool,
    report: bool,
    as_json: bool,
) -> None:
    """Write a dev container that fits this machine, or the one that the flags describe.

    Choices are kept in DIR/devkit.toml; flags win over it and are recorded there.
    """
    from devkit.render.changes import write_changes
    from devkit.render.project import compute_project_changes, open_project

    project = open_project(directory, build_settings_from_options(selection, container), container.inputs)
    request = build_project_request(project, facts=selection.facts)
    manner = WriteOptions(SCHEMA, is_trial=dry_run, is_sure=yes, shows_diff=show_diff, as_json=as_json)
    repair_existing_container(ctx, project, request, manner)
    answer = require_plan(ctx, solve_request(request, project.dependencies), schema=SCHEMA, as_json=as_json)
    project = lock_project(project, answer, locking)
    changes = compute_project_changes(project, answer, machines=request.machines, force=force)
    if not as_json:
        print_plan(answer, asked_for_cpu=project.settings.vendor == "cpu")
        print_changes(changes, show_diff=show_diff)
        print_editor_reports(project.settings)
    if not dry_run:
        confirm_replacing(changes, yes=yes or as_json)
        write_changes(project.root, changes)
    _print_end(project, answer, changes, dry_run=dry_run, report=report, as_json=as_json)


def _print_end(
    project: "DevkitProject",
    plan: "Plan",
    changes: "tuple[FileChange, ...]",
    *,
    dry_run: bool,
    report: bool,
    as_json: bool,
) -> None:
    changed = select_changed(changes)
    if as_json:
        verdict = "unchanged" if not changed else "would-write" if dry_run else "written"
        fields = build_plan_fields(plan, changes) | build_editor_fields(project.settings)
        fields |= {"directory": str(project.root), "verdict": verdict}
        fields |= build_image_fields(project.root) if report else {}
        click.echo(format_document(fields, schema=SCHEMA))
    elif not changed:
        click.echo("unchanged: the dev container is as this plan wants it.")
    elif dry_run:
        click.echo(f"would write {format_count(len(changed), 'file')}; nothing was written.")
    else:
        click.echo(f"wrote {format_count(len(changed), 'file')} to {project.root}")
        click.echo("Next: commit them, then open the folder in its container, or prove it with `devkit verify`.")
    if report and not as_json:
        print_image_size(project.root)
