"""`devkit update`: solve anew for the machines of devkit.lock, and join the result with the user's edits."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli import exits
from devkit.cli.adopting import Manner, repair_own
from devkit.cli.changes import (
    confirm,
    document_text,
    plan_fields,
    plan_or_end,
    print_changes,
    print_clashes,
    print_plan,
    touched,
)
from devkit.cli.editors import editor_fields, print_editors
from devkit.cli.lock_flags import LockFlags, lock_options, renewal, stale_reasons, with_asked_locks
from devkit.cli.planning import answer_to, request_of_project
from devkit.errors import DevkitError
from devkit.text import count_of

if TYPE_CHECKING:
    from devkit.render.change import Change
    from devkit.render.lock import Lock
    from devkit.render.project import Project
    from devkit.solver.model import Plan

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
    locking: LockFlags,
) -> None:
    """Bring a generated dev container up to date, and keep what you edited in it.

    The plan is for the machines that devkit.lock names, whoever runs this. Locks that were made for another plan are
    made anew. Where your edits and devkit's changes meet, text files get both between markers, JSON and YAML keep
    yours; the exit code is then 1.
    """
    from devkit.render.choices import Choices
    from devkit.render.project import Inputs, open_project, project_changes
    from devkit.render.write import write

    project = open_project(directory, Choices(), Inputs())
    request = request_of_project(project, machines=_lock(project.root, directory).machines)
    is_trial = check or dry_run
    manner = Manner(SCHEMA, is_trial=is_trial, is_sure=yes, shows_diff=show_diff or check, as_json=as_json)
    repair_own(ctx, project, request, manner, is_check=check)
    answer = plan_or_end(ctx, answer_to(request, project.dependencies), schema=SCHEMA, as_json=as_json)
    project = _with_locks(project, answer, locking, manner, is_check=check)
    changes = project_changes(project, answer, machines=request.machines, may_clash=True)
    if not as_json:
        print_plan(answer, asked_for_cpu=True)
        print_changes(changes, show_diff=show_diff or check)
        print_editors(project.choices)
    if not is_trial:
        confirm(changes, yes=yes or as_json)
        write(project.root, changes)
    _print_end(project, answer, changes, is_trial=is_trial, as_json=as_json)
    has_clashes = any(change.clashes for change in changes)
    ctx.exit(exits.ANSWER_IS_NO if has_clashes or (check and touched(changes)) else exits.DONE)


def _lock(root: Path, directory: Path) -> "Lock":
    from devkit.render.folder import read_file
    from devkit.render.lock import LOCK_PATH, read_lock

    content = read_file(root, LOCK_PATH)
    if content is None:
        raise DevkitError(f"there is no {LOCK_PATH} in {root}", f"Write a dev container first: devkit init {directory}")
    return read_lock(content)


def _with_locks(project: "Project", plan: "Plan", flags: LockFlags, manner: Manner, *, is_check: bool) -> "Project":
    """The project with the locks that flags ask for, or that this plan makes necessary.

    A trial asks nobody: it says what would be locked anew, and ends the command.
    """
    stale = stale_reasons(project, plan, flags)
    if not stale:
        return with_asked_locks(project, plan, flags)
    if not manner.is_trial:
        for reason in stale.values():
            click.echo(f"{reason}; locking anew", err=True)
        return with_asked_locks(project, plan, renewal(stale))
    _say_stale(plan, stale, manner)
    raise click.exceptions.Exit(exits.ANSWER_IS_NO if is_check else exits.DONE)


def _say_stale(plan: "Plan", stale: dict[str, str], manner: Manner) -> None:
    if manner.as_json:
        fields = plan_fields(plan, ()) | {"verdict": "would-lock", "stale_locks": stale}
        click.echo(document_text(fields, schema=SCHEMA))
        return
    print_plan(plan, asked_for_cpu=True)
    for reason in stale.values():
        click.echo(f"would lock anew: {reason}")
    click.echo("nothing was written, and what else changes is seen with the new lock: run devkit update.")


def _print_end(
    project: "Project", plan: "Plan", changes: "tuple[Change, ...]", *, is_trial: bool, as_json: bool
) -> None:
    changed = touched(changes)
    if as_json:
        verdict = _verdict(changes, is_trial=is_trial)
        fields = plan_fields(plan, changes) | editor_fields(project.choices) | {"verdict": verdict}
        click.echo(document_text(fields, schema=SCHEMA))
        return
    print_clashes(changes, is_trial=is_trial)
    if not changed:
        click.echo("up to date: nothing to change.")
    elif is_trial:
        click.echo(f"would change {count_of(len(changed), 'file')}; nothing was written.")
    else:
        click.echo(
            f"changed {count_of(len(changed), 'file')}. Next: read the difference, rebuild the container, commit."
        )


def _verdict(changes: "tuple[Change, ...]", *, is_trial: bool) -> str:
    if any(change.clashes for change in changes):
        return "conflicts"
    if not touched(changes):
        return "unchanged"
    return "would-write" if is_trial else "written"
