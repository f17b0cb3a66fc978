"""Settings of a run as tables and JSON spell them: a mapping of names to plain values, and back."""

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from enum import StrEnum
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from devkit.errors import DevkitError

Settings = TypeVar("Settings")


def settings_from(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """The settings of class `kind` that `values` spell; what they leave out has its default.

    Raises DevkitError for a name or a value that `kind` does not have.
    """
    hints = get_type_hints(kind)
    for name in values:
        if name not in hints:
            near = get_close_matches(name, hints, n=1)
            raise DevkitError(f"unknown setting {name!r}", f"Did you mean {near[0]}?" if near else _known(hints))
    return kind(**{name: _read(name, hints[name], value) for name, value in values.items()})


def plain(settings: object) -> dict[str, Any]:
    """Every setting by name, as values that JSON has."""
    return {field.name: _plain(getattr(settings, field.name)) for field in fields(settings)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:  # noqa: ANN401 - any setting's value
    if isinstance(value, StrEnum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def _read(name: str, hint: Any, value: Any) -> Any:  # noqa: ANN401 - any setting's value
    if isinstance(value, list):
        return tuple(value)
    kind = next(each for each in get_args(hint) or (hint,) if each is not NoneType)
    if value is None or not (isinstance(kind, type) and issubclass(kind, StrEnum)):
        return value
    try:
        return kind(value)
    except ValueError as error:
        raise DevkitError(f"{name} has no value {value!r}", f"It is one of {', '.join(kind)}.") from error


def _known(hints: Mapping[str, Any]) -> str:
    return f"Known: {', '.join(hints)}."
