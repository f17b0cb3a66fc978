"""`devkit plan` and `devkit init` in projects whose own files ask for packages."""

import json
import os
import subprocess
import sys

import pytest

ADA = ("--gpu", "RTX 4090", "--driver", "580.95.05")


def devkit(*words, cwd) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    argv = [sys.executable, "-m", "devkit", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, env=env, cwd=cwd, stdin=subprocess.DEVNULL, check=False)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "requirements.txt").write_text("# ours\n\ntorch==2.13.0\nnumpy<2\n")
    return tmp_path


def test_a_plan_takes_what_the_project_asks_for_and_says_which_line(project):
    done = devkit("plan", *ADA, cwd=project)
    assert done.returncode == 0
    assert "requirements.txt:3 wants torch==2.13.0" in done.stdout
    assert "dependencies     pip" in done.stdout


def test_another_folder_is_planned_for_by_its_name(project, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    document = json.loads(devkit("plan", *ADA, "--project", project, "--json", cwd=elsewhere).stdout)
    assert document["plan"]["torch"] == "2.13.0"
    done = devkit("plan", "--project", elsewhere / "gone", cwd=elsewhere)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("how", ["--ignore-dependencies", "devkit.toml"])
def test_the_projects_files_can_be_left_aside(project, how):
    words = [how] if how.startswith("--") else []
    if not words:
        (project / "devkit.toml").write_text("[dependencies]\nignore_dependencies = true\n")
    done = devkit("plan", *ADA, *words, cwd=project)
    assert "requirements.txt" not in done.stdout
    assert devkit("init", ".", *ADA, "--yes", *words, cwd=project).returncode == 0
    assert "project: .." not in (project / ".devcontainer/docker-compose.yml").read_text()


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        pytest.param(("--torch", "2.14.1"), "requirements.txt:3 wants torch==2.13.0", id="another torch"),
        pytest.param(("--pin", "numpy==2.1.0"), "requirements.txt:4 wants numpy<2", id="another package"),
    ],
)
def test_a_flag_against_the_projects_files_is_a_conflict_that_names_the_line(project, flags, line):
    for command in (("plan",), ("init", ".", "--yes")):
        done = devkit(*command, *ADA, *flags, cwd=project)
        assert done.returncode == 1
        assert line in done.stdout
    assert not (project / ".devcontainer").exists()


def test_a_pin_for_a_build_that_this_machine_does_not_run_is_caught_before_anything_is_built(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch==2.14.1+cu132\n")
    done = devkit("init", ".", "--gpu", "RTX 4090", "--driver", "535.183.01", "--yes", cwd=tmp_path)
    assert done.returncode == 1
    assert "requirements.txt:1" in done.stdout
    assert not (tmp_path / ".devcontainer").exists()


def test_what_cannot_be_read_is_said_and_stops_nothing(tmp_path):
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup(install_requires=open('r').read())\n")
    done = devkit("init", ".", *ADA, "--yes", cwd=tmp_path)
    assert done.returncode == 0
    assert "setup.py:2 is not taken into account: install_requires: it is computed" in done.stdout


def test_init_binds_the_projects_files_and_update_sees_no_difference(project):
    assert devkit("init", ".", *ADA, "--yes", cwd=project).returncode == 0
    dockerfile = (project / ".devcontainer/Dockerfile").read_text()
    assert "--mount=type=bind,from=project,source=requirements.txt" in dockerfile
    assert "project: .." in (project / ".devcontainer/docker-compose.yml").read_text()
    assert devkit("update", ".", "--check", cwd=project).returncode == 0
    (project / "requirements.txt").write_text("torch==2.13.0\nnumpy<2\nrich\n")
    assert devkit("update", ".", "--check", cwd=project).returncode == 0
    (project / "requirements.txt").write_text("torch==2.13.0\n-r more.txt\n")
    (project / "more.txt").write_text("rich\n")
    changed = devkit("update", ".", "--check", cwd=project)
    assert changed.returncode == 1
    assert "source=more.txt" in changed.stdout
