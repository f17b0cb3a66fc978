"""The functions of checks, by the rows of the failure catalog."""

from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module

from devkit.doctor.model import Check
from devkit.doctor.problems import render_problems
from devkit.doctor.signatures.catalog import PREFIXES, load_check_rows
from devkit.doctor.signatures.model import CheckRow
from devkit.errors import DevkitError


def load_checks() -> tuple[Check, ...]:
    """Import every check, in the order of the report."""
    rows = (row for prefix in PREFIXES for row in load_check_rows(prefix).values())
    return tuple(_import_check(row) for row in sorted(rows, key=lambda row: (row.order, row.code)))


def load_check(code: str) -> Check:
    """Import one check and none of the others.

    Raises:
        KeyError: No check has the code.
    """
    return _import_check(load_check_rows(code[:3])[code])


def list_codes() -> Iterator[str]:
    """Yield the code of every check without importing it."""
    return (code for prefix in PREFIXES for code in load_check_rows(prefix))


def build_unknown_code_error(code: str) -> DevkitError:
    """Build the error for a code that no check has, with the codes that resemble it: CTK01 is first of all CTK001."""
    wanted = code.strip().upper().replace("-", "")
    close = get_close_matches(f"{wanted[:3]}{wanted[3:].zfill(3)}", list_codes(), n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(close)}? " if close else ""
    return DevkitError(f"no check has the code {code.strip()!r}", f"{hint}`devkit doctor --list` shows all codes.")


def _import_check(row: CheckRow) -> Check:
    module, _, name = row.function.rpartition(".")
    check = getattr(import_module(f"devkit.doctor.checks.{module}"), name, None)
    if not isinstance(check, Check):
        raise LookupError(f"{row.code}: no check named {row.function} in devkit.doctor.checks")
    paragraphs = (
        ("", row.about),
        ("Why it matters", row.why),
        ("How devkit checks it", row.seen),
        ("Source", row.source),
    )
    return replace(render_problems(check), title=row.title, worst=row.worst, explanation=paragraphs)
