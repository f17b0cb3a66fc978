"""Lines in ignore files that a project has already: what devkit needs is appended, and theirs stay."""

import json
from pathlib import Path

import pytest

from devkit.render.ignore_files import merge_ignore_file, update_gitignore

from .test_repositories import GPU, devkit


@pytest.mark.parametrize(
    ("before", "added"),
    [
        pytest.param("*.pyc\n", ["/.env"], id="nothing about it"),
        pytest.param(".env\n", [], id="its name"),
        pytest.param("**/.env*\n", [], id="a pattern"),
        pytest.param("/.env", [], id="its path, without a line end"),
        pytest.param(".env\n!.env\n", ["/.env"], id="a line that takes it back"),
        pytest.param(".env\n*.lock\n", ["!/devkit.lock"], id="a pattern that hides the lock by accident"),
        pytest.param(".env\n.devcontainer/\ndevkit.lock\n", [], id="names of devkit's files: a decision"),
        pytest.param(
            ".env\n.*\n", ["!/.devcontainer"], id="a pattern that hides the folder of every teammate's container"
        ),
    ],
)
def test_what_is_missing_is_appended(tmp_path, before, added):
    (tmp_path / ".gitignore").write_text(before)
    changed, ours = update_gitignore(tmp_path, (".env",), {})
    text = changed[0].content.decode() if changed else before
    assert text.startswith(before)
    assert [line for line in text.removeprefix(before).splitlines() if line and line[0] != "#"] == added
    assert ours == ({".gitignore": tuple(added)} if added else {})


def test_a_second_time_nothing_is_appended_and_what_was_taken_out_stays_out(tmp_path):
    (tmp_path / ".gitignore").write_bytes(b"*.pyc\r\n")
    (artifact,), ours = update_gitignore(tmp_path, (".env",), {})
    assert artifact.content.endswith(b"\r\n/.env\r\n")
    (tmp_path / ".gitignore").write_bytes(artifact.content)
    assert update_gitignore(tmp_path, (".env",), ours) == ([], ours)
    (tmp_path / ".gitignore").write_bytes(b"*.pyc\r\n")
    assert update_gitignore(tmp_path, (".env",), ours) == ([], ours)


def test_a_line_that_is_needed_no_more_goes(tmp_path):
    (tmp_path / ".gitignore").write_text("*.pyc\n/docker/.env\n")
    (artifact,), ours = update_gitignore(tmp_path, (), {".gitignore": ("/docker/.env",)})
    assert (artifact.content, ours) == (b"*.pyc\n", {})


@pytest.mark.parametrize(("is_git", "makes"), [(True, 1), (False, 0)], ids=["in a repository", "elsewhere"])
def test_a_file_is_made_only_where_git_would_read_it(tmp_path, is_git, makes):
    if is_git:
        (tmp_path / ".git").mkdir()
    assert len(update_gitignore(tmp_path, (".env",), {})[0]) == makes


def test_bytes_that_are_no_text_stay(tmp_path):
    (tmp_path / ".gitignore").write_bytes(b"\xff\xfe.tmp\n")
    (artifact,), _ = update_gitignore(tmp_path, (".env",), {})
    assert artifact.content.startswith(b"\xff\xfe.tmp\n")


def test_the_last_line_that_fits_counts_so_devkits_own_come_last():
    joined = merge_ignore_file(b"!secrets\n*.md", b"# Written by devkit.\n*\n!requirements.txt\n")
    assert joined == b"!secrets\n*.md\n# Written by devkit.\n*\n!requirements.txt\n"
    assert merge_ignore_file(joined, b"# Written by devkit 2.\n*\n!requirements.txt\n") == joined


def test_a_folder_with_ignore_files_of_its_own_gets_devkits_dev_container(tmp_path: Path):
    """Ignore files alone are no dev container of somebody else's; they are joined, now and at every update."""
    folder = tmp_path / ".devcontainer"
    folder.mkdir()
    (folder / ".gitignore").write_text("scratch/\n")
    (folder / ".dockerignore").write_text("**/*.md\n")
    assert "\nNext: " in devkit("init", tmp_path, *GPU).stdout
    for name, first in ((".gitignore", "scratch/"), (".dockerignore", "**/*.md")):
        lines = (folder / name).read_text().splitlines()
        assert lines[0] == first
        assert len(lines) > 2
    assert devkit("update", tmp_path, "--check").return_value == 0
    with (folder / ".gitignore").open("a") as file:
        file.write("more/\n")
    assert devkit("update", tmp_path, "--check").return_value == 0
    assert json.loads((tmp_path / "devkit.lock").read_text())["files"][".devcontainer/.gitignore"]
