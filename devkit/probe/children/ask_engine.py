"""Query a container engine, as a separate program: a socket may accept and never answer.

A Unix socket is asked by http.client, all else through the Docker SDK, whose import takes six times the processor time.

Prints one JSON object per line: `{"listener_pid": …}` when the system says whose socket it is, `{"version": …}`,
`{"info": …}`, `{"containers": […]}`, `{"images": […]}`; or `{"failed": KIND, "message": …}`, and `{"unlisted": …}`
where only the lists are missing. The caller sets the deadline. It imports nothing of devkit.

    python -P ask_engine.py URL [FOLDER_WITH_TLS_FILES]
"""

import json
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import quote, urlsplit

RESPONSE_TIMEOUT_S = 60
"""Only so that a forgotten child ends at last; the parent is much less patient."""

LIST_TIMEOUT_S = 2
"""An engine whose one container hangs answers everything but the list of them."""

HTTP_OK = 200
HTTP_SERVER_ERROR = 500
MAX_RESPONSE_BYTES = 32 << 20
MAX_RUNNING = 20
MAX_STOPPED = 10
MAX_IMAGES = 10

LABELS = (
    "devcontainer.local_folder",
    "com.docker.compose.project.working_dir",
    "com.docker.compose.project",
    "com.docker.compose.service",
)
IMAGE_LABEL = "devcontainer.metadata"
CONTAINER_FIELDS: dict[str, tuple[str, ...]] = {
    "State": ("Status", "Running", "ExitCode", "OOMKilled", "Error"),
    "Config": ("Image", "User"),
    "HostConfig": (
        "DeviceRequests",
        "Devices",
        "IpcMode",
        "Memory",
        "Privileged",
        "Runtime",
        "SecurityOpt",
        "ShmSize",
    ),
}
"""What leaves this process of a container's description."""

VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA", "NVIDIA_DISABLE_REQUIRE")
"""All that leaves it of an environment, which may hold secrets; there are API keys that begin with NVIDIA too."""


def emit(**line: object) -> None:
    """Print one line at once; a line kept in a buffer is lost when the process is killed."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(url: str, tls_folder: str | None) -> None:
    """Report what the engine at `url` says of itself. The Docker SDK knows TLS and Windows's named pipes."""
    if not check_connection(url):
        return
    if url.startswith("unix:"):
        try:
            emit_answers(lambda resource, timeout_s: ask_socket(urlsplit(url).path, resource, timeout_s))
        except (HTTPException, OSError, ValueError, RecursionError) as error:
            emit_failure(error)
        return
    emit(waiting_for="the Docker SDK")
    # The SDK reads the docker command's settings, which may be broken and say nothing about an engine.
    os.environ.update(HOME=os.devnull, USERPROFILE=os.devnull, DOCKER_CONFIG=os.devnull)
    try:
        import docker
        import docker.constants
        import docker.errors
        import requests
    except ImportError as error:
        emit(failed="no-sdk", message=f"the Docker SDK cannot be imported: {error}")
        return
    try:
        # With a given version, the SDK sends no request to find it; all requests below go without one.
        client = docker.APIClient(
            base_url=url,
            tls=build_tls_config(tls_folder),
            timeout=RESPONSE_TIMEOUT_S,
            version=docker.constants.DEFAULT_DOCKER_API_VERSION,
        )
        client.trust_env = False  # a proxy for the web does not lead to an engine
        emit_answers(lambda resource, timeout_s: ask_client(client, resource, timeout_s))
    except (requests.exceptions.SSLError, docker.errors.TLSParameterError) as error:
        emit(failed="tls", message=" ".join(str(error).split()))
    except (docker.errors.DockerException, OSError, ValueError, RecursionError) as error:
        emit_failure(error)


def emit_answers(ask: Callable[[str, float], Any]) -> None:
    """Report version, info and lists. `ask` reads one resource within a time limit."""
    emit(waiting_for="its version")
    emit(version=ask("/version", RESPONSE_TIMEOUT_S))
    emit(info=ask("/info", RESPONSE_TIMEOUT_S), read_at=time())
    emit_lists(lambda resource: ask(resource, LIST_TIMEOUT_S))


