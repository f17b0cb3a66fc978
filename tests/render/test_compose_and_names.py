"""Texts that others read: the .env file, project names, and JSON for people."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.formats.jsonc import format_json
from devkit.render.container.compose import parse_env_value, set_env_value
from devkit.render.container.settings import slugify, validate_project_name
from tests.render.plans import CPU_PLAN, GPU_PLAN, ROCM_PLAN
from tests.render.test_artifacts import CLOSED, MIRRORED, PLAIN, texts

# The .env file: one line changes, the others stay.


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", "A='/w'\n", id="a new file"),
        pytest.param("B=1\n", "B=1\nA='/w'\n", id="beside another"),
        pytest.param("B=1", "B=1\nA='/w'\n", id="after a line without an end"),
        pytest.param("A=old\nB=1\n", "A='/w'\nB=1\n", id="in its place"),
        pytest.param("export A=old\n", "A='/w'\n", id="an exported one"),
        pytest.param("AA=1\n", "AA=1\nA='/w'\n", id="not a longer name"),
    ],
)
def test_with_setting(before, after):
    assert set_env_value(before, "A", "/w") == after
    assert set_env_value(after, "A", "/w") == after


@pytest.mark.parametrize(
    "path", ["/it's", "/a\nb", "C:\\wheels\\"], ids=["a single quote", "a line break", "a backslash at the end"]
)
def test_a_path_that_cannot_be_quoted_is_refused(path):
    with pytest.raises(DevkitError, match=r"cannot be written to an \.env file"):
        set_env_value("", "A", path)


def test_a_backslash_is_taken_as_it_is():
    assert set_env_value("A=x\n", "A", r"C:\wheels\1") == "A='C:\\wheels\\1'\n"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        pytest.param("A='/w'", "/w", id="single quotes go"),
        pytest.param('A="/w"', "/w", id="double quotes go"),
        pytest.param("A='/w\"'", '/w"', id="a quote inside stays"),
        pytest.param("A=/w", "/w", id="none are needed"),
        pytest.param("A=", "", id="nothing is nothing"),
        pytest.param("A='", "'", id="one quote is no pair"),
    ],
)
def test_a_setting_is_read_without_the_quotes_around_it(line, value):
    assert parse_env_value(f"{line}\n", "A") == value


def test_every_variable_that_compose_substitutes_is_explained_in_the_guide():
    cases = ((CPU_PLAN, CLOSED), (GPU_PLAN, PLAIN), (GPU_PLAN, MIRRORED), (ROCM_PLAN, PLAIN))
    files = [text for plan, settings in cases for text in texts(plan, settings).values()]
    substituted = {name for text in files for name in re.findall(r"\$\{(DEVKIT_\w+):?-", text)}
    guide = (Path(__file__).resolve().parents[2] / "docs/guides/dev-container.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`(DEVKIT_\w+)`", guide))
    assert substituted == explained & substituted
    assert len(substituted) > 10


# Project names: carried as they are, or refused; never altered on the way.


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        pytest.param("my-project", "my-project", id="a plain name stays"),
        pytest.param("My Project 2", "my-project-2", id="capitals and spaces"),
        pytest.param("Bob's model", "bob-s-model", id="an apostrophe"),
        pytest.param("Café Zürich", "cafe-zurich", id="accents are dropped"),
        pytest.param("--x--", "x", id="no hyphen at either end"),
        pytest.param("日本語", "project-77710aed", id="no Latin letter at all"),
        pytest.param("a" * 39 + " b", "a" * 39, id="cut at forty without a trailing hyphen"),
    ],
)
def test_slug(name, slug):
    assert slugify(validate_project_name(name)) == slug


@pytest.mark.parametrize(
    "name",
    [
        pytest.param('say "hi"', id="a double quote"),
        pytest.param("a\nb", id="a line break"),
        pytest.param("a\\b", id="a backslash"),
        pytest.param("a\x1b[31mb", id="a terminal escape"),
        pytest.param("\udcff", id="a byte that is no text"),
        pytest.param("  ", id="nothing but spaces"),
        pytest.param("x" * 101, id="one character too many"),
    ],
)
def test_a_name_that_no_format_carries_is_refused_in_one_line_with_a_hint(name):
    with pytest.raises(DevkitError) as refused:
        validate_project_name(name)
    assert "\n" not in refused.value.message
    assert "\x1b" not in refused.value.message
    assert refused.value.message.isprintable()
    assert "--name" in refused.value.hint


@given(st.text(max_size=120))
def test_every_accepted_name_has_a_slug_that_compose_accepts(name):
    try:
        kept = validate_project_name(name)
    except DevkitError:
        return
    assert re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?", slugify(kept))


# JSON for people: the same value as any other JSON, in few lines.


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(), inner, max_size=8),
    max_leaves=40,
)


@settings(max_examples=30)
@given(VALUES, st.integers(0, 3), st.integers(0, 3))
def test_it_is_the_same_value(value, listed, deepest):
    assert json.loads(format_json(value, width=40, listed=listed, deepest=deepest)) == value


def test_what_fits_is_on_one_line_and_what_does_not_is_listed():
    value = {"short": {"a": [1, 2]}, "long": {"x": "y" * 60, "z": {"b": "c" * 60}}}
    assert format_json(value, width=80).splitlines() == [
        "{",
        '  "short": {"a": [1, 2]},',
        '  "long": {',
        f'    "x": "{"y" * 60}",',
        f'    "z": {{"b": "{"c" * 60}"}}',
        "  }",
        "}",
    ]


def test_many_plain_entries_share_lines():
    lines = format_json({"packages": {f"package-{number}": "1.0" for number in range(40)}}).splitlines()
    assert len(lines) < 14
    assert max(map(len, lines)) <= 120
