"""The failure catalog: one entry for each failure, in a TOML file for each code prefix of the checks.

`failures/DRV.toml` holds the DRV checks, and the failures that they recognize:

- `[check.DRV001]`: a check as `CheckRow` has it.
- `[[failure]]`: an entry as `Failure` has it.
- `[[failure.signature]]`: an error text of that failure as `Signature` has it. `symptoms` are wordings that the pages of
  its checks show, `texts` further ones, `xids` the driver's numbered reports. `fix` is a table, or the name of one in
  `fixes.toml`; in its place `problem` names the row of the check's problem whose fix it is, and whose message is the cause
  where the signature has none.

What a check covers and the symptoms that it lists are derived from these entries.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from devkit.doctor.model import Fix, Side
from devkit.doctor.problems import SIDES, FixRow, decode_fix_rows, find_problem_row
from devkit.doctor.signatures.model import CheckRow, Failure, Signature
from devkit.facts.decode import decode_fields
from devkit.formats.shipped import load

PREFIXES = ("CDI", "CON", "CTK", "CUD", "DRV", "ENG", "GPU", "HUB", "MEM", "NET", "POD", "PRJ", "PYT", "STO", "WSL")
"""The prefixes of check codes, each with its own file."""


_NOT_OF_SIGNATURES = ("fix", "problem", "xids")


@cache
def load_check_rows(prefix: str) -> Mapping[str, CheckRow]:
    """Return the checks of a code prefix, by code; none for an unknown prefix."""
    rows = load(__package__, f"failures/{prefix}")["check"] if prefix in PREFIXES else {}
    return {
        code: CheckRow(**decode_fields({"code": code, **_without_problems(row)}, CheckRow))
        for code, row in rows.items()
    }


def _without_problems(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("problem", "spoken")}


@cache
def load_failures() -> tuple[Failure, ...]:
    """Return every entry of the catalog, ordered by its ID.

    Raises:
        InvalidValue: A value does not fit its field.
        KeyError: A key is not a field, or a fix has an unknown name.
        TypeError: An entry lacks a field.
    """
    rows = (row for prefix in PREFIXES for row in load(__package__, f"failures/{prefix}").get("failure", ()))
    return tuple(sorted(map(parse_failure, rows), key=lambda failure: failure.id))


def parse_failure(row: Mapping[str, Any]) -> Failure:
    """Parse an entry. Raises as `load_failures`."""
    own = {key: value for key, value in row.items() if key != "signature"}
    signatures = tuple(_to_signature(each) for each in row.get("signature", ()))
    return Failure(**decode_fields(own, Failure), signatures=signatures)


def find_general_signature(code: str) -> Signature | None:
    """Return the first error text of a check whose cause names no value or fact of the text; None where it has none."""
    rows = (row for row in load_signatures() if row.code == code and not row.given)
    return next((row for row in rows if "{" not in row.cause), None)


@cache
def load_signatures() -> tuple[Signature, ...]:
    """Return every known error text. Their order does not matter: the more specific one wins."""
    return tuple(signature for failure in load_failures() for signature in failure.signatures)


def find_covered_failures(code: str) -> tuple[str, ...]:
    """Return the IDs of the failures that a check recognizes, such as "A01"."""
    return tuple(failure.id for failure in load_failures() if code in failure.checks)


def find_symptoms(code: str) -> tuple[str, ...]:
    """Return error texts and search terms that lead to a check, those that point to it alone first."""
    own = [row for row in load_signatures() if code == row.code]
    others = [row for row in load_signatures() if code in row.also]
    texts = [text for row in (*own, *others) for text in row.symptoms]
    check = load_check_rows(code[:3]).get(code)
    return tuple(dict.fromkeys((*texts, *(check.search_terms if check else ()))))


def _to_signature(row: Mapping[str, Any]) -> Signature:
    values = decode_fields({key: value for key, value in row.items() if key not in _NOT_OF_SIGNATURES}, Signature)
    xids = (text for xid in row.get("xids", ()) for text in (f"Xid ({{bus:name}}): {xid},", f"Xid {xid}"))
    values["texts"] = (*values.get("symptoms", ()), *values.get("texts", ()), *xids)
    if "problem" in row:
        problem = find_problem_row(row["code"], row["problem"])
        values.setdefault("cause", problem.message)
        fix, variants = show_general_fix(problem.fixes), problem.fixes
    else:
        fix, variants = decode_fix(row["fix"])
    return Signature(**values, fix=fix, variants=variants)


def decode_fix(fix: str | Mapping[str, Any]) -> tuple[Fix, tuple[FixRow, ...]]:
    """Decode the fix of an error: a table, or the name of a shared one, with its variants. Raises KeyError."""
    if isinstance(fix, str):
        variants = decode_fix_rows(fix)
        return show_general_fix(variants), variants
    return Fix(**decode_fields(fix, Fix)), ()


def show_general_fix(rows: tuple[FixRow, ...]) -> Fix:
    """Show the template of the variant for a machine that nothing is known of."""
    row = next((each for each in rows if each.when.get("machine") == ("unknown",)), rows[-1])
    return Fix(row.summary, row.commands, Side.HOST if row.where in SIDES else Side(row.where), row.root, row.restart)
