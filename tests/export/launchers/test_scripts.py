"""What shellcheck says of every script that is written for a launcher."""

import subprocess
from dataclasses import replace

import pytest
import yaml

from devkit.export.docker import DockerContextSettings, render_docker
from devkit.export.dstack import DstackSettings, render_dstack
from devkit.export.skypilot import SkypilotSettings, render_skypilot
from tests.render.test_artifacts import linter

from .tasks import TASKS, context, texts

pytestmark = pytest.mark.full


def docker(task):
    return texts(render_docker(replace(task, nodes=1), DockerContextSettings(context="a"), context(".")))["run.sh"]


def skypilot(task):
    return yaml.safe_load(texts(render_skypilot(task, SkypilotSettings(), context(".")))["task.yaml"])["run"]


def dstack(task):
    return yaml.safe_load(texts(render_dstack(task, DstackSettings(), context("deploy")))["task.dstack.yml"])[
        "commands"
    ][0]


# Single quotes are meant: what they hold is the command's.
@pytest.mark.parametrize(
    ("written", "words"),
    [
        (docker, []),
        (skypilot, ["--shell=bash", "--exclude=SC2016,SC2155"]),
        (dstack, ["--shell=sh", "--exclude=SC2016"]),
    ],
)
def test_shellcheck_finds_nothing(written, words, tmp_path):
    for name, task in TASKS.items():
        (tmp_path / f"{name}.sh").write_text(written(task))
    argv = [linter("shellcheck"), *words, *sorted(tmp_path.iterdir())]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