class EngineError(ValueError):
    """An engine that answers with its own error (5xx)."""


def emit_failure(error: Exception) -> None:
    """Report why the engine's answers cannot be used."""
    kind = "error" if isinstance(error, EngineError) else "not-an-engine"
    emit(failed=kind, message=" ".join(str(error).split()) or type(error).__name__)


def ask_socket(path: str, resource: str, timeout_s: float) -> Any:  # noqa: ANN401 - no types
    """Return the JSON at `resource` of an engine's Unix socket. Raises as `ask_client`, and HTTPException."""
    connection = HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(timeout_s)
        connection.sock.connect(path)
        connection.request("GET", resource)
        response = connection.getresponse()
        return parse_answer(resource, response.status, response.reason, response.read(MAX_RESPONSE_BYTES))
    finally:
        connection.close()


def ask_client(client: Any, resource: str, timeout_s: float) -> Any:  # noqa: ANN401 - no types
    """Return the JSON at `resource`, whatever version of the API the engine has.

    Raises: OSError, ValueError for anything but JSON, and EngineError.
    """
    from urllib3.exceptions import HTTPError

    with client.get(f"{client.base_url}{resource}", timeout=timeout_s, stream=True) as response:
        try:
            body = response.raw.read(MAX_RESPONSE_BYTES, decode_content=True)
        except HTTPError as error:
            raise OSError(str(error)) from error
    return parse_answer(resource, response.status_code, response.reason, body)


def parse_answer(resource: str, status: int, reason: str, body: bytes) -> Any:  # noqa: ANN401 - no types
    """Parse the answer to a request. Raises ValueError for anything but JSON, and EngineError."""
    if len(body) == MAX_RESPONSE_BYTES:
        raise ValueError(f"the answer for {resource} was incomplete")
    if status != HTTP_OK:
        kind = EngineError if status >= HTTP_SERVER_ERROR else ValueError
        raise kind(f"{resource} was answered with {f'{status} {reason}'!r}: {body[:200].decode(errors='replace')}")
    return json.loads(body)


def emit_lists(ask: Callable[[str], Any]) -> None:
    """Report the running containers, those of projects that stopped, and their images. `ask` reads one resource."""
    try:
        containers = list(inspect_containers(select_containers(ask("/containers/json?all=1")), ask))
        emit(containers=containers)
        wanted = [one["Image"] for one in containers if isinstance(one.get("Image"), str)]
        wanted += list_dev_images(ask)
        found = (inspect_resource(f"/images/{name}/json", ask) for name in list(dict.fromkeys(wanted))[:MAX_IMAGES])
        emit(images=[summarize_image(one) for one in found if one])
    except (HTTPException, OSError, ValueError, AttributeError, TypeError) as error:
        emit(unlisted=" ".join(str(error).split()) or type(error).__name__)


def select_containers(containers: list[dict[str, Any]]) -> list[str]:
    """Select the ids to inspect: dev containers first, then what runs; of the stopped ones, those of dev containers and Compose."""

    def is_dev(one: dict[str, Any]) -> bool:
        return LABELS[0] in (one.get("Labels") or {})

    def of_project(one: dict[str, Any]) -> bool:
        return is_dev(one) or LABELS[1] in (one.get("Labels") or {})

    running = [one for one in containers if one.get("State") == "running"]
    running.sort(key=is_dev, reverse=True)
    stopped = [one for one in containers if one.get("State") != "running" and of_project(one)]
    stopped.sort(key=is_dev, reverse=True)
    return [str(one["Id"]) for one in (*running[:MAX_RUNNING], *stopped[:MAX_STOPPED]) if one.get("Id")]


