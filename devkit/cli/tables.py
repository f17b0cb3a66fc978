"""`devkit tables`: show the version tables that answers rest on."""

import json
from dataclasses import dataclass
from typing import Literal

import click

from devkit.cli.command import Command
from devkit.cli.runtime import today
from devkit.compat.version_tables import TABLE_NAMES
from devkit.formats.documents import encode, load
from devkit.text import count_days, format_count, format_table


@dataclass(frozen=True)
class TableState:
    """A version table."""

    name: str
    as_of: str
    age_days: int
    rows: int
    origin: str = "shipped"


@dataclass(frozen=True, kw_only=True)
class TablesDocument:
    """Printed by devkit tables --json. `faults` is empty: those of refreshed tables, which older releases read."""

    schema: Literal["devkit.data/1"] = "devkit.data/1"
    tables: tuple[TableState, ...]
    faults: tuple[str, ...] = ()


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def tables(as_json: bool) -> None:
    """Show the age and number of rows of each version table. Newer tables come with newer releases."""
    states = tuple(map(_describe_table, TABLE_NAMES))
    if as_json:
        click.echo(json.dumps(encode(TablesDocument(tables=states)), indent=2))
        return
    rows = [
        (each.name, each.as_of, f"{format_count(each.age_days, 'day')} old", format_count(each.rows, "row"))
        for each in states
    ]
    click.echo(format_table(rows))


def _describe_table(name: str) -> TableState:
    table = load("devkit.compat", f"tables/{name}")
    rows = sum(len(value) for value in table.values() if isinstance(value, list))
    return TableState(name, table["as_of"], count_days(table["as_of"], today()), rows)
