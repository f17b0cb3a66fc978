"""Which fields a check reads: the facts as records that note each look at a field.

The checks ask what kind of record they have before them, so each noting record is of a subclass of its own kind.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from devkit.doctor.comparing.leaves import keys_of
from devkit.doctor.model import Check
from devkit.doctor.sides import judge
from devkit.facts.model import Facts
from devkit.facts.values import ComputeCapability, Release, Unknown

_LEAVES = (Release, ComputeCapability, Unknown)
_NOTES = "_notes of looks"
_PATH = "_path of this record"


def reads_of(checks: Iterable[Check], facts: Facts) -> Mapping[str, frozenset[str]]:
    """The paths that each check reads in judging these facts, by its code. Paths are those of `facts_leaves`."""
    notes: set[str] = set()
    watched = _watched(facts, "", notes)
    found = {}
    for check in checks:
        notes.clear()
        judge((check,), watched, clock=float)
        found[check.code] = frozenset(notes)
    return found


def _watched(value: Any, path: str, notes: set[str]) -> Any:  # noqa: ANN401 - what came in, with notes taken
    if isinstance(value, tuple):
        records = [is_dataclass(entry) and not isinstance(entry, _LEAVES) for entry in value]
        if not value or not all(records):
            return value
        keys = keys_of(value, lambda entry, name: vars(entry).get(name))
        return tuple(_watched(entry, f"{path}[{key}]", notes) for key, entry in zip(keys, value, strict=True))
    if not is_dataclass(value) or isinstance(value, _LEAVES):
        return value
    own_kind: Any = type(value)
    kind: Any = _watching(own_kind)
    made = object.__new__(kind)
    inner = {name: _watched(own, f"{path}.{name}" if path else name, notes) for name, own in vars(value).items()}
    vars(made).update(inner)
    vars(made).update({_NOTES: notes, _PATH: path})
    return made


@cache
def _watching(kind: Any) -> type:  # noqa: ANN401 - any kind of record
    names = frozenset(field.name for field in fields(kind))

    def look(self: object, name: str) -> object:
        if name in names:
            own = object.__getattribute__(self, "__dict__")
            if _NOTES in own:  # a copy that `replace` made has none
                own[_NOTES].add(f"{own[_PATH]}.{name}".removeprefix("."))
        return object.__getattribute__(self, name)

    def equal(self: Any, other: object) -> bool:  # noqa: ANN401 - a noting record
        return isinstance(other, kind) and all(getattr(self, name) == getattr(other, name) for name in names)

    own = {"__getattribute__": look, "__eq__": equal, "__hash__": kind.__hash__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), own)
