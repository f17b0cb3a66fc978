"""`devkit update`: solve anew for the machines of devkit.lock, and join the result with the user's edits."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli import exit_codes
from devkit.cli.changes import (
    build_editor_fields,
    build_plan_fields,
    confirm_replacing,
    format_document,
    print_changes,
    print_editor_reports,
    print_merge_conflicts,
    print_plan,
    require_plan,
    select_changed,
)
from devkit.cli.existing_container import WriteOptions, repair_existing_container
from devkit.cli.locks import LockOptions, choose_locks_to_renew, find_stale_locks, lock_options, lock_project
from devkit.cli.options.plan import build_project_request, solve_request
from devkit.errors import DevkitError
from devkit.text import format_count

if TYPE_CHECKING:
    from devkit.render.changes import FileChange
    from devkit.render.devkit_lock import DevkitLock
    from devkit.render.project import DevkitProject
    from devkit.solver.plan import Plan

SCHEMA = "devkit.update/1"


@click.command()
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Write nothing; print the difference and exit 1 when there is one.")
@click.option("--diff", "show_diff", is_flag=True, help="Show every change line by line.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option("--yes", is_flag=True, help="Replace files without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@lock_options
@click.pass_context
def update(
    ctx: click.Context,
    directory: Path,
    *,
    check: bool,
    show_diff: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    locking: LockOptions,
) -> None:
    """Bring a generated dev container up to date, and keep what you edited in it.

    The plan is for the machines that devkit.lock names, whoever runs this. Locks that were made for another plan are
    made anew. Where your edits and devkit's changes meet, text files get both between markers, JSON and YAML keep
    yours; the exit code is then 1.
    """
    from devkit.render.changes import Action, write_changes
    from devkit.render.devkit_toml import ProjectSettings
    from devkit.render.project import PathOptions, compute_project_changes, open_project

    project = open_project(directory, ProjectSettings(), PathOptions())
    request = build_project_request(project, machines=_lock(project.root, directory).machines)
    is_trial = check or dry_run
    manner = WriteOptions(SCHEMA, is_trial=is_trial, is_sure=yes, shows_diff=show_diff or check, as_json=as_json)
    repair_existing_container(ctx, project, request, manner, is_check=check)
    answer = require_plan(ctx, solve_request(request, project.dependencies), schema=SCHEMA, as_json=as_json)
    project = _with_locks(project, answer, locking, manner, is_check=check)
    changes = compute_project_changes(project, answer, machines=request.machines, may_conflict=True)
    if check:
        # A clone lacks what is kept out of version control; that is no drift.
        changes = tuple(replace(each, action=Action.UNCHANGED) if each.is_restored else each for each in changes)
    if not as_json:
        print_plan(answer, asked_for_cpu=True)
        print_changes(changes, show_diff=show_diff or check)
        print_editor_reports(project.settings)
    if not is_trial:
        confirm_replacing(changes, yes=yes or as_json)
        write_changes(project.root, changes)
    _print_end(project, answer, changes, is_trial=is_trial, as_json=as_json)
    has_clashes = any(change.conflicts for change in changes)
    ctx.exit(exit_codes.ANSWER_IS_NO if has_clashes or (check and select_changed(changes)) else exit_codes.DONE)


def _lock(root: Path, directory: Path) -> "DevkitLock":
    from devkit.render.devkit_lock import LOCK_PATH, parse_lock
    from devkit.render.files import read_file

    content = read_file(root, LOCK_PATH)
    if content is None:
        raise DevkitError(f"there is no {LOCK_PATH} in {root}", f"Write a dev container first: devkit init {directory}")
    return parse_lock(content)


def _with_locks(
    project: "DevkitProject", plan: "Plan", flags: LockOptions, manner: WriteOptions, *, is_check: bool
) -> "DevkitProject":
    """The project with the locks that flags ask for, or that this plan makes necessary.

    A trial asks nobody: it says what would be locked anew, and ends the command.
    """
    stale = find_stale_locks(project, plan, flags)
    if not stale:
        return lock_project(project, plan, flags)
    if not manner.is_trial:
        for reason in stale.values():
            click.echo(f"{reason}; locking anew", err=True)
        return lock_project(project, plan, choose_locks_to_renew(stale))
    _say_stale(plan, stale, manner)
    raise click.exceptions.Exit(exit_codes.ANSWER_IS_NO if is_check else exit_codes.DONE)


def _say_stale(plan: "Plan", stale: dict[str, str], manner: WriteOptions) -> None:
    if manner.as_json:
        fields = build_plan_fields(plan, ()) | {"verdict": "would-lock", "stale_locks": stale}
        click.echo(format_document(fields, schema=SCHEMA))
        return
    print_plan(plan, asked_for_cpu=True)
    for reason in stale.values():
        click.echo(f"would lock anew: {reason}")
    click.echo("nothing was written, and what else changes is seen with the new lock: run devkit update.")


def _print_end(
    project: "DevkitProject", plan: "Plan", changes: "tuple[FileChange, ...]", *, is_trial: bool, as_json: bool
) -> None:
    changed = select_changed(changes)
    if as_json:
        verdict = _verdict(changes, is_trial=is_trial)
        fields = build_plan_fields(plan, changes) | build_editor_fields(project.settings) | {"verdict": verdict}
        click.echo(format_document(fields, schema=SCHEMA))
        return
    print_merge_conflicts(changes, is_trial=is_trial)
    if not changed:
        click.echo("up to date: nothing to change.")
    elif is_trial:
        click.echo(f"would change {format_count(len(changed), 'file')}; nothing was written.")
    else:
        click.echo(
            f"changed {format_count(len(changed), 'file')}. Next: read the difference, rebuild the container, commit."
        )


def _verdict(changes: "tuple[FileChange, ...]", *, is_trial: bool) -> str:
    if any(change.conflicts for change in changes):
        return "conflicts"
    if not select_changed(changes):
        return "unchanged"
    return "would-write" if is_trial else "written"
