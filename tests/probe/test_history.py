"""The day on which a project's code was last changed: a real git answers."""

import subprocess

from devkit.probe.project.reader import read_last_change


def commit(root, day, **files):
    for name, text in files.items():
        (root / name.replace("_", ".")).write_text(text)
    git = ("git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run([*git, "add", "-A"], check=True)
    environment = {
        "GIT_COMMITTER_DATE": f"{day}T12:00:00Z",
        "GIT_AUTHOR_DATE": f"{day}T12:00:00Z",
        "PATH": "/usr/bin:/bin",
    }
    subprocess.run([*git, "commit", "-qm", "change"], check=True, env=environment)


def test_a_later_readme_is_no_change_of_the_code(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    commit(tmp_path, "2023-05-01", train_py="import torch")
    commit(tmp_path, "2025-06-01", README_md="this project is archived")
    assert read_last_change(tmp_path) == "2023-05-01"
    commit(tmp_path, "2025-07-01", requirements_txt="torch")
    assert read_last_change(tmp_path) == "2025-07-01"


def test_a_folder_without_a_history_has_no_day(tmp_path):
    assert read_last_change(tmp_path) == ""
