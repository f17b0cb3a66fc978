"""`devkit plan`: choose versions that fit, and say why."""

import json
import shutil

import click

from devkit.cli import exits
from devkit.cli.selection import Selection, request_from, selection_options
from devkit.compat.load import tables
from devkit.errors import DevkitError
from devkit.solver.explain import answer_document, answer_text, reason_text
from devkit.solver.model import Conflict, Plan, Vendor
from devkit.solver.solve import solve


@click.command()
@selection_options
@click.option("--why", metavar="FIELD", help="Explain one choice, such as torch or base_image.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(selection: Selection, why: str | None, as_json: bool) -> int:
    """Choose versions that fit the driver and GPUs, with a reason for each.

    Plans for this machine, or for those that --facts or the flags describe. Exit code 1: nothing fits.
    """
    request = request_from(selection)
    answer = solve(request, tables())
    width = shutil.get_terminal_size().columns
    if as_json:
        click.echo(json.dumps(answer_document(answer), indent=2, ensure_ascii=False))
    elif why and isinstance(answer, Plan):
        click.echo(_explained(answer, why, width=width))
    else:
        asked_for_cpu = request.vendor is Vendor.CPU
        click.echo(answer_text(answer, width=width, was_asked_for_cpu=asked_for_cpu))
    return exits.ANSWER_IS_NO if isinstance(answer, Conflict) else exits.DONE


def _explained(answer: Plan, field: str, *, width: int) -> str:
    for reason in answer.reasons:
        if reason.field == field:
            return reason_text(reason, width=width)
    known = ", ".join(reason.field for reason in answer.reasons)
    raise DevkitError(f"the plan has no choice named {field!r}", f"Known: {known}.")
