"""The docker command and its like on PATH: endpoint, settings, credential helpers, Compose plugin."""

import re
from collections.abc import Iterator
from typing import Any

from devkit.facts.model import Client, Clients, Compose, CredentialHelper, DockerSettings, Endpoint
from devkit.facts.values import Release, Unknown, record
from devkit.probe.documents import format_json_error, parse_json
from devkit.probe.host import TIMED_OUT, Host
from devkit.probe.machine.operating_system import read_user_id
from devkit.probe.machine.programs import SYSTEM_PROGRAM_FOLDERS, find_program, split_search_path

DEFAULT_SOCKET = "/var/run/docker.sock"
WINDOWS_PIPE = "npipe:////./pipe/docker_engine"
DEFAULT_CONTEXT = "default"


@record
class ChosenEndpoint:
    """An endpoint, the folder with its TLS files, and why it cannot be used ("" when it can)."""

    endpoint: Endpoint
    tls_folder: str | None = None
    problem: str = ""


def resolve_endpoint(host: Host) -> ChosenEndpoint:
    """Resolve as the docker command does: DOCKER_HOST, then DOCKER_CONTEXT, then the current context, then the default.

    Where nothing is chosen and the default socket is absent, the sockets of a rootless engine and of Podman are tried.
    Source: docker/cli, `resolveContextName`.
    """
    if address := host.env.get("DOCKER_HOST"):
        url = address if "://" in address else f"tcp://{address}"
        return ChosenEndpoint(Endpoint(url, "DOCKER_HOST"), _environment_tls(host))
    name, chosen_by = _context_name(host)
    if name == DEFAULT_CONTEXT:
        return ChosenEndpoint(_default_endpoint(host), _environment_tls(host))
    return _context(host, name, chosen_by)


def find_docker_config(host: Host) -> str:
    """Return the folder of the docker command's own settings."""
    home = host.env.get("HOME") or host.env.get("USERPROFILE") or ""
    return host.env.get("DOCKER_CONFIG") or f"{home}/.docker"


def _context_name(host: Host) -> tuple[str, str]:
    if name := host.env.get("DOCKER_CONTEXT"):
        return name, f"DOCKER_CONTEXT={name}"
    settings = _object(host.read(f"{find_docker_config(host)}/config.json"))
    name = settings.get("currentContext")
    return (name, f"context {name}") if isinstance(name, str) and name else (DEFAULT_CONTEXT, "default")


def _context(host: Host, name: str, chosen_by: str) -> ChosenEndpoint:
    import hashlib

    folder = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
    meta = _object(host.read(f"{find_docker_config(host)}/contexts/meta/{folder}/meta.json"))
    endpoints = meta.get("Endpoints")
    entry = endpoints.get("docker") if isinstance(endpoints, dict) else None
    url = entry.get("Host") if isinstance(entry, dict) else None
    if not isinstance(url, str) or not url:
        return ChosenEndpoint(Endpoint("", chosen_by), problem=f"there is no Docker context named {name!r}")
    tls = f"{find_docker_config(host)}/contexts/tls/{folder}/docker"
    return ChosenEndpoint(Endpoint(url, chosen_by), tls if host.list(tls) else None)


def _environment_tls(host: Host) -> str | None:
    if host.env.get("DOCKER_TLS_VERIFY") or host.env.get("DOCKER_TLS"):
        return host.env.get("DOCKER_CERT_PATH") or find_docker_config(host)
    return None


def _default_endpoint(host: Host) -> Endpoint:
    if host.env.get("OS") == "Windows_NT":
        return Endpoint(WINDOWS_PIPE, "default")
    candidates = [(DEFAULT_SOCKET, "default")]
    if home := host.env.get("HOME"):
        candidates.append((f"{home}/.docker/run/docker.sock", "Docker Desktop's own socket"))
    user = read_user_id(host)
    runtime = host.env.get("XDG_RUNTIME_DIR") or (f"/run/user/{user}" if user else "")
    if runtime:
        candidates.append((f"{runtime}/docker.sock", "rootless socket"))
        candidates.append((f"{runtime}/podman/podman.sock", "rootless Podman socket"))
    candidates.append(("/run/podman/podman.sock", "Podman socket"))
    path, chosen_by = next((pair for pair in candidates if host.stat(pair[0]) is not None), candidates[0])
    return Endpoint(f"unix://{path}", chosen_by)


