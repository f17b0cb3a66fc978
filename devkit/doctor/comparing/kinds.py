"""Which documents can be compared, and with which: only those of one kind."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from devkit.facts.store import SCHEMA as FACTS_SCHEMA

LONGEST_SCHEMA = 80
"""Characters of an unknown schema's name that a message repeats."""


class Kind(StrEnum):
    """A kind of document, by its schema. A newer schema is another kind, and unknown here."""

    FACTS = FACTS_SCHEMA
    DOCTOR = "devkit.doctor/1"
    VERIFY = "devkit.verify/1"
    VERIFY_CHECK = "devkit.verify-check/1"

    @property
    def plural(self) -> str:
        """What several documents of the kind are called."""
        return _PLURALS[self]


_PLURALS = {
    Kind.FACTS: "saved facts",
    Kind.DOCTOR: "reports of devkit doctor",
    Kind.VERIFY: "reports of devkit verify",
    Kind.VERIFY_CHECK: "checks of reports of devkit verify",
}


class WrongReport(ValueError):  # noqa: N818 - named for what was read, as a user would say it
    """A document that cannot be compared; the text says why."""


def kind_of(document: object) -> Kind:
    """The kind of a document. Raises WrongReport."""
    if not isinstance(document, dict):
        raise WrongReport("not a JSON object")
    schema = document.get("schema")
    if schema in tuple(Kind):
        return Kind(schema)
    if not isinstance(schema, str):
        raise WrongReport("it names no schema, so it is no document of devkit")
    shown = schema if len(schema) <= LONGEST_SCHEMA else f"{schema[: LONGEST_SCHEMA - 1]}…"
    raise WrongReport(f"its schema is {shown!r}; this devkit compares {', '.join(Kind)}")


def check_form(document: Mapping[str, Any], kind: Kind) -> None:
    """Raises WrongReport where a report is not what its schema promises, as far as comparing reads it.

    Facts are not looked at: `devkit.facts.store` reads them whole.
    """
    if kind is Kind.FACTS:
        return
    lists = {Kind.DOCTOR: ("outcomes", "code"), Kind.VERIFY: ("stages", "name"), Kind.VERIFY_CHECK: ("points", "name")}
    field, name = lists[kind]
    rows = document.get(field)
    if not isinstance(rows, list):
        raise WrongReport(f"{field}: expected a list")
    for place, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get(name), str) or not isinstance(row.get("status"), str):
            raise WrongReport(f"{field}[{place}]: expected an object with {name} and status")
    _check_parts(document, rows, kind)


def _check_parts(document: Mapping[str, Any], rows: list[dict[str, Any]], kind: Kind) -> None:
    if kind is Kind.VERIFY:
        for field in ("device", "environment"):
            if not isinstance(document.get(field), dict):
                raise WrongReport(f"{field}: expected an object")
    inner = {Kind.DOCTOR: ("findings", list), Kind.VERIFY: ("measured", dict)}.get(kind)
    for row in rows if inner else ():
        name, wanted = inner  # type: ignore[misc]  # the loop is empty without
        if not isinstance(row.get(name), wanted):
            raise WrongReport(f"{row.get('code') or row.get('name')}: {name} is missing")
        if wanted is list and not all(isinstance(each, dict) for each in row[name]):
            raise WrongReport(f"{row.get('code')}: {name} holds what is no finding")
