"""The commands for containers, and the docker command's settings."""

import pytest

from devkit.facts.model import CredentialHelper
from devkit.facts.values import Release, Unknown
from devkit.probe.engine.client import read_clients
from tests.hosts import written

EXE = '{ kind = "file", mode = 0o755 }'
WRAPPER = '#!/bin/sh\\n[ -e /etc/containers/nodocker ] || echo Emulate >&2\\nexec /usr/bin/podman \\"$@\\"\\n'


def host(tmp_path, *programs, env="", files="", links="", commands=""):
    nodes = "".join(f'"{path}" = {EXE}\n' for path in programs)
    return written(
        tmp_path, f'[env]\nHOME = "/h"\n{env}\n[files]\n{files}\n[links]\n{links}\n[nodes]\n{nodes}\n{commands}'
    )


def says(path, text, code=0):
    return f"[[command]]\nargv = ['{path}', '--version']\nout = '''{text}'''\ncode = {code}\n"


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        pytest.param("Docker version 28.5.1, build e180ab8", Release.parse("28.5.1"), id="Docker"),
        pytest.param("Docker version 20.10.24+dfsg1, build 297e128", Release.parse("20.10.24"), id="Debian's build"),
        pytest.param("", Unknown("/usr/bin/docker --version ended with status 0", is_lost=True), id="nothing"),
        pytest.param(
            "\x1b[31mno version here",
            Unknown("/usr/bin/docker --version ended with status 0", is_lost=True),
            id="garbage",
        ),
    ],
)
def test_the_version_of_docker(tmp_path, printed, version):
    shown = printed.replace("\x1b", "")
    clients = read_clients(host(tmp_path, "/usr/bin/docker", commands=says("/usr/bin/docker", shown)))
    assert clients.named("docker").version == version


def test_only_docker_is_started(tmp_path):
    clients = read_clients(host(tmp_path, "/usr/bin/podman", "/usr/local/bin/docker-compose", "/usr/bin/devcontainer"))
    assert [client.name for client in clients.found] == ["podman", "docker-compose", "devcontainer"]
    assert {client.version for client in clients.found} == {Unknown("only docker's version is read")}
    assert clients.named("docker") is None


@pytest.mark.parametrize(
    ("files", "links", "is_podman"),
    [
        pytest.param("", "", False, id="a program"),
        pytest.param(f'"/usr/bin/docker" = "{WRAPPER}"', "", True, id="the script of podman-docker"),
        pytest.param('"/usr/bin/docker" = "#!/bin/sh\\n# not podman\\nexec /opt/docker"', "", False, id="a remark"),
        pytest.param("", '"/usr/bin/docker" = "/usr/bin/podman"', True, id="a link to podman"),
        pytest.param('"/usr/bin/docker" = "ELF podman"', "", False, id="machine code with the word in it"),
    ],
)
def test_docker_that_hands_over_to_podman(tmp_path, files, links, is_podman):
    programs = ("/usr/bin/podman",) if links else ("/usr/bin/docker",)
    docker = read_clients(host(tmp_path, *programs, files=files, links=links)).named("docker")
    assert docker.is_podman is is_podman


def test_a_wrapper_is_not_started(tmp_path):
    machine = host(
        tmp_path,
        "/usr/bin/docker",
        files=f'"/usr/bin/docker" = "{WRAPPER}"',
        commands=says("/usr/bin/docker", "podman version 4.9.4"),
    )
    assert read_clients(machine).named("docker").version == Unknown("only docker's version is read")


def test_windows_folders_are_searched_for_docker_alone(tmp_path):
    windows = "/mnt/c/Program Files/Docker/Docker/resources/bin"
    machine = host(
        tmp_path, f"{windows}/docker", f"{windows}/docker-compose", env=f'PATH = "/usr/bin:{windows}:/mnt/wsl/bin"'
    )
    clients = read_clients(machine)
    assert [client.path for client in clients.found] == [f"{windows}/docker"]


def test_every_installed_daemon_is_named(tmp_path):
    clients = read_clients(host(tmp_path, "/usr/bin/dockerd", "/snap/bin/docker", env='PATH = "/usr/bin"'))
    assert clients.engine_programs == ("/usr/bin/dockerd", "/snap/bin/docker")


CONFIG = "\"/h/.docker/config.json\" = '{0}'"


@pytest.mark.parametrize(
    ("text", "error", "helpers", "gives_proxy"),
    [
        pytest.param("", "", (), False, id="an empty file"),
        pytest.param('{"auths": {"x": {"auth": "c2VjcmV0"}}}', "", (), False, id="logins alone"),
        pytest.param(
            '{"credsStore": "pass"}',
            "",
            (CredentialHelper("pass", "/b/docker-credential-pass", ""),),
            False,
            id="a helper on PATH",
        ),
        pytest.param(
            '{"credHelpers": {"aws": "ecr"}}',
            "",
            (CredentialHelper("ecr", "", "aws"),),
            False,
            id="a helper that is missing",
        ),
        pytest.param('{"credsStore": 7, "credHelpers": []}', "", (), False, id="odd values"),
        pytest.param('{"proxies": {"default": {}}}', "", (), True, id="proxies"),
        pytest.param('{"credsStore": ', "line 1, column 16: Expecting value", (), False, id="cut off"),
        pytest.param("[1]", "the top level is not an object", (), False, id="a list"),
    ],
)
def test_the_settings_of_the_docker_command(tmp_path, text, error, helpers, gives_proxy):
    machine = host(tmp_path, "/b/docker-credential-pass", env='PATH = "/b"', files=CONFIG.format(text))
    settings = read_clients(machine).settings
    assert (settings.error, settings.credential_helpers, settings.gives_proxy) == (error, helpers, gives_proxy)
    assert "c2VjcmV0" not in repr(settings)
