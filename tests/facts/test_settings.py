"""Settings that say what they mean: their flags, kinds and ranges."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import pytest

from devkit.errors import DevkitError
from devkit.facts.settings import SettingInfo, describe_settings, find_setting_type, format_flag, validate_ranges


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Boat:
    oars: Annotated[int | None, SettingInfo("How many oars.", at_least=1, at_most=8)] = None
    length: Annotated[float, SettingInfo("How long.", at_least=0.5)] = 1.0
    colour: Annotated[Colour | None, SettingInfo("Which colour.")] = None
    crew: Annotated[tuple[str, ...], SettingInfo("Who.")] = ()
    has_sail: Annotated[bool, SettingInfo("A sail.", at_least=1)] = False


def test_settings_are_described_in_their_order():
    assert list(describe_settings(Boat)) == ["oars", "length", "colour", "crew", "has_sail"]
    assert describe_settings(Boat)["oars"][1].meaning == "How many oars."


def test_kinds_are_those_of_a_given_value():
    kinds = {name: find_setting_type(Boat, name) for name in describe_settings(Boat)}
    assert kinds == {"oars": int, "length": float, "colour": Colour, "crew": tuple, "has_sail": bool}


def test_flags_have_dashes():
    assert format_flag("has_sail") == "--has-sail"


@pytest.mark.parametrize("boat", [Boat(), Boat(oars=1), Boat(oars=8), Boat(length=0.5), Boat(has_sail=False)])
def test_what_is_in_its_range_passes(boat):
    validate_ranges(boat)


@pytest.mark.parametrize(
    ("boat", "said"),
    [
        (Boat(oars=0), "--oars is 0, which is below 1"),
        (Boat(oars=9), "--oars is 9, which is above 8"),
        (Boat(length=0.4), "--length is 0.4, which is below 0.5"),
        (Boat(length=float("nan")), "--length is nan, which is not a finite number"),
        (Boat(length=float("inf")), "--length is inf, which is not a finite number"),
    ],
)
def test_what_is_out_of_its_range_is_refused_with_its_meaning(boat, said):
    with pytest.raises(DevkitError) as refused:
        validate_ranges(boat)
    assert said in refused.value.message
    assert refused.value.hint.startswith("How ")
