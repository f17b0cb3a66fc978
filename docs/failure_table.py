"""The table of failures: docs/failures.toml, with the checks that recognise each and the machines that show it."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from devkit.doctor.model import Check

ROWS = Path(__file__).parent / "failures.toml"
MACHINES = Path(__file__).parents[1] / "tests" / "hosts"


def markdown_of(checks: Iterable[Check]) -> str:
    """The page docs/failures.md."""
    document = tomllib.loads(ROWS.read_text(encoding="utf-8"))
    failures, codes, machines = document["failure"], _codes(checks), _machines()
    recognised = [row for row in failures if row["id"] in codes]
    lines = [
        "# What devkit doctor recognises",
        "",
        f"{len(recognised)} of the {len(failures)} failures below are recognised by a check. A recorded machine is a",
        "folder of `tests/hosts` on which the tests prove it; sources are public threads and manuals.",
    ]
    for letter, title in document["groups"].items():
        rows = [_row(row, codes, machines) for row in failures if row["id"].startswith(letter)]
        lines += ["", f"## {letter}. {title}", "", *_HEAD, *rows]
    foot = (
        "Generated from docs/failures.toml, the checks and the recorded machines; `python docs/generate.py` writes it."
    )
    return "\n".join([*lines, "", foot]) + "\n"


_HEAD = (
    "| | Failure | Seen as | Recognised by | Recorded machines | Sources |",
    "|---|---|---|---|---|---|",
)


def _row(row: dict[str, Any], codes: dict[str, list[str]], machines: dict[str, list[str]]) -> str:
    found = codes.get(row["id"], ())
    recognised = ", ".join(f"[{code}](checks/{code}.md)" for code in found) or f"not seen: {row.get('not_seen', '')}"
    shown = ", ".join(f"`{name}`" for name in machines.get(row["id"], ())) or row.get("no_recording", "")
    cells = (row["id"], row["name"], row["symptom"], recognised, shown, ", ".join(row["sources"]))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('<', '&lt;') for cell in cells)} |"


def _codes(checks: Iterable[Check]) -> dict[str, list[str]]:
    """Each failure's checks, in print order."""
    found: dict[str, list[str]] = {}
    for check in checks:
        for failure in check.covers:
            found.setdefault(failure, []).append(check.code)
    return found


def _machines() -> dict[str, list[str]]:
    """Each failure's recorded machines."""
    found: dict[str, list[str]] = {}
    for path in sorted(MACHINES.glob("*/machine.toml")):
        for failure in tomllib.loads(path.read_text(encoding="utf-8")).get("shows", ()):
            found.setdefault(failure, []).append(path.parent.name)
    return found
