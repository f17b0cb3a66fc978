"""Files that copy the project find it from where they lie."""

import subprocess
from dataclasses import replace

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.export.daytona import DaytonaSettings, render_daytona
from devkit.export.docker import DockerContextSettings, render_docker
from devkit.export.dstack import DstackSettings, render_dstack
from devkit.export.targets import find_path_to_project

from .tasks import ONE, context, texts, volumes


def test_the_project_is_found_from_the_files():
    ways = {"deploy/docker": "../..", "jobs": "..", "a/b c/d": "../../..", ".": ".", "/x/y": "", "../x": ""}
    assert {folder: find_path_to_project(folder) for folder in ways} == ways


def test_dstacks_files_cannot_lie_outside_of_the_project_that_they_copy():
    made = texts(render_dstack(ONE, DstackSettings(), context("jobs")))
    assert yaml.safe_load(made["task.dstack.yml"])["files"][0]["local_path"] == ".."
    with pytest.raises(DevkitError, match="/elsewhere is outside of it"):
        render_dstack(ONE, DstackSettings(), context("/elsewhere"))
    there = replace(ONE, volumes=volumes(data="/mnt/project"))
    assert "task.dstack.yml" in texts(render_dstack(there, DstackSettings(), context("/elsewhere")))


def test_scripts_outside_of_the_project_need_its_folder_as_an_argument(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(texts(render_docker(ONE, DockerContextSettings(), context("/elsewhere")))["run.sh"])
    env = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh", script, "fetch"], env=env, capture_output=True, text=True, check=False)
    assert "This script is outside of the project" in done.stderr
    program = texts(render_daytona(ONE, DaytonaSettings(), context("/elsewhere")))["run.py"]
    assert 'os.environ["DEVKIT_PROJECT"]' in program
