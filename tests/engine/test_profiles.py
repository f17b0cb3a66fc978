"""Profiles on a real engine: JupyterLab lets in whoever has the token, and nobody else."""

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.compat.version_tables import load_tables

from . import image, project, tools
from .conftest import one_engine
from .daemon import Engine
from .project import Clone

pytestmark = pytest.mark.nightly

PORT = "18888"
API = "http://127.0.0.1:8888/api/contents"
FETCH = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": sys.argv[2]} if sys.argv[2] else {})
try:
    print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10).status)
except urllib.error.HTTPError as refused:
    print(refused.code)
except OSError as error:
    print(error)
"""
DEADLINE_S = 90


@pytest.fixture
def lab(engine: Engine, tmp_path: Path) -> Iterator[Clone]:
    """A project with the profile `jupyter`, whose image has JupyterLab and none of the plan's large packages."""
    (row,) = load_tables().profiles.packages
    wheels = tools.wheelhouse([f"{row.name}=={row.version}"])
    clone = Clone(tmp_path / "quickstart", engine)
    project.init(clone.folder, *project.PLAN, "--set", "profiles=jupyter", "--wheelhouse", wheels)
    base_image = image.base_image_of(clone.folder / ".devcontainer/Dockerfile")
    image.provide(engine, base_image)
    clone.without_packages()
    install = "RUN --mount=type=bind,from=wheelhouse,target=/mnt/wheels umask 002 && "
    install += f"python -m pip install --no-index --find-links=/mnt/wheels {row.name}\n"
    dockerfile = clone.folder / ".devcontainer/Dockerfile"
    before, user, after = dockerfile.read_text(encoding="utf-8").partition("\nARG USER_UID")
    dockerfile.write_text(f"{before}\n{install}{user}{after}", encoding="utf-8")
    # The tests run as root; a developer's folder belongs to the user whose ids the image takes over.
    for path in (clone.folder, *clone.folder.rglob("*")):
        os.chown(path, 1000, 1000)
    clone.look()
    yield clone
    engine.clear()


def status(lab: Clone, authorization: str) -> str:
    """What JupyterLab answers inside its own container: an HTTP status, or why there was none."""
    words = ("--profile", "jupyter", "exec", "-T", "jupyter", "python", "-c", FETCH, API, authorization)
    return lab.compose(*words).strip()


def token(lab: Clone) -> str:
    return (lab.folder / ".devcontainer/.secrets/jupyter-token").read_text(encoding="ascii")


def start(lab: Clone) -> None:
    """Start the service, and wait until it answers."""
    lab.compose("--profile", "jupyter", "up", "--build", "--detach", "jupyter", env={"DEVKIT_JUPYTER_PORT": PORT})
    ends = time.monotonic() + DEADLINE_S
    while not status(lab, "").isdigit():
        assert time.monotonic() < ends, logs(lab)
        time.sleep(1)


def logs(lab: Clone) -> str:
    """What JupyterLab wrote."""
    return lab.compose("--profile", "jupyter", "logs", "jupyter")


@one_engine
def test_jupyterlab_asks_for_its_token(lab):
    start(lab)
    assert status(lab, "") == "403"
    assert status(lab, "token ") == "403"
    assert status(lab, "token wrong") == "403"
    assert status(lab, f"token {token(lab)}") == "200"
    assert len(token(lab)) >= 40
    assert token(lab) not in logs(lab)


@one_engine
def test_the_token_outlives_the_container_and_a_new_one_ends_the_old(lab):
    start(lab)
    first = token(lab)
    lab.compose("--profile", "jupyter", "restart", "jupyter")
    start(lab)
    assert token(lab) == first
    (lab.folder / ".devcontainer/.secrets/jupyter-token").unlink()
    lab.compose("--profile", "jupyter", "restart", "jupyter")
    start(lab)
    assert token(lab) != first
    assert status(lab, f"token {first}") == "403"
    assert status(lab, f"token {token(lab)}") == "200"


@one_engine
def test_the_service_is_there_when_asked_for_on_the_loopback_address_and_for_its_user_alone(lab):
    lab.compose("up", "--build", "--detach")
    assert lab.compose("ps", "--services").split() == ["dev"]
    start(lab)
    container = lab.compose("--profile", "jupyter", "ps", "--quiet", "jupyter").strip()
    host = lab.engine.inspect(container)["HostConfig"]
    assert host["PortBindings"] == {"8888/tcp": [{"HostIp": "127.0.0.1", "HostPort": PORT}]}
    assert (host["Privileged"], host["CapAdd"]) == (False, None)
    file = lab.folder / ".devcontainer/.secrets/jupyter-token"
    assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_uid) == (0o600, 1000)