def inspect_containers(ids: list[str], ask: Callable[[str], Any]) -> Iterator[dict[str, Any]]:
    """Yield the relevant part of each container's description; one that is gone meanwhile is left out."""
    for name in ids:
        found = inspect_resource(f"/containers/{name}/json", ask)
        if not found:
            continue
        kept = {
            group: {key: (found.get(group) or {}).get(key) for key in keys} for group, keys in CONTAINER_FIELDS.items()
        }
        config = found.get("Config") or {}
        kept["Config"] |= {
            "Env": select_nvidia_variables(config),
            "Labels": select_keys(config.get("Labels") or {}, LABELS),
        }
        kept["State"]["Health"] = ((found.get("State") or {}).get("Health") or {}).get("Status", "")
        yield {
            "Id": name,
            "Name": found.get("Name", ""),
            "Image": found.get("Image"),
            **kept,
        }


def inspect_resource(resource: str, ask: Callable[[str], Any]) -> dict[str, Any]:
    """Return the description at `resource`, empty when it is gone."""
    try:
        found = ask(resource)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def list_dev_images(ask: Callable[[str], Any]) -> list[str]:
    """List the ids of the newest images that a dev container tool built; none from an engine that cannot search by label."""
    try:
        found = ask(f"/images/json?filters={quote(json.dumps({'label': [IMAGE_LABEL]}))}")
    except ValueError:
        return []
    found.sort(key=lambda one: one.get("Created", 0), reverse=True)
    return [str(one["Id"]) for one in found if one.get("Id")]


def summarize_image(found: dict[str, Any]) -> dict[str, Any]:
    """Return the relevant part of an image's description."""
    config = found.get("Config") or {}
    return {
        **select_keys(found, ("Id", "RepoTags", "Architecture")),
        "Env": select_nvidia_variables(config),
        "IsDevContainer": IMAGE_LABEL in (config.get("Labels") or {}),
    }


def select_nvidia_variables(config: dict[str, Any]) -> list[str]:
    """Select the variables that the Container Toolkit reads."""
    return [str(variable) for variable in config.get("Env") or () if str(variable).partition("=")[0] in VARIABLES]


def select_keys(found: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the entries of `found` under `keys`."""
    return {key: found[key] for key in keys if key in found}


def check_connection(url: str) -> bool:
    """Return whether something listens at `url`, and report why not. The SDK would bury the reason in nested exceptions."""
    emit(waiting_for="a connection")
    try:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.connect(parts.path)
                emit(listener_pid=read_listener_pid(probe))
        elif parts.scheme == "npipe":
            require_pipe(parts.path)
        elif parts.scheme == "tcp":
            socket.create_connection((parts.hostname or "", parts.port or 2375), timeout=RESPONSE_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        kind = next((name for failure, name in FAILURES if isinstance(error, failure)), "unreachable")
        reason = getattr(error, "strerror", None) or str(error)
        emit(failed=kind, message=f"{reason}: {url.partition('://')[2]}")
        return False
    return True


def require_pipe(path: str) -> None:
    """Raise FileNotFoundError when Windows has no such named pipe. Looking at the pipe itself would use it up."""
    name = path.rpartition("/")[2]
    if name not in {pipe.name for pipe in Path("//./pipe/").iterdir()}:
        raise FileNotFoundError(2, "no such pipe; the engine is not running")


FAILURES = (
    (FileNotFoundError, "missing"),
    (ConnectionRefusedError, "refused"),
    (PermissionError, "denied"),
    (socket.gaierror, "unresolved"),
    (ValueError, "malformed"),
)


def read_listener_pid(connected: socket.socket) -> int | None:
    """Read the process that opened the socket for listening, where the system tells (Linux)."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    pid: int = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))[0]
    return pid or None


def build_tls_config(folder: str | None) -> Any:  # noqa: ANN401 - False or the SDK's own type
    """Build the SDK's TLS settings from ca.pem, cert.pem and key.pem in `folder`."""
    if folder is None:
        return False
    from docker.tls import TLSConfig

    files = {name: Path(folder) / f"{name}.pem" for name in ("ca", "cert", "key")}
    client = (str(files["cert"]), str(files["key"])) if files["cert"].exists() else None
    ca = str(files["ca"]) if files["ca"].exists() else None
    return TLSConfig(client_cert=client, ca_cert=ca, verify=ca is not None)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
