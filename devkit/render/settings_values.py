"""Settings from a TOML table whose keys are the settings' names, with the place of whatever is wrong."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.facts.said import described, kind_of
from devkit.render.toml_place import place_of
from devkit.text import listed


@dataclass(frozen=True)
class Source:
    """Where a table stands: the file as people name it, its text, and the keys that lead to the table."""

    shown_as: str
    text: str
    within: tuple[str, ...] = ()

    def at(self, *keys: str) -> str:
        """FILE:LINE:COLUMN of a key in the table, or FILE alone."""
        place = place_of(self.text, (*self.within, *keys))
        return f"{self.shown_as}:{place}" if place else self.shown_as


def values_in(table: Mapping[str, Any], settings: type, source: Source) -> dict[str, Any]:
    """What the table sets, by name of setting. Raises DevkitError with line and column for unknown keys, wrong types.

    Dashes in keys, as flags have them, are as good as underscores.
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in described(settings):
            close = difflib.get_close_matches(name, described(settings), n=1, cutoff=0.5)
            hint = f"Did you mean {close[0]}?" if close else f"The settings are {listed(described(settings))}."
            raise DevkitError(f"{source.at(key)}: there is no setting {key!r}", hint)
        if name in found:
            raise DevkitError(f"{source.at(key)}: {name} is set twice", "Keep one of the two.")
        wanted, made = _checked(kind_of(settings, name), value)
        if made is None:
            raise DevkitError(f"{source.at(key)}: {name} must be {wanted}, not {value!r}", f"Write it as {wanted}.")
        found[name] = made
    return found


def _checked(kind: Any, value: object) -> tuple[str, object]:  # noqa: ANN401 - a type
    """What a value of this kind looks like, and the value as the settings hold it; None for a wrong one."""
    if kind is bool:
        return "true or false", value if isinstance(value, bool) else None
    if kind is tuple:
        texts = [value] if isinstance(value, str) else value
        fits = isinstance(texts, list) and bool(texts) and all(isinstance(each, str) for each in texts)
        return "a list of strings", tuple(texts) if fits and isinstance(texts, list) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return "a whole number", value if is_number and isinstance(value, int) else None
    if kind is float:
        return "a number", float(value) if is_number and isinstance(value, int | float) else None
    return _of_text(kind, value)


def _of_text(kind: Any, value: object) -> tuple[str, object]:  # noqa: ANN401 - a type
    if issubclass(kind, StrEnum):
        known = [str(each) for each in kind]
        return listed((f'"{each}"' for each in known), "or"), kind(value) if value in known else None
    if not isinstance(value, str) or not value:
        return "a string in quotes", None
    return "a string in quotes", Path(value) if kind is Path else kind(value)
