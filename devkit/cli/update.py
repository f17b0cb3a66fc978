"""`devkit update`: solve again for the machines of devkit.lock, and merge the result with the user's edits."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli.changes import (
    NO_DIFF,
    WriteOptions,
    build_editor_fields,
    build_plan_fields,
    confirm_and_write,
    format_document,
    print_changes,
    print_editor_reports,
    print_merge_conflicts,
    print_plan,
    require_plan,
    select_changed,
)
from devkit.cli.command import Command
from devkit.cli.dev_container import directory_argument
from devkit.cli.existing_container import adopt_existing_container
from devkit.cli.locks import LockOptions, find_stale_locks, lock_options, lock_project
from devkit.cli.output import print_wrapped
from devkit.cli.plan import plan_with_packages, resolve_option
from devkit.cli.plan_options import allow_index_option, build_project_request
from devkit.cli.runtime import hold_project
from devkit.errors import DevkitError, ExitCode
from devkit.facts.dependencies import Resolved
from devkit.solver.plan import SYSTEM_PACKAGE, Plan
from devkit.text import format_count

if TYPE_CHECKING:
    from devkit.render.changes import FileChange
    from devkit.render.project import DevkitProject

SCHEMA = "devkit.update/1"


@click.command(cls=Command, removed=NO_DIFF)
@directory_argument
@click.option("--check", is_flag=True, help="Print the difference without writing it, and exit with 1 if there is one.")
@click.option("--dry-run", is_flag=True, help="Print the changes without writing them.")
@click.option("--yes", is_flag=True, help="Replace files without asking.")
@allow_index_option(expose_value=False)
@resolve_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@lock_options
@click.pass_context
def update(
    ctx: click.Context,
    directory: Path,
    *,
    check: bool,
    dry_run: bool,
    yes: bool,
    no_resolve: bool,
    as_json: bool,
    locking: LockOptions,
) -> None:
    """Update a generated dev container, and keep your edits.

    Plans for the machines in devkit.lock, not for this one, and renews locks that were made from other plans.
    If your edits conflict with devkit's changes, text files get both versions between conflict markers, JSON and YAML files keep your
    edits, and the exit code is 1.
    """
    from devkit.render.changes import Action
    from devkit.render.devkit_lock import LOCK_PATH, parse_lock
    from devkit.render.files import read_file
    from devkit.render.project import compute_project_changes, open_project

    if not (check or dry_run):
        ctx.with_resource(hold_project(directory))
    project = open_project(directory)
    lock = read_file(project.root, LOCK_PATH)
    if lock is None:
        raise DevkitError(f"{project.root} has no {LOCK_PATH}", f"Write a dev container first: devkit init {directory}")
    request = build_project_request(project, machines=parse_lock(lock).machines)
    options = WriteOptions(SCHEMA, is_dry_run=check or dry_run, is_confirmed=yes, shows_diff=check, as_json=as_json)
    adopt_existing_container(ctx, project, request, options, is_check=check)
    planned = plan_with_packages(
        request, project.dependencies, project.root, project.settings, no_resolve=no_resolve, is_check=check
    )
    answer = require_plan(ctx, planned, schema=SCHEMA, as_json=as_json)
    project = _renew_locks(project.for_plan(answer), answer, locking, options, is_check=check)
    changes = compute_project_changes(project, answer, machines=request.machines, may_conflict=True)
    if check:
        # A clone lacks files that version control ignores; that is not drift.
        changes = tuple(replace(each, action=Action.UNCHANGED) if each.artifact.is_local else each for each in changes)
    if not as_json:
        print_plan(answer, wants_cpu=True)
        for line in list_version_changes(parse_lock(lock).plan, answer):
            print_wrapped(line, indent="  ", hanging="  ")
        print_changes(changes, show_diff=check)
        print_editor_reports(project.settings)
    confirm_and_write(project.root, changes, options)
    _print_end(project, answer, changes, options)
    has_conflicts = any(change.conflicts for change in changes)
    ctx.exit(ExitCode.ANSWER_IS_NO if has_conflicts or (check and select_changed(changes)) else ExitCode.DONE)


def list_version_changes(document: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    """List each version that differs from that of devkit.lock, with its reason."""
    from devkit.render.devkit_lock import parse_locked_plan

    if not document:
        return
    locked = parse_locked_plan(document)
    before, after = locked.resolved, plan.resolved
    if isinstance(locked.resolution, Resolved) is not isinstance(plan.resolution, Resolved):
        # The one names every package and the other does not.
        before, after = ({name: each[name] for name in before.keys() & after.keys()} for each in (before, after))
    reasons = {each.field: each.because for each in plan.reasons if each.value != SYSTEM_PACKAGE}
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old and new and old != new:
            why = (
                reasons["torch"]
                if name == "torch"
                else "the newest that fits"
                if not plan.as_of
                else f"as of {plan.as_of}"
            )
            yield f"{name} {old} → {new}: {why}"
        elif new and not old:
            yield f"{name} {new} is new, because a package requires it"
        elif old and not new:
            yield f"{name} {old} was removed, because no package requires it anymore"


def _renew_locks(
    project: "DevkitProject", plan: Plan, locking: LockOptions, options: WriteOptions, *, is_check: bool
) -> "DevkitProject":
    """Return the project with the locks that options call for, or that this plan makes necessary.

    A dry run queries no index and no registry: it prints what would be locked again, and ends the command.
    """
    stale = find_stale_locks(project, plan, locking)
    if not stale:
        return lock_project(project, plan, locking)
    if not options.is_dry_run:
        for reason in stale.values():
            click.echo(f"{reason}; locking again", err=True)
        renewed = LockOptions(lock=True) if len(stale) > 1 else LockOptions(lock_only=next(iter(stale)))
        return lock_project(project, plan, renewed)
    if options.as_json:
        fields = build_plan_fields(plan, ()) | {"verdict": "would-lock", "stale_locks": stale}
        click.echo(format_document(fields, schema=SCHEMA))
    else:
        print_plan(plan, wants_cpu=True)
        for reason in stale.values():
            click.echo(f"would lock again: {reason}")
        click.echo("Nothing was written. Other changes depend on the new lock: run devkit update.")
    raise click.exceptions.Exit(ExitCode.ANSWER_IS_NO if is_check else ExitCode.DONE)


def _print_end(project: "DevkitProject", plan: Plan, changes: "tuple[FileChange, ...]", options: WriteOptions) -> None:
    changed = select_changed(changes)
    if options.as_json:
        verdict = "unchanged" if not changed else "would-write" if options.is_dry_run else "written"
        verdict = "conflicts" if any(change.conflicts for change in changes) else verdict
        fields = build_plan_fields(plan, changes) | build_editor_fields(project.settings) | {"verdict": verdict}
        click.echo(format_document(fields, schema=SCHEMA))
        return
    print_merge_conflicts(changes, is_dry_run=options.is_dry_run)
    files = format_count(len(changed), "file")
    if not changed:
        click.echo("up to date: nothing to change.")
    elif options.is_dry_run:
        click.echo(f"would change {files}; nothing was written.")
    else:
        click.echo(f"changed {files}. Next: read the difference, rebuild the container, and commit.")
