import hashlib
import json

import pytest

from devkit.probe.engine.client import resolve_endpoint
from tests.hosts import written


def context(name, host):
    folder = hashlib.sha256(name.encode()).hexdigest()
    meta = json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host}}})
    return f"\"/h/.docker/contexts/meta/{folder}/meta.json\" = '{meta}'\n"


CURRENT = '"/h/.docker/config.json" = \'{"currentContext": "far"}\'\n'
FAR, NEAR = context("far", "tcp://far:2376"), context("near", "unix:///near.sock")


def machine(tmp_path, env="", files="", nodes=()):
    sockets = "".join(f'"{path}" = {{ kind = "socket" }}\n' for path in nodes)
    return written(tmp_path, f'[env]\nHOME = "/h"\n{env}\n[files]\n{files}\n[nodes]\n{sockets}')


@pytest.mark.parametrize(
    ("env", "files", "url", "chosen_by"),
    [
        pytest.param("", "", "unix:///var/run/docker.sock", "default", id="no settings"),
        pytest.param('DOCKER_HOST = "unix:///x.sock"', "", "unix:///x.sock", "DOCKER_HOST", id="DOCKER_HOST"),
        pytest.param('DOCKER_HOST = "10.0.0.1:2375"', "", "tcp://10.0.0.1:2375", "DOCKER_HOST", id="no scheme is TCP"),
        pytest.param('DOCKER_HOST = ""', "", "unix:///var/run/docker.sock", "default", id="empty is unset"),
        pytest.param("", CURRENT + FAR, "tcp://far:2376", "context far", id="the current context"),
        pytest.param(
            'DOCKER_CONTEXT = "near"',
            CURRENT + FAR + NEAR,
            "unix:///near.sock",
            "DOCKER_CONTEXT=near",
            id="a variable over it",
        ),
        pytest.param(
            'DOCKER_HOST = "unix:///x.sock"\nDOCKER_CONTEXT = "near"',
            NEAR,
            "unix:///x.sock",
            "DOCKER_HOST",
            id="the address over the variable",
        ),
        pytest.param(
            'DOCKER_CONTEXT = "default"',
            CURRENT + FAR,
            "unix:///var/run/docker.sock",
            "default",
            id="the default by name",
        ),
        pytest.param(
            "", '"/h/.docker/config.json" = "{broken"', "unix:///var/run/docker.sock", "default", id="broken settings"
        ),
        pytest.param(
            "", '"/h/.docker/config.json" = "[]"', "unix:///var/run/docker.sock", "default", id="odd settings"
        ),
        pytest.param('OS = "Windows_NT"', "", "npipe:////./pipe/docker_engine", "default", id="Windows"),
        pytest.param(
            'DOCKER_CONFIG = "/c"', CURRENT + FAR, "unix:///var/run/docker.sock", "default", id="settings elsewhere"
        ),
    ],
)
def test_the_endpoint_is_chosen_as_the_docker_command_does(tmp_path, env, files, url, chosen_by):
    chosen = resolve_endpoint(machine(tmp_path, env, files))
    assert (chosen.endpoint.url, chosen.endpoint.chosen_by, chosen.problem) == (url, chosen_by, "")


RUN = 'XDG_RUNTIME_DIR = "/run/user/7"'
ROOTLESS, PODMAN = "/run/user/7/docker.sock", "/run/user/7/podman/podman.sock"


@pytest.mark.parametrize(
    ("nodes", "chosen_by"),
    [
        pytest.param(["/var/run/docker.sock", ROOTLESS, PODMAN], "default", id="the default first"),
        pytest.param([ROOTLESS, PODMAN], "rootless socket", id="then rootless Docker"),
        pytest.param([PODMAN, "/run/podman/podman.sock"], "rootless Podman socket", id="then rootless Podman"),
        pytest.param(["/run/podman/podman.sock"], "Podman socket", id="then the system's Podman"),
        pytest.param(["/h/.docker/run/docker.sock"], "Docker Desktop's own socket", id="Desktop on macOS"),
    ],
)
def test_without_the_default_socket_its_stand_ins_are_tried(tmp_path, nodes, chosen_by):
    endpoint = resolve_endpoint(machine(tmp_path, RUN, nodes=nodes)).endpoint
    assert (endpoint.url, endpoint.chosen_by) == (f"unix://{nodes[0]}", chosen_by)


def test_a_context_that_does_not_exist_is_a_problem(tmp_path):
    chosen = resolve_endpoint(machine(tmp_path, 'DOCKER_CONTEXT = "gone"'))
    assert chosen.problem == "there is no Docker context named 'gone'"


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        pytest.param('DOCKER_HOST = "tcp://x:1"', None, id="not requested"),
        pytest.param('DOCKER_HOST = "tcp://x:1"\nDOCKER_TLS_VERIFY = "1"', "/h/.docker", id="in its usual folder"),
        pytest.param('DOCKER_HOST = "tcp://x:1"\nDOCKER_TLS = "1"\nDOCKER_CERT_PATH = "/c"', "/c", id="elsewhere"),
    ],
)
def test_tls_files_are_found_where_the_environment_says(tmp_path, env, folder):
    assert resolve_endpoint(machine(tmp_path, env)).tls_folder == folder


def test_tls_files_of_a_context_are_its_own(tmp_path):
    folder = f"/h/.docker/contexts/tls/{hashlib.sha256(b'far').hexdigest()}/docker"
    chosen = resolve_endpoint(machine(tmp_path, "", CURRENT + FAR + f'"{folder}/ca.pem" = "x"\n'))
    assert chosen.tls_folder == folder
