"""Text that stands in quotes is what it was, whoever reads it."""

import shlex
import subprocess

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from devkit.export.values import (
    fold_shell_command,
    format_comment_line,
    format_yaml,
    quote_yaml,
    render_yaml_block,
)

from .tasks import NASTY

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
