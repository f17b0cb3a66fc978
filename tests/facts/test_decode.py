"""One decoder for facts, version tables and settings, with the values about which its predecessors disagreed."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pytest

from devkit.facts.decode import InvalidValue, UnknownKey, decode_fields, describe_type
from devkit.facts.values import ComputeCapability, Release, Unknown


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Boat:
    name: Annotated[str, "painted on both sides"] = ""
    oars: int | None = None
    length: float = 0.0
    has_sail: bool = False
    color: Color = Color.RED
    crew: tuple[str, ...] = ()
    berths: tuple[int, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    version: Release | Unknown | None = None
    capability: ComputeCapability | None = None
    log: Path = Path("log")


@pytest.mark.parametrize(
    ("field", "value", "decoded"),
    [
        pytest.param("name", "", "", id="an empty string"),
        pytest.param("oars", None, None, id="null where it may be"),
        pytest.param("length", 7, 7.0, id="a whole number for a decimal one: saved facts refused it"),
        pytest.param("color", "blue", Color.BLUE, id="a member of an enumeration"),
        pytest.param("crew", ["a", "b"], ("a", "b"), id="a list"),
        pytest.param("berths", [1, 2], (1, 2), id="a list of numbers"),
        pytest.param("labels", {"a": "b"}, (("a", "b"),), id="a table as pairs"),
        pytest.param("labels", [["a", "b"]], (("a", "b"),), id="a list of pairs"),
        pytest.param("version", "570.26", Release.parse("570.26"), id="a version"),
        pytest.param("capability", "9.0", ComputeCapability(9, 0), id="a compute capability"),
        pytest.param("log", "a/b", Path("a/b"), id="a path"),
    ],
)
def test_a_value_is_decoded_to_its_fields_type(field, value, decoded):
    found = decode_fields({field: value}, Boat)[field]
    assert found == decoded
    assert type(found) is type(decoded)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        pytest.param("name", 3, "a string in quotes", id="a number for a string"),
        pytest.param("oars", "8", "a whole number", id="a number in quotes: settings of estimates took it"),
        pytest.param("oars", 8.0, "a whole number", id="a decimal number for a whole one"),
        pytest.param("oars", True, "a whole number", id="true for a number"),
        pytest.param("length", True, "a number", id="true for a decimal number"),
        pytest.param("has_sail", 1, "true or false", id="a number for true"),
        pytest.param("color", "green", '"red" or "blue"', id="no member of the enumeration"),
        pytest.param("crew", "ann", "a list of strings", id="a string for a list"),
        pytest.param("crew", ["ann", 1], "a list of strings", id="a number among strings"),
        pytest.param("berths", ["1"], "a list of whole numbers", id="a string among numbers"),
        pytest.param("labels", {"a": 1}, "a table of strings", id="a number in a table"),
        pytest.param("version", "new", "a version", id="a version without numbers"),
        pytest.param("capability", "big", "a compute capability", id="no compute capability"),
        pytest.param("log", "", "a string in quotes", id="an empty path"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_what_would(field, value, expected):
    with pytest.raises(InvalidValue) as refused:
        decode_fields({field: value}, Boat)
    assert (refused.value.path, refused.value.expected, refused.value.value) == ((field,), expected, value)


def test_an_unknown_key_is_named():
    with pytest.raises(UnknownKey) as refused:
        decode_fields({"oarz": 2}, Boat)
    assert refused.value.key == "oarz"


def test_types_are_described_for_people():
    assert describe_type(Release | Unknown | None) == "a version"
    assert describe_type(int, tuple[str, ...]) == "a whole number or a list of strings"
