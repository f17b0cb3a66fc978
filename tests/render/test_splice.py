"""Edits of JSON with comments and of YAML: the edit is made, and every other byte stays."""

import copy
import json
import operator
import re

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from devkit.render.splice.compose_yaml import YAML, load_compose_yaml
from devkit.render.splice.document import (
    CannotSplice,
    copy_with_value,
    copy_without_value,
    remove_value,
    set_value,
)
from devkit.render.splice.jsonc import JSONC

DEV_CONTAINER = """{
  // the name
  "name": "x", // why
  "runArgs": ["--gpus all", "--ipc=host"], // split
  "hostRequirements": {
    "gpu": "true" /* optional */
  },
  "empty": {},
}
"""

COMPOSE = """# top
services:
  dev:  # ours
    image: "x:1"   # pinned
    ipc: host

    deploy:
      resources:
        reservations:
          devices:
            # one GPU
            - driver: nvidia
              count: 1
              capabilities: [gpu]
    environment:
      - A=1
      - B=2 # two

  # other
  web: {image: y, ports: ["1:1"]}
volumes:
"""

DEVICE = ("services", "dev", "deploy", "resources", "reservations", "devices", "0")


def changed_lines(before, after):
    import difflib

    return [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]


@pytest.mark.parametrize(
    ("key", "value", "lines"),
    [
        pytest.param(
            ("runArgs",),
            ["--gpus", "all"],
            ['-   "runArgs": ["--gpus all", "--ipc=host"], // split', '+   "runArgs": ["--gpus", "all"], // split'],
            id="another list, the comment stays",
        ),
        pytest.param(
            ("hostRequirements", "memory"),
            "8gb",
            ['-     "gpu": "true" /* optional */', '+     "gpu": "true", /* optional */', '+     "memory": "8gb"'],
            id="a new key behind a comment",
        ),
        pytest.param(
            ("empty", "a"), 1, ['-   "empty": {},', '+   "empty": {', '+     "a": 1', "+   },"], id="the first key"
        ),
        pytest.param(("new",), 1, ['+   "new": 1,'], id="a new key where a comma hangs"),
    ],
)
def test_json_with_comments_is_changed_where_it_must(key, value, lines):
    after = set_value(DEV_CONTAINER, key, value, JSONC)
    shown = [line for line in changed_lines(DEV_CONTAINER, after) if not line.startswith("?")]
    assert sorted(shown) == sorted(lines)


@pytest.mark.parametrize(
    ("key", "value", "lines"),
    [
        pytest.param(("services", "dev", "ipc"), "private", ["-     ipc: host", "+     ipc: private"], id="a scalar"),
        pytest.param(
            (*DEVICE, "capabilities"),
            ["gpu", "utility"],
            ["-               capabilities: [gpu]", '+               capabilities: [gpu, "utility"]'],
            id="a list in brackets stays in brackets",
        ),
        pytest.param(
            ("volumes", "cache", "name"), "c", ["+   cache:", "+     name: c"], id="below a key without value"
        ),
        pytest.param(
            ("services", "web", "ipc"),
            "x",
            ['-   web: {image: y, ports: ["1:1"]}', '+   web: {image: y, ports: ["1:1"], "ipc": "x"}'],
            id="into brackets",
        ),
        pytest.param(("services", "dev", "user"), "1000", ["+     user: '1000'"], id="text that looks like a number"),
        pytest.param(("volumes",), "none", ["- volumes:", "+ volumes: none"], id="a key without a value gets one"),
        pytest.param(
            ("services", "dev", "environment", "0"), "A=2", ["-       - A=1", '+       - "A=2"'], id="an item"
        ),
        pytest.param(
            ("services", "dev", "environment"),
            ["C"],
            ["-       - A=1", "-       - B=2 # two", "+       - C"],
            id="another list where one is a block",
        ),
    ],
)
def test_yaml_is_changed_where_it_must(key, value, lines):
    after = set_value(COMPOSE, key, value, YAML)
    assert sorted(changed_lines(COMPOSE, after)) == sorted(lines)


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        pytest.param(("services", "dev", "ipc"), ["-     ipc: host"], id="a key"),
        pytest.param(
            (*DEVICE, "driver"),
            ["-             - driver: nvidia", "-               count: 1", "+             - count: 1"],
            id="the key beside the dash",
        ),
        pytest.param(("services", "dev", "environment", "1"), ["-       - B=2 # two"], id="an item with its comment"),
        pytest.param(
            DEVICE,
            [
                "-             - driver: nvidia",
                "-               count: 1",
                "-               capabilities: [gpu]",
                "+             []",
            ],
            id="the only item, the comment before it stays",
        ),
        pytest.param(("services", "dev", "nothing"), [], id="what is not there"),
    ],
)
def test_yaml_loses_what_it_must(key, lines):
    after = remove_value(COMPOSE, key, YAML)
    assert sorted(changed_lines(COMPOSE, after)) == sorted(lines)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param("a: &x {b: 1}\nc: *x\n", ("c", "b"), id="a value that has an alias"),
        pytest.param("base: &x\n  b: 1\nc:\n  <<: *x\n", ("base", "b"), id="a value that others merge"),
        pytest.param("a: [1\n", ("a",), id="what does not parse"),
        pytest.param("a: text\n", ("a", "b"), id="a key below a text"),
    ],
)
def test_what_cannot_be_changed_alone_is_refused(text, key):
    with pytest.raises(CannotSplice):
        set_value(text, key, 7, YAML)


