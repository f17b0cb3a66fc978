"""Hostile paths in .env, read back by Compose itself."""

import json
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.render.container.compose import parse_env_value, set_env_value
from devkit.render.project import render_devcontainer
from tests.render.injection import HOSTILE, every_hostile_word
from tests.render.plans import CPU_PLAN
from tests.render.test_artifacts import CLOSED

from .binaries import Binaries
from .commands import environment, run


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that builds from a folder of wheels."""
    root = tmp_path_factory.mktemp("project")
    for file in render_devcontainer(CPU_PLAN, CLOSED):
        (root / file.path).parent.mkdir(parents=True, exist_ok=True)
        (root / file.path).write_bytes(file.content)
    return root


@every_hostile_word
def test_compose_reads_a_path_as_it_was_written(found: Binaries, project: Path, kind):
    path = f"/srv/{HOSTILE[kind]}"
    try:
        text = set_env_value("OTHER=1\n", "DEVKIT_WHEELHOUSE", path)
        (project / ".devcontainer/.env").write_text(text, encoding="utf-8")
    except (DevkitError, UnicodeEncodeError):
        return
    compose = [found.plugins / "docker-compose", "--file", project / ".devcontainer/docker-compose.yml"]
    shown = run([*compose, "config", "--format", "json"], env=environment(HOME=project))
    contexts = json.loads(shown.stdout)["services"]["dev"]["build"]["additional_contexts"]
    # What is printed is a Compose file again, where a dollar is written twice.
    assert contexts["wheelhouse"].replace("$$", "$") == path
    assert parse_env_value(text, "DEVKIT_WHEELHOUSE") == path
