"""Manifests as text: what is read back is what was written, and every reason stands above its value."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.export.kubernetes.manifest import WIDTH, Commented, render_yaml, strip_comments
from tests.render.injection import HOSTILE

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
SCALARS = st.one_of(
    TEXTS,
    st.sampled_from(["on", "No", "0x1F", "1:30", "1e3", ".inf", "=", "<<", "~", "2026-11-21", "8Gi", "a: b", "a #b"]),
    st.integers(-10, 10),
    st.booleans(),
    st.none(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(TEXTS, inner, max_size=3),
        st.builds(Commented, inner, st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=30)),
    ),
    max_leaves=12,
)


def noted_once(value):
    """No `Noted` within a `Noted` directly: nobody writes two reasons."""
    if isinstance(value, Commented):
        inner = value.value.value if isinstance(value.value, Commented) else value.value
        return noted_once(inner) if isinstance(inner, Commented) else Commented(noted_once(inner), value.because)
    if isinstance(value, dict):
        return {key: noted_once(each) for key, each in value.items()}
    return [noted_once(each) for each in value] if isinstance(value, list) else value


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4).map(noted_once))
def test_what_is_read_back_is_what_was_written(manifest):
    assert yaml.safe_load(render_yaml([manifest], heading="Heading.")) == strip_comments(manifest)


def test_hostile_texts_stay_texts_or_are_refused():
    for text in HOSTILE.values():
        if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
            with pytest.raises(DevkitError, match="no manifest can hold"):
                render_yaml([{"a": text}], heading="")
            continue
        manifest = {"a": text, text[:200]: [text]}  # YAML has no longer keys than 1024 characters
        written = render_yaml([manifest], heading="")
        assert yaml.safe_load(written) == manifest
        assert all(char.isprintable() or char == "\n" for char in written)


def test_words_that_some_reader_takes_for_something_else_are_in_quotes():
    for word in ("y", "N", "yes", "No", "on", "OFF", "true", "False", "null", "None", "0x1F", "1e3"):
        assert render_yaml([{"a": word}], heading="") == f'a: "{word}"\n'
    # Editors take a space at a line's end away.
    assert render_yaml([{"a": "b \nc\n"}], heading="") == 'a: "b \\nc\\n"\n'


def test_lines_stay_lines_and_a_script_is_a_block_that_people_can_read():
    script = '# said\ncode=0\n\n[ "$code" ] || exit 1\n'
    ends = ("a\nb", "a\nb\n\n", " a\nb\n", "\na\nb\n", "a \nb\n", "a\tb\nc\n", "a\u2028\nb\n", "\n")
    manifests = [{"command": ["sh", text], "patch": text} for text in (script, *ends)]
    assert list(yaml.safe_load_all(render_yaml(manifests, heading="Several."))) == manifests
    assert "  - |\n    # said\n    code=0\n" in render_yaml([{"command": ["sh", script]}], heading="")


def test_reasons_stand_above_their_values_and_long_ones_are_wrapped():
    manifest = {"a": Commented({"b": [Commented({"c": Commented(1, "why c"), "d": 2}, "why the item")]}, "why a")}
    assert render_yaml([manifest], heading="Heading.") == (
        "# Heading.\n# why a\na:\n  b:\n    # why the item\n    # why c\n    - c: 1\n      d: 2\n"
    )
    lines = render_yaml([{"a": Commented(1, "because " * 60)}], heading="").splitlines()
    assert len(lines) > 2
    assert all(len(line) <= WIDTH and (line.startswith("# ") or line == "a: 1") for line in lines)
