"""Project names: carried as they are, or refused; never altered on the way."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.render.container.settings import slugify, validate_project_name


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
        pytest.param("$(touch owned)", id="a command substitution"),
        pytest.param("`touch owned`", id="backquotes"),
        pytest.param("${localEnv:HOME}", id="a dev container variable"),
        pytest.param("a\nb", id="a line break"),
        pytest.param("a\\b", id="a backslash"),
        pytest.param("a\x1b[31mb", id="a terminal escape"),
        pytest.param("a\u202eb", id="a direction override"),
        pytest.param("a\u2028b", id="a Unicode line separator"),
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


def test_the_longest_name():
    assert validate_project_name("x" * 100) == "x" * 100


@given(st.text(max_size=120))
def test_every_accepted_name_has_a_slug_that_compose_accepts(name):
    try:
        kept = validate_project_name(name)
    except DevkitError:
        return
    assert re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?", slugify(kept))