@pytest.mark.parametrize(
    "text",
    ["{", "{} x", "{'a': 1}", '{"a" 1}', "[1 2]", "[" * 5000, "", "// only a comment", '{"a": 01}', '{"a": nope}'],
)
def test_what_is_no_json_is_refused(text):
    with pytest.raises(CannotSplice):
        set_value(text, ("a",), 1, JSONC)


@pytest.mark.parametrize(
    ("tagged", "value"),
    [("!override x", ("!override", "x")), ("!reset []", ("!reset", [])), ("!x {b: [1]}", ("!x", {"b": [1]}))],
)
def test_a_tag_of_compose_is_read_with_its_value(tagged, value):
    assert load_compose_yaml(f"a: {tagged}\n") == {"a": (value[0].removeprefix("!"), value[1])}


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
    assert set_value(before, ("b",), 2, JSONC) == after


@pytest.mark.parametrize(("syntax", "text"), [(JSONC, DEV_CONTAINER), (YAML, COMPOSE)], ids=["JSON", "YAML"])
def test_windows_line_ends_stay(syntax, text):
    key = ("new",)
    after = set_value(text.replace("\n", "\r\n"), key, {"a": ["b"]}, syntax)
    assert not re.search(r"(?<!\r)\n", after)


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
YAML_LAYOUTS = st.sampled_from(
    [
        lambda d: "# first\n" + yaml.safe_dump(d, sort_keys=False, allow_unicode=True) + "# last\n",
        lambda d: yaml.safe_dump(d, default_flow_style=None, sort_keys=False),
        lambda d: yaml.safe_dump(d, indent=4, sort_keys=False).replace("\n", "\r\n"),
    ]
)
MANY = settings(max_examples=60, deadline=None)


def comments(text):
    return set(re.findall(r"// (?:\d+|first)$|/\* last \*/|# (?:first|last)", text, re.MULTILINE))


def loses_entries(old, new):
    """Whether an entry of the old value is not in the new one: its comment goes with it."""
    if isinstance(old, dict) and isinstance(new, dict):
        return any(name not in new or loses_entries(value, new[name]) for name, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(new) < len(old) or any(map(loses_entries, old, new)) or any(map(operator.ne, old, new))
    return False


def find(document, path):
    for name in path:
        if isinstance(document, dict):
            document = document.get(name)
        else:
            document = document[int(name)] if int(name) < len(document) else None
    return document


@MANY
@given(cases(JSON_LAYOUTS))
def test_any_value_can_be_set_in_json_and_no_comment_is_lost(case):
    text, document, path, value = case
    old = find(document, path)
    try:
        after = set_value(text, path, value, JSONC)
    except CannotSplice as refused:
        assert isinstance(old, (dict, list)) and "would be lost" in str(refused)
        return
    assert JSONC.loads(after) == copy_with_value(copy.deepcopy(document), path, value)
    if not loses_entries(old, value):
        assert comments(text) <= comments(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{\n  "a": [\n    // x\n  ],\n}\n', '{\n  "a": [\n    "new"\n    // x\n  ],\n}\n'),
        ('{\n  "a": [ // x\n  ]\n}\n', '{\n  "a": [\n    "new" // x\n  ]\n}\n'),
        ('{"a": [/* x */]}', '{"a": ["new"/* x */]}'),
        ('{\n  "a": [1, // one\n    2], // x\n}\n', '{\n  "a": ["new" // one\n], // x\n}\n'),
    ],
    ids=["lines of comments alone", "behind the bracket", "on one line", "a list that gets shorter"],
)
def test_comments_around_the_items_of_a_list_stay(before, after):
    assert set_value(before, ("a",), ["new"], JSONC) == after


def test_a_comment_inside_a_value_that_is_replaced_is_not_lost():
    with pytest.raises(CannotSplice, match="x' would be lost"):
        set_value('{"a": {\n// x\n}}', ("a",), 1, JSONC)
    with pytest.raises(CannotSplice, match="x' would be lost"):
        set_value("a:\n  # x\n  b: 1\n", ("a",), "c", YAML)


@MANY
@given(cases(JSON_LAYOUTS))
def test_any_value_can_be_removed_from_json(case):
    text, document, path, _ = case
    assert JSONC.loads(remove_value(text, path, JSONC)) == copy_without_value(document, path)


@MANY
@given(cases(YAML_LAYOUTS))
def test_a_value_in_yaml_is_set_or_refused_and_nothing_else_changes(case):
    text, document, path, value = case
    assume(yaml.safe_load(text) == document)
    try:
        after = set_value(text, path, value, YAML)
    except CannotSplice:
        return
    assert yaml.safe_load(after) == copy_with_value(copy.deepcopy(document), path, value)
    if not loses_entries(find(document, path), value):
        assert comments(text) <= comments(after)


@MANY
@given(cases(YAML_LAYOUTS))
def test_a_value_in_yaml_is_removed_or_refused_and_nothing_else_changes(case):
    text, document, path, _ = case
    assume(yaml.safe_load(text) == document)
    try:
        after = remove_value(text, path, YAML)
    except CannotSplice:
        return
    assert yaml.safe_load(after) == copy_without_value(document, path)
