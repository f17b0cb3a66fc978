"""The docker command and its like on PATH: endpoint, settings, credential helpers, Compose plugin."""

import re
from dataclasses import dataclass

from devkit.facts.engine import Client, Clients, Compose, CredentialHelper, DockerSettings, Endpoint
from devkit.facts.runs import ProgramFailure
from devkit.facts.values import Release, Unknown
from devkit.formats.jsonc import format_json_error
from devkit.probe.attempts import find_error_lines, run_or_explain
from devkit.probe.circumstances import MAX_SCRIPT_BYTES
from devkit.probe.documents import (
    get_object,
    get_text,
    parse_object,
    parse_object_or_empty,
    strip_url_credentials,
)
from devkit.probe.host import NOT_EXECUTABLE, NOT_FOUND, SYSTEM_PROGRAM_FOLDERS, TIMED_OUT, Host, explain_failure
from devkit.probe.machine.operating_system import read_user_id
from devkit.probe.machine.programs import find_program, split_search_path

DEFAULT_SOCKET = "/var/run/docker.sock"
WINDOWS_PIPE = "npipe:////./pipe/docker_engine"
DEFAULT_CONTEXT = "default"

COMMANDS = ("docker", "podman", "docker-compose", "nerdctl", "devcontainer")
ENGINE_PROGRAMS = ("/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd", "/snap/bin/docker")
"""Where distributions, Docker's own packages, its static archive and the snap put a daemon."""
DOCKER_SERVER_VERSION = ("version", "--format", "{{.Server.Version}}")
"""What only an engine answers: the variables for the docker command count."""
_USE_BUILDER = """
said=$(docker buildx inspect) || exit
case "$said
" in *"Driver:"*" docker
"*) exec docker buildx du ;; esac
"""
"""Fails where a build would not find its builder. One that runs in a container is not started for it."""
_VERSION_DEADLINE_S = 2.0
_TRIAL_DEADLINE_S = 3.5
"""For the attempts with and without this shell's variables together."""
_OF_WINDOWS = re.compile(r"/mnt/[a-z]/")

VERSION_NOT_READ = Unknown("only docker's version is read")

# Plugins of the docker command.
COMPOSE_PLUGIN, BUILD_PLUGIN = "docker-compose", "docker-buildx"
COMPOSE_PLUGIN_FOLDERS = (
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
)
"""Where the docker command looks after the user's own folder. Source: docker/cli, cli-plugins/manager."""
COMPOSE_VERSION = ("version", "--short")
MAX_SHOWN = 60
_PASSWORD = re.compile(r"^(\w+://[^/@:]*):[^/@]*@")
"""Docker takes no password in an address: none is kept that could be printed."""


def find_plugin(host: Host, name: str) -> str:
    """Find a plugin where the docker command looks for it; "" where it is not installed."""
    return find_program(host, name, folders=(f"{find_docker_config(host)}/cli-plugins", *COMPOSE_PLUGIN_FOLDERS))


