"""How old the version tables are. Nothing here reads a clock: the day it is comes from outside."""

from collections.abc import Callable, Mapping
from typing import Any

STALE_AFTER_DAYS = 180
"""Two torch releases and a CUDA release are out by then."""


def count_days(earlier: str, later: str) -> int:
    """Days from one ISO 8601 date to another; negative when they are the other way round."""
    return _day_number(later) - _day_number(earlier)


def format_stale_warning(as_of: str, today: str) -> str | None:
    """What to say of tables that are too old to trust; None while they are not."""
    age_days = count_days(as_of, today)
    if age_days <= STALE_AFTER_DAYS:
        return None
    return (
        f"the version tables are of {as_of}, {age_days} days old: newer releases are not in them."
        " Update devkit, or bring newer tables with `devkit data update`"
    )


def _day_number(date: str) -> int:
    """Days since the first of March of year 0 (proleptic Gregorian): a year from March on ends with the leap day."""
    year, month, day = (int(part) for part in date.split("-"))
    since_march = (month - 3) % 12
    year -= month < 3
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * since_march + 2) // 5 + day - 1


# Tables newer than those that ship with devkit: offered by whoever can read the user's folder, as this room cannot.
#
# One reader for the process: every check and the solver ask for the tables, and none of them could hand them on.

TableReader = Callable[[str], Mapping[str, Any] | None]
"""Gives the newer document of a table by its name, None where there is none to use."""


def _none(_name: str) -> None:
    """Nothing was offered."""


_reader: TableReader = _none


def register_table_reader(reader: TableReader) -> None:
    """Let `tables()` take from `reader` what it has. To be called before the first table is read."""
    global _reader
    _reader = reader


def read_newer_table(name: str) -> Mapping[str, Any] | None:
    """The offered document of a table; None without one."""
    return _reader(name)
