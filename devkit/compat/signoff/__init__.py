"""Signs off refreshed tables: whatever could make a plan or a finding wrong is found before they are used."""

from collections.abc import Mapping

from devkit.compat.validate import (
    TableProblem,
    validate_anchors,
    validate_consistency,
    validate_schema,
    validate_unchanged,
)
from devkit.compat.version_tables import TABLE_TYPES, TableDocument, Tables
from devkit.compat.version_tables import read_shipped_table as shipped_document

__all__ = ["TableProblem", "validate_tables"]


def validate_tables(documents: Mapping[str, TableDocument], *, today: str) -> tuple[TableProblem, ...]:
    """Everything that speaks against these documents, by table name; those that are absent are the shipped ones.

    `today` is the date in ISO 8601. Rows are held against others only where all have their shape.
    Raises: KeyError for a name that no table has.
    """
    shipped = {name: shipped_document(name) for name in documents if name in TABLE_TYPES}
    found = [
        fault
        for name, document in documents.items()
        for fault in validate_schema(name, document, shipped=shipped[name], today=today)
    ]
    if not all(fault.may_be_forced for fault in found):
        return tuple(found)
    known = Tables(lambda name: documents.get(name) or shipped_document(name))
    for name, document in documents.items():
        found += validate_unchanged(name, document, shipped=shipped[name])
    unordered = tuple(validate_consistency(known))
    # Who looks facts up relies on the order.
    return (*found, *(unordered or validate_anchors(known)))
