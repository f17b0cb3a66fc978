"""Documents from outside, taken as what they should be: what has another shape is as good as absent."""

import json
import tomllib
from collections.abc import Mapping
from typing import Any

MOST_DIGITS = 18
DEEPEST_YAML = 500
"""PyYAML's composer in C recurses without a limit of its own: deep nesting would end the whole process."""


def json_of(text: str) -> object:
    """The value of a JSON text. Raises ValueError for everything else, too deep nesting included."""
    try:
        value: object = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def place_of(error: ValueError) -> str:
    """Where a text stops being JSON, and why."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    return str(error)


def toml_of(text: str) -> dict[str, Any]:
    """The table of a TOML text. Raises ValueError for everything else, too deep nesting included."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def yaml_of(text: str) -> object:
    """The value of a YAML text. Raises ValueError for everything else, too deep nesting included."""
    import yaml

    # A CDI specification may hold a megabyte; the parser in C reads it ten times faster.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if _may_be_deep(text):
            _limit_depth(yaml.parse(text, Loader=loader))
        value: object = yaml.load(text, Loader=loader)  # noqa: S506 - both loaders are the safe ones
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error) or "nested too deeply") from error
    return value


def _may_be_deep(text: str) -> bool:
    """Whether brackets or a long line could nest that deeply; looking at every event would take as long as parsing."""
    return (
        text.count("[") + text.count("{") > DEEPEST_YAML
        or max((len(line) for line in text.splitlines()), default=0) > DEEPEST_YAML
    )


def _limit_depth(events: Any) -> None:  # noqa: ANN401 - PyYAML has no types
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name in ("SequenceStartEvent", "MappingStartEvent")
        depth -= name in ("SequenceEndEvent", "MappingEndEvent")
        if depth > DEEPEST_YAML:
            raise ValueError("nested too deeply")


def whole(text: str) -> int | None:
    """The number that `text` is; None for everything but plain digits, and for more of them than any counter has."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None


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


def word(record: Mapping[str, Any], key: str) -> str:
    """The plain value at `key` as text: YAML reads an unquoted 0 as a number. "" for anything with parts."""
    value = record.get(key)
    return str(value) if isinstance(value, str | int | float) else ""


def texts(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """The texts in the list at `key`."""
    return tuple(item for item in items(record, key) if isinstance(item, str))


def number(record: Mapping[str, Any], key: str) -> int | None:
    """The whole number at `key`; None when there is none. True is no number."""
    value = record.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