def _object(text: str | None) -> dict[str, Any]:
    try:
        content = parse_json(text or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


COMMANDS = ("docker", "podman", "docker-compose", "nerdctl", "devcontainer")
ENGINE_PROGRAMS = ("/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd", "/snap/bin/docker")
"""Where distributions, Docker's own packages, its static archive and the snap put a daemon."""

_SCRIPT_BYTES = 16384
"""A command that hands over to another one is a short script; the real ones are megabytes of machine code."""

_VERSION_DEADLINE_S = 2.0
_OF_WINDOWS = re.compile(r"/mnt/[a-z]/")


def read_clients(host: Host) -> Clients | Unknown:
    """Read each command with its version, the installed daemons, and the docker command's settings.

    Only docker runs to print its version, which takes some ten milliseconds: the others would take a Python, or a
    Node.js, to start.
    """
    found = tuple(filter(None, (_client(host, name) for name in COMMANDS)))
    programs = tuple(path for path in ENGINE_PROGRAMS if host.stat(path) is not None)
    return Clients(found, programs, _docker_settings(host))


def _client(host: Host, name: str) -> Client | None:
    # In WSL, PATH continues with Windows's folders: slow to look through, and only Docker puts a command for Linux there.
    here = tuple(folder for folder in split_search_path(host.env.get("PATH", "")) if not _OF_WINDOWS.match(folder))
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
        version=_docker_version(host, path) if name == "docker" and not script else VERSION_NOT_READ,
        real_path=real,
        is_podman=is_podman,
    )


VERSION_NOT_READ = Unknown("only docker's version is read")


def _script(host: Host, path: str) -> str:
    """The text of a command that is a short script, "" for a program."""
    found = host.stat(path)
    if found is None or found.size > _SCRIPT_BYTES:
        return ""
    text = host.read(path) or ""
    return text if text.startswith("#!") else ""


def _docker_version(host: Host, path: str) -> Release | Unknown:
    done = host.run([path, "--version"], deadline_s=_VERSION_DEADLINE_S)
    try:
        return Release.parse(done.out.partition("version")[2])
    except ValueError:
        return Unknown(f"{path} --version ended with status {done.code}")


def _docker_settings(host: Host) -> DockerSettings:
    path = f"{find_docker_config(host)}/config.json"
    text = host.read(path)
    try:
        content = parse_json(text) if text and text.strip() else {}
    except ValueError as error:
        return DockerSettings(path, format_json_error(error), (), gives_proxy=False)
    if not isinstance(content, dict):
        return DockerSettings(path, "the top level is not an object", (), gives_proxy=False)
    return DockerSettings(path, "", tuple(_credential_helpers(host, content)), gives_proxy=bool(content.get("proxies")))


def _credential_helpers(host: Host, content: dict[str, Any]) -> Iterator[CredentialHelper]:
    store, helpers = content.get("credsStore"), content.get("credHelpers")
    named = [("", store), *(helpers.items() if isinstance(helpers, dict) else ())]
    for registry, name in named:
        if isinstance(name, str) and name:
            program = f"docker-credential-{name}"
            yield CredentialHelper(name, find_program(host, program), str(registry))


# The Compose plugin of the docker command.

COMPOSE_PLUGIN = "docker-compose"
COMPOSE_PLUGIN_FOLDERS = (
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
)
"""Where the docker command looks after the user's own folder. Source: docker/cli, cli-plugins/manager."""
COMPOSE_VERSION = ("version", "--short")
MAX_SHOWN = 60


def read_compose(host: Host) -> Compose | Unknown | None:
    """Read the Compose plugin's version; None without a docker command or without the plugin."""
    if not find_program(host, "docker"):
        return None
    # The plugin answers by itself, and four times as fast: the docker command would first start every plugin there is.
    plugin = find_program(
        host, COMPOSE_PLUGIN, folders=(f"{find_docker_config(host)}/cli-plugins", *COMPOSE_PLUGIN_FOLDERS)
    )
    done = host.run((plugin, *COMPOSE_VERSION) if plugin else ("docker", "compose", *COMPOSE_VERSION))
    if done.code == TIMED_OUT:
        return Unknown("docker compose version did not answer")
    if done.code != 0:
        return None
    try:
        return Compose(Release.parse(done.out))
    except ValueError:
        return Unknown(f"docker compose version printed {done.out.strip()[:MAX_SHOWN]!r}")
