"""Whether a document has the shape of its table: names, types, sources, dates, no row twice."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from devkit.compat.load import TABLES
from devkit.compat.rows import Row
from devkit.compat.signoff.fault import Fault
from devkit.compat.table import SCALARS, Declared, Document, field_types, required_fields
from devkit.facts.values import Release
from devkit.text import listed, on_one_line

_DATE = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])")
_ADDRESS = re.compile(r"https://[\w.-]+/\S*")
_WORDS = {str: "a text", int: "a whole number", float: "a number with its decimal point", bool: "true or false"}


def shape_faults(name: str, document: Document, *, shipped: Document, today: str) -> Iterator[Fault]:
    """What is wrong with the shape of table `name`. `today` is ISO 8601; `shipped` is the table of the same name."""
    yield from _head(name, document, shipped=shipped, today=today)
    sources = document.get("sources")
    yield from _sources(name, sources)
    declared = {array.name: array for array in TABLES[name].arrays()}
    for unknown in set(document) - {*declared, "schema", "as_of", "sources"}:
        yield Fault(name, "", f"{unknown!r} is no array of this table{_near(unknown, declared)}")
    for array in declared.values():
        rows = document.get(array.name)
        if not isinstance(rows, list) or not rows:
            yield Fault(name, "", f"the array {array.name!r} is {'empty' if rows == [] else 'missing'}")
            continue
        found = [*_rows(name, array, rows, sources if isinstance(sources, Mapping) else {}, today)]
        yield from found or _twice(name, array, rows)


def row_name(array: Declared[Any], row: Mapping[str, Any], number: int) -> str:
    """How a message calls a row: "toolkit 12.8.1", or by its number where what names it is missing."""
    parts = [row.get(field) for field in array.unique] if isinstance(row, Mapping) else []
    words = [" ".join(map(str, part)) if isinstance(part, list) else str(part) for part in parts if part is not None]
    return f"{array.name} {on_one_line(' '.join(words)) if words else f'number {number}'}"


def _head(name: str, document: Document, *, shipped: Document, today: str) -> Iterator[Fault]:
    schema, as_of = document.get("schema"), document.get("as_of")
    if schema != shipped["schema"]:
        yield Fault(name, "", f"its schema is {schema!r}; this devkit reads schema {shipped['schema']}")
    if not _is_date(as_of):
        yield Fault(name, "", f"as_of is {as_of!r}, not a date such as {shipped['as_of']!r}")
    elif str(as_of) > today:
        yield Fault(name, "", f"as_of is {as_of}, which is yet to come")
    elif str(as_of) < shipped["as_of"]:
        yield Fault(name, "", f"it is as of {as_of}, older than the shipped one of {shipped['as_of']}", True)


def _is_date(value: object) -> bool:
    return isinstance(value, str) and _DATE.fullmatch(value) is not None


def _sources(name: str, sources: object) -> Iterator[Fault]:
    if not isinstance(sources, Mapping):
        yield Fault(name, "", "the table 'sources' is missing")
        return
    for key, address in sources.items():
        if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
            yield Fault(name, f"source {key!r}", f"{address!r} is no https address")


def _rows(name: str, array: Declared[Any], rows: list[Any], sources: Mapping[str, Any], today: str) -> Iterator[Fault]:
    for number, row in enumerate(rows, start=1):
        called = row_name(array, row, number)
        if not isinstance(row, dict):
            yield Fault(name, called, "it is no table of fields")
            continue
        yield from (Fault(name, called, says) for says in _fields(array.row, row))
        yield from (Fault(name, called, says) for says in _provenance(row, sources, today))


def _fields(kind: type[Row], row: Mapping[str, Any]) -> Iterator[str]:
    types = field_types(kind)
    missing = required_fields(kind) - set(row)
    if missing:
        yield f"it lacks {listed(sorted(missing))}"
    for field, value in row.items():
        if field not in types:
            yield f"it has no field {field!r}{_near(field, types)}"
        elif wanted := _unlike(types[field], value):
            yield f"{field} is {value!r}, not {wanted}"


def _provenance(row: Mapping[str, Any], sources: Mapping[str, Any], today: str) -> Iterator[str]:
    named = row.get("source")
    if named == []:
        yield "it names no source"
    for source in named if isinstance(named, list) else ():
        if source not in sources:
            yield f"its source {source!r} is not among the sources"
    checked = row.get("checked", "2000-01-01")
    if not _is_date(checked) or checked > today:
        yield f"checked is {checked!r}, not a date of the past"


def _unlike(kind: Any, value: object) -> str:  # noqa: ANN401 - the type of any field
    """What a value should be, "" for one that it can be."""
    if isinstance(kind, UnionType):
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is tuple:
        part = get_args(kind)[0]
        fits = isinstance(value, list) and not any(_unlike(part, each) for each in value)
        return "" if fits else f"a list of {'numbers' if part is int else 'texts'}"
    if kind in SCALARS:
        return "" if isinstance(value, str) and _reads(kind, value) else f"a {_SPOKEN[kind.__name__]}"
    fits = type(value) is kind and (kind is not str or value == on_one_line(str(value)))
    return "" if fits else _WORDS[kind]


_SPOKEN = {
    "Release": "version",
    "ComputeCapability": "compute capability",
    "Confidence": "confidence: confirmed, single-source or inferred",
}


def _reads(kind: Any, text: str) -> bool:  # noqa: ANN401 - a type of SCALARS
    try:
        found = SCALARS[kind](text)
    except ValueError:
        return False
    return not isinstance(found, Release) or found.text == text


def _twice(name: str, array: Declared[Any], rows: list[Any]) -> Iterator[Fault]:
    types = field_types(array.row)
    seen = set()
    for number, row in enumerate(rows, start=1):
        key = tuple(_comparable(types[field], row[field]) for field in array.unique)
        if key in seen:
            yield Fault(name, row_name(array, row, number), "it stands there twice")
        seen.add(key)


def _comparable(kind: Any, value: Any) -> object:  # noqa: ANN401 - any field
    """12.0 and 12.0.0 are one version."""
    return SCALARS[kind](value) if kind in SCALARS else tuple(value) if isinstance(value, list) else value


def _near(word: str, known: Mapping[str, object]) -> str:
    close = get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
