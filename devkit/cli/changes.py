"""What `devkit init` and `devkit update` say of the files they write, and the question before they do."""

import json
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from devkit.text import count_of, table, wrapped

if TYPE_CHECKING:
    from devkit.render.write import Change
    from devkit.solver.model import Conflict, Plan


def touched(changes: "Sequence[Change]") -> "list[Change]":
    """The changes that change something."""
    return [change for change in changes if change.action != "unchanged"]


def confirm(changes: "Sequence[Change]", *, yes: bool) -> None:
    """Ask before files are replaced, where there is somebody to ask. Raises Abort for a no."""
    replaced = [change for change in changes if change.action in ("update", "remove")]
    if replaced and not yes and sys.stdin.isatty():
        click.confirm(f"Replace {count_of(len(replaced), 'file')}?", abort=True)


def print_plan(plan: "Plan", *, asked_for_cpu: bool) -> None:
    """The plan in one line, and what there is to say of it."""
    click.echo(f"{plan.base_image} with Python {plan.python} and torch {plan.torch} ({plan.variant})")
    width = shutil.get_terminal_size().columns
    for warning in plan.warnings:
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


def plan_fields(plan: "Plan", changes: "Sequence[Change]") -> dict[str, object]:
    """The part of a JSON document that says what was planned and which files it concerns."""
    from devkit.solver.explain import answer_document

    files = [{"path": change.path, "action": str(change.action)} for change in changes]
    return answer_document(plan) | {"files": files}


def conflict_text(conflict: "Conflict", *, schema: str, as_json: bool) -> str:
    """Why there is no plan, as text or as a document."""
    from devkit.solver.explain import answer_document, answer_text

    if as_json:
        return document_text(answer_document(conflict) | {"files": []}, schema=schema)
    return answer_text(conflict, width=shutil.get_terminal_size().columns)


def document_text(document: dict[str, object], *, schema: str) -> str:
    """A JSON document as it is printed."""
    return json.dumps({**document, "schema": schema}, indent=2, ensure_ascii=False)
