"""Saved facts as leaves, straight from their JSON: a thousand reports leave no time for objects."""

from typing import Any

from devkit.doctor.comparing.leaves import Leaf, Mark, blurred, frozen, keys_of
from devkit.doctor.comparing.rules import How, Rule, facts_rule

_Place = tuple[str, str, Rule]
"""A path, its pattern and its rule."""


class FactsLeaves:
    """Cuts documents into leaves, and remembers the paths that it has seen."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], _Place] = {}

    def of(self, document: dict[str, Any]) -> list[Leaf]:
        """Every leaf of a document of facts. A record is a leaf of its own, too, with its type as the value."""
        found: list[Leaf] = []
        for name, value in document.items():
            self._value(value, self._place("", "", f".{name}"), found)
        return found

    def _place(self, path: str, pattern: str, step: str) -> _Place:
        place = self._places.get((path, step))
        if place is None:
            own = f"{path}{step}".removeprefix(".")
            shape = f"{pattern}{'[]' if step.startswith('[') else step}".removeprefix(".")
            place = self._places[path, step] = (own, shape, facts_rule(shape))
        return place

    def _value(self, value: object, place: _Place, found: list[Leaf]) -> None:
        """Add the leaves of one value. They are gathered in a list: generators in generators take twice the time."""
        rule = place[2]
        if rule.how is How.LEFT_OUT:
            found.append((place[0], rule, frozen(value)))
        elif isinstance(value, dict):
            self._object(value, place, found)
        elif isinstance(value, list):
            self._list(value, place, found)
        else:
            found.append((place[0], rule, value))

    def _object(self, value: dict[str, Any], place: _Place, found: list[Leaf]) -> None:
        path, pattern, rule = place
        if len(value) == 1 and "unknown" in value:
            found.append((path, rule, Mark.UNREAD))
            return
        found.append((path, rule, str(value.get("type", "present"))))
        for name, inner in value.items():
            if name != "type":
                self._value(inner, self._place(path, pattern, f".{name}"), found)

    def _list(self, value: list[Any], place: _Place, found: list[Leaf]) -> None:
        path, pattern, rule = place
        if rule.is_whole or not all(isinstance(entry, dict) for entry in value):
            whole = frozen([entry for entry in value if not (rule.without and str(entry).startswith(rule.without))])
            found.append((path, rule, blurred(whole) if rule.is_blurred else whole))
            return
        found.append((path, rule, Mark.LIST))
        for key, entry in zip(keys_of(value, dict.get), value, strict=True):
            self._value(entry, self._place(path, pattern, f"[{key}]"), found)
