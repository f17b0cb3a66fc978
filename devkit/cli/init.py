"""`devkit init`: solve, render, show what would change, write."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli.adopting import Manner, repair_own
from devkit.cli.changes import (
    confirm,
    document_text,
    plan_fields,
    plan_or_end,
    print_changes,
    print_plan,
    touched,
)
from devkit.cli.container_flags import ContainerFlags, choices_of, container_options
from devkit.cli.editors import editor_fields, print_editors
from devkit.cli.image_size import image_fields, print_image
from devkit.cli.lock_flags import LockFlags, lock_options, with_asked_locks
from devkit.cli.planning import answer_to, request_of_project
from devkit.cli.selection import Selection, selection_options
from devkit.text import count_of

if TYPE_CHECKING:
    from devkit.render.change import Change
    from devkit.render.project import Project
    from devkit.solver.model import Plan

SCHEMA = "devkit.init/1"


@click.command()
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@selection_options
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
    selection: Selection,
    container: ContainerFlags,
    locking: LockFlags,
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
    from devkit.render.project import open_project, project_changes
    from devkit.render.write import write

    project = open_project(directory, choices_of(selection, container), container.inputs)
    request = request_of_project(project, facts=selection.facts)
    manner = Manner(SCHEMA, is_trial=dry_run, is_sure=yes, shows_diff=show_diff, as_json=as_json)
    repair_own(ctx, project, request, manner)
    answer = plan_or_end(ctx, answer_to(request, project.dependencies), schema=SCHEMA, as_json=as_json)
    project = with_asked_locks(project, answer, locking)
    changes = project_changes(project, answer, machines=request.machines, force=force)
    if not as_json:
        print_plan(answer, asked_for_cpu=project.choices.vendor == "cpu")
        print_changes(changes, show_diff=show_diff)
        print_editors(project.choices)
    if not dry_run:
        confirm(changes, yes=yes or as_json)
        write(project.root, changes)
    _print_end(project, answer, changes, dry_run=dry_run, report=report, as_json=as_json)


def _print_end(
    project: "Project", plan: "Plan", changes: "tuple[Change, ...]", *, dry_run: bool, report: bool, as_json: bool
) -> None:
    changed = touched(changes)
    if as_json:
        verdict = "unchanged" if not changed else "would-write" if dry_run else "written"
        fields = plan_fields(plan, changes) | editor_fields(project.choices)
        fields |= {"directory": str(project.root), "verdict": verdict}
        fields |= image_fields(project.root) if report else {}
        click.echo(document_text(fields, schema=SCHEMA))
    elif not changed:
        click.echo("unchanged: the dev container is as this plan wants it.")
    elif dry_run:
        click.echo(f"would write {count_of(len(changed), 'file')}; nothing was written.")
    else:
        click.echo(f"wrote {count_of(len(changed), 'file')} to {project.root}")
        click.echo("Next: commit them, then open the folder in its container, or prove it with `devkit verify`.")
    if report and not as_json:
        print_image(project.root)
