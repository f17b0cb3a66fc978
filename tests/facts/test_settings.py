"""Settings that say what they mean, and addresses of indexes."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import pytest

from devkit.errors import DevkitError
from devkit.facts.project import is_below_index
from devkit.facts.settings import SettingInfo, describe_settings, find_setting_type, format_flag, validate_ranges

# Settings that say what they mean: their flags, kinds and ranges.


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Boat:
    oars: Annotated[int | None, SettingInfo("How many oars.", at_least=1, at_most=8)] = None
    length: Annotated[float, SettingInfo("How long.", at_least=0.5)] = 1.0
    color: Annotated[Color | None, SettingInfo("Which color.")] = None
    crew: Annotated[tuple[str, ...], SettingInfo("Who.")] = ()
    has_sail: Annotated[bool, SettingInfo("A sail.", at_least=1)] = False


def test_settings_are_described_in_their_order():
    assert list(describe_settings(Boat)) == ["oars", "length", "color", "crew", "has_sail"]
    assert describe_settings(Boat)["oars"][1].meaning == "How many oars."


def test_kinds_are_those_of_a_given_value():
    kinds = {name: find_setting_type(Boat, name) for name in describe_settings(Boat)}
    assert kinds == {"oars": int, "length": float, "color": Color, "crew": tuple, "has_sail": bool}


def test_flags_have_dashes():
    assert format_flag("has_sail") == "--has-sail"


@pytest.mark.parametrize("boat", [Boat(), Boat(oars=1), Boat(oars=8), Boat(length=0.5), Boat(has_sail=False)])
def test_what_is_in_its_range_passes(boat):
    validate_ranges(boat)


@pytest.mark.parametrize(
    ("boat", "said"),
    [
        (Boat(oars=0), "--oars is 0, which is below 1; : 1 or more."),
        (Boat(oars=9), "--oars is 9, which is above 8; : 8 or less."),
        (Boat(length=0.4), "--length is 0.4, which is below 0.5"),
        (Boat(length=float("nan")), "--length is nan, which is not a finite number"),
        (Boat(length=float("inf")), "--length is inf, which is not a finite number"),
    ],
)
def test_what_is_out_of_its_range_is_refused_with_its_meaning(boat, said):
    with pytest.raises(DevkitError) as refused:
        validate_ranges(boat)
    message, _, limit = said.partition("; ")
    assert message in refused.value.message
    assert refused.value.hint.startswith("How ") and refused.value.hint.endswith(limit)


# Indexes by whole parts of their addresses.


@pytest.mark.parametrize(
    ("url", "is_below"),
    [
        ("https://pypi.example.org/simple", True),
        ("https://pypi.example.org/simple/", True),
        ("https://pypi.example.org/simple/private", True),
        ("https://pypi.example.org/simple2", False),
        ("https://pypi.example.org/simple/../other", False),
        ("https://pypi.example.org.evil.example/simple", False),
    ],
)
def test_an_index_is_known_by_whole_parts_of_its_address(url, is_below):
    assert is_below_index(url, ("https://pypi.example.org/simple",)) is is_below
    assert not is_below_index(url, ())
