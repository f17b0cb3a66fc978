"""What `devkit init` and `devkit update` say of the files they write, and the question before they do."""

import json
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from devkit.cli import exits
from devkit.cli.today import today
from devkit.text import count_of, table, wrapped

if TYPE_CHECKING:
    from devkit.render.change import Change
    from devkit.solver.model import Conflict, Plan


def touched(changes: "Sequence[Change]") -> "list[Change]":
    """The changes that change something."""
    return [change for change in changes if change.action != "unchanged"]


def confirm(changes: "Sequence[Change]", *, yes: bool) -> None:
    """Ask before files are replaced, where there is somebody to ask. Raises Abort for a no."""
    replaced = [change for change in changes if change.action in ("update", "merge", "remove")]
    if replaced and not yes and sys.stdin.isatty():
        click.confirm(f"Replace {count_of(len(replaced), 'file')}?", abort=True)


def print_plan(plan: "Plan", *, asked_for_cpu: bool, on: str | None = None) -> None:
    """The plan in one line, and what there is to say of it `on` a day, by default this one."""
    from devkit.compat.age import stale_warning

    stale = stale_warning(plan.data_as_of, on or today())
    click.echo(f"{plan.base_image} with Python {plan.python} and torch {plan.torch} ({plan.variant})")
    width = shutil.get_terminal_size().columns
    for warning in (*plan.warnings, *([stale] if stale else [])):
        click.echo(wrapped(f"! warning: {warning}", width=width))
    if plan.vendor == "cpu" and not asked_for_cpu:
        hint = 'For a machine with an NVIDIA GPU pass, for example, --gpu "RTX 4090" --driver 570.124.06.'
        click.echo(wrapped(f"No NVIDIA GPU was found, so this plan is for the CPU. {hint}", width=width))


def print_changes(changes: "Sequence[Change]", *, show_diff: bool) -> None:
    """Each file that changes, and line by line how."""
    changed = touched(changes)
    if changed:
        click.echo(table([(str(change.action), change.path) for change in changed], indent="  "))
    if show_diff:
        click.echo("\n".join(change.diff() for change in changed))


def print_clashes(changes: "Sequence[Change]", *, is_trial: bool) -> None:
    """Where the user's edits and devkit's changes meet, and what stands there; on standard error, to be acted on."""
    for clash in (clash for change in changes for clash in change.clashes):
        stands = "both are marked in the file" if clash.is_marked else "yours stays"
        becomes = "both would be marked in the file" if clash.is_marked else "yours would stay"
        click.echo(f"conflict in {clash.path}, {clash.place}: {becomes if is_trial else stands}", err=True)
        if not clash.is_marked:
            click.echo("".join(f"  devkit: {line}\n" for line in clash.wanted.splitlines()), err=True, nl=False)


def plan_fields(plan: "Plan", changes: "Sequence[Change]") -> dict[str, object]:
    """The part of a JSON document that says what was planned and which files it concerns."""
    from devkit.solver.explain import answer_document

    return answer_document(plan, today=today()) | {"files": [_file_fields(change) for change in changes]}


def _file_fields(change: "Change") -> dict[str, object]:
    fields: dict[str, object] = {"path": change.path, "action": str(change.action)}
    if change.clashes:
        fields["conflicts"] = [
            {"place": clash.place, "devkit_wants": clash.wanted, "is_marked": clash.is_marked}
            for clash in change.clashes
        ]
    return fields


def plan_or_end(ctx: click.Context, answer: "Plan | Conflict", *, schema: str, as_json: bool) -> "Plan":
    """The plan; or, where there is none, say why and end the command."""
    from devkit.solver.model import Conflict

    if isinstance(answer, Conflict):
        click.echo(conflict_text(answer, schema=schema, as_json=as_json))
        ctx.exit(exits.ANSWER_IS_NO)
    return answer


def conflict_text(conflict: "Conflict", *, schema: str, as_json: bool) -> str:
    """Why there is no plan, as text or as a document."""
    from devkit.solver.explain import answer_document, answer_text

    if as_json:
        return document_text(answer_document(conflict, today=today()) | {"files": []}, schema=schema)
    return answer_text(conflict, width=shutil.get_terminal_size().columns, today=today())


def document_text(document: dict[str, object], *, schema: str) -> str:
    """A JSON document as it is printed."""
    return json.dumps({**document, "schema": schema}, indent=2, ensure_ascii=False)
