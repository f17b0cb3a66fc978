"""`devkit plan`: choose versions that fit, and say why."""

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from devkit.cli import exits
from devkit.cli.selection import Selection, request_from, selection_options
from devkit.cli.today import today
from devkit.compat.load import tables
from devkit.errors import DevkitError
from devkit.solver.explain import answer_document, answer_text
from devkit.solver.model import Conflict, Plan, Request, Vendor
from devkit.solver.project import limited, solve_project

if TYPE_CHECKING:
    from devkit.facts.dependencies import Dependencies
    from devkit.facts.policy import Policy
    from devkit.render.choices import Choices

_FOLDER = click.Path(exists=True, file_okay=False)


@click.command()
@selection_options
@click.option(
    "--project", metavar="DIR", default=".", type=_FOLDER, help="The project to plan for. Default: this directory."
)
@click.option("--ignore-dependencies", is_flag=True, help="Plan without what the project's own files ask for.")
@click.option("--why", metavar="FIELD", help="Explain one choice, such as torch, and what spoke against the others.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(selection: Selection, project: str, ignore_dependencies: bool, why: str | None, as_json: bool) -> int:
    """Choose versions that fit the driver and GPUs, with a reason for each.

    Plans for this machine, or for those that --facts or the flags describe. Keeps to what the project's requirement
    files ask for, and to the [policy] of its devkit.toml. Exit code 1: nothing fits.
    """
    policy, dependencies = _project(project, ignore_dependencies=ignore_dependencies)
    request = replace(request_from(selection), policy=policy)
    answer = solve_project(request, dependencies, tables())
    if why:
        request = limited(request, dependencies, python=answer.python if isinstance(answer, Plan) else None)
        click.echo(_explained(request, answer, why, as_json=as_json))
    elif as_json:
        click.echo(json.dumps(answer_document(answer, today=today()), indent=2, ensure_ascii=False))
    else:
        asked_for_cpu = request.vendor is Vendor.CPU
        width = shutil.get_terminal_size().columns
        click.echo(answer_text(answer, width=width, was_asked_for_cpu=asked_for_cpu, today=today()))
    return exits.ANSWER_IS_NO if isinstance(answer, Conflict) else exits.DONE


def _project(folder: str, *, ignore_dependencies: bool) -> "tuple[Policy | None, Dependencies]":
    """The rules of a project and what its files ask for. Raises DevkitError for a devkit.toml that is wrong."""
    from devkit.facts.dependencies import NO_DEPENDENCIES
    from devkit.probe.dependencies import dependencies_in

    choices = _choices(folder)
    policy = choices.policy if choices else None
    if ignore_dependencies or (choices and choices.ignore_dependencies):
        return policy, NO_DEPENDENCIES
    return policy, dependencies_in(folder)


def _choices(folder: str) -> "Choices | None":
    import os

    if not os.access(f"{folder}/devkit.toml", os.F_OK):
        return None
    from pathlib import Path

    from devkit.render.choices import CHOICES_PATH, read_choices
    from devkit.render.folder import read_file
    from devkit.render.policy import check_indexes

    content = read_file(Path(folder), CHOICES_PATH)
    if content is None:
        return None
    choices = read_choices(content)
    check_indexes(choices)
    return choices


def _explained(request: Request, answer: Plan | Conflict, field: str, *, as_json: bool) -> str:
    from devkit.solver.explain_why import why_document, why_text
    from devkit.solver.why import BUILD_FIELDS, why

    found = why(request, tables(), answer, field)
    if found is None:
        fields = [reason.field for reason in answer.reasons] if isinstance(answer, Plan) else BUILD_FIELDS
        raise DevkitError(f"the plan has no choice named {field!r}", f"Known: {', '.join(fields)}.")
    if as_json:
        return json.dumps(why_document(found, answer, today=today()), indent=2, ensure_ascii=False)
    return why_text(found, answer, width=shutil.get_terminal_size().columns, today=today())
