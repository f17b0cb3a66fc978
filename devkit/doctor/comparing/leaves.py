"""A report as leaves: a path, the rule of the field, and a value that can be counted."""

import re
from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from typing import Any

from devkit.doctor.comparing.rules import Rule

Leaf = tuple[str, Rule, Hashable]
"""Path such as `nvml.gpus[3].health.pcie_width`, its rule, its value. A tuple: a thousand reports have a million."""


class Mark(Enum):
    """What stands in a field that holds no plain value."""

    UNREAD = "not read"
    """The reading could not be taken; why is not compared, since reasons hold numbers and paths."""
    ABSENT = "absent"
    LIST = "a list"
    """A list whose entries are leaves of their own."""


_NAMES = ("index", "name", "purpose", "path", "variable", "number")
"""Fields that tell entries of a list apart, whatever their order; entries without one go by their place."""
_SHIFTING = frozenset({"pid", "id", "image_id", "uuid", "memory_bytes", "line", "at"})
"""Parts of live entries that differ between two readings of the same."""


def keys_of(entries: Sequence[Any], read: Callable[[Any, str], object]) -> list[str]:
    """A key for each entry of a list of objects, unique within it. `read` takes an entry and a field's name."""
    keys: list[str] = []
    seen: dict[str, int] = {}
    for place, entry in enumerate(entries):
        named = next((value for name in _NAMES if (value := read(entry, name)) is not None), place)
        key = str(named)
        seen[key] = seen.get(key, 0) + 1
        keys.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return keys


_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


def blurred(value: Hashable) -> Hashable:
    """The same without the numbers in its texts."""
    if isinstance(value, tuple):
        return tuple(blurred(inner) for inner in value)
    return _NUMBERS.sub("#", value) if isinstance(value, str) else value


def frozen(value: object) -> Hashable:
    """A value of JSON that can be counted, without what shifts between two readings."""
    if isinstance(value, dict):
        if set(value) == {"unknown"}:
            return Mark.UNREAD
        return tuple((name, frozen(inner)) for name, inner in sorted(value.items()) if name not in _SHIFTING)
    if isinstance(value, list):
        return tuple(frozen(inner) for inner in value)
    return value
