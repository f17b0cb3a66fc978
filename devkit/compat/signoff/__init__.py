"""Signs off refreshed tables: whatever could make a plan or a finding wrong is found before they are used."""

from collections.abc import Mapping

from devkit.compat.load import TABLES, Tables
from devkit.compat.load import document as shipped_document
from devkit.compat.signoff.anchors import anchor_faults
from devkit.compat.signoff.fault import Fault
from devkit.compat.signoff.order import order_faults
from devkit.compat.signoff.published import published_faults
from devkit.compat.signoff.shape import shape_faults
from devkit.compat.table import Document

__all__ = ["Fault", "sign_off"]


def sign_off(documents: Mapping[str, Document], *, today: str) -> tuple[Fault, ...]:
    """Everything that speaks against these documents, by table name; those that are absent are the shipped ones.

    `today` is the date in ISO 8601. Rows are held against others only where all have their shape.
    Raises: KeyError for a name that no table has.
    """
    shipped = {name: shipped_document(name) for name in documents if name in TABLES}
    found = [
        fault
        for name, document in documents.items()
        for fault in shape_faults(name, document, shipped=shipped[name], today=today)
    ]
    if not all(fault.may_be_forced for fault in found):
        return tuple(found)
    known = Tables(lambda name: documents.get(name) or shipped_document(name))
    for name, document in documents.items():
        found += published_faults(name, document, shipped=shipped[name])
    unordered = tuple(order_faults(known))
    # Who looks facts up relies on the order.
    return (*found, *(unordered or anchor_faults(known)))
