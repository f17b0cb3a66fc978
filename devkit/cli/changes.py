"""Changes to project files: shown, confirmed and written, with the plan that they follow from, or as a dev container Feature."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from click.core import ParameterSource

from devkit.cli.output import dump_json, print_wrapped
from devkit.cli.runtime import hold_project, is_drawn, measure_memory_gb, today
from devkit.cli.terminal import draw_diff, make_console
from devkit.errors import DevkitError, ExitCode
from devkit.text import format_count, format_table, join_some, wrap_text

if TYPE_CHECKING:
    from devkit.facts.dependencies import Dependencies
    from devkit.render.changes import FileChange
    from devkit.render.devkit_toml import ProjectSettings
    from devkit.solver.plan import Conflict, Plan

NO_DIFF = {"--diff": "--check prints every change line by line and writes nothing"}
"""A flag of the last release, and what does its part."""


@dataclass(frozen=True)
class WriteOptions:
    """The options that control how a command shows and writes changes. `schema` is that of its JSON document."""

    schema: str
    is_dry_run: bool
    is_confirmed: bool
    shows_diff: bool
    as_json: bool
    digest: str | None = None
    """Write only if the changes have this digest, as a dry run named it."""


def select_changed(changes: "Sequence[FileChange]") -> "list[FileChange]":
    """Return the changes that change something."""
    return [change for change in changes if change.action != "unchanged"]


def confirm_replacing(changes: "Sequence[FileChange]", *, yes: bool) -> None:
    """Ask before files are replaced, if standard input is a terminal. Raises Abort for a no."""
    replaced = [change for change in changes if change.action in ("update", "merge", "remove")]
    if replaced and not yes and sys.stdin.isatty():
        click.confirm(f"Replace {format_count(len(replaced), 'file')}?", abort=True)


def require_expected(changes: "Sequence[FileChange]", options: WriteOptions) -> None:
    """Raise DevkitError where the changes are not those that a dry run named by the digest in `options`."""
    from devkit.render.changes import compute_digest

    if options.digest not in (None, compute_digest(changes)):
        raise DevkitError(
            "the changes differ from those of this digest", "Preview again: a file or the plan changed in the meantime."
        )


def confirm_and_write(root: Path, changes: "Sequence[FileChange]", options: WriteOptions) -> None:
    """Write the changes, unless this is a dry run. Raises Abort where the user says no."""
    from devkit.render.changes import write_changes

    if not options.is_dry_run:
        confirm_replacing(changes, yes=options.is_confirmed or options.as_json)
        write_changes(root, tuple(changes))


def print_plan(plan: "Plan", proof: str = "", *, wants_cpu: bool, on: str | None = None) -> None:
    """Print how sure the plan is, the plan in one line, its packages, and warnings as of the day `on`, today by default."""
    from devkit.solver.output import describe_resolution

    has = f"torch {plan.torch} ({plan.variant})"
    if not plan.torch:
        has = f"{', by '.join((plan.framework.label, *plan.additions))}: {plan.because('framework')}"
    for line in (*([proof] if proof else []), f"{plan.base_image} with Python {plan.python} and {has}"):
        print_wrapped(line)
    if resolved := describe_resolution(plan):
        print_wrapped(resolved)
    print_warnings(plan, wants_cpu=wants_cpu, on=on)


def print_warnings(plan: "Plan", *, wants_cpu: bool, on: str | None = None) -> None:
    """Print the warnings of a plan as of the day `on`, today by default."""
    from devkit.compat.version_tables import format_stale_warning

    stale = format_stale_warning(plan.data_as_of, on or today())
    for warning in (*plan.warnings, *([stale] if stale else [])):
        print_wrapped(f"! warning: {warning}")
    if plan.lacks_gpu and not wants_cpu:
        hint = 'For a machine with an NVIDIA GPU, pass, for example, --gpu "RTX 4090" --driver 570.124.06.'
        print_wrapped(f"No NVIDIA GPU was found, so this plan is for the CPU. {hint}")


def print_system_packages(plan: "Plan", *, has_sudo: bool) -> None:
    """Print the Debian packages of the image with their reasons, how to change them, and what sudo means."""
    if plan.system_packages:
        listed = ", ".join(f"{each.field} ({each.because})" for each in plan.system_packages)
        change = "add one with --apt NAME, leave one out with --apt NAME-, or in [project] apt"
        print_wrapped(f"apt: {listed}; {change}")
    if has_sudo:
        says = (
            "the container's user can become root without a password, so the container starts without no-new-privileges"
        )
        print_wrapped(f"! warning: sudo: {says}")


def format_compile_costs(plan: "Plan") -> list[str]:
    """Format what compiles against torch, and how long it takes on a machine like this one."""
    if not (plan.compiled or plan.nvcc):
        return []

    from devkit.solver.compiled_packages import list_compile_costs

    lines = list_compile_costs(plan, cores=os.cpu_count() or 1, memory_gb=measure_memory_gb())
    return [wrap_text(line, width=shutil.get_terminal_size().columns, hanging="  ") for line in lines]


def print_choices(dependencies: "Dependencies") -> None:
    """Print the project's optional dependencies and how to choose them."""
    from devkit.solver.project import list_choices

    for line in list_choices(dependencies):
        print_wrapped(line)


