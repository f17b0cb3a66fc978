"""The catalog: checks, failures, and the families of errors by which they are met, in TOML.

`failures/DRV.toml` holds the DRV checks and the failures that they recognize, `families.toml` further errors:

- `[check.DRV001]`: a check as `CheckRow` has it.
- `[[failure]]`: a failure as `Failure` has it, and `[[family]]`: a class of errors as `Family` has it.
- `[[failure.cause]]`, `[[family.cause]]`: a cause as `FamilyCause` has it, the most frequent first. One with its own `texts`
  is a family with this cause alone, found beside other errors of its family, and may have what a family has. `symptoms` are
  texts that the pages of checks show, `xids` the driver's numbered reports. `fix` is a table, or the name of one in
  `fixes.toml`; in its place `problem` names the row of the check's problem whose fix it is, and whose message is the cause
  where none is given.

What a check covers and the symptoms that it lists are derived from these entries.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from devkit.doctor.model import Fix, Side
from devkit.doctor.problems import SIDES, FixRow, decode_fix_rows, find_problem_row
from devkit.doctor.signatures.model import CheckRow, Failure, Family, FamilyCause
from devkit.doctor.signatures.patterns import list_whole_words
from devkit.facts.decode import decode_fields
from devkit.formats.documents import load

PREFIXES = ("CDI", "CON", "CTK", "CUD", "DRV", "ENG", "GPU", "HUB", "MEM", "NET", "POD", "PRJ", "PYT", "STO", "WSL")
"""The prefixes of check codes, each with its own file."""


_OF_FAMILY = {each.name for each in fields(Family)} - {"texts", "causes"}


@cache
def load_check_rows(prefix: str) -> Mapping[str, CheckRow]:
    """Return the checks of a code prefix, by code; none for an unknown prefix."""
    rows = load(__package__, f"failures/{prefix}")["check"] if prefix in PREFIXES else {}
    other = {"problem", "program_failures"}
    own = {code: {key: row[key] for key in row if key not in other} for code, row in rows.items()}
    return {code: CheckRow(**decode_fields({"code": code, **row}, CheckRow)) for code, row in own.items()}


@cache
def load_failures() -> tuple[Failure, ...]:
    """Return every entry of the catalog, ordered by its ID.

    Raises:
        InvalidValue: A value does not fit its field.
        KeyError: A key is not a field, or a fix has an unknown name.
        TypeError: An entry lacks a field.
    """
    rows = (row for prefix in PREFIXES for row in load(__package__, f"failures/{prefix}").get("failure", ()))
    own = ({key: value for key, value in row.items() if key != "cause"} for row in rows)
    return tuple(sorted((Failure(**decode_fields(row, Failure)) for row in own), key=lambda failure: failure.id))


@dataclass(frozen=True)
class _Row:
    """A family as TOML has it, with its texts."""

    own: Mapping[str, Any]
    texts: tuple[str, ...]
    causes: tuple[Mapping[str, Any], ...]


@cache
def _load_rows() -> tuple[_Row, ...]:
    failures = (row for prefix in PREFIXES for row in load(__package__, f"failures/{prefix}").get("failure", ()))
    return tuple(each for row in (*failures, *load(__package__, "families")["family"]) for each in split_row(row))


def split_row(row: Mapping[str, Any]) -> Iterator[_Row]:
    """Yield the family of a row that has texts, and one for each cause that has some."""
    causes = [(each, _list_texts(each)) for each in row.get("cause", ())]
    shared = {key: value for key, value in row.items() if key in _OF_FAMILY}
    if texts := _list_texts(row):
        yield _Row(shared, texts, tuple(cause for cause, own in causes if not own))
    if row.get("is_plain"):
        shared = {key: value for key, value in shared.items() if key not in ("is_general", "is_common")}
    for cause, texts in causes:
        if texts:
            own = {key: value for key, value in cause.items() if key in _OF_FAMILY}
            rest = {key: value for key, value in cause.items() if key not in _OF_FAMILY}
            is_report = cause.get("is_report", False) or shared.get("is_consequence", False)
            yield _Row({**shared, **own, "is_consequence": is_report}, texts, (rest,))


def _list_texts(row: Mapping[str, Any]) -> tuple[str, ...]:
    forms = ("Xid (PCI:{{bus:name}}): {},", "Xid ({{bus:name}}): {},", "Xid {}")
    xids = (form.format(xid) for xid in row.get("xids", ()) for form in forms)
    return (*row.get("symptoms", ()), *row.get("texts", ()), *xids)


@cache
def load_families() -> tuple[Family, ...]:
    """Return every family of errors. Raises as `load_failures`."""
    return tuple(map(_load_family, range(len(_load_rows()))))


@cache
def _load_family(place: int) -> Family:
    return decode_family(_load_rows()[place])


def decode_family(row: _Row) -> Family:
    """Decode a family. Raises as `load_failures`."""
    own = decode_fields({**row.own, "texts": row.texts}, Family)
    return Family(**own, causes=tuple(map(_decode_cause, row.causes)))


def _decode_cause(row: Mapping[str, Any]) -> FamilyCause:
    own = {key: row[key] for key in row if key not in ("fix", "problem", "xids", "texts", "where", "given")}
    values = decode_fields(own, FamilyCause) | {key: row[key] for key in ("where", "given") if key in row}
    if "problem" in row:
        problem = find_problem_row(row["code"], row["problem"])
        values.setdefault("cause", problem.message)
        variants = problem.fixes
    elif isinstance(row["fix"], str):  # the name of a shared one
        variants = decode_fix_rows(row["fix"])
    else:
        return FamilyCause(**values, fix=Fix(**decode_fields(row["fix"], Fix)))
    return FamilyCause(**values, fix=show_general_fix(variants), variants=variants)


@cache
def _index_rows() -> Mapping[str, tuple[int, ...]]:
    """Return the places of rows by a word that a text must have for one of theirs; "" for those without such a word.

    Of the words of a text the one is taken that the fewest other texts have.
    """
    words = {text: list_whole_words(text) for row in _load_rows() for text in row.texts}
    spread = Counter(word for found in words.values() for word in found)
    places: dict[str, dict[int, None]] = {}
    for place, row in enumerate(_load_rows()):
        for text in row.texts:
            key = min(words[text], key=lambda word: (spread[word], -len(word)), default="")
            places.setdefault(key, {})[place] = None
    return {word: tuple(found) for word, found in places.items()}


def find_candidates(words: frozenset[str]) -> Iterator[Family]:
    """Yield the families of which a text with these words may have an error."""
    index = _index_rows()
    places = {place for word in words & index.keys() for place in index[word]}
    yield from map(_load_family, sorted(places.union(index.get("", ()))))


def find_general_cause(code: str) -> FamilyCause | None:
    """Return the first cause of a check's errors that names no value or fact of the text; None where it has none."""
    causes = (cause for family in _list_families_of(code) for cause in family.causes if cause.code == code)
    return next((cause for cause in causes if "{" not in cause.cause and not cause.given), None)


def _list_families_of(code: str) -> list[Family]:
    rows = enumerate(_load_rows())
    return [_load_family(place) for place, row in rows if any(cause.get("code") == code for cause in row.causes)]


def find_covered_failures(code: str) -> tuple[str, ...]:
    """Return the IDs of the failures that a check recognizes, such as "A01"."""
    return tuple(failure.id for failure in load_failures() if code in failure.checks)


def find_symptoms(code: str) -> tuple[str, ...]:
    """Return error texts and search terms that lead to a check, those that point to it alone first."""
    own = _list_families_of(code)
    others = (_load_family(place) for place, row in enumerate(_load_rows()) if code in row.own.get("also", ()))
    texts = [text for row in (*own, *others) for text in row.symptoms]
    check = load_check_rows(code[:3]).get(code)
    return tuple(dict.fromkeys((*texts, *(check.search_terms if check else ()))))


def show_general_fix(rows: tuple[FixRow, ...]) -> Fix:
    """Show the template of the variant for a machine that nothing is known of."""
    row = next((each for each in rows if each.when.get("machine") == ("unknown",)), rows[-1])
    return Fix(row.summary, row.commands, Side.HOST if row.where in SIDES else Side(row.where), row.root, row.restart)
