"""The failure catalog: one entry for each failure, in a TOML file for each code prefix of the checks.

`failures/DRV.toml` holds the DRV checks, and the failures that they recognize:

- `[check.DRV001]`: a check as `CheckRow` has it.
- `[[failure]]`: an entry as `Failure` has it.
- `[[failure.signature]]`: an error text of that failure as `Signature` has it. `symptoms` are wordings that the pages of
  its checks show, `texts` further ones, `xids` the driver's numbered reports. `fix` is a table, or the name of one in
  `fixes.toml`.

What a check covers and the symptoms that it lists are derived from these entries.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pkgutil import get_data
from typing import Any

from devkit.doctor.model import Fix
from devkit.doctor.signatures.model import CheckRow, Failure, Signature
from devkit.facts.decode import decode_fields

PREFIXES = ("CDI", "CON", "CTK", "CUD", "DRV", "ENG", "GPU", "HUB", "MEM", "NET", "POD", "PRJ", "PYT", "STO", "WSL")
"""The prefixes of check codes, each with a file of its own."""

_FAILURES = b"\n[[failure]]\n"
_ARRAYS = (b"\nsymptoms = [", b"\ntexts = [")
_QUOTED = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"')
_MARKS = re.compile(rb"\{\w+:\w+\}|%b|\\.|[\"'`]" % "…".encode())


@cache
def load_check_rows(prefix: str) -> Mapping[str, CheckRow]:
    """Return the checks of a code prefix, by code; none for an unknown prefix.

    Only the first part of the file is parsed: every command that runs checks starts with all of them.
    """
    if prefix not in PREFIXES:
        return {}
    rows = tomllib.loads(_read_file(f"failures/{prefix}").partition(_FAILURES)[0].decode())["check"]
    return {code: CheckRow(**decode_fields({"code": code, **row}, CheckRow)) for code, row in rows.items()}


@cache
def _split_failures() -> tuple[tuple[frozenset[str], bytes], ...]:
    """Return the unparsed text of every entry, with fixed words of its error texts, one of which a match must have."""
    blocks = (block for prefix in PREFIXES for block in _read_file(f"failures/{prefix}").split(_FAILURES)[1:])
    return tuple((list_words(block), block) for block in blocks)


def list_words(block: bytes) -> frozenset[str]:
    """Return the longest fixed words of each error text, in double quotation marks, in the unparsed text of an entry.

    It is read as bytes, which takes a third of the time: every entry is read for each text that is explained.
    """
    arrays = [part.partition(b"]\n")[0] for start in _ARRAYS for part in block.split(start)[1:]]
    texts = _MARKS.sub(b"\t", b"\n".join(_QUOTED.findall(b"\n".join(arrays).lower()))).decode().split("\n")
    found = frozenset([max(text.split("\t"), key=len) if "\t" in text else text for text in texts])
    return (found - {""}) | ({"xid"} if b"\nxids = " in block else frozenset())


@cache
def _parse_failure(block: bytes) -> Failure:
    row = tomllib.loads(block.decode().replace("[[failure.", "[[").replace("[failure.", "["))
    own = {key: value for key, value in row.items() if key != "signature"}
    signatures = tuple(_to_signature(each, load_fixes()) for each in row.get("signature", ()))
    return Failure(**decode_fields(own, Failure), signatures=signatures)


@cache
def load_failures() -> tuple[Failure, ...]:
    """Return every entry of the catalog, ordered by its ID.

    Raises:
        InvalidValue: A value does not fit its field.
        KeyError: A key is no field, or a fix has an unknown name.
        TypeError: An entry lacks a field.
    """
    failures = (_parse_failure(block) for _, block in _split_failures())
    return tuple(sorted(failures, key=lambda failure: failure.id))


def load_signatures_in(lowered: str, *, is_squeezed: bool = False) -> tuple[Signature, ...]:
    """Return the error texts that may be in a text of lower case letters: entries without words in it are not parsed."""

    def may_match(words: frozenset[str]) -> bool:
        return any((word.replace(" ", "") if is_squeezed else word) in lowered for word in words)

    blocks = (block for words, block in _split_failures() if may_match(words))
    return tuple(signature for block in blocks for signature in _parse_failure(block).signatures)


def find_general_signature(code: str) -> Signature | None:
    """Return the first error text of a check whose cause names no value of the text; None where it has none."""
    named = f'\ncode = "{code}"\n'.encode()
    signatures = (row for _, block in _split_failures() if named in block for row in _parse_failure(block).signatures)
    return next((row for row in signatures if row.code == code and "{" not in row.cause), None)


@cache
def load_fixes() -> Mapping[str, Fix]:
    """Return the fixes that several rows share, by name."""
    return {name: Fix(**decode_fields(row, Fix)) for name, row in tomllib.loads(_read_file("fixes").decode()).items()}


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


def _read_file(name: str) -> bytes:
    return get_data(__package__, f"{name}.toml") or b""


def _to_signature(row: Mapping[str, Any], fixes: Mapping[str, Fix]) -> Signature:
    fix = row["fix"]
    values = decode_fields({key: value for key, value in row.items() if key not in ("fix", "xids")}, Signature)
    xids = (text for xid in row.get("xids", ()) for text in (f"Xid ({{bus:name}}): {xid},", f"Xid {xid}"))
    values["texts"] = (*values.get("symptoms", ()), *values.get("texts", ()), *xids)
    return Signature(**values, fix=fixes[fix] if isinstance(fix, str) else Fix(**decode_fields(fix, Fix)))
