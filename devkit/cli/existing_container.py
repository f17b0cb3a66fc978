"""`devkit init` and `devkit update` in a project with a dev container of its own: repaired in place, never replaced."""

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from devkit.cli import exit_codes
from devkit.cli.changes import (
    build_plan_fields,
    confirm_replacing,
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
    from devkit.doctor.report.report import ReportedFinding
    from devkit.facts.dependencies import Dependencies
    from devkit.render.adopt.adoption import Adoption, ExistingContainer
    from devkit.render.changes import FileChange
    from devkit.render.devkit_lock import DevkitLock
    from devkit.render.project import DevkitProject
    from devkit.solver.plan import Plan, Request


_OF_DEVKITS_OWN = frozenset(
    {"engine", "devices", "editors", "profiles", "index", "torch_index", "hub", "ca_certificate", "wheelhouse"}
    | {"lock", "lock_only", "report"}
)
"""Flags that say what devkit's own files hold, by their names in Click."""

_POLICY = "PRJ032"


@dataclass(frozen=True)
class WriteOptions:
    """How a command shows and makes its changes."""

    schema: str
    is_trial: bool
    is_sure: bool
    shows_diff: bool
    as_json: bool


def repair_existing_container(
    ctx: click.Context, project: "DevkitProject", request: "Request", manner: WriteOptions, *, is_check: bool = False
) -> None:
    """In a project with a dev container of its own: make that fit the request, and end the command.

    A check ends with 1 for a change.
    """
    existing = _existing_in(project)
    if existing is not None:
        _refuse_flags_of_devkits_own(ctx, existing)
        changed = _repair(ctx, project, existing, request, manner)
        ctx.exit(exit_codes.ANSWER_IS_NO if is_check and changed else exit_codes.DONE)


def _refuse_flags_of_devkits_own(ctx: click.Context, existing: "ExistingContainer") -> None:
    """Raise DevkitError for flags of files that this project does not have: they would be passed over in silence."""
    asked = [
        param.opts[0]
        for param in ctx.command.params
        if param.name in _OF_DEVKITS_OWN and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    ]
    if asked:
        raise DevkitError(
            f"{' and '.join(asked)} would change nothing: this project has a dev container of its own,"
            f" {existing.paths[0]}",
            "Leave it out. Or move that dev container away first: then devkit writes one of its own.",
        )


def _existing_in(project: "DevkitProject") -> "ExistingContainer | None":
    """The project's own dev container; None for a project without one, or with the one that devkit wrote."""
    from devkit.render.project import find_foreign_devcontainers

    paths = find_foreign_devcontainers(project.root)
    if not paths:
        return None
    from devkit.render.adopt.adoption import read_existing_container

    return read_existing_container(project.root, paths)


def _repair(
    ctx: click.Context,
    project: "DevkitProject",
    existing: "ExistingContainer",
    request: "Request",
    manner: WriteOptions,
) -> bool:
    """Returns whether there was anything to change."""
    from devkit.render.adopt.adoption import compute_adopted_changes
    from devkit.render.changes import write_changes

    answer = require_plan(
        ctx,
        solve_request(_asked(request, existing), _needed(project.dependencies, existing.lock)),
        schema=manner.schema,
        as_json=manner.as_json,
    )
    changes, adoption = compute_adopted_changes(project, existing, answer, request.machines)
    if not manner.as_json:
        print_plan(answer, asked_for_cpu=True)
        print_changes(changes, show_diff=manner.shows_diff)
        _print_repairs(adoption)
    is_refused = _breaks_policy(adoption)
    if not manner.is_trial and not is_refused:
        confirm_replacing(changes, yes=manner.is_sure or manner.as_json)
        write_changes(project.root, changes)
    _print_end(answer, changes, adoption, manner)
    if is_refused:
        ctx.exit(exit_codes.ANSWER_IS_NO)
    return bool(select_changed(changes))


def _needed(dependencies: "Dependencies", lock: "DevkitLock") -> "Dependencies":
    """What the project's files ask for, without what an earlier run of devkit wrote into them."""
    from devkit.render.adopt.adoption import is_own_pin

    needs = (need for need in dependencies.needs if not is_own_pin(lock, need.path, need.name, need.specifier))
    return replace(dependencies, needs=tuple(needs))


def _asked(request: "Request", existing: "ExistingContainer") -> "Request":
    """The request with what the project's own files ask for; flags and devkit.toml win."""
    return replace(
        request,
        image=request.image or existing.image or None,
        python=request.python or existing.python or None,
        constraints=(*request.constraints, *existing.constraints),
    )


def _print_repairs(adoption: "Adoption") -> None:
    width = shutil.get_terminal_size().columns
    for made in adoption.repairs:
        click.echo(wrap_text(f"{made.code} in {made.path}: {made.message}", width=width))
    for shown in _left(adoption):
        finding = shown.finding
        click.echo(
            wrap_text(f"! left to you: {shown.check.code} {finding.message}. {finding.fix.summary}", width=width)
        )


def _left(adoption: "Adoption") -> "list[ReportedFinding]":
    return [shown for shown in adoption.unresolved if shown.finding.severity != "note"]


def _print_end(plan: "Plan", changes: "tuple[FileChange, ...]", adoption: "Adoption", manner: WriteOptions) -> None:
    changed = select_changed(changes)
    if manner.as_json:
        verdict = _verdict(changes, adoption, manner)
        repairs = [{"code": made.code, "path": made.path, "says": made.message} for made in adoption.repairs]
        left = [{"code": shown.check.code, "message": shown.finding.message} for shown in _left(adoption)]
        fields = build_plan_fields(plan, changes) | {"verdict": verdict, "repairs": repairs, "left": left}
        click.echo(format_document(fields, schema=manner.schema))
    elif _breaks_policy(adoption):
        click.echo("nothing was written: the [policy] of devkit.toml forbids what is left to you above.")
    elif not changed:
        click.echo("unchanged: your dev container is as this plan wants it.")
    elif manner.is_trial:
        click.echo(f"would change {format_count(len(changed), 'file')}; nothing was written.")
    else:
        click.echo(f"repaired your dev container: {format_count(len(changed), 'file')}.")
        click.echo("Next: read `git diff`, rebuild the container, commit.")


def _verdict(changes: "tuple[FileChange, ...]", adoption: "Adoption", manner: WriteOptions) -> str:
    if _breaks_policy(adoption):
        return "refused"
    if not select_changed(changes):
        return "unchanged"
    return "would-write" if manner.is_trial else "written"


def _breaks_policy(adoption: "Adoption") -> bool:
    """Whether something is left that the project's own policy forbids: half a repair would hide it."""
    return any(shown.check.code == _POLICY for shown in adoption.unresolved)
