"""`devkit init`: solve, render, show what would change, write."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli import exits
from devkit.cli.selection import Selection, request_from, selection_options
from devkit.text import count_of, table, wrapped

if TYPE_CHECKING:
    from devkit.render.choices import Choices
    from devkit.render.write import Change
    from devkit.solver.model import Conflict, Plan

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("directory", metavar="[DIR]", default=".", type=_FILE)
@selection_options
@click.option("--name", metavar="NAME", help="The project's name. Default: that of the directory.")
@click.option("--ca-certificate", metavar="FILE", type=_FILE, help="PEM file of authorities the image shall trust.")
@click.option("--wheelhouse", metavar="DIR", type=_FILE, help="Build from this folder of wheels, without an index.")
@click.option("--yes", is_flag=True, help="Replace files without asking.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option("--diff", "show_diff", is_flag=True, help="Show every change line by line.")
@click.option("--force", is_flag=True, help="Replace devkit's own files even where they were edited.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def init(
    ctx: click.Context,
    directory: Path,
    *,
    selection: Selection,
    name: str | None,
    ca_certificate: Path | None,
    wheelhouse: Path | None,
    yes: bool,
    dry_run: bool,
    show_diff: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write a dev container that fits this machine, or the one that the flags describe.

    Choices are kept in DIR/devkit.toml; flags win over it and are recorded there.
    """
    from devkit.compat.load import tables
    from devkit.render.project import Inputs, open_project, project_changes
    from devkit.render.write import write
    from devkit.solver.model import Conflict
    from devkit.solver.solve import solve

    project = open_project(directory, _choices(selection, name), Inputs(ca_certificate, wheelhouse))
    answer = solve(request_from(_selection(project.choices, selection.facts)), tables())
    if isinstance(answer, Conflict):
        click.echo(_conflict(answer, as_json=as_json))
        ctx.exit(exits.ANSWER_IS_NO)
    changes = project_changes(project, answer, force=force)
    if not as_json:
        asked_for_cpu = project.choices.vendor == "cpu"
        _print_changes(answer, changes, show_diff=show_diff, asked_for_cpu=asked_for_cpu)
    if not dry_run:
        _confirm(changes, yes=yes or as_json)
        write(project.root, changes)
    _print_end(project.root, answer, changes, dry_run=dry_run, as_json=as_json)


def _choices(selection: Selection, name: str | None) -> "Choices":
    from devkit.render.choices import Choices

    return Choices(
        name=name or "",
        driver=selection.driver or "",
        gpus=selection.gpus,
        machine=selection.machine or "",
        platform=selection.platform or "",
        glibc=selection.glibc or "",
        vendor=selection.vendor or "",
        torch=selection.torch or "",
        cuda=selection.cuda or "",
        python=selection.python or "",
        image=selection.image or "",
        features=selection.features,
        pins=tuple(_pin(text) for text in selection.pins),
    )


def _pin(text: str) -> tuple[str, str]:
    package, _, version = text.partition("==")
    return package.strip(), version.strip()


def _selection(choices: "Choices", facts: tuple[str, ...]) -> Selection:
    """The selection that the choices make. Saved facts replace the machine that devkit.toml describes."""
    selection = Selection(
        facts=facts,
        torch=choices.torch or None,
        cuda=choices.cuda or None,
        python=choices.python or None,
        image=choices.image or None,
        pins=tuple(f"{package}=={version}" for package, version in choices.pins),
        features=choices.features,
        vendor=choices.vendor or None,
    )
    if facts:
        return selection
    return replace(
        selection,
        driver=choices.driver or None,
        gpus=choices.gpus,
        machine=choices.machine or None,
        platform=choices.platform or None,
        glibc=choices.glibc or None,
    )


def _confirm(changes: "tuple[Change, ...]", *, yes: bool) -> None:
    """Ask before files are replaced, where there is somebody to ask. Raises Abort for a no."""
    replaced = [change for change in changes if change.action in ("update", "remove")]
    if replaced and not yes and sys.stdin.isatty():
        click.confirm(f"Replace {count_of(len(replaced), 'file')}?", abort=True)


def _print_changes(plan: "Plan", changes: "tuple[Change, ...]", *, show_diff: bool, asked_for_cpu: bool) -> None:
    click.echo(f"{plan.base_image} with Python {plan.python} and torch {plan.torch} ({plan.variant})")
    width = shutil.get_terminal_size().columns
    for warning in plan.warnings:
        click.echo(wrapped(f"! warning: {warning}", width=width))
    if plan.vendor == "cpu" and not asked_for_cpu:
        hint = 'For a machine with an NVIDIA GPU pass, for example, --gpu "RTX 4090" --driver 570.124.06.'
        click.echo(wrapped(f"No NVIDIA GPU was found, so this plan is for the CPU. {hint}", width=width))
    touched = [change for change in changes if change.action != "unchanged"]
    if touched:
        click.echo(table([(str(change.action), change.path) for change in touched], indent="  "))
    if show_diff:
        click.echo("\n".join(change.diff() for change in touched))


def _print_end(root: Path, plan: "Plan", changes: "tuple[Change, ...]", *, dry_run: bool, as_json: bool) -> None:
    touched = [change for change in changes if change.action != "unchanged"]
    if as_json:
        verdict = "unchanged" if not touched else "would-write" if dry_run else "written"
        click.echo(_document(root, plan, changes, verdict=verdict))
    elif not touched:
        click.echo("unchanged: the dev container is as this plan wants it.")
    elif dry_run:
        click.echo(f"would write {count_of(len(touched), 'file')}; nothing was written.")
    else:
        click.echo(f"wrote {count_of(len(touched), 'file')} to {root}")
        click.echo("Next: commit them, then open the folder in its container, or prove it with `devkit verify`.")


def _document(root: Path, plan: "Plan", changes: "tuple[Change, ...]", *, verdict: str) -> str:
    from devkit.solver.explain import answer_document

    files = [{"path": change.path, "action": str(change.action)} for change in changes]
    document = {"directory": str(root), "files": files}
    return _json(answer_document(plan) | document | {"verdict": verdict})


def _conflict(conflict: "Conflict", *, as_json: bool) -> str:
    from devkit.solver.explain import answer_document, answer_text

    if as_json:
        return _json(answer_document(conflict) | {"files": []})
    return answer_text(conflict, width=shutil.get_terminal_size().columns)


def _json(document: dict[str, object]) -> str:
    return json.dumps({**document, "schema": "devkit.init/1"}, indent=2, ensure_ascii=False)