def print_changes(changes: "Sequence[FileChange]", *, show_diff: bool) -> None:
    """Print each file that changes, and its diff; a generated lock is named and not shown."""
    changed = select_changed(changes)
    rows = [(str(change.action), change.path) for change in changed if change.action != "create"]
    created: dict[str, list[str]] = {}
    for change in changed:
        if change.action == "create":
            folder, _, name = change.path.rpartition("/")
            created.setdefault(folder, []).append(name)
    for folder, names in created.items():
        shown = f"{folder}/{{{', '.join(names)}}}" if folder and len(names) > 1 else ", ".join(names)
        rows.append(("create", f"{folder}/{names[0]}" if folder and len(names) == 1 else shown))
    if rows:
        click.echo(format_table(rows, indent="  ", width=shutil.get_terminal_size().columns))
    if show_diff:
        diff = "\n".join(change.format_diff() for change in changed if not change.path.endswith(".lock"))
        if is_drawn(sys.stdout):
            draw_diff(make_console(sys.stdout), diff)
        else:
            click.echo(diff)


def print_merge_conflicts(changes: "Sequence[FileChange]", *, is_dry_run: bool) -> None:
    """Print the places where the user's edits and devkit's changes conflict, on standard error."""
    for conflict in (conflict for change in changes for conflict in change.conflicts):
        if is_dry_run:
            result = "the file would contain both between markers" if conflict.is_marked else "yours would stay"
        else:
            result = "the file contains both between markers" if conflict.is_marked else "yours stays"
        click.echo(f"conflict in {conflict.path}, {conflict.place}: {result}", err=True)
        if not conflict.is_marked:
            click.echo("".join(f"  devkit: {line}\n" for line in conflict.wanted.splitlines()), err=True, nl=False)


def build_plan_fields(plan: "Plan", changes: "Sequence[FileChange]", *, shows_diff: bool = False) -> dict[str, object]:
    """Build the part of a JSON document that holds the plan and the files that it concerns."""
    from devkit.render.changes import compute_digest
    from devkit.solver.output import serialize_answer

    files = []
    for change in changes:
        file: dict[str, object] = {"path": change.path, "action": str(change.action)}
        if shows_diff and not change.path.endswith(".lock"):
            file["diff"] = change.format_diff()
        if change.conflicts:
            file["conflicts"] = [
                {"place": conflict.place, "devkit_wants": conflict.wanted, "is_marked": conflict.is_marked}
                for conflict in change.conflicts
            ]
        files.append(file)
    return serialize_answer(plan, today=today()) | {"files": files, "digest": compute_digest(changes)}


