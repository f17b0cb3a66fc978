"""JSON documents as dataclasses: one definition gives the document that a command prints, and its JSON Schema.

Fields may be added without a new number, so that no schema forbids others; none is removed or renamed. Documents that ship
with devkit are TOML in the source tree, and compiled to JSON in the wheel (hatch_build.py).
"""

import json
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pkgutil import get_data
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Json = dict[str, Any]
Line = Annotated[str, r"^[^\u0000\r\n]{1,1000}$"]
"""A text on one line; schemas have the pattern."""

DocumentT = TypeVar("DocumentT")

_MAY_LACK = "may_lack"
MAY_LACK = {_MAY_LACK: True}
"""The metadata of a field that a document lacks where it is None."""
_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def build_from(kind: type[DocumentT], origin: object, /, **own: object) -> DocumentT:
    """Build a document of `kind`: with the values in `own`, others from the attributes of `origin` of the same names."""
    names = (each.name for each in fields(kind) if each.name not in own)  # type: ignore[arg-type]
    return kind(**{name: getattr(origin, name) for name in names if hasattr(origin, name)}, **own)


def encode(document: Any) -> Json:  # noqa: ANN401 - an instance of a dataclass
    """Encode a document as the plain values of JSON: enumerations by their values, versions and paths as text."""
    pairs = ((each, getattr(document, each.name)) for each in fields(document))
    return {each.name: _encode(own) for each, own in pairs if own is not None or _MAY_LACK not in each.metadata}


def _encode(value: Any) -> Any:  # noqa: ANN401 - any value of a document
    if is_dataclass(value):
        return encode(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _encode(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(each) for each in value]
    return value if type(value) in _SCALARS else str(value)


def build_schema(name: str, kind: type, *, about: str) -> Json:
    """Build the JSON Schema of the document `name`, such as devkit.plan/1, from its dataclass."""
    found = _build_object(kind)
    required = dict.fromkeys(("schema", *found["required"]))
    properties = {**found["properties"], "schema": {"const": name}}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, "description": about}
    return {**head, "type": "object", "required": [*required], "properties": properties}


def _build_object(kind: Any) -> Json:  # noqa: ANN401 - a dataclass
    hints = get_type_hints(kind, include_extras=True)
    own = fields(kind)
    return {
        "type": "object",
        "required": [each.name for each in own if _MAY_LACK not in each.metadata],
        "properties": {each.name: _build_schema(hints[each.name]) for each in own},
    }


def _build_schema(kind: Any) -> Json:  # noqa: ANN401 - any type
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return {**_build_schema(parts[0]), "pattern": parts[1]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_build_schema(part) for part in parts]}
    if origin is Literal:
        return {"enum": [*parts]}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": _build_schema(parts[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _build_schema(parts[1])}
    if is_dataclass(kind):
        return _build_object(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [each.value for each in kind]}
    return {"type": _SCALARS[kind]} if kind in _SCALARS else {}


@cache
def load(package: str, name: str) -> dict[str, Any]:
    """Load a document of a package by its name without ending, once. Callers share it, so they must not change it.

    Raises:
        FileNotFoundError: for a name that no document has.
    """
    try:
        return dict(json.loads(get_data(package, f"{name}.json") or b"{}"))
    except FileNotFoundError:
        return tomllib.loads((get_data(package, f"{name}.toml") or b"").decode())