@dataclass(frozen=True)
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
        # A path, as in unix:/run/docker.sock, is not a host and a port: the docker command cannot parse it.
        url = address if "/" in address else f"tcp://{address}"
        return ChosenEndpoint(Endpoint(_PASSWORD.sub(r"\1@", url), "DOCKER_HOST"), _environment_tls(host))
    name = host.env.get("DOCKER_CONTEXT", "")
    chosen_by = f"DOCKER_CONTEXT={name}"
    if not name:
        settings = parse_object_or_empty(host.read(f"{find_docker_config(host)}/config.json"))
        name = get_text(settings, "currentContext") or DEFAULT_CONTEXT
        chosen_by = f"context {name}"
    if name == DEFAULT_CONTEXT:
        return ChosenEndpoint(_default_endpoint(host), _environment_tls(host))
    import hashlib

    folder = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
    meta = parse_object_or_empty(host.read(f"{find_docker_config(host)}/contexts/meta/{folder}/meta.json"))
    url = get_text(get_object(meta, "Endpoints", "docker"), "Host")
    if not url:
        says = f"the context {name!r} has no Docker endpoint" if meta else f"no Docker context is named {name!r}"
        return ChosenEndpoint(Endpoint("", chosen_by), problem=says)
    tls = f"{find_docker_config(host)}/contexts/tls/{folder}/docker"
    return ChosenEndpoint(Endpoint(_PASSWORD.sub(r"\1@", url), chosen_by), tls if host.list(tls) else None)


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
    found = host.stat(real)
    script = (host.read(real) or "") if found is not None and found.size <= MAX_SCRIPT_BYTES else ""
    script = script if script.startswith("#!") else ""
    is_podman = real.rpartition("/")[2] == "podman" or bool(re.search(r"^\s*(?:exec\s+)?\S*podman\b", script, re.M))
    version: Release | Unknown = VERSION_NOT_READ
    failure: ProgramFailure | None = None
    if name == "docker":
        command = (path, "--version")
        done = host.run(command, deadline_s=_VERSION_DEADLINE_S)
        if done.code == NOT_EXECUTABLE or (is_podman and done.code == NOT_FOUND):
            words = (done.err.partition("] ")[2].partition(":")[0],) if done.err.startswith("[") else ()
            failure = ProgramFailure(path, words or find_error_lines(done.err), path, done.code)
        if not script:
            version = Release.find(done.out.partition("version")[2]) or explain_failure(
                command, done, f"{path} --version ended with status {done.code}", is_lost=done.code != NOT_FOUND
            )
    for family, argv, shown in (
        ("DOCKER_", (path, *DOCKER_SERVER_VERSION), "the docker command"),
        ("BUILDX_", ("sh", "-c", _USE_BUILDER), "docker build"),
    ):
        is_set = any(each.startswith(family) for each in host.env)
        if name == "docker" and not failure and not is_podman and is_set:
            _, failure = run_or_explain(host, argv, deadline_s=_TRIAL_DEADLINE_S, name=shown, family=family)
    return Client(name=name, path=path, version=version, is_podman=is_podman, failure=failure)


def _docker_settings(host: Host) -> DockerSettings:
    path = f"{find_docker_config(host)}/config.json"
    text = host.read(path)
    try:
        content = parse_object(text) if text and text.strip() else {}
    except ValueError as error:
        return DockerSettings(path, format_json_error(error), (), gives_proxy=False)
    named = [("", content.get("credsStore")), *get_object(content, "credHelpers").items()]
    helpers = tuple(
        CredentialHelper(name, find_program(host, f"docker-credential-{name}"), str(registry))
        for registry, name in named
        if isinstance(name, str) and name
    )
    given = (get_object(content, "proxies", name) for name in get_object(content, "proxies"))
    urls = (get_text(each, key) for each in given for key in ("httpProxy", "httpsProxy", "allProxy"))
    proxies = tuple(dict.fromkeys(strip_url_credentials(url) for url in urls if url))
    return DockerSettings(path, "", helpers, gives_proxy=bool(content.get("proxies")), proxies=proxies)


def read_compose(host: Host) -> Compose | Unknown | None:
    """Read the Compose plugin's version; None without a docker command or without the plugin."""
    if not find_program(host, "docker"):
        return None
    # The plugin alone answers four times as fast: the docker command would first start every plugin there is.
    plugin = find_plugin(host, COMPOSE_PLUGIN)
    done = host.run((plugin, *COMPOSE_VERSION) if plugin else ("docker", "compose", *COMPOSE_VERSION))
    if done.code == TIMED_OUT:
        return Unknown("`docker compose version` did not answer in time", is_lost=True)
    if done.code != 0:
        return None
    version = Release.find(done.out)
    if version is None:
        return Unknown(f"docker compose version printed {done.out.strip()[:MAX_SHOWN]!r}", is_lost=True)
    return Compose(version)


def find_docker_config(host: Host) -> str:
    """Return the folder of the docker command's own settings."""
    home = host.env.get("HOME") or host.env.get("USERPROFILE") or ""
    return host.env.get("DOCKER_CONFIG") or f"{home}/.docker"
