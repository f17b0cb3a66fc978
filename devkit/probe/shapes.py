"""Documents from outside, taken as what they should be: what has another shape is as good as absent."""

from collections.abc import Mapping
from typing import Any


def part(record: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object at `key`, empty when there is none."""
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def items(record: Mapping[str, Any], key: str) -> list[Any]:
    """The list at `key`, empty when there is none."""
    value = record.get(key)
    return value if isinstance(value, list) else []


def parts(record: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The objects in the list at `key`."""
    return [item for item in items(record, key) if isinstance(item, dict)]


def text(record: Mapping[str, Any], key: str) -> str:
    """The text at `key`, "" when there is none."""
    value = record.get(key)
    return value if isinstance(value, str) else ""


def texts(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """The texts in the list at `key`."""
    return tuple(item for item in items(record, key) if isinstance(item, str))


def number(record: Mapping[str, Any], key: str) -> int | None:
    """The whole number at `key`; None when there is none. True is no number."""
    value = record.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
