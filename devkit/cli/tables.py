"""`devkit tables`: the version tables that answers rest on, with their age."""

import json
from dataclasses import asdict, dataclass

import click

from devkit.cli.runtime import today
from devkit.compat.refresh import count_days
from devkit.compat.version_tables import TABLE_NAMES, read_shipped_table
from devkit.text import format_count, format_table

SCHEMA = "devkit.data/1"


@dataclass(frozen=True)
class TableState:
    """A version table. `as_of` is the day on which its sources were read."""

    name: str
    as_of: str
    age_days: int
    rows: int
    origin: str = "shipped"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def tables(*, as_json: bool) -> None:
    """Show the age of each version table. Tables come with releases of devkit."""
    states = []
    for name in TABLE_NAMES:
        table = read_shipped_table(name)
        rows = sum(len(value) for value in table.values() if isinstance(value, list))
        states.append(TableState(name, table["as_of"], count_days(table["as_of"], today()), rows))
    if as_json:
        document = {"schema": SCHEMA, "tables": [asdict(state) for state in states], "faults": []}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    click.echo(
        format_table(
            [
                (each.name, each.as_of, f"{format_count(each.age_days, 'day')} old", format_count(each.rows, "row"))
                for each in states
            ]
        )
    )
