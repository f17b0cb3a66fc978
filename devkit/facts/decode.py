"""Decoder from the plain values of JSON and TOML to the typed fields of dataclasses.

Facts, version tables, devkit.toml, settings files and settings of estimates all read their fields here.
"""

import dataclasses
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from devkit.facts.values import ComputeCapability, Release, Unknown
from devkit.text import join_words

Decoder = Callable[[Any], Any]
"""Turns a plain value into that of a field. Raises InvalidValue."""

ObjectDecoder = Callable[[Mapping[str, Any], tuple[Any, ...]], Any]
"""Turns a JSON object into one of the types that a field may have. Raises InvalidValue."""

_EXPECTED: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string in quotes",
    Release: "a version",
    ComputeCapability: "a compute capability",
}


class InvalidValue(ValueError):  # noqa: N818 - the name says what was read
    """A value that does not fit its field. `expected` says what fits, `path` holds the keys that lead to the value."""

    def __init__(self, expected: str, value: object) -> None:
        super().__init__(f"expected {expected}, got {value!r}")
        self.expected = expected
        self.value = value
        self.path: tuple[str | int, ...] = ()

    def within(self, key: str | int) -> "InvalidValue":
        """Return the error as seen from the table or list around the value."""
        self.path = (key, *self.path)
        return self


class MissingValue(InvalidValue):
    """A required field that is absent."""

    def __init__(self, name: str) -> None:
        super().__init__("a value", None)
        self.path = (name,)


class UnknownKey(KeyError):  # noqa: N818 - as above
    """A key that is not a field."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


@cache
def get_field_types(kind: type) -> dict[str, Any]:
    """Return the type of each field, without its `Annotated` metadata."""
    return get_type_hints(kind)


@cache
def get_field_decoders(kind: type, decode_object: ObjectDecoder | None = None) -> dict[str, Decoder]:
    """Return the decoder of each field of a dataclass. `decode_object` decodes JSON objects, where fields hold them."""
    return {name: get_decoder(field, decode_object) for name, field in get_field_types(kind).items()}


def decode_fields(table: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Decode the fields that a table sets, by name; missing fields stay absent.

    Raises:
        UnknownKey: for a key that is not a field of `kind`.
        InvalidValue: for a value that does not fit its field.
    """
    decoders = get_field_decoders(kind)
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in decoders:
            raise UnknownKey(key)
        try:
            found[key] = decoders[key](value)
        except InvalidValue as error:
            raise error.within(key) from None
    return found


@cache
def get_decoder(kind: Any, decode_object: ObjectDecoder | None = None) -> Decoder:  # noqa: ANN401 - a type
    """Return the decoder to a type: a scalar, an enumeration, a tuple, a version, a record, or a union of them."""
    options = get_options(kind)
    decoders = [_get_plain_decoder(each, decode_object) for each in options if each is not NoneType and _is_plain(each)]
    if len(options) == len(decoders) == 1 and decode_object is None:
        return decoders[0]
    expected, is_optional = describe_type(kind), NoneType in options

    def decode(value: Any) -> Any:  # noqa: ANN401 - any plain value
        if value is None and is_optional:
            return None
        if decode_object is not None and isinstance(value, Mapping):
            return decode_object(value, options)
        for decoder in decoders:
            try:
                return decoder(value)
            except InvalidValue as error:
                if error.path:
                    raise
        raise InvalidValue(expected, value)

    return decode


def describe_type(*kinds: Any) -> str:  # noqa: ANN401 - types
    """Describe the values that fit one of these types, for messages: "a whole number", "a list of strings"."""
    options = [option for kind in kinds for option in get_options(kind) if option not in (Unknown, NoneType)]
    return " or ".join(map(_describe_option, options))


def get_options(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a type
    """Return the types of a union, or the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _describe_option(kind: Any) -> str:  # noqa: ANN401 - a type
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        if get_origin(item) is tuple:
            return "a table of strings"
        return {str: "a list of strings", int: "a list of whole numbers"}.get(item, "a list")
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return join_words((f'"{each}"' for each in kind), "or")
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    return kind.__name__ if dataclasses.is_dataclass(kind) and isinstance(kind, type) else _EXPECTED[str]


def _is_plain(kind: Any) -> bool:  # noqa: ANN401 - a type
    return not dataclasses.is_dataclass(kind) or hasattr(kind, "parse")


def _get_plain_decoder(kind: Any, decode_object: ObjectDecoder | None) -> Decoder:  # noqa: ANN401 - a type
    if get_origin(kind) is tuple:
        return _get_tuple_decoder(kind, decode_object)
    if kind is Any or get_origin(kind) is not None:
        return lambda value: value
    expected = describe_type(kind)
    parse: Callable[[str], object] = getattr(kind, "parse", kind)

    def decode_scalar(value: Any) -> Any:  # noqa: ANN401 - any plain value
        # A bool is an int to Python, not to a reader of settings.
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        raise InvalidValue(expected, value)

    def decode_text(value: Any) -> Any:  # noqa: ANN401 - any plain value
        if not isinstance(value, str) or not value:
            raise InvalidValue(expected, value)
        try:
            return parse(value)
        except ValueError as error:
            raise InvalidValue(expected, value) from error

    return decode_scalar if kind in (str, int, float, bool) else decode_text


def _get_tuple_decoder(kind: Any, decode_object: ObjectDecoder | None) -> Decoder:  # noqa: ANN401 - a type
    item = get_args(kind)[0]
    decode_item, expected = get_decoder(item, decode_object), describe_type(kind)
    has_pairs = get_origin(item) is tuple
    has_records = not has_pairs and item not in (str, int)

    def decode(value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any plain value
        items = list(value.items()) if has_pairs and isinstance(value, Mapping) else value
        if not isinstance(items, list | tuple):
            raise InvalidValue(expected, value)
        found = []
        for index, each in enumerate(items):
            try:
                found.append(decode_item(each))
            except InvalidValue as error:
                raise (error.within(index) if has_records else InvalidValue(expected, value)) from None
        return tuple(found)

    return decode
