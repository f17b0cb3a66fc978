"""What `devkit init` says: what it read, what the image gets, and how to choose something else."""

import subprocess

import pytest

from .test_init import GPU, devkit


def said(root, *words: str) -> str:
    done = devkit("init", root, *GPU, *words)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_the_files_that_count_and_how_to_take_others(tmp_path):
    (tmp_path / "requirements.txt").write_text("-r more.txt\nrich\n")
    (tmp_path / "more.txt").write_text("torch\n")
    text = said(tmp_path)
    assert "read: requirements.txt and more.txt; another list with --requirements FILE" in text
    assert "none with --ignore-dependencies" in text


def test_what_is_installed_and_that_it_was_not_checked(tmp_path):
    (tmp_path / "requirements.txt").write_text("rich\n")
    text = said(tmp_path, "--no-resolve")
    assert "the project's packages (not checked: --no-resolve was given)" in text
    assert "--pin NAME==V" in text


def test_a_project_without_files_gets_the_plans_packages_by_name(tmp_path):
    text = said(tmp_path)
    assert "read:" not in text
    assert "installs: torch 2." in text
    assert "transformers 5." in text


def test_a_lock_is_what_is_installed(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "p"\nversion = "1"\ndependencies = ["peft"]\n')
    (tmp_path / "uv.lock").write_text('[[package]]\nname = "peft"\nversion = "0.21.2"\n')
    assert "and what uv.lock holds" in said(tmp_path)


@pytest.mark.parametrize(
    ("table", "flag"),
    [
        pytest.param('[project.optional-dependencies]\ntrain = ["trl"]\n', "--extra train", id="an extra"),
        pytest.param('[dependency-groups]\ndocs = ["mkdocs"]\n', "--group docs", id="a group"),
    ],
)
def test_the_next_step_names_what_this_project_offers(tmp_path, table, flag):
    project = '[project]\nname = "p"\nversion = "1"\ndependencies = ["rich"]\n'
    (tmp_path / "pyproject.toml").write_text(project + table)
    assert f"To install more first: `devkit init {flag}`." in said(tmp_path)
    (tmp_path / "pyproject.toml").write_text(project)
    assert "To install more first" not in said(tmp_path)


def test_a_fresh_dev_container_takes_at_most_fifteen_lines(tmp_path):
    (tmp_path / "requirements.txt").write_text("rich\n")
    done = devkit("init", tmp_path, *GPU)
    assert len(done.stdout.splitlines()) <= 15
    assert ".devcontainer/{.dockerignore, .gitignore, Dockerfile" in done.stdout


def test_a_project_whose_git_ignores_the_folder_is_told_by_which_line(tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    assert "Next: commit them, then" in said(tmp_path)
    (tmp_path / ".gitignore").write_text("*.pyc\n.devcontainer/\n")
    text = said(tmp_path, "--python", "3.11")
    assert "commit them (`git add --force`, because .gitignore:2 ignores them)" in text
