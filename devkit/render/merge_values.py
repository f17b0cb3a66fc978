"""Three versions of a JSON or YAML document joined key by key: layout and comments of the user's stay as they are.

Joined line by line such a document can lose a comma, and markers of a conflict would break it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from devkit.render.splice import CannotSplice, Syntax, json_text, remove_value, set_value

Key = tuple[str, ...]


class Absent(Enum):
    """What stands in the place of a value that is not there; null is a value."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


@dataclass(frozen=True)
class Rejected:
    """A change of devkit's that the user's document does not take. `value` is ABSENT for a removal."""

    key: Key
    value: object

    def shown(self) -> str:
        """The change in one line."""
        name = ".".join(self.key) or "the document"
        return f"{name}: removed" if self.value is ABSENT else f"{name}: {json_text(self.value)}"


def merged_document(base: str, mine: str, theirs: str, syntax: Syntax) -> tuple[str, tuple[Rejected, ...]]:
    """`mine` with the changes from `base` to `theirs` that nothing in it contradicts, and the changes that are left.

    Raises: ValueError when one of the three does not parse.
    """
    before, wanted = syntax.loads(base), syntax.loads(theirs)
    syntax.loads(mine)
    joining = _Joining(mine, syntax)
    for key, value in _changes(before, wanted):
        now = joining.at(key)
        if now != value and now != _at(before, key):
            joining.rejected.append(Rejected(key, value))
        elif now != value:
            joining.put(key, value)
    for key, old, new in _lists(before, wanted):
        joining.join_items(key, old, new)
    return joining.text, tuple(joining.rejected)


class _Joining:
    """The user's document while changes are made to it one by one."""

    def __init__(self, text: str, syntax: Syntax) -> None:
        self.text = text
        self.rejected: list[Rejected] = []
        self._syntax = syntax

    def at(self, key: Key) -> object:
        """What stands there now."""
        return _at(self._syntax.loads(self.text), key)

    def put(self, key: Key, value: object) -> None:
        """Set or remove it; a layout that does not allow it rejects the change."""
        try:
            if value is ABSENT:
                self.text = remove_value(self.text, key, self._syntax)
            else:
                self.text = set_value(self.text, key, value, self._syntax)
        except CannotSplice:
            self.rejected.append(Rejected(key, value))

    def join_items(self, key: Key, old: list[object], new: list[object]) -> None:
        """Add and take away the items of a plain list that devkit added and took away, each one by itself."""
        for item in new:
            now = self.at(key)
            if item not in old and isinstance(now, list) and item not in now:
                self.put((*key, str(len(now))), item)
        for item in old:
            now = self.at(key)
            if item not in new and isinstance(now, list) and item in now:
                self.put((*key, str(now.index(item))), ABSENT)


def _changes(before: object, wanted: object, key: Key = ()) -> Iterator[tuple[Key, object]]:
    """What must be set or removed to turn one document into the other; lists of plain values apart."""
    if before == wanted or (_is_plain_list(before) and _is_plain_list(wanted)):
        return
    if not (isinstance(before, dict) and isinstance(wanted, dict)):
        yield key, wanted
        return
    for name in [*before, *(name for name in wanted if name not in before)]:
        if name not in wanted:
            yield (*key, str(name)), ABSENT
        elif name not in before:
            yield (*key, str(name)), wanted[name]
        else:
            yield from _changes(before[name], wanted[name], (*key, str(name)))


def _lists(before: object, wanted: object, key: Key = ()) -> Iterator[tuple[Key, list[object], list[object]]]:
    if isinstance(before, list) and isinstance(wanted, list) and _is_plain_list(before) and _is_plain_list(wanted):
        yield key, before, wanted
    elif isinstance(before, dict) and isinstance(wanted, dict):
        for name in before:
            if name in wanted:
                yield from _lists(before[name], wanted[name], (*key, str(name)))


def _is_plain_list(value: object) -> bool:
    return isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value)


def _at(document: object, key: Key) -> object:
    for name in key:
        if not isinstance(document, dict) or name not in document:
            return ABSENT
        document = document[name]
    return document
