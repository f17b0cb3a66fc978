"""The failure catalog: one entry for each failure, in a TOML file for each code prefix of the checks.

`failures/DRV.toml` holds what the DRV checks recognize:

- `[search_terms]`: by check, what people search for and no text below contains.
- `[[failure]]`: an entry as `Failure` has it.
- `[[failure.signature]]`: an error text of that failure as `Signature` has it. `symptoms` are wordings that the pages of
  its checks show, `texts` further ones, `xids` the driver's numbered reports. `fix` is a table, or the name of one in
  `fixes.toml`.

What a check covers and the symptoms that it lists are derived from these entries.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pkgutil import get_data
from typing import Any

from devkit.doctor.model import Confidence, Fix, Restart, Severity, Side
from devkit.doctor.signatures.model import Failure, Signature

PREFIXES = ("CDI", "CON", "CTK", "CUD", "DRV", "ENG", "GPU", "HUB", "MEM", "NET", "PRJ", "PYT", "STO", "WSL")
"""The prefixes of check codes, each with a file of its own."""

_ENUMS = {"severity": Severity, "confidence": Confidence, "where": Side, "restart": Restart}


@cache
def load_failures() -> tuple[Failure, ...]:
    """Every entry of the catalog, ordered by its ID.

    Raises KeyError, TypeError or ValueError for an entry that misses a field or has an unknown one.
    """
    fixes = {name: Fix(**_to_values(row)) for name, row in _read_table("fixes").items()}
    rows = (row for prefix in PREFIXES for row in _load_table(prefix).get("failure", ()))
    return tuple(sorted((_to_failure(row, fixes) for row in rows), key=lambda failure: failure.id))


@cache
def load_signatures() -> tuple[Signature, ...]:
    """Every known error text. Their order does not matter: the more specific one wins."""
    return tuple(signature for failure in load_failures() for signature in failure.signatures)


def find_covered_failures(code: str) -> tuple[str, ...]:
    """The IDs of the failures that the check `code` recognizes, such as "A01"."""
    return tuple(failure.id for failure in load_failures() if code in failure.checks)


def find_symptoms(code: str) -> tuple[str, ...]:
    """Error texts and search terms that lead to the check `code`."""
    own = [row for row in load_signatures() if code == row.code]
    others = [row for row in load_signatures() if code in row.also]
    texts = (text for row in (*own, *others) for text in row.symptoms)
    return tuple(dict.fromkeys((*texts, *_load_table(code[:3]).get("search_terms", {}).get(code, ()))))


@cache
def _load_table(prefix: str) -> dict[str, Any]:
    return _read_table(f"failures/{prefix}")


def _read_table(name: str) -> dict[str, Any]:
    return tomllib.loads((get_data(__package__, f"{name}.toml") or b"").decode())


def _to_failure(row: dict[str, Any], fixes: Mapping[str, Fix]) -> Failure:
    values = _to_values(row)
    signatures = tuple(_to_signature(each, fixes) for each in values.pop("signature", ()))
    return Failure(**values, signatures=signatures)


def _to_signature(row: dict[str, Any], fixes: Mapping[str, Fix]) -> Signature:
    values = _to_values(row)
    fix, xids = values.pop("fix"), values.pop("xids", ())
    numbered = (text for xid in xids for text in (f"Xid ({{bus:name}}): {xid},", f"Xid {xid}"))
    values["texts"] = (*values.get("symptoms", ()), *values.get("texts", ()), *numbered)
    return Signature(**values, fix=fixes[fix] if isinstance(fix, str) else Fix(**_to_values(fix)))


def _to_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """A TOML table as the fields of a record: lists as tuples, the words of an enumeration as its members."""
    return {
        key: _ENUMS[key](value) if key in _ENUMS else tuple(value) if isinstance(value, list) else value
        for key, value in row.items()
    }
