"""`devkit plan`: choose versions that fit, and say why."""

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from devkit.cli import exit_codes
from devkit.cli.options.plan import PlanOptions, build_request_from_options, plan_options
from devkit.cli.runtime import today
from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.solver.output import format_answer, serialize_answer
from devkit.solver.plan import Conflict, Plan, Request, Vendor
from devkit.solver.project import add_project_constraints
from devkit.solver.solve import solve_project

if TYPE_CHECKING:
    from devkit.facts.dependencies import Dependencies
    from devkit.facts.project import Policy
    from devkit.render.devkit_toml import ProjectSettings

_FOLDER = click.Path(exists=True, file_okay=False)


@click.command()
@plan_options
@click.option(
    "--project", metavar="DIR", default=".", type=_FOLDER, help="The project to plan for. Default: this directory."
)
@click.option("--ignore-dependencies", is_flag=True, help="Plan without what the project's own files ask for.")
@click.option("--why", metavar="FIELD", help="Explain one choice, such as torch, and what spoke against the others.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(selection: PlanOptions, project: str, ignore_dependencies: bool, why: str | None, as_json: bool) -> int:
    """Choose versions that fit the driver and GPUs, with a reason for each.

    Plans for this machine, or for those that --facts or the flags describe. Keeps to what the project's requirement
    files ask for, and to the [policy] of its devkit.toml. Exit code 1: nothing fits.
    """
    policy, dependencies = _project(project, ignore_dependencies=ignore_dependencies)
    request = replace(build_request_from_options(selection), policy=policy)
    answer = solve_project(request, dependencies, load_tables())
    if why:
        request = add_project_constraints(
            request, dependencies, python=answer.python if isinstance(answer, Plan) else None
        )
        click.echo(_explained(request, answer, why, as_json=as_json))
    elif as_json:
        click.echo(json.dumps(serialize_answer(answer, today=today()), indent=2, ensure_ascii=False))
    else:
        asked_for_cpu = request.vendor is Vendor.CPU
        width = shutil.get_terminal_size().columns
        click.echo(format_answer(answer, width=width, is_cpu_requested=asked_for_cpu, today=today()))
    return exit_codes.ANSWER_IS_NO if isinstance(answer, Conflict) else exit_codes.DONE


def _project(folder: str, *, ignore_dependencies: bool) -> "tuple[Policy | None, Dependencies]":
    """The rules of a project and what its files ask for. Raises DevkitError for a devkit.toml that is wrong."""
    from devkit.facts.dependencies import NO_DEPENDENCIES
    from devkit.probe.project.reader import read_local_dependencies

    choices = _choices(folder)
    policy = choices.policy if choices else None
    if ignore_dependencies or (choices and choices.ignore_dependencies):
        return policy, NO_DEPENDENCIES
    return policy, read_local_dependencies(folder)


def _choices(folder: str) -> "ProjectSettings | None":
    import os

    if not os.access(f"{folder}/devkit.toml", os.F_OK):
        return None
    from pathlib import Path

    from devkit.render.devkit_toml import DEVKIT_TOML, parse_devkit_toml, validate_indexes
    from devkit.render.files import read_file

    content = read_file(Path(folder), DEVKIT_TOML)
    if content is None:
        return None
    choices = parse_devkit_toml(content)
    validate_indexes(choices)
    return choices


def _explained(request: Request, answer: Plan | Conflict, field: str, *, as_json: bool) -> str:
    from devkit.solver.why import BUILD_FIELDS, explain_choice, format_choice, serialize_choice

    found = explain_choice(request, load_tables(), answer, field)
    if found is None:
        fields = [reason.field for reason in answer.reasons] if isinstance(answer, Plan) else BUILD_FIELDS
        raise DevkitError(f"the plan has no choice named {field!r}", f"Known: {', '.join(fields)}.")
    if as_json:
        return json.dumps(serialize_choice(found, answer, today=today()), indent=2, ensure_ascii=False)
    return format_choice(found, answer, width=shutil.get_terminal_size().columns, today=today())
