"""The script for Daytona with a real Docker: it builds the dev container's image, and pushes that one."""

import os
import re
from pathlib import Path

from . import image, project
from .commands import run
from .conftest import one_engine
from .daemon import Engine
from .project import Clone


@one_engine
def test_the_image_that_is_pushed_is_the_dev_containers(engine: Engine, tmp_path: Path):
    clone = Clone(tmp_path / "quickstart", engine)
    project.init(clone.folder, *project.PLAN, "--editor", "daytona")
    image.provide(engine, image.base_image_of(clone.folder / ".devcontainer/Dockerfile"))
    clone.without_packages()
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
