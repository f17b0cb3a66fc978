import pytest

from devkit.probe.shapes import (
    items,
    json_of,
    number,
    part,
    parts,
    place_of,
    text,
    texts,
    toml_of,
    whole,
    word,
    yaml_of,
)

ODD = {"object": {"a": 1}, "list": ["a", 1, {"b": 2}, None], "text": "a", "number": 7, "truth": True, "nothing": None}


@pytest.mark.parametrize(
    ("read", "found"),
    [
        pytest.param(part, {"object": {"a": 1}}, id="objects"),
        pytest.param(items, {"list": ["a", 1, {"b": 2}, None]}, id="lists"),
        pytest.param(parts, {"list": [{"b": 2}]}, id="objects in a list"),
        pytest.param(text, {"text": "a"}, id="texts"),
        pytest.param(texts, {"list": ("a",)}, id="texts in a list"),
        pytest.param(number, {"number": 7}, id="whole numbers, of which a truth value is none"),
        pytest.param(word, {"text": "a", "number": "7", "truth": "True"}, id="plain values as text"),
    ],
)
def test_only_what_has_the_shape_is_taken(read, found):
    assert {key: value for key in (*ODD, "absent") if (value := read(ODD, key)) or value == 0} == found


@pytest.mark.parametrize("read", [json_of, toml_of, yaml_of], ids=["JSON", "TOML", "YAML"])
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("[" * 300_000, id="nested brackets"),
        pytest.param('{"a": ' * 100_000, id="nested objects"),
        pytest.param("- " * 200_000 + "[", id="nested dashes"),
        pytest.param("{'", id="cut off"),
    ],
)
def test_what_is_no_document_is_a_value_error(read, broken):
    with pytest.raises(ValueError):
        read(broken)


def test_a_deep_document_that_is_whole_is_refused_as_well():
    with pytest.raises(ValueError, match="nested too deeply"):
        yaml_of("[" * 5000 + "]" * 5000)


def test_many_anchors_do_not_unfold():
    bomb = "\n".join(
        ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 40)), "kind: *a39"]
    )
    found = yaml_of(bomb)
    assert word(found, "kind") == ""


@pytest.mark.parametrize(
    ("said", "value"),
    [
        pytest.param(" 12\n", 12, id="digits"),
        pytest.param("-1", None, id="a sign"),
        pytest.param("1.0", None, id="a fraction"),
        pytest.param("²", None, id="a digit that is none"),
        pytest.param("٣", None, id="a digit of another script"),
        pytest.param("9" * 5000, None, id="more digits than any counter has"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_a_whole_number_is_plain_digits(said, value):
    assert whole(said) == value


def test_the_place_of_an_error_in_json_is_told():
    with pytest.raises(ValueError) as caught:
        json_of('{\n  "a": 1,\n}')
    assert place_of(caught.value).startswith("line 3, column 1")
