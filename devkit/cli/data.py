"""`devkit data`: which version tables answers rest on, and how newer ones take their place."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli import exits
from devkit.cli.own_tables import drop, keep, own_file, own_tables
from devkit.text import count_of, table

if TYPE_CHECKING:
    from devkit.compat.signoff import Fault
    from devkit.compat.table import Document

SCHEMA = "devkit.data/1"
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@dataclass(frozen=True)
class State:
    """One table as it is in use. `origin` is "shipped" or "refreshed"."""

    name: str
    as_of: str
    age_days: int
    rows: int
    origin: str


@click.group()
def data() -> None:
    """Show the version tables that answers rest on, and take newer ones."""


@data.command()
@_JSON
def show(as_json: bool) -> None:
    """Say of each version table how old it is and where it comes from."""
    states = _states(own_tables())
    if as_json:
        click.echo(_document(states, file=own_file() if own_tables() else None))
        return
    _print(states)
    if own_tables():
        click.echo(f"Refreshed tables are kept in {own_file()}; `devkit data reset` goes back to the shipped ones.")


@data.command()
@click.argument("path", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Take tables that are older than the shipped ones or contradict them.")
@click.option("--dry-run", is_flag=True, help="Check the tables, and write nothing.")
@_JSON
def update(path: Path, force: bool, dry_run: bool, as_json: bool) -> int:
    """Use newer version tables: a file such as driver.toml, or a folder or archive of them.

    Each is signed off first: its shape and sources, the order among its rows, facts that are settled, and what the
    shipped tables say. Exit code 1: something speaks against them, all of which is listed, and nothing was written.
    """
    from devkit.cli.table_files import read_tables
    from devkit.cli.today import today
    from devkit.compat.load import document
    from devkit.compat.signoff import sign_off

    given = read_tables(path)
    before = own_tables()
    wanted = {name: each for name, each in {**before, **given}.items() if each != dict(document(name))}
    faults = sign_off({**before, **given}, today=today())
    refused = [fault for fault in faults if not (force and fault.may_be_forced)]
    if refused:
        _print_refusal(faults, as_json=as_json)
        return exits.ANSWER_IS_NO
    changes = wanted != before
    if changes and not dry_run:
        keep(wanted) if wanted else drop()
    verdict = "unchanged" if not changes else "would-update" if dry_run else "updated"
    states = _states(wanted)
    if as_json:
        click.echo(_document(states, verdict=verdict, faults=faults, file=own_file() if wanted else None))
        return exits.DONE
    for fault in faults:
        click.echo(f"! warning: {fault}")
    _print([state for state in states if state.name in given])
    click.echo(_SAID[verdict])
    return exits.DONE


_SAID = {
    "unchanged": "unchanged: these tables are in use already.",
    "would-update": "signed off; nothing was written.",
    "updated": "signed off and in use: doctor, plan and init answer from them now.",
}


@data.command()
@_JSON
def reset(as_json: bool) -> None:
    """Go back to the version tables that ship with devkit."""
    dropped = drop()
    if as_json:
        click.echo(_document(_states({}), verdict="updated" if dropped else "unchanged"))
    elif dropped:
        click.echo("The shipped tables are in use again.")
    else:
        click.echo("unchanged: the shipped tables are in use already.")


def _states(own: "Mapping[str, Mapping[str, Any]]") -> list[State]:
    from devkit.cli.today import today
    from devkit.compat.age import days_between
    from devkit.compat.load import FILES, document

    now = today()

    def state(name: str, found: "Document") -> State:
        rows = sum(len(value) for value in found.values() if isinstance(value, list))
        as_of = found["as_of"]
        return State(name, as_of, days_between(as_of, now), rows, "refreshed" if name in own else "shipped")

    return [state(name, own.get(name) or document(name)) for name in FILES]


def _print(states: Iterable[State]) -> None:
    rows = [
        (each.name, each.as_of, f"{count_of(each.age_days, 'day')} old", count_of(each.rows, "row"), each.origin)
        for each in states
    ]
    click.echo(table(rows))


def _print_refusal(faults: "tuple[Fault, ...]", *, as_json: bool) -> None:
    if as_json:
        click.echo(_document(_states(own_tables()), verdict="refused", faults=faults))
        return
    for fault in faults:
        click.echo(f"✗ {fault}")
    click.echo(f"{count_of(len(faults), 'fault')}: nothing was written.")
    if all(fault.may_be_forced for fault in faults):
        click.echo("They only differ from the shipped tables: if those are wrong, --force takes these.")


def _document(states: Iterable[State], *, faults: "Iterable[Fault]" = (), **more: object) -> str:
    listed = [
        {"table": each.table, "row": each.row, "says": each.says, "may_be_forced": each.may_be_forced}
        for each in faults
    ]
    document = {"schema": SCHEMA, **more, "tables": [asdict(state) for state in states], "faults": listed}
    return json.dumps(document, indent=2, ensure_ascii=False)
