"""What single editors need, with a real Docker: packages in the image, and the script for Daytona."""

import os
import re
from pathlib import Path

import pytest

from devkit.compat.version_tables import load_tables

from . import image, project
from .commands import run
from .conftest import one_engine
from .daemon import Engine
from .project import Clone

pytestmark = pytest.mark.nightly


def light(engine: Engine, folder: Path, editor: str) -> Clone:
    """A project for this editor, whose image is built without the plan's packages."""
    clone = Clone(folder, engine)
    project.init(clone.folder, *project.PLAN, "--set", f"editors={editor}")
    image.provide(engine, image.base_image_of(clone.folder / ".devcontainer/Dockerfile"))
    clone.without_packages()
    return clone


@one_engine
def test_the_image_has_what_jetbrains_program_inside_needs(engine: Engine, tmp_path: Path):
    clone = light(engine, tmp_path / "quickstart", "jetbrains")
    clone.look()
    clone.compose("up", "--build", "--detach")
    for package in load_tables().editors.editors["jetbrains"].packages:
        assert clone.inside("dpkg-query", "--show", "--showformat=${db:Status-Status}", package) == "installed"
    engine.clear()


@one_engine
def test_the_image_that_is_pushed_is_the_dev_containers(engine: Engine, tmp_path: Path):
    clone = light(engine, tmp_path / "quickstart", "daytona")
    daytona = tmp_path / "bin/daytona"
    daytona.parent.mkdir()
    daytona.write_text(f'#!/bin/sh\necho "$*" >"{tmp_path}/pushed"\n')
    daytona.chmod(0o755)
    env = engine.env | {"PATH": os.pathsep.join((str(daytona.parent), engine.env["PATH"]))}
    run(["sh", clone.folder / ".devcontainer/daytona/snapshot.sh", "mine"], env=env, cwd=tmp_path)
    pushed = (tmp_path / "pushed").read_text()
    found = re.fullmatch(r"snapshot push (quickstart:\d+) --name mine --cpu 4 --memory 16 --disk 30\n", pushed)
    assert found, pushed
    assert engine.inspect(found[1])["Architecture"] == "amd64"
    # Daytona starts the image itself: its own user and command must do without Compose.
    assert engine.docker("run", "--rm", found[1], "id", "--user", "--name").strip() == "dev"
    engine.clear()
