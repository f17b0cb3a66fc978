"""`devkit plan` and `devkit init` in projects whose own files ask for packages."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.forked_commands import run_devkit

ADA = ("--gpu", "RTX 4090", "--driver", "580.95.05")


def devkit(*words, cwd) -> subprocess.CompletedProcess[str]:
    return run_devkit(*words, cwd=cwd, NO_COLOR="1", COLUMNS="200")


@pytest.fixture
def project(tmp_path):
    (tmp_path / "requirements.txt").write_text("# ours\n\ntorch==2.13.0\nnumpy<2\n")
    return tmp_path


def test_a_plan_takes_what_the_project_asks_for_and_says_which_line(project):
    done = devkit("plan", *ADA, cwd=project)
    assert done.returncode == 0
    assert "requirements.txt:3 wants torch==2.13.0" in done.stdout
    assert re.search(r"^dependencies +pip", done.stdout, re.MULTILINE)


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
    assert "setup.py:2 is not taken into account: its requirements are computed by the build" in done.stdout


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


@pytest.fixture
def programs(tmp_path):
    (tmp_path / "train.py").write_text("import torch\nimport tiktoken\nimport strange\n")
    return tmp_path


def test_what_programs_import_is_named_where_no_file_asks_for_it(programs):
    done = devkit("init", ".", *ADA, "--dry-run", cwd=programs)
    assert "no dependency file was found" in done.stdout
    assert "imported and named by no file: tiktoken (train.py:2); --add-imports installs them" in done.stdout
    assert "strange (train.py:3); devkit knows no package for them" in done.stdout
    document = json.loads(devkit("init", ".", *ADA, "--dry-run", "--json", cwd=programs).stdout)
    assert document["imports"][0] == {"module": "tiktoken", "name": "tiktoken", "origin": "train.py:2"}


@pytest.mark.parametrize("flag", ["--add-imports", "--yes"])
def test_imports_that_are_accepted_stand_in_devkit_toml_and_in_the_image(programs, flag):
    assert devkit("init", ".", *ADA, flag, cwd=programs).returncode == 0
    assert 'packages = ["tiktoken"]' in (programs / "devkit.toml").read_text()
    assert "        tiktoken \\\n        > /mnt/work/project.txt" in (programs / ".devcontainer/Dockerfile").read_text()
    # They stay, and are not proposed again.
    done = devkit("init", ".", *ADA, cwd=programs)
    assert "tiktoken" not in done.stdout
    assert "unchanged" in done.stdout


@pytest.mark.parametrize(("answer", "is_written"), [("n", False), ("y", True)])
def test_on_a_terminal_the_user_is_asked(programs, answer, is_written):
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(programs)
        os.execv(sys.executable, [sys.executable, "-m", "devkit", "init", ".", *ADA])
    os.write(terminal, f"{answer}\n".encode())
    with suppress(OSError):
        while os.read(terminal, 4096):
            pass
    assert os.waitpid(pid, 0)[1] == 0
    os.close(terminal)
    assert ('\npackages = ["tiktoken"]' in (programs / "devkit.toml").read_text()) is is_written


def test_a_package_of_devkit_toml_is_added_to_a_lock(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "p"\nversion = "1"\ndependencies = ["rich"]\n')
    (tmp_path / "uv.lock").write_text('[[package]]\nname = "rich"\nversion = "14.0"\n')
    (tmp_path / "devkit.toml").write_text('[project]\npackages = ["tiktoken>=0.7"]\n')
    assert devkit("init", ".", *ADA, "--yes", cwd=tmp_path).returncode == 0
    dockerfile = (tmp_path / ".devcontainer/Dockerfile").read_text()
    assert dockerfile.index("uv export") < dockerfile.index("--requirement=/mnt/work/project.txt")
    assert "'tiktoken>=0.7'" in dockerfile
