"""An engine that cannot start the dev container is explained as the doctor explains it."""

import pytest

from devkit.errors import DevkitError
from devkit.verify.dev_container import DOCKER_COMPOSE, PODMAN_COMPOSE, require_engine
from tests.hosts import FOLDER, machine, written


@pytest.mark.parametrize("name", ["ubuntu-4090-ok", "rootless-docker", "wsl2-desktop", "macos-desktop"])
def test_docker_with_compose_is_used(name):
    assert require_engine(machine(name)).compose == DOCKER_COMPOSE


def test_podman_brings_its_own_compose(tmp_path):
    host = written(
        tmp_path,
        f"""
        extends = '{FOLDER / "podman-behind-docker-socket"}'
        [[command]]
        argv = ["podman", "compose", "version"]
        out = "podman-compose version 1.5.0"
        """,
    )
    assert require_engine(host).compose == PODMAN_COMPOSE


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        pytest.param(
            "windows", "the container engine is not running", "Start Docker Desktop", id="Docker Desktop is off"
        ),
        pytest.param("podman-behind-docker-socket", "podman responds", "Compose plugin", id="no Compose at all"),
        pytest.param("in-container-ok", "no container engine", "devkit verify --here", id="inside of a container"),
    ],
)
def test_no_engine_is_a_set_up_error_with_a_fix(name, message, hint):
    with pytest.raises(DevkitError, match=message) as error:
        require_engine(machine(name))
    assert hint in error.value.hint
