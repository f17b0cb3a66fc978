"""Refreshed version tables: their age, and the reader that finds those in the user's folder.

Light enough for every command's start; pure, so the day comes from outside, and so does the reader.
"""

from collections.abc import Callable, Mapping
from typing import Any

STALE_AFTER_DAYS = 180
"""Two torch releases and a CUDA release are out by then."""

TableReader = Callable[[str], Mapping[str, Any] | None]
"""Reads the refreshed document of a table by its name; None where there is none to use."""

_readers: list[TableReader] = []
"""One reader for the process: every check and the solver load the tables, and none of them could pass it on."""


def register_table_reader(reader: TableReader) -> None:
    """Let `load_tables()` prefer what `reader` finds. To be called before the first table is read."""
    _readers[:] = [reader]


def read_newer_table(name: str) -> Mapping[str, Any] | None:
    """Read the refreshed document of a table; None without one."""
    return next((reader(name) for reader in _readers), None)


def format_stale_warning(as_of: str, today: str) -> str | None:
    """Format a warning about tables that are too old to trust; None while they are not."""
    age_days = count_days(as_of, today)
    if age_days <= STALE_AFTER_DAYS:
        return None
    return (
        f"the version tables are of {as_of}, {age_days} days old: newer releases are not in them."
        " Update devkit, or bring newer tables with `devkit data update`"
    )


def count_days(earlier: str, later: str) -> int:
    """Count the days from one ISO 8601 date to another; negative when they are the other way round."""
    return _number_day(later) - _number_day(earlier)


def _number_day(date: str) -> int:
    """Days since the first of March of year 0 (proleptic Gregorian): a year from March on ends with the leap day."""
    year, month, day = (int(part) for part in date.split("-"))
    since_march = (month - 3) % 12
    year -= month < 3
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * since_march + 2) // 5 + day - 1
