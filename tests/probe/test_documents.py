"""Readers of JSON, TOML and YAML."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.formats.jsonc import format_json_error
from devkit.probe.documents import (
    MAX_YAML_DEPTH,
    InvalidDocument,
    NodeKind,
    get_int,
    get_list,
    get_object,
    get_objects,
    get_scalar,
    get_text,
    get_texts,
    parse_int,
    parse_json,
    parse_jsonc_tree,
    parse_toml,
    parse_yaml,
    parse_yaml_tree,
)
from devkit.probe.project.compose import merge_compose_nodes


def test_comments_and_trailing_commas_are_read_past():
    text = '\ufeff// first\n{\n  "a": [1, 2,], /* two\n lines */ "b": {"url": "http://x//y"},\n}\n'
    root = parse_jsonc_tree(text, file="f")
    assert [item.text for item in root.at("a").items] == ["1", "2"]
    assert (root.at("b", "url").text, root.at("b").line, root.at("b").file) == ("http://x//y", 4, "f")
    assert root.at("a", "nothing").kind is NodeKind.ABSENT
    assert not root.at("c")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("{a: 1}", 1, id="a key without quotes"),
        pytest.param('"\\q"', 1, id="an unknown escape"),
        pytest.param("{} {}", 1, id="two documents"),
        pytest.param("", 1, id="nothing"),
        pytest.param("/* open", 1, id="a comment without an end"),
        pytest.param("[" * 5000, 1, id="deep nesting"),
    ],
)
def test_wrong_json_is_named_with_its_line(text, line):
    with pytest.raises(InvalidDocument) as wrong:
        parse_jsonc_tree(text, file="f")
    assert wrong.value.line == line
    assert wrong.value.problem


@settings(max_examples=20, deadline=None)
@given(st.text(alphabet='{}[]":,/* \nae1\\#-&!|>', max_size=40))
def test_garbage_is_read_or_refused_and_nothing_else(text):
    for read in (parse_jsonc_tree, parse_yaml_tree):
        try:
            read(text, file="f")
        except InvalidDocument as wrong:
            assert wrong.line >= 1


def test_yaml_keeps_lines_anchors_and_merge_keys():
    root = parse_yaml_tree("x: &base\n  a: 1\n  b: 2\ny:\n  <<: *base\n  b: 3\n", file="f")
    assert (root.at("y", "a").text, root.at("y", "b").text, root.at("y", "b").line) == ("1", "3", 6)
    assert root.at("y", "b").kind is NodeKind.NUMBER


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: [", id="the end is missing"),
        pytest.param("a: 1\n---\nb: 2", id="two documents"),
        pytest.param("a: &a [*a]", id="an anchor in itself"),
        pytest.param("[" * 100_000, id="a hundred thousand brackets"),
        pytest.param("{a: " * 20_000 + "}" * 20_000, id="twenty thousand mappings"),
    ],
)
def test_wrong_yaml_is_refused(text):
    with pytest.raises(InvalidDocument):
        parse_yaml_tree(text, file="f")


def test_anchors_do_not_unfold_without_end():
    text = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    started = time.thread_time()
    assert len(parse_yaml_tree(text, file="f").fields) == 30
    assert time.thread_time() - started < 2


def test_yaml_runs_no_code():
    root = parse_yaml_tree("a: !!python/object/apply:os.system [id]", file="f")
    assert root.at("a").kind is NodeKind.LIST


@pytest.mark.parametrize(
    ("over", "result"),
    [
        pytest.param("a: {list: [2]}", {"list": ["1", "2"], "text": "x"}, id="lists append"),
        pytest.param("a: {list: !override [2]}", {"list": ["2"], "text": "x"}, id="!override replaces"),
        pytest.param("a: {list: !reset []}", {"list": None, "text": "x"}, id="!reset takes away"),
        pytest.param("a: {text: z}", {"list": ["1"], "text": "z"}, id="plain values replace"),
        pytest.param("b: 1", {"list": ["1"], "text": "x"}, id="another key leaves it alone"),
    ],
)
def test_files_are_merged_as_compose_does(over, result):
    base = parse_yaml_tree("a: {list: [1], text: x}", file="base")
    found = merge_compose_nodes(base, parse_yaml_tree(over, file="over")).at("a")
    listed = found.at("list")
    assert ([item.text for item in listed.items] if listed.kind is NodeKind.LIST else None, found.at("text").text) == (
        result["list"],
        result["text"],
    )


def test_a_command_is_replaced_and_a_merged_value_knows_its_file():
    base = parse_yaml_tree("a: {command: [x], n: 1}", file="base")
    found = merge_compose_nodes(base, parse_yaml_tree("a: {command: [y]}", file="over")).at("a")
    assert [item.text for item in found.at("command").items] == ["y"]
    assert (found.at("command").file, found.at("n").file) == ("over", "base")


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
    assert parse_yaml("[" * MAX_YAML_DEPTH + "]" * MAX_YAML_DEPTH)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_yaml("[" * (MAX_YAML_DEPTH + 1) + "]" * (MAX_YAML_DEPTH + 1))
    with pytest.raises(ValueError, match="nest"):
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
        parse_json('{\n  "a": 1,\n  b\n}')
    assert format_json_error(caught.value).startswith("line 3, column 3")
    for text, says in (
        ('{"a": 1,}', "remove the comma"),
        ("{“a”: 1}", 'write " in place of “'),
        ("{'a': 1}", "put the key in double quotes"),
        ("[1 2]", "a comma is"),
    ):
        with pytest.raises(json.JSONDecodeError) as found:
            json.loads(text)
        assert f": {says}" in format_json_error(found.value)
    assert format_json_error(json.JSONDecodeError("", "\n<<<<<<< a", 1)) == "line 2: a merge conflict is not resolved"
    assert format_json_error(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "")) == "it is not UTF-8 text (byte 1)"


def test_the_character_that_yaml_does_not_take_is_shown():
    with pytest.raises(InvalidDocument, match=r"found the character '\\t', which cannot start any token") as error:
        parse_yaml_tree("a:\n\tb: c\n", file="compose.yaml")
    assert error.value.line == 2
