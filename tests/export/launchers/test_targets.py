"""Files that copy the project find it from where they lie."""

import subprocess
from dataclasses import replace

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.export import dstack
from devkit.export.daytona import DaytonaSettings
from devkit.export.daytona import render_daytona as daytona
from devkit.export.docker import DockerContextSettings
from devkit.export.docker import render_docker as docker
from devkit.export.targets import find_path_to_project

from .tasks import ONE, context, texts, volumes


@pytest.mark.parametrize(
    ("folder", "back"),
    [("deploy/docker", "../.."), ("jobs", ".."), ("a/b c/d", "../../.."), (".", "."), ("/x/y", ""), ("../x", "")],
)
def test_the_project_is_found_from_the_files(folder, back):
    assert find_path_to_project(folder) == back


def test_the_path_of_the_project_is_relative_to_dstacks_file():
    made = texts(dstack.render_dstack(ONE, dstack.DstackSettings(), context("jobs")))
    assert yaml.safe_load(made["task.dstack.yml"])["files"][0]["local_path"] == ".."


def test_dstacks_files_cannot_lie_outside_of_the_project_that_they_copy():
    with pytest.raises(DevkitError, match="/elsewhere is outside of it"):
        dstack.render_dstack(ONE, dstack.DstackSettings(), context("/elsewhere"))
    there = replace(ONE, volumes=volumes(data="/mnt/project"))
    assert "task.dstack.yml" in texts(dstack.render_dstack(there, dstack.DstackSettings(), context("/elsewhere")))


def test_scripts_outside_of_the_project_need_its_folder_as_an_argument(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(texts(docker(ONE, DockerContextSettings(), context("/elsewhere")))["run.sh"])
    done = subprocess.run(
        ["sh", script, "fetch"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert "This script is outside of the project" in done.stderr
    assert 'os.environ["DEVKIT_PROJECT"]' in texts(daytona(ONE, DaytonaSettings(), context("/elsewhere")))["run.py"]
