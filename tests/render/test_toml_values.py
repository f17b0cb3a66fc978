"""Values put into a file of the user's: they stand there, and all the rest stays."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.render.toml_tables import set_toml_values

GPUS = {("job", "gpus"): 4}


def put(content, values=GPUS, comments=None):
    return set_toml_values(content, values, comments or {}, shown_as="devkit.toml")


@pytest.mark.parametrize("content", [None, b""])
def test_a_file_that_is_not_there_is_begun(content):
    assert put(content, comments={("job", "gpus"): "GPUs on each node"}) == b"[job]\ngpus = 4  # GPUs on each node\n"


def test_a_new_table_follows_an_empty_line():
    assert put(b'name = "x"\n') == b'name = "x"\n\n[job]\ngpus = 4\n'


def test_comments_order_and_spelling_stay():
    before = b"# ours\n[job]  # the job\n# how many\ngpus = 1 # one\nspot=true\n\n\n[versions]\ntorch='2.13.0'\n"
    assert put(before, comments={("job", "gpus"): "not here"}) == before.replace(b"gpus = 1 ", b"gpus = 4 ")


def test_the_mark_at_the_start_of_files_from_windows_stays():
    assert put("\ufeff[job]\r\ngpus=1\r\n".encode()) == "\ufeff[job]\r\ngpus=4\r\n".encode()


def test_inner_tables_are_made_or_found():
    values = {("job", "slurm", "models"): "/a", ("job", "gpus"): 2}
    made = tomllib.loads(put(b'[job.slurm]\npartition = "p"\n[target]\na = 1\n', values).decode())
    assert made == {"job": {"gpus": 2, "slurm": {"partition": "p", "models": "/a"}}, "target": {"a": 1}}


def test_a_comment_that_makes_the_line_long_is_left_out():
    assert (
        put(b"", {("job", "image"): "a" * 80}, {("job", "image"): "b" * 80})
        == f'[job]\nimage = "{"a" * 80}"\n'.encode()
    )


@pytest.mark.parametrize("content", [b"job = { gpus = 1 }\n", b"job.gpus = 1\n", b"[job]\nslurm = { x = 1 }\n"])
def test_other_ways_to_write_a_table(content):
    values = {("job", "gpus"): 4, ("job", "slurm", "models"): "/a"}
    made = tomllib.loads(put(content, values, dict.fromkeys(values, "a comment")).decode())["job"]
    assert (made["gpus"], made["slurm"]["models"]) == (4, "/a")


@pytest.mark.parametrize("content", [b"job = 3\n", b"[[job]]\ngpus = 1\n", b"[job]\nslurm = 3\n"])
def test_what_is_no_table_is_left_alone(content):
    with pytest.raises(DevkitError, match=r"written in a way that .* cannot be put into"):
        put(content, {("job", "slurm", "models"): "/a"})


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=30))
def test_any_text_is_read_back_as_it_was(text):
    assert tomllib.loads(put(b"# x\n", {("job", "image"): text}).decode())["job"]["image"] == text
