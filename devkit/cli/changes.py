"""What `devkit init` and `devkit update` say of the files they write, and the question before they do."""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli import exit_codes
from devkit.cli.runtime import today
from devkit.text import format_bytes, format_count, format_table, wrap_text

if TYPE_CHECKING:
    from devkit.facts.values import Unknown
    from devkit.render.changes import FileChange
    from devkit.render.devkit_toml import ProjectSettings
    from devkit.solver.plan import Conflict, Plan
    from devkit.verify.dev_container import ImageReport


def select_changed(changes: "Sequence[FileChange]") -> "list[FileChange]":
    """The changes that change something."""
    return [change for change in changes if change.action != "unchanged"]


def confirm_replacing(changes: "Sequence[FileChange]", *, yes: bool) -> None:
    """Ask before files are replaced, where there is somebody to ask. Raises Abort for a no."""
    replaced = [change for change in changes if change.action in ("update", "merge", "remove")]
    if replaced and not yes and sys.stdin.isatty():
        click.confirm(f"Replace {format_count(len(replaced), 'file')}?", abort=True)


def print_plan(plan: "Plan", *, asked_for_cpu: bool, on: str | None = None) -> None:
    """The plan in one line, and what there is to say of it `on` a day, by default this one."""
    from devkit.compat.refresh import format_stale_warning

    stale = format_stale_warning(plan.data_as_of, on or today())
    click.echo(f"{plan.base_image} with Python {plan.python} and torch {plan.torch} ({plan.variant})")
    width = shutil.get_terminal_size().columns
    for warning in (*plan.warnings, *([stale] if stale else [])):
        click.echo(wrap_text(f"! warning: {warning}", width=width))
    if plan.vendor == "cpu" and not asked_for_cpu:
        hint = 'For a machine with an NVIDIA GPU pass, for example, --gpu "RTX 4090" --driver 570.124.06.'
        click.echo(wrap_text(f"No NVIDIA GPU was found, so this plan is for the CPU. {hint}", width=width))


def print_changes(changes: "Sequence[FileChange]", *, show_diff: bool) -> None:
    """Each file that changes, and line by line how."""
    changed = select_changed(changes)
    if changed:
        click.echo(format_table([(str(change.action), change.path) for change in changed], indent="  "))
    if show_diff:
        click.echo("\n".join(change.format_diff() for change in changed))


def print_merge_conflicts(changes: "Sequence[FileChange]", *, is_trial: bool) -> None:
    """Where the user's edits and devkit's changes meet, and what stands there; on standard error, to be acted on."""
    for clash in (clash for change in changes for clash in change.conflicts):
        stands = "both are marked in the file" if clash.is_marked else "yours stays"
        becomes = "both would be marked in the file" if clash.is_marked else "yours would stay"
        click.echo(f"conflict in {clash.path}, {clash.place}: {becomes if is_trial else stands}", err=True)
        if not clash.is_marked:
            click.echo("".join(f"  devkit: {line}\n" for line in clash.wanted.splitlines()), err=True, nl=False)


def build_plan_fields(plan: "Plan", changes: "Sequence[FileChange]") -> dict[str, object]:
    """The part of a JSON document that says what was planned and which files it concerns."""
    from devkit.solver.output import serialize_answer

    return serialize_answer(plan, today=today()) | {"files": [_file_fields(change) for change in changes]}


def _file_fields(change: "FileChange") -> dict[str, object]:
    fields: dict[str, object] = {"path": change.path, "action": str(change.action)}
    if change.conflicts:
        fields["conflicts"] = [
            {"place": clash.place, "devkit_wants": clash.wanted, "is_marked": clash.is_marked}
            for clash in change.conflicts
        ]
    return fields


def require_plan(ctx: click.Context, answer: "Plan | Conflict", *, schema: str, as_json: bool) -> "Plan":
    """The plan; or, where there is none, say why and end the command."""
    from devkit.solver.plan import Conflict

    if isinstance(answer, Conflict):
        click.echo(format_plan_conflict(answer, schema=schema, as_json=as_json))
        ctx.exit(exit_codes.ANSWER_IS_NO)
    return answer


def format_plan_conflict(conflict: "Conflict", *, schema: str, as_json: bool) -> str:
    """Why there is no plan, as text or as a document."""
    from devkit.solver.output import format_answer, serialize_answer

    if as_json:
        return format_document(serialize_answer(conflict, today=today()) | {"files": []}, schema=schema)
    return format_answer(conflict, width=shutil.get_terminal_size().columns, today=today())


def format_document(document: dict[str, object], *, schema: str) -> str:
    """A JSON document as it is printed."""
    return json.dumps({**document, "schema": schema}, indent=2, ensure_ascii=False)


# What the chosen editors make of the written files: which keys each passes over, and what becomes of them there.


def print_editor_reports(choices: "ProjectSettings") -> None:
    """For each editor that was chosen by name: what to know, and what it drops, with the source."""
    from devkit.render.container.devcontainer import build_reports_for_settings

    width = shutil.get_terminal_size().columns
    for report in build_reports_for_settings(choices):
        said = f"{report.title}: {report.note}" if report.note else f"{report.title}:"
        click.echo(wrap_text(said, width=width, hanging="  "))
        for each in report.dropped:
            doubt = "" if each.is_sure else " (not checked at its source)"
            line = f"{each.key}: {each.tool} {each.effect}; {each.instead}{doubt}"
            click.echo(wrap_text(line, width=width, indent="  ", hanging="  "))
        for source in dict.fromkeys(each.source for each in report.dropped):
            click.echo(f"  see {source}")


def build_editor_fields(choices: "ProjectSettings") -> dict[str, object]:
    """The same for a JSON document; {} when no editor was chosen by name."""
    from devkit.render.container.devcontainer import build_reports_for_settings

    reports = build_reports_for_settings(choices)
    return {"editors": [asdict(report) for report in reports]} if reports else {}


# What `devkit init --report` says of the image that was built for a project.

_BUILD = "Build it first: docker compose -f .devcontainer/docker-compose.yml build"


def print_image_size(root: Path) -> None:
    """The image's size and that of its parts, or why nobody knows them."""
    from devkit.facts.values import Unknown

    found = _read_image_report(root)
    if isinstance(found, Unknown):
        click.echo(f"The image's size is not known: {found.reason}.\n{_BUILD}")
        return
    click.echo(f"{found.image}: {format_bytes(found.total_bytes)} on the disk")
    click.echo(format_table([(format_bytes(size), name) for name, size in found.parts], indent="  "))


def build_image_fields(root: Path) -> dict[str, object]:
    """The same for JSON. `parts` stand in the order of the Dockerfile."""
    from devkit.facts.values import Unknown

    found = _read_image_report(root)
    if isinstance(found, Unknown):
        return {"image": {"unknown": found.reason}}
    parts = [{"name": name, "bytes": size} for name, size in found.parts]
    return {"image": {"name": found.image, "bytes": found.total_bytes, "parts": parts}}


def _read_image_report(root: Path) -> "ImageReport | Unknown":
    from devkit.probe.host import LocalHost
    from devkit.verify.dev_container import measure_image

    return measure_image(root, LocalHost())
