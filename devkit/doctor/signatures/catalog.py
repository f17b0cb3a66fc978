"""The failure catalog: what goes wrong between a GPU and a training run, as people report it in public.

`failures/DRV.toml` holds what the DRV checks recognize:

- `[symptoms]`: by check, error texts as people paste them into a search.
- `[[failure]]`: an entry as `Failure` has it.

What a check covers and the symptoms that it lists are derived from these entries.
"""

import tomllib
from functools import cache
from pkgutil import get_data
from typing import Any

from devkit.facts.values import record

PREFIXES = ("CDI", "CON", "CTK", "CUD", "DRV", "ENG", "GPU", "HUB", "MEM", "NET", "PRJ", "PYT", "STO", "WSL")
"""The prefixes of check codes, each with a file of its own."""


@record
class Failure:
    """One entry of the failure catalog.

    `sources` are public threads ("owner/repository#number" on GitHub) and manuals. `checks` are the codes of the checks
    that recognize it, in the order of the report. Where there is none, `not_seen` says why; where no recorded machine
    shows it, `no_recording` does.
    """

    id: str
    name: str
    symptom: str
    checks: tuple[str, ...]
    sources: tuple[str, ...]
    not_seen: str = ""
    no_recording: str = ""


@cache
def load_failures() -> tuple[Failure, ...]:
    """Return every entry of the catalog, ordered by its ID.

    Raises:
        TypeError: An entry lacks a field or has an unknown one.
    """
    rows = (row for prefix in PREFIXES for row in _load_table(prefix).get("failure", ()))
    return tuple(sorted((_to_failure(row) for row in rows), key=lambda failure: failure.id))


def find_covered_failures(code: str) -> tuple[str, ...]:
    """Return the IDs of the failures that a check recognizes, such as "A01"."""
    return tuple(failure.id for failure in load_failures() if code in failure.checks)


def find_symptoms(code: str) -> tuple[str, ...]:
    """Return the error texts that lead to a check."""
    return tuple(text for prefix in PREFIXES for text in _load_table(prefix).get("symptoms", {}).get(code, ()))


@cache
def _load_table(prefix: str) -> dict[str, Any]:
    return tomllib.loads((get_data(__package__, f"failures/{prefix}.toml") or b"").decode())


def _to_failure(row: dict[str, Any]) -> Failure:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Failure(**values)
