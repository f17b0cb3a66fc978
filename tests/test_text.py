"""Numbers and lists as people read them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.text import (
    ESCAPE_ERRORS,
    MAX_CHARACTERS,
    count_days,
    escape_ci_commands,
    escape_controls,
    escape_text,
    find_similar,
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_table,
    join_some,
    join_words,
    to_one_line,
    wrap_text,
)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        pytest.param(0, "0 B", id="nothing"),
        pytest.param(1023, "1023 B", id="one below a KiB"),
        pytest.param(1024, "1 KiB", id="exactly a KiB"),
        pytest.param(64 * 2**20, "64 MiB", id="docker's default shared memory"),
        pytest.param(150_754_820_096, "140.4 GiB", id="an H200"),
        pytest.param(2**60, "1024 PiB", id="beyond the last unit"),
    ],
)
def test_bytes_are_shown_in_powers_of_two(count, shown):
    assert format_bytes(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        pytest.param(0.44, "0.4 s", id="a blink"),
        pytest.param(10, "10 s", id="ten"),
        pytest.param(60, "1 min 00 s", id="a minute"),
        pytest.param(185, "3 min 05 s", id="minutes with a zero"),
        pytest.param(119.6, "2 min 00 s", id="rounds up to whole minutes"),
    ],
)
def test_durations_read_well(seconds, shown):
    assert format_duration(seconds) == shown


def test_counts_carry_their_noun():
    assert (format_count(1, "problem"), format_count(2, "problem"), format_count(0, "GPU")) == (
        "1 problem",
        "2 problems",
        "0 GPUs",
    )
    assert format_count(3, "entry", "entries") == "3 entries"


@pytest.mark.parametrize(
    ("items", "sentence"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_lists_read_as_sentences(items, sentence):
    assert join_words(items) == join_some(items) == join_some(items, len(items)) == sentence


def test_of_many_the_first_are_named_and_the_others_counted():
    assert join_some([*"abcdefgh"]).endswith("g and h")
    assert join_some([*"abcdefghij"]) == "a, b, c, d, e, f, g, h and 2 more"


def test_numbers_and_days_between_dates():
    assert [format_number(each) for each in (0.00025412, 7.2199, 1.6e-7, float("nan"))] == [
        *("0.000254", "7.22", "1.6e-07", "nan")
    ]
    assert (count_days("2026-01-01", "2026-03-01"), count_days("2026-03-01", "2026-02-28")) == (59, -1)
    assert format_bytes(-2048) == "-2 KiB"


def test_wrapping_keeps_long_paths_whole():
    path = "/var/lib/docker/overlay2/" + "x" * 60
    assert path in wrap_text(f"no space left on {path}", width=40).splitlines()


def test_a_table_aligns_all_but_its_last_column():
    assert (
        format_table([("torch", "2.13.0"), ("bitsandbytes", "0.50.2")]) == "torch         2.13.0\nbitsandbytes  0.50.2"
    )
    assert format_table([]) == ""
    rows = [("a", "one", "words that are folded"), ("long", "1", "more\x1b[2J")]
    assert format_table(rows, indent="  ", width=30) == (
        "  a     one  words that are\n             folded\n  long  1    more\\x1b[2J"
    )
    assert format_table([("x" * 30, "some words")], width=20) == f"{'x' * 30}\n          some words"
    folded = wrap_text("a-b-c d-e-f ::error::x", width=7, indent="> ", hanging="..")
    assert folded == "> a-b-c\n> ..d-e-f\n> ..\\::error::x"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("as it is", "as it is", id="plain text"),
        pytest.param("Größe ≥ 1", "Größe ≥ 1", id="letters of any language"),
        pytest.param("first\nsecond\r\n", "first second", id="line ends"),
        pytest.param("\x1b[31mred\x07", "[31mred", id="colors and bells"),
        pytest.param("a\u202eb\u2066c", "a b c", id="turns of the direction of writing"),
        pytest.param("\x00\x9b", "", id="nothing but control characters"),
        pytest.param("x" * MAX_CHARACTERS, "x" * MAX_CHARACTERS, id="as long as may be"),
        pytest.param("x" * (MAX_CHARACTERS + 1), "x" * (MAX_CHARACTERS - 1) + "…", id="one character longer"),
    ],
)
def test_text_from_outside_fits_on_a_line(text, line):
    assert to_one_line(text) == line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain, as it is 🦙", "plain, as it is 🦙", id="what prints stays"),
        pytest.param("a\nb\x1b[2J", "a\\nb\\x1b[2J", id="line breaks and a terminal's escapes"),
        pytest.param("a\u202eb\u200b", "a\\u202eb\\u200b", id="what turns or hides letters"),
        pytest.param("a\udcff", "a\\udcff", id="a byte that is no text"),
        pytest.param("a\tb", "a\tb", id="a tab"),
        pytest.param("x" * 2000, "x" * (MAX_CHARACTERS - 1) + "…", id="no end of it"),
    ],
)
def test_escaped_text_does_nothing_to_a_terminal(text, shown):
    assert escape_controls(text) == shown


def test_lines_and_tabs_stay_in_a_text_whose_controls_are_escaped():
    assert escape_text("a\n\tb\x1b[2J\u202e\r\n##[error]") == "a\n\tb\\x1b[2J\\u202e\\r\n#\\#[error]"
    assert escape_ci_commands(" ::error::x a::error::x") == " \\::error::x a::error::x"
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode(errors=ESCAPE_ERRORS)


@given(st.text(st.characters(exclude_categories=())))
def test_what_an_encoding_lacks_is_escaped_as_in_json(text):
    assert json.loads(json.dumps(text, ensure_ascii=False).encode("ascii", ESCAPE_ERRORS)) == json.loads(
        json.dumps(text)
    )


def test_what_merely_resembles_is_not_similar():
    for typed, known, similar in (
        ("start", "estimate", False), ("version", "verify", False), ("clean", "plan", False), ("download", "down", False),
        ("gup", "gpu", True), ("gen", "generate", True), ("ge", "generate", False), ("LORA", "lora", True),
    ):  # fmt: skip
        assert bool(find_similar(typed, [known])) is similar, typed
