"""The commands for containers on PATH, and what the docker command was told."""

import re
from collections.abc import Iterator
from typing import Any

from devkit.facts.model import Client, Clients, CredentialHelper, DockerSettings
from devkit.facts.values import Release, Unknown
from devkit.probe.endpoint import docker_config
from devkit.probe.host import Host
from devkit.probe.programs import SYSTEM_PROGRAM_FOLDERS, find_program, path_folders
from devkit.probe.shapes import json_of, place_of

COMMANDS = ("docker", "podman", "docker-compose", "nerdctl", "devcontainer")
ENGINE_PROGRAMS = ("/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd", "/snap/bin/docker")
"""Where distributions, Docker's own packages, its static archive and the snap put a daemon."""

_SCRIPT_BYTES = 16384
"""A command that hands over to another one is a short script; the real ones are megabytes of machine code."""

_VERSION_DEADLINE_S = 2.0
_OF_WINDOWS = re.compile(r"/mnt/[a-z]/")


def read_clients(host: Host) -> Clients | Unknown:
    """Each command with its version, the daemons that are installed, and the docker command's settings.

    Only docker is asked for its version, which takes it some ten milliseconds: the others would take a Python, or a
    Node.js, to start.
    """
    found = tuple(filter(None, (_client(host, name) for name in COMMANDS)))
    programs = tuple(path for path in ENGINE_PROGRAMS if host.stat(path) is not None)
    return Clients(found, programs, _settings(host))


def _client(host: Host, name: str) -> Client | None:
    # In WSL, PATH goes on with Windows's folders: slow to look through, and only Docker puts a command for Linux there.
    here = tuple(folder for folder in path_folders(host.env.get("PATH", "")) if not _OF_WINDOWS.match(folder))
    folders = None if name == "docker" else (*here, *SYSTEM_PROGRAM_FOLDERS)
    path = find_program(host, name, folders=folders)
    if not path:
        return None
    real = host.link(path) or path
    script = _script(host, real)
    is_podman = real.rpartition("/")[2] == "podman" or bool(re.search(r"^\s*(?:exec\s+)?\S*podman\b", script, re.M))
    return Client(
        name=name,
        path=path,
        version=_version(host, path) if name == "docker" and not script else NOT_ASKED,
        real_path=real,
        is_podman=is_podman,
    )


NOT_ASKED = Unknown("only docker is asked for its version")


def _script(host: Host, path: str) -> str:
    """The text of a command that is a short script, "" for a program."""
    found = host.stat(path)
    if found is None or found.size > _SCRIPT_BYTES:
        return ""
    text = host.read(path) or ""
    return text if text.startswith("#!") else ""


def _version(host: Host, path: str) -> Release | Unknown:
    done = host.run([path, "--version"], deadline_s=_VERSION_DEADLINE_S)
    try:
        return Release.read(done.out.partition("version")[2])
    except ValueError:
        return Unknown(f"{path} --version ended with status {done.code}")


def _settings(host: Host) -> DockerSettings:
    path = f"{docker_config(host)}/config.json"
    text = host.read(path)
    try:
        content = json_of(text) if text and text.strip() else {}
    except ValueError as error:
        return DockerSettings(path, place_of(error), (), gives_proxy=False)
    if not isinstance(content, dict):
        return DockerSettings(path, "the top level is not an object", (), gives_proxy=False)
    return DockerSettings(path, "", tuple(_helpers(host, content)), gives_proxy=bool(content.get("proxies")))


def _helpers(host: Host, content: dict[str, Any]) -> Iterator[CredentialHelper]:
    store, helpers = content.get("credsStore"), content.get("credHelpers")
    named = [("", store), *(helpers.items() if isinstance(helpers, dict) else ())]
    for registry, name in named:
        if isinstance(name, str) and name:
            program = f"docker-credential-{name}"
            yield CredentialHelper(name, find_program(host, program), str(registry))
