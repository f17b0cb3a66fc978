"""`devkit init --compose`: a dev container of a service in the project's own Compose file, which stays as it is."""

import pytest

from devkit.errors import DevkitError
from devkit.render.splice import jsonc
from tests.cli.test_init import GPU, tree
from tests.render.test_repositories import devkit

COMPOSE = """\
services:
  controller:
    build: .
  worker:
    build: .
    entrypoint: [python3, -m, serve]
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: 1
              capabilities: [gpu]
"""
PATH = ".devcontainer/devcontainer.json"


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "chat"
    (folder / "docker").mkdir(parents=True)
    (folder / "docker/docker-compose.yml").write_text(COMPOSE)
    (folder / "docker/Dockerfile").write_text("FROM pytorch/pytorch:2.3.0-cuda12.1-cudnn8-runtime\n")
    return folder


def test_the_service_becomes_a_dev_container_and_no_file_changes(root):
    before = tree(root)
    done = devkit("init", root, *GPU, "--compose", "docker/docker-compose.yml")
    assert done.return_value == 0
    assert "torch 2.3.0 (cu121), as docker/Dockerfile:1 brings it, and stays so" in " ".join(done.stdout.split())
    after = tree(root)
    assert {path: after[path] for path in before} == before
    dev = jsonc.load_jsonc(after[PATH].decode())
    assert dev["dockerComposeFile"][0] == "../docker/docker-compose.yml"
    assert (dev["service"], dev["overrideCommand"]) == ("worker", True)
    assert dev["mounts"] == [f"source=${{localWorkspaceFolder}},target={dev['workspaceFolder']},type=bind"]
    assert devkit("init", root).stdout.splitlines()[-1].startswith("unchanged")
    assert devkit("update", root, "--check").return_value == 0
    assert tree(root) == after


def test_a_mounted_project_is_not_mounted_again(root):
    path = root / "docker/docker-compose.yml"
    path.write_text(COMPOSE.replace("    entrypoint", '    volumes: ["../:/app:cached"]\n    entrypoint'))
    devkit("init", root, *GPU, "--compose", path)
    dev = jsonc.load_jsonc((root / PATH).read_text())
    assert dev["workspaceFolder"] == "/app"
    assert "mounts" not in dev


def test_a_dry_run_writes_nothing(root):
    before = tree(root)
    done = devkit("init", root, *GPU, "--compose", "docker/docker-compose.yml", "--dry-run")
    assert f"create  {PATH}" in done.stdout
    assert tree(root) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--compose", "docker/compose.yml"), "docker/compose.yml does not exist"),
        (("--compose", "../elsewhere.yml"), "is outside of the project"),
        (("--compose", "docker/Dockerfile"), "docker/Dockerfile "),
        (("--compose", "docker/docker-compose.yml", "--service", "api"), "has no service 'api'"),
        (("--compose", "docker/docker-compose.yml", "--torch", "2.9.1"), "--torch would change nothing"),
        (("--service", "worker"), "--service belongs to --compose"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_opened_is_refused(root, words, says):
    before = tree(root)
    with pytest.raises(DevkitError, match=says):
        devkit("init", root, *GPU, *words)
    assert tree(root) == before


def test_one_of_several_services_has_to_be_chosen(root):
    path = root / "docker/docker-compose.yml"
    path.write_text(
        path.read_text()
        + path.read_text().partition("services:\n")[2].replace("worker", "other").replace("controller", "c2")
    )
    with pytest.raises(DevkitError, match="several services ask for a GPU"):
        devkit("init", root, *GPU, "--compose", path)
    assert devkit("init", root, *GPU, "--compose", path, "--service", "other").return_value == 0


def test_a_dev_container_that_is_there_stays(root):
    (root / ".devcontainer").mkdir()
    (root / PATH).write_text("{}")
    with pytest.raises(DevkitError, match="this project has one"):
        devkit("init", root, *GPU, "--compose", "docker/docker-compose.yml")


def test_init_offers_the_service_where_it_writes_a_dev_container_of_its_own(root):
    said = " ".join(devkit("init", root, *GPU).stdout.split())
    assert "To open it: devkit init --compose docker/docker-compose.yml --service worker" in said
    assert "To open it" not in devkit("init", root, "--force").stdout
