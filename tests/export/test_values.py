"""Times, sizes and names of jobs in the spellings that people and engines use; text in quotes is what it was."""

import shlex
import subprocess

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.export.values import (
    GIB,
    MAX_JOB_NAME_LENGTH,
    fold_shell_command,
    format_comment_line,
    format_slurm_time,
    format_yaml,
    parse_duration,
    parse_size,
    quote_yaml,
    render_yaml_block,
    round_up_to_gib,
    validate_dns_label,
)
from tests.export.launchers.tasks import NASTY


def test_sizes():
    sizes = {"64Gi": 64 * GIB, "500G": 500 * 10**9, "1.5Ti": 1536 * GIB, "10": 10, "2 GiB": 2 * GIB, "1k": 1000}
    assert {text: parse_size(text, "--set memory") for text in sizes} == sizes
    for text in ("", "Gi", "-1G", "0", "1e9", "1 000", "64Gi\n64Gi", "nan", "1,5G", "i", "5i b c"):
        with pytest.raises(DevkitError, match=r"--set memory is .* which is not a size"):
            parse_size(text, "--set memory")


def test_times():
    times = {"90m": 5400, "24h": 86400, "2d": 172800, "1h30m": 5400, "1-12:00:00": 129600, "00:10": 600, "5s": 5}
    assert {text: parse_duration(text, "--time") for text in times} == times
    for text in ("", "90", "0s", "1.5h", "h", "-5m", "1:2", "00:00:00", "5 m"):
        with pytest.raises(DevkitError, match=r"--time is .* which is not a duration"):
            parse_duration(text, "--time")


def test_slurms_clock_is_read_back_as_the_same_time():
    for seconds, clock in {1: "00:00:01", 86399: "23:59:59", 86400: "1-00:00:00", 129661: "1-12:01:01"}.items():
        assert format_slurm_time(seconds) == clock
        assert parse_duration(clock, "--time") == seconds


def test_what_is_no_label_comes_with_one_that_is():
    for name in ("a", "a-b", "0", "a" * MAX_JOB_NAME_LENGTH, "a--b"):
        assert validate_dns_label(name, "--name") == name
    cut = "a" * MAX_JOB_NAME_LENGTH
    proposed = {"My Job": "my-job", "a_b.c": "a-b-c", "-a-": "a", f"{cut}a": cut, "a\nb": "a-b", "${HOME}": "home"}
    for name, label in (proposed | {"ä": "a-z", "": "a-z"}).items():
        with pytest.raises(DevkitError) as refused:
            validate_dns_label(name, "--name")
        assert label in refused.value.hint
        assert "\n" not in refused.value.message


def test_whole_gibibytes_hold_what_they_must():
    assert [round_up_to_gib(each) for each in (1, GIB - 1, GIB, GIB + 1)] == [1, 1, 1, 2]


ANY = st.text(st.characters(exclude_categories=["Cs"]))


@given(ANY)
@example(NASTY)
@example("yes")
@example("1e3")
@example("\x7f\x85\u2028\u2029\ufeff\ufffe\0 :")
def test_yaml_reads_back_a_scalar(text):
    assert yaml.safe_load(f"x: {quote_yaml(text)}\n") == {"x": text}
    assert "\n" not in quote_yaml(text)
    assert yaml.safe_load(f"{format_yaml(text)}: {format_yaml(text)}\n") == {text: text}
    # Jinja's indent breaks lines as Python does.
    assert len(format_yaml(text).splitlines()) == 1


@given(ANY, st.integers(2, 8))
@example("line\n", 2)
@example("line\n\n\n", 4)
@example("one\n  two\n\nthree", 2)
@example(" begins with a space\n", 2)
@example("\n", 2)
@example("", 2)
@example("tab\there", 2)
@example("next\x85line", 2)
@example("- x: |\n# no comment\n", 2)
def test_yaml_reads_back_a_block(text, indent):
    shift = " " * (indent - 1)
    assert yaml.safe_load(f"a:\n{shift}x: {render_yaml_block(text, indent)}\n{shift}y: 1\n") == {
        "a": {"x": text, "y": 1}
    }


@given(st.text())
def test_a_comment_stays_on_its_line(text):
    shown = format_comment_line(text)
    assert len(shown) == len(text)
    assert not yaml.safe_load(f"# {shown}\n")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1))
@example(["--", "--a b", "-c", "x\ny", NASTY])
def test_folded_words_are_the_same_words(words):
    # A shell drops a backslash with the line's end after it; shlex keeps the line's end.
    assert shlex.split(fold_shell_command(words, indent=4).replace(" \\\n    ", " ")) == words


def test_a_shell_reads_folded_words_as_they_were():
    words = ["printf", r"%s\n", "--model", NASTY, "--output", "x\ny"]
    done = subprocess.run(["sh", "-c", fold_shell_command(words, indent=4)], capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"{word}\n" for word in words[2:])
