import pytest

from devkit.probe.documents import (
    format_json_error,
    get_int,
    get_list,
    get_object,
    get_objects,
    get_scalar,
    get_text,
    get_texts,
    parse_int,
    parse_json,
    parse_toml,
    parse_yaml,
)

ODD = {"object": {"a": 1}, "list": ["a", 1, {"b": 2}, None], "text": "a", "number": 7, "truth": True, "nothing": None}


@pytest.mark.parametrize(
    ("read", "found"),
    [
        pytest.param(get_object, {"object": {"a": 1}}, id="objects"),
        pytest.param(get_list, {"list": ["a", 1, {"b": 2}, None]}, id="lists"),
        pytest.param(get_objects, {"list": [{"b": 2}]}, id="objects in a list"),
        pytest.param(get_text, {"text": "a"}, id="texts"),
        pytest.param(get_texts, {"list": ("a",)}, id="texts in a list"),
        pytest.param(get_int, {"number": 7}, id="whole numbers, of which a truth value is none"),
        pytest.param(get_scalar, {"text": "a", "number": "7", "truth": "True"}, id="plain values as text"),
    ],
)
def test_only_what_has_the_shape_is_taken(read, found):
    assert {key: value for key in (*ODD, "absent") if (value := read(ODD, key)) or value == 0} == found


@pytest.mark.parametrize("read", [parse_json, parse_toml, parse_yaml], ids=["JSON", "TOML", "YAML"])
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
        parse_yaml("[" * 5000 + "]" * 5000)


def test_many_anchors_do_not_unfold():
    bomb = "\n".join(
        ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 40)), "kind: *a39"]
    )
    found = parse_yaml(bomb)
    assert get_scalar(found, "kind") == ""


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
    assert parse_int(said) == value


def test_a_json_error_has_line_and_column():
    with pytest.raises(ValueError) as caught:
        parse_json('{\n  "a": 1,\n}')
    assert format_json_error(caught.value).startswith("line 3, column 1")
