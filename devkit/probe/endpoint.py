"""Which container engine the docker command would talk to."""

from typing import Any

from devkit.facts.model import Endpoint
from devkit.facts.record import record
from devkit.probe.host import Host
from devkit.probe.shapes import json_of
from devkit.probe.system import user_id

DEFAULT_SOCKET = "/var/run/docker.sock"
WINDOWS_PIPE = "npipe:////./pipe/docker_engine"
DEFAULT_CONTEXT = "default"


@record
class Chosen:
    """An endpoint, the folder with its TLS files, and why it cannot be used ("" when it can)."""

    endpoint: Endpoint
    tls_folder: str | None = None
    problem: str = ""


def choose_endpoint(host: Host) -> Chosen:
    """Resolve as the docker command does: DOCKER_HOST, then DOCKER_CONTEXT, then the current context, then the default.

    Where nothing is chosen and the default socket is absent, the sockets of a rootless engine and of Podman are tried.
    Source: docker/cli, `resolveContextName`.
    """
    if address := host.env.get("DOCKER_HOST"):
        url = address if "://" in address else f"tcp://{address}"
        return Chosen(Endpoint(url, "DOCKER_HOST"), _environment_tls(host))
    name, chosen_by = _context_name(host)
    if name == DEFAULT_CONTEXT:
        return Chosen(_default_endpoint(host), _environment_tls(host))
    return _context(host, name, chosen_by)


def docker_config(host: Host) -> str:
    """The folder of the docker command's own settings."""
    home = host.env.get("HOME") or host.env.get("USERPROFILE") or ""
    return host.env.get("DOCKER_CONFIG") or f"{home}/.docker"


def _context_name(host: Host) -> tuple[str, str]:
    if name := host.env.get("DOCKER_CONTEXT"):
        return name, f"DOCKER_CONTEXT={name}"
    settings = _object(host.read(f"{docker_config(host)}/config.json"))
    name = settings.get("currentContext")
    return (name, f"context {name}") if isinstance(name, str) and name else (DEFAULT_CONTEXT, "default")


def _context(host: Host, name: str, chosen_by: str) -> Chosen:
    import hashlib

    folder = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
    meta = _object(host.read(f"{docker_config(host)}/contexts/meta/{folder}/meta.json"))
    endpoints = meta.get("Endpoints")
    entry = endpoints.get("docker") if isinstance(endpoints, dict) else None
    url = entry.get("Host") if isinstance(entry, dict) else None
    if not isinstance(url, str) or not url:
        return Chosen(Endpoint("", chosen_by), problem=f"there is no Docker context named {name!r}")
    tls = f"{docker_config(host)}/contexts/tls/{folder}/docker"
    return Chosen(Endpoint(url, chosen_by), tls if host.list(tls) else None)


def _environment_tls(host: Host) -> str | None:
    if host.env.get("DOCKER_TLS_VERIFY") or host.env.get("DOCKER_TLS"):
        return host.env.get("DOCKER_CERT_PATH") or docker_config(host)
    return None


def _default_endpoint(host: Host) -> Endpoint:
    if host.env.get("OS") == "Windows_NT":
        return Endpoint(WINDOWS_PIPE, "default")
    candidates = [(DEFAULT_SOCKET, "default")]
    if home := host.env.get("HOME"):
        candidates.append((f"{home}/.docker/run/docker.sock", "Docker Desktop's own socket"))
    user = user_id(host)
    runtime = host.env.get("XDG_RUNTIME_DIR") or (f"/run/user/{user}" if user else "")
    if runtime:
        candidates.append((f"{runtime}/docker.sock", "rootless socket"))
        candidates.append((f"{runtime}/podman/podman.sock", "rootless Podman socket"))
    candidates.append(("/run/podman/podman.sock", "Podman socket"))
    path, chosen_by = next((pair for pair in candidates if host.stat(pair[0]) is not None), candidates[0])
    return Endpoint(f"unix://{path}", chosen_by)


def _object(text: str | None) -> dict[str, Any]:
    try:
        content = json_of(text or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
