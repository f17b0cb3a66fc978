"""Edits of JSON with comments: the edit is made, and every other byte stays."""

import copy
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.formats.jsonc import load_jsonc
from devkit.render.text_edits import MISSING, CannotEdit, copy_with, remove_value, set_value


@pytest.mark.parametrize(
    ("before", "key", "after"),
    [
        pytest.param('{"a": [1], "b": 2}', ("a",), '{"b": 2}', id="a member on one line"),
        pytest.param('{"a": [1, 2]}', ("a", "0"), '{"a": [2]}', id="an item on one line"),
        pytest.param('{\n  "a": 1, // x\n  "b": 2\n}', ("a",), '{\n  "b": 2\n}', id="a line with its comment"),
        pytest.param('{\n  "a": 1, // x\n  "b": 2\n}', ("b",), '{\n  "a": 1 // x\n}', id="the last line"),
        pytest.param('{"a": 1}', ("c",), '{"a": 1}', id="a member that does not exist"),
        pytest.param('{"a": 1}', ("b", "c"), '{"a": 1}', id="a member of one that does not exist"),
    ],
)
def test_a_value_is_removed(before, key, after):
    assert remove_value(before, key) == after


@pytest.mark.parametrize(
    "text",
    ["{", "{} x", "{'a': 1}", '{"a" 1}', "[1 2]", "[" * 5000, "", "// only a comment", '{"a": 01}', '{"a": nope}'],
)
def test_what_is_no_json_is_refused(text):
    with pytest.raises(CannotEdit):
        set_value(text, ("a",), 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{\r\n  "a": 1 // one\r\n}', '{\r\n  "a": 1, // one\r\n  "b": 2\r\n}'),
        ('{\r\n  "a": 1, // one\r\n}', '{\r\n  "a": 1, // one\r\n  "b": 2,\r\n}'),
        ('{\n  "a": 1\n}', '{\n  "a": 1,\n  "b": 2\n}'),
        ('{"a": 1}', '{"a": 1, "b": 2}'),
        ("{}", '{"b": 2}'),
        ("{\n}", '{\n  "b": 2\n}'),
    ],
)
def test_a_new_key_comes_behind_the_last_one(before, after):
    assert set_value(before, ("b",), 2) == after


KEYS = st.sampled_from(["a", "b", "shm_size", "x-y"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-99, 99),
    st.text(st.characters(codec="ascii", exclude_categories=("Cc",)), max_size=8),
    st.sampled_from(["yes", "1", "8gb", "null", "- a", "a: b", "# c", "it's", "ü"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=4)


@st.composite
def places(draw, document):
    """A path to a value of the document, or one step beyond."""
    path, here = [], document
    while True:
        steps = list(here) if isinstance(here, dict) else [str(n) for n in range(len(here))]
        end = [str(len(here))] if isinstance(here, list) else ["new"]
        path.append(draw(st.sampled_from(steps + end)))
        if path[-1] in end and path[-1] not in steps:
            return tuple(path)
        here = here[path[-1]] if isinstance(here, dict) else here[int(path[-1])]
        if not isinstance(here, (dict, list)) or draw(st.booleans()):
            return tuple(path)


@st.composite
def cases(draw, layouts):
    document = draw(DOCUMENTS)
    return draw(layouts)(document), document, draw(places(document)), draw(VALUES)


def commented_json(indent):
    def laid_out(document):
        lines = json.dumps(document, indent=indent, ensure_ascii=False).split("\n")
        return "// first\n" + "\n".join(f"{line} // {n}" for n, line in enumerate(lines)) + "\n/* last */\n"

    return laid_out


JSON_LAYOUTS = st.sampled_from([json.dumps, lambda d: json.dumps(d, indent=4), commented_json(2), commented_json("\t")])


MANY = settings(max_examples=120, deadline=None)


def comments(text):
    return set(re.findall(r"// (?:\d+|first)$|/\* last \*/", text, re.MULTILINE))


@MANY
@given(cases(JSON_LAYOUTS))
def test_any_value_can_be_set_and_no_comment_is_lost(case):
    text, document, path, value = case
    try:
        after = set_value(text, path, value)
    except CannotEdit as refused:
        assert "would be lost" in str(refused)
        return
    assert load_jsonc(after) == copy_with(copy.deepcopy(document), path, value)
    assert comments(text) <= comments(after)
    assert set_value(after, path, value) == after


@MANY
@given(cases(JSON_LAYOUTS))
def test_any_value_can_be_removed(case):
    text, document, path, _ = case
    assert load_jsonc(remove_value(text, path)) == copy_with(document, path, MISSING)


def test_a_comment_inside_a_value_that_is_replaced_is_not_lost():
    with pytest.raises(CannotEdit, match="x' would be lost"):
        set_value('{"a": {\n// x\n}}', ("a",), 1)
    assert set_value('{\n  "a": [\n    // x\n  ],\n}\n', ("a", "-"), 1) == '{\n  "a": [\n    1\n    // x\n  ],\n}\n'
