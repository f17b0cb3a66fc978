"""Facts as JSON text and back, so that one machine's facts can be judged on another."""

import dataclasses
import json
import types
import typing
from enum import StrEnum
from functools import cache
from typing import Any

from devkit.facts.model import Facts
from devkit.facts.redact import redact_facts
from devkit.facts.values import ComputeCapability, Release, Unknown

__all__ = ["FACTS_SCHEMA", "InvalidFacts", "format_facts", "parse_facts", "parse_facts_document", "redact_facts"]

FACTS_SCHEMA = "devkit.facts/1"
NOT_RECORDED = "not recorded"

_AS_TEXT = (Release, ComputeCapability)


class InvalidFacts(ValueError):  # noqa: N818 - named for what was read, as a user would say it
    """A text that is not the facts of a machine. `path` is the wrong field, such as `driver.loaded`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path or 'the document'}: {problem}")
        self.path = path
        self.problem = problem


def format_facts(facts: Facts) -> str:
    """The facts as one JSON document, versions as text and unknowns as `{"unknown": reason}`."""
    return json.dumps({"schema": FACTS_SCHEMA, **_plain_fields(facts)}, indent=2, ensure_ascii=False) + "\n"


def parse_facts(text: str) -> Facts:
    """The facts in a JSON document that `to_json` wrote, this release or another.

    Fields that this release does not know are ignored; ones that it misses become `Unknown`. Raises WrongFacts.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFacts("", f"not JSON: {error}") from error
    return parse_facts_document(document)


def parse_facts_document(document: object) -> Facts:
    """The facts in a document that was parsed already; as `from_json`. Raises WrongFacts."""
    if not isinstance(document, dict):
        raise InvalidFacts("", f"expected an object, got {_named(document)}")
    if document.get("schema") != FACTS_SCHEMA:
        raise InvalidFacts("schema", f"expected {FACTS_SCHEMA!r}, got {document.get('schema')!r}")
    facts: Facts = _record(document, Facts, "")
    return facts


def _plain_fields(record: Any) -> dict[str, object]:  # noqa: ANN401 - any of the fact types
    return {field.name: _plain(getattr(record, field.name)) for field in dataclasses.fields(record)}


def _plain(value: object) -> object:
    if isinstance(value, Unknown):
        return {"unknown": value.reason}
    if isinstance(value, _AS_TEXT):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {"type": type(value).__name__, **_plain_fields(value)}
    return value


def _typed(value: object, kind: Any, path: str) -> Any:  # noqa: ANN401 - as typed as `kind` says
    """`value` as the type `kind`. Raises WrongFacts."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if isinstance(value, dict):
        return _object(value, options, path)
    if value is None and types.NoneType in options:
        return None
    for option in options:
        if typing.get_origin(option) is tuple and isinstance(value, list):
            item = typing.get_args(option)[0]
            return tuple(_typed(entry, item, f"{path}[{index}]") for index, entry in enumerate(value))
        if isinstance(value, str) and option in _AS_TEXT:
            return _read(value, option, path)
        if isinstance(value, str) and isinstance(option, type) and issubclass(option, StrEnum):
            return _member(value, option, path)
        # A bool is an int to Python, not to a reader of facts.
        if type(value) is option:
            return value
    raise InvalidFacts(path, f"expected {_expected(options)}, got {_named(value)}")


def _object(value: dict[str, Any], options: tuple[Any, ...], path: str) -> Any:  # noqa: ANN401 - as typed as `options`
    if set(value) == {"unknown"} and Unknown in options:
        return Unknown(_typed(value["unknown"], str, f"{path}.unknown"))
    classes = [option for option in options if isinstance(option, type)]
    records = {option.__name__: option for option in classes if dataclasses.is_dataclass(option)}
    named = value.get("type")
    record = records.get(named) if isinstance(named, str) else None
    if record is None or record in (Unknown, *_AS_TEXT):
        raise InvalidFacts(path, f"expected {_expected(options)}, got {_named(named) if named else 'an object'}")
    return _record(value, record, path)


def _record(value: dict[str, Any], kind: Any, path: str) -> Any:  # noqa: ANN401 - an instance of `kind`
    found = {}
    for name, option in _fields(kind):
        inner = f"{path}.{name}" if path else name
        if name in value:
            found[name] = _typed(value[name], option, inner)
        elif Unknown in typing.get_args(option):
            found[name] = Unknown(NOT_RECORDED)
        else:
            raise InvalidFacts(inner, "missing")
    return kind(**found)


@cache
def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple(typing.get_type_hints(kind).items())


def _read(text: str, kind: Any, path: str) -> object:  # noqa: ANN401 - Release or ComputeCapability
    try:
        value: object = kind.parse(text)
    except ValueError as error:
        raise InvalidFacts(path, str(error)) from error
    return value


def _member(text: str, kind: type[StrEnum], path: str) -> StrEnum:
    try:
        return kind(text)
    except ValueError as error:
        known = ", ".join(kind)
        raise InvalidFacts(path, f"expected one of {known}, got {text!r}") from error


def _expected(options: tuple[Any, ...]) -> str:
    names = {str: "text", int: "a number", float: "a decimal number", bool: "true or false", Release: "a version"}
    names[types.NoneType] = "null"
    shown = [names.get(option) or getattr(option, "__name__", str(option)) for option in options]
    return " or ".join("a list" if name == "tuple" else name for name in shown)


def _named(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value)
