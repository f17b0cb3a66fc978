"""A record is a frozen dataclass in everything but the time it takes to make."""

import dataclasses
import pickle
from typing import Any

import pytest

from devkit.facts.values import keyword_record, record


@record
class Point:
    x: int
    y: int = 2
    label: str = dataclasses.field(default="", compare=False)


@record
class Far(Point):
    z: int = 3


@record
class Other:
    x: int
    y: int = 2
    label: str = ""


@keyword_record
class Row:
    source: str
    checked: str = "today"


@keyword_record
class LongRow(Row):
    name: str


@dataclasses.dataclass(frozen=True)
class Model:
    x: int
    y: int = 2
    label: str = dataclasses.field(default="", compare=False)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(((1,), {}), id="defaults fill the rest"),
        pytest.param(((1, 5), {}), id="by place"),
        pytest.param(((), {"y": 7, "x": 1}), id="by name"),
        pytest.param(((1,), {"label": "here"}), id="by both"),
    ],
)
def test_it_is_built_shown_and_taken_apart_as_a_dataclass(values):
    places, names = values
    made, model = Point(*places, **names), Model(*places, **names)
    assert dataclasses.asdict(made) == dataclasses.asdict(model)
    assert repr(made).replace("Point", "Model") == repr(model)
    assert hash(made) == hash(model)
    assert [field.name for field in dataclasses.fields(made)] == [field.name for field in dataclasses.fields(model)]


@pytest.mark.parametrize(
    ("places", "names"),
    [
        pytest.param((), {}, id="a value is missing"),
        pytest.param((1, 2, "", 4), {}, id="one too many"),
        pytest.param((1,), {"x": 1}, id="one given twice"),
        pytest.param((1,), {"w": 1}, id="one of another name"),
    ],
)
def test_it_refuses_what_a_dataclass_refuses(places, names):
    make: Any
    for make in (Point, Model):
        with pytest.raises(TypeError):
            make(*places, **names)


def test_equality_is_of_one_type_and_leaves_out_what_is_not_compared():
    assert Point(1, label="a") == Point(1, label="b")
    assert Point(1) != Point(2)
    assert Point(1) != Other(1)
    assert Point(1) != Far(1)
    assert len({Point(1, label="a"), Point(1, label="b"), Far(1)}) == 2


def test_it_cannot_be_changed_but_replaced():
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    assert dataclasses.replace(point, x=5) == Point(5)
    assert point == Point(1)


def test_fields_are_inherited():
    assert dataclasses.asdict(Far(1, z=9)) == {"x": 1, "y": 2, "label": "", "z": 9}
    assert LongRow(name="n", source="s") == LongRow(source="s", name="n", checked="today")


def test_it_matches_by_place():
    match Far(1, 2, "here", 4):
        case Far(x, y, _, z):
            assert (x, y, z) == (1, 2, 4)


def test_it_survives_pickling():
    assert pickle.loads(pickle.dumps(Point(1, label="a"))).label == "a"


def test_own_methods_stay():
    @record
    class Named:
        name: str

        def __repr__(self) -> str:
            return self.name

    assert repr(Named("me")) == "me"


@pytest.mark.parametrize("body", ["default_factory", "__post_init__"])
def test_what_only_a_dataclass_has_is_refused_at_once(body):
    with pytest.raises(TypeError, match="only a dataclass"):
        if body == "default_factory":

            @record
            class Listed:
                items: list[int] = dataclasses.field(default_factory=list)

        else:

            @record
            class Checked:
                item: int

                def __post_init__(self) -> None:
                    raise ValueError
