"""Settings from a table: every kind of value, and the place of whatever is wrong."""

import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pytest

from devkit.errors import DevkitError
from devkit.facts.settings import SettingInfo
from devkit.render.toml_tables import TableSource, parse_table


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Boat:
    name: Annotated[str, SettingInfo("Name.")] = ""
    oars: Annotated[int | None, SettingInfo("Oars.")] = None
    length: Annotated[float, SettingInfo("Length.")] = 1.0
    has_sail: Annotated[bool, SettingInfo("A sail.")] = False
    crew: Annotated[tuple[str, ...], SettingInfo("Crew.")] = ()
    colour: Annotated[Colour | None, SettingInfo("Colour.")] = None
    log: Annotated[Path, SettingInfo("Log.")] = Path("log")


def values(text):
    return parse_table(tomllib.loads(text), Boat, TableSource("boat.toml", text))


def test_values_have_the_types_of_the_settings():
    text = 'name="a"\noars=2\nlength=3\nhas-sail=true\ncrew=["x","y"]\ncolour="blue"\nlog="a/b"\n'
    found = values(text)
    assert Boat(**found) == Boat(
        name="a", oars=2, length=3.0, has_sail=True, crew=("x", "y"), colour=Colour.BLUE, log=Path("a/b")
    )
    assert isinstance(found["length"], float)


def test_one_text_is_a_list_of_one():
    assert values('crew = "x"\n') == {"crew": ("x",)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\noras = 2", "boat.toml:2:1: there is no setting 'oras' | Did you mean oars?"),
        ("zzzzzz = 2", "boat.toml:1:1: there is no setting 'zzzzzz' | The settings are name"),
        ("oars = 2.5", "boat.toml:1:1: oars must be a whole number, not 2.5"),
        ("oars = true", "oars must be a whole number, not True"),
        ("length = 'x'", "length must be a number, not 'x'"),
        ("has_sail = 1", "has_sail must be true or false, not 1"),
        ("crew = []", "crew must be a list of strings, not []"),
        ("crew = [1]", "crew must be a list of strings, not [1]"),
        ("colour = 'green'", 'colour must be "red" or "blue", not'),
        ("name = ''", "name must be a string in quotes, not ''"),
        ("name = 3", "name must be a string in quotes, not 3"),
        ("log = 3", "log must be a string in quotes, not 3"),
        ("has-sail = true\nhas_sail = true", "boat.toml:2:1: has_sail is set twice"),
    ],
)
def test_wrong_values_are_refused_with_their_place(text, said):
    with pytest.raises(DevkitError) as refused:
        values(text)
    assert said in f"{refused.value.message} | {refused.value.hint}"


def test_the_place_is_that_in_the_inner_table():
    text = "[a]\noars = 1\n[a.b]\noars = 'x'\n"
    with pytest.raises(DevkitError, match=r"boat\.toml:4:1"):
        parse_table({"oars": "x"}, Boat, TableSource("boat.toml", text, ("a", "b")))
