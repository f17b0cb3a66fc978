"""JSON for people: the same value as any other JSON, in few lines."""

import json

from hypothesis import given
from hypothesis import strategies as st

from devkit.render.json_text import format_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(), inner, max_size=8),
    max_leaves=40,
)


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
