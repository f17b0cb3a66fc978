"""`devkit init` and `devkit update` in a project with its own dev container: repaired in place, never replaced."""

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from devkit.cli import exit_codes
from devkit.cli.changes import (
    WriteOptions,
    build_plan_fields,
    confirm_and_write,
    format_document,
    print_changes,
    print_plan,
    require_plan,
    select_changed,
)
from devkit.cli.options.plan import solve_request
from devkit.errors import DevkitError
from devkit.text import format_count, wrap_text

if TYPE_CHECKING:
    from devkit.render.adopt.adoption import Adoption, ExistingContainer
    from devkit.render.changes import FileChange
    from devkit.render.project import DevkitProject
    from devkit.solver.plan import Plan, Request


_GENERATED_FILE_OPTIONS = frozenset(
    {"engine", "devices", "editors", "profiles", "index", "torch_index", "hub", "ca_certificate", "wheelhouse"}
    | {"lock", "lock_only", "report"}
)
"""Options about the contents of devkit's own files, by their names in Click."""

_POLICY = "PRJ032"


def repair_existing_container(
    ctx: click.Context, project: "DevkitProject", request: "Request", options: WriteOptions, *, is_check: bool = False
) -> None:
    """Make the project's own dev container, if it has one, fit the request, and end the command.

    With `is_check` the command ends with 1 when there is something to change.
    """
    from devkit.render.project import find_foreign_devcontainers

    paths = find_foreign_devcontainers(project.root)
    if not paths:
        return
    from devkit.render.adopt.adoption import read_existing_container

    existing = read_existing_container(project.root, paths)
    _refuse_generated_file_options(ctx, existing)
    changed = _repair(ctx, project, existing, request, options)
    ctx.exit(exit_codes.ANSWER_IS_NO if is_check and changed else exit_codes.DONE)


def _refuse_generated_file_options(ctx: click.Context, existing: "ExistingContainer") -> None:
    """Raise DevkitError for options about files that this project does not have: they would silently do nothing."""
    given = [
        param.opts[0]
        for param in ctx.command.params
        if param.name in _GENERATED_FILE_OPTIONS and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise DevkitError(
            f"{' and '.join(given)} would change nothing: this project has a dev container of its own,"
            f" {existing.paths[0]}",
            "Leave it out. Or move that dev container away first: then devkit writes one of its own.",
        )


def _repair(
    ctx: click.Context,
    project: "DevkitProject",
    existing: "ExistingContainer",
    request: "Request",
    options: WriteOptions,
) -> bool:
    """Plan, repair and write. Returns True if there was something to change."""
    from devkit.render.adopt.adoption import compute_adopted_changes, is_own_pin

    # Flags and devkit.toml override the project's own files; pins that an earlier run wrote there do not count.
    request_with_files = replace(
        request,
        image=request.image or existing.image or None,
        python=request.python or existing.python or None,
        constraints=(*request.constraints, *existing.constraints),
    )
    needs = (
        need
        for need in project.dependencies.needs
        if not is_own_pin(existing.lock, need.path, need.name, need.specifier)
    )
    answer = solve_request(request_with_files, replace(project.dependencies, needs=tuple(needs)))
    plan = require_plan(ctx, answer, schema=options.schema, as_json=options.as_json)
    changes, adoption = compute_adopted_changes(project, existing, plan, request.machines)
    if not options.as_json:
        print_plan(plan, wants_cpu=True)
        print_changes(changes, show_diff=options.shows_diff)
        width = shutil.get_terminal_size().columns
        for repair in adoption.repairs:
            click.echo(wrap_text(f"{repair.code} in {repair.path}: {repair.message}", width=width))
        for code, finding in ((each.check.code, each.finding) for each in adoption.unresolved):
            if finding.severity != "note":
                line = f"! left to you: {code} {finding.message}. {finding.fix.summary}"
                click.echo(wrap_text(line, width=width))
                click.echo("".join(f"    {each}\n" for each in adoption.suggested[finding.message]), nl=False)
    # Half a repair would hide what the project's own policy forbids.
    breaks_policy = any(shown.check.code == _POLICY for shown in adoption.unresolved)
    if not breaks_policy:
        confirm_and_write(project.root, changes, options)
    _print_end(plan, changes, adoption, options, breaks_policy=breaks_policy)
    if breaks_policy:
        ctx.exit(exit_codes.ANSWER_IS_NO)
    return bool(select_changed(changes))


def _print_end(
    plan: "Plan",
    changes: "tuple[FileChange, ...]",
    adoption: "Adoption",
    options: WriteOptions,
    *,
    breaks_policy: bool,
) -> None:
    from devkit.render.devkit_lock import LOCK_PATH
    from devkit.render.devkit_toml import DEVKIT_TOML

    changed = [change.path for change in select_changed(changes)]
    own = {DEVKIT_TOML, LOCK_PATH, *(file.path for file in adoption.overlay_files)}
    yours = [path for path in changed if path not in own]
    files = f"{format_count(len(yours), 'file')} of yours ({', '.join(yours)})" if yours else "no file of yours"
    beside = f"{format_count(len(changed) - len(yours), 'file')} of devkit's own"
    if breaks_policy:
        verdict = "refused"
        message = "nothing was written: the [policy] of devkit.toml forbids what is left to you above."
    elif not changed:
        verdict, message = "unchanged", "unchanged: your dev container is as this plan wants it."
    elif options.is_dry_run:
        verdict, message = "would-write", f"would change {files} and write {beside}; nothing was written."
    else:
        verdict = "written"
        message = f"repaired {files}, and wrote {beside}."
    if not options.as_json:
        click.echo(wrap_text(message, width=shutil.get_terminal_size().columns))
        if verdict == "written" and yours:
            click.echo("Next: read `git diff`, rebuild the container, commit.")
        return
    repairs = [{"code": repair.code, "path": repair.path, "says": repair.message} for repair in adoption.repairs]
    left = [
        {
            "code": shown.check.code,
            "message": shown.finding.message,
            "lines": list(adoption.suggested[shown.finding.message]),
        }
        for shown in adoption.unresolved
        if shown.finding.severity != "note"
    ]
    fields = build_plan_fields(plan, changes) | {"verdict": verdict, "repairs": repairs, "left": left}
    click.echo(format_document(fields, schema=options.schema))
