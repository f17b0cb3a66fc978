"""One table file: its arrays become typed rows, each when it is first asked for.

A command asks for a few of the arrays, and parsing all of them would take a third of its time.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, Generic, TypeVar, get_args, get_origin, overload

from devkit.compat.rows import Confidence, Row
from devkit.facts.values import ComputeCapability, Release

Document = Mapping[str, Any]
"""A table as TOML has it: `schema`, `as_of`, arrays of rows by name, and `sources`, the addresses by id."""

AnyRow = TypeVar("AnyRow", bound=Row)
Key = TypeVar("Key")
Found = TypeVar("Found")

_ARRAY = re.compile(r"^(\w+) = \[\n.*?^\]$", re.MULTILINE | re.DOTALL)
"""An array of rows as the shipped tables lay it out: its brackets alone on their lines."""

SCALARS: dict[object, Callable[[Any], Any]] = {
    Release: Release.read,
    ComputeCapability: ComputeCapability.read,
    Confidence: Confidence,
}
"""Types of fields that stand in TOML as text, and how they are read."""


class LazyDocument(Mapping[str, Any]):
    """The document in a TOML text. Arrays are parsed when they are asked for, whatever is not laid out so at once."""

    def __init__(self, text: str) -> None:
        self._arrays = {found[1]: found[0] for found in _ARRAY.finditer(text)}
        self._parsed: dict[str, Any] = tomllib.loads(_ARRAY.sub("", text))

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - whatever TOML holds
        if name in self._arrays:
            self._parsed |= tomllib.loads(self._arrays.pop(name))
        return self._parsed[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._parsed, *self._arrays])

    def __len__(self) -> int:
        return len(self._parsed) + len(self._arrays)


def field_types(row: type[Row]) -> dict[str, Any]:
    """The type of each field of a row, as its class and those above it declare it."""
    return {name: kind for one in reversed(row.__mro__) for name, kind in vars(one).get("__annotations__", {}).items()}


def required_fields(row: type[Row]) -> frozenset[str]:
    """The fields that every row of a table must have; the day it was checked may be that of the whole table."""
    return frozenset(field.name for field in fields(row) if field.default is MISSING) - {"checked"}


def _decoders(row: type[Row]) -> dict[str, Callable[[Any], Any]]:
    """How to turn each TOML value into the field's type; fields that TOML already types right are absent."""
    found: dict[str, Callable[[Any], Any]] = {}
    for name, kind in field_types(row).items():
        if get_origin(kind) is tuple:
            found[name] = tuple
        for part in (kind, *get_args(kind)):
            found |= {name: SCALARS[part]} if part in SCALARS else {}
    return found


class Table:
    """One file's arrays, typed. `as_of` is the day the file was last checked."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.as_of: str = document["as_of"]

    def rows(self, name: str, row: type[AnyRow]) -> tuple[AnyRow, ...]:
        """The array `name`. Raises KeyError for a missing array or a source id that does not resolve."""
        sources, decoders = self._document["sources"], _decoders(row)

        def typed(raw: Document) -> AnyRow:
            values = {key: decoders[key](value) if key in decoders else value for key, value in raw.items()}
            values["source"] = tuple(sources[source] for source in raw["source"])
            return row(**{"checked": self.as_of, **values})

        return tuple(typed(raw) for raw in self._document[name])

    @classmethod
    def arrays(cls) -> "tuple[Declared[Any], ...]":
        """The arrays that a file of this kind holds."""
        return tuple(each for each in vars(cls).values() if isinstance(each, Declared))


class Declared(Generic[AnyRow]):
    """An array of a kind of table. No two rows have the same `unique` fields."""

    def __init__(self, name: str, row: type[AnyRow], *, unique: tuple[str, ...]) -> None:
        self.name = name
        self.row = row
        self.unique = unique

    def __set_name__(self, owner: type[Table], attribute: str) -> None:
        self._attribute = attribute

    def _kept(self, table: Table, found: Found) -> Found:
        """Found in the instance from now on, before this descriptor is asked again."""
        vars(table)[self._attribute] = found
        return found


class Array(Declared[AnyRow]):
    """An array that is read as a tuple of its rows."""

    @overload
    def __get__(self, table: None, owner: type[Table]) -> "Array[AnyRow]": ...
    @overload
    def __get__(self, table: Table, owner: type[Table]) -> tuple[AnyRow, ...]: ...
    def __get__(self, table: Table | None, owner: type[Table]) -> "Array[AnyRow] | tuple[AnyRow, ...]":
        return self if table is None else self._kept(table, table.rows(self.name, self.row))


class KeyedArray(Declared[AnyRow], Generic[AnyRow, Key]):
    """An array that is read as a dict of its rows; `key` is made of the unique fields."""

    def __init__(self, name: str, row: type[AnyRow], *, unique: tuple[str, ...], key: Callable[[AnyRow], Key]) -> None:
        super().__init__(name, row, unique=unique)
        self._key = key

    @overload
    def __get__(self, table: None, owner: type[Table]) -> "KeyedArray[AnyRow, Key]": ...
    @overload
    def __get__(self, table: Table, owner: type[Table]) -> dict[Key, AnyRow]: ...
    def __get__(self, table: Table | None, owner: type[Table]) -> "KeyedArray[AnyRow, Key] | dict[Key, AnyRow]":
        if table is None:
            return self
        return self._kept(table, {self._key(row): row for row in table.rows(self.name, self.row)})
