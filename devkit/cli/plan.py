"""`devkit plan`: choose versions that fit, and say why."""

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from devkit.cli import exits
from devkit.cli.selection import Selection, request_from, selection_options
from devkit.compat.load import tables
from devkit.errors import DevkitError
from devkit.solver.explain import answer_document, answer_text
from devkit.solver.model import Conflict, Plan, Request, Vendor
from devkit.solver.solve import solve

if TYPE_CHECKING:
    from devkit.facts.policy import Policy


@click.command()
@selection_options
@click.option("--why", metavar="FIELD", help="Explain one choice, such as torch, and what spoke against the others.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(selection: Selection, why: str | None, as_json: bool) -> int:
    """Choose versions that fit the driver and GPUs, with a reason for each.

    Plans for this machine, or for those that --facts or the flags describe, and keeps to the [policy] of a devkit.toml
    in this folder. Exit code 1: nothing fits.
    """
    request = replace(request_from(selection), policy=_policy_here())
    answer = solve(request, tables())
    if why:
        click.echo(_explained(request, answer, why, as_json=as_json))
    elif as_json:
        click.echo(json.dumps(answer_document(answer, today=today()), indent=2, ensure_ascii=False))
    else:
        asked_for_cpu = request.vendor is Vendor.CPU
        width = shutil.get_terminal_size().columns
        click.echo(answer_text(answer, width=width, was_asked_for_cpu=asked_for_cpu, today=today()))
    return exits.ANSWER_IS_NO if isinstance(answer, Conflict) else exits.DONE


def _policy_here() -> "Policy | None":
    """The rules of the project in this folder. Raises DevkitError for a devkit.toml that is wrong."""
    import os

    if not os.access("devkit.toml", os.F_OK):
        return None
    from pathlib import Path

    from devkit.render.choices import CHOICES_PATH, read_choices
    from devkit.render.folder import read_file

    content = read_file(Path(), CHOICES_PATH)
    return read_choices(content).policy if content is not None else None


def today() -> str:
    """The day it is in UTC, ISO 8601: tables carry a day, too, and the solver reads no clock."""
    from datetime import UTC, datetime

    return datetime.now(UTC).date().isoformat()


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