def require_plan(ctx: click.Context, answer: "Plan | Conflict", *, schema: str, as_json: bool) -> "Plan":
    """Return the plan; if there is none, print why and exit."""
    from devkit.solver.plan import Conflict

    if isinstance(answer, Conflict):
        click.echo(format_plan_conflict(answer, schema=schema, as_json=as_json))
        ctx.exit(ExitCode.ANSWER_IS_NO)
    return answer


def format_plan_conflict(conflict: "Conflict", *, schema: str, as_json: bool) -> str:
    """Format the reasons why there is no plan, as text or JSON."""
    from devkit.solver.output import format_answer, serialize_answer

    if as_json:
        return format_document(serialize_answer(conflict, today=today()) | {"files": []}, schema=schema)
    return format_answer(conflict, width=shutil.get_terminal_size().columns, today=today())


def format_document(document: dict[str, object], *, schema: str) -> str:
    """Format a JSON document with its schema."""
    return dump_json({**document, "schema": schema})


def print_editor_reports(settings: "ProjectSettings") -> None:
    """Print, for each editor that was chosen by name, what to know about it and which keys it ignores."""
    from devkit.render.container.devcontainer import build_reports_for_settings

    for report in build_reports_for_settings(settings):
        title = f"{report.title}: {report.note}" if report.note else f"{report.title}:"
        print_wrapped(title, hanging="  ")
        for each in report.dropped:
            doubt = "" if each.is_sure else " (not checked at its source)"
            line = f"{each.key}: {each.tool} {each.effect}; {each.instead}{doubt}"
            print_wrapped(line, indent="  ", hanging="  ")
        for source in dict.fromkeys(each.source for each in report.dropped):
            click.echo(f"  see {source}")


def build_editor_fields(settings: "ProjectSettings") -> dict[str, object]:
    """Build the same for a JSON document; {} when no editor was chosen by name."""
    from devkit.render.container.devcontainer import build_reports_for_settings

    reports = build_reports_for_settings(settings)
    return {"editors": [asdict(report) for report in reports]} if reports else {}


SCHEMA = "devkit.feature/1"
_OPTIONS = frozenset({"directory", "as_feature", "dry_run", "force", "yes", "as_json"})
"""What counts beside --as-feature, by its name in Click."""


def write_feature(ctx: click.Context, directory: Path, *, is_dry_run: bool, force: bool, as_json: bool) -> NoReturn:
    """Write DIR/devkit, print which files, and exit. Raises DevkitError where a file would be replaced without `force`."""
    for param in ctx.command.params:
        if param.name not in _OPTIONS and ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
            raise DevkitError(f"{param.opts[0]} has no effect with --as-feature", "Remove one of them.")
    from devkit.render.changes import Action, compute_change, write_changes
    from devkit.render.wheel import build_devkit_wheel, render_devcontainer_feature

    if not is_dry_run:
        ctx.with_resource(hold_project(directory))
    root = directory.absolute()
    changes = [compute_change(root, artifact) for artifact in render_devcontainer_feature(build_devkit_wheel())]
    replaced = [change.path for change in changes if change.action is Action.UPDATE]
    if replaced and not force:
        raise DevkitError(
            f"{join_some(replaced, 1)} would be replaced",
            "Pass --force to replace files of another devkit, or files that were edited.",
        )
    if not is_dry_run:
        write_changes(root, changes)
    if as_json:
        files = [{"path": change.path, "action": str(change.action)} for change in changes]
        click.echo(format_document({"directory": str(directory), "files": files}, schema=SCHEMA))
    else:
        print_changes(changes, show_diff=False)
        verb = "would write" if is_dry_run else "wrote"
        click.echo(f"{verb} {format_count(len(select_changed(changes)), 'file')} in {directory}")
    ctx.exit(ExitCode.DONE)
