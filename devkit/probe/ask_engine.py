"""Ask a container engine for its version and settings, as a program of its own: a socket may accept and never answer.

Prints one JSON object per line: `{"listener_pid": …}` when the system says whose socket it is, `{"version": …}`,
`{"info": …}`; or `{"failed": KIND, "message": …}`. Whoever runs it sets the deadline. It imports nothing of devkit.

    python -P ask_engine.py URL [FOLDER_WITH_TLS_FILES]
"""

import json
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ANSWER_WITHIN_S = 60
"""Only so that a forgotten child ends at last; the parent is much less patient."""


def say(**line: object) -> None:
    """Print one line at once; a line kept in a buffer is lost when the process is killed."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(url: str, tls_folder: str | None) -> None:
    """Report what the engine at `url` says of itself."""
    if not connects(url):
        return
    try:
        if url.startswith("unix://"):
            path = urlsplit(url).path
            say(version=answer(path, "/version"))
            say(info=answer(path, "/info"))
        else:
            through_sdk(url, tls_folder)
    except (OSError, ValueError) as error:
        say(failed="not-an-engine", message=" ".join(str(error).split()))


def answer(path: str, resource: str) -> Any:  # noqa: ANN401 - whatever JSON the engine sends
    """The JSON at `resource` of the engine behind a Unix socket. Raises OSError, and ValueError for anything else.

    Asked by hand: importing the SDK would take longer than all the rest of a diagnosis. In HTTP 1.0 an answer ends with
    its connection, so there is nothing to decode.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        connection.sendall(f"GET {resource} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
        with connection.makefile("rb") as stream:
            head, _, body = stream.read().partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].decode(errors="replace")
    if " 200" not in status:
        raise ValueError(f"{resource} was answered with {status!r}: {body[:200].decode(errors='replace')}")
    return json.loads(body)


def through_sdk(url: str, tls_folder: str | None) -> None:
    """Ask by the Docker SDK, which knows TLS and Windows's named pipes."""
    try:
        import docker
        import docker.errors
        import requests
    except ImportError as error:
        say(failed="no-sdk", message=f"the Docker SDK cannot be imported: {error}")
        return
    # A proxy for the web is no way to an engine, and the SDK asks its first question before it can be told so.
    os.environ.update(NO_PROXY="*", no_proxy="*")
    try:
        client = docker.APIClient(base_url=url, tls=tls_of(tls_folder), timeout=ANSWER_WITHIN_S, version="auto")
        say(version=client.version(api_version=False))
        say(info=client.info())
    except (requests.exceptions.SSLError, docker.errors.TLSParameterError) as error:
        say(failed="tls", message=" ".join(str(error).split()))
    except (docker.errors.DockerException, requests.exceptions.RequestException, KeyError) as error:
        say(failed="not-an-engine", message=" ".join(str(error).split()))


def connects(url: str) -> bool:
    """Whether something listens at `url`; says why not. The SDK would bury the reason in nested exceptions."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.connect(parts.path)
                say(listener_pid=listener_pid(probe))
        elif parts.scheme == "npipe":
            find_pipe(parts.path)
        elif parts.scheme == "tcp":
            socket.create_connection((parts.hostname or "", parts.port or 2375), timeout=ANSWER_WITHIN_S).close()
    except (OSError, ValueError) as error:
        kind = next((name for failure, name in FAILURES if isinstance(error, failure)), "unreachable")
        reason = getattr(error, "strerror", None) or str(error)
        say(failed=kind, message=f"{reason}: {parts.path or parts.netloc}")
        return False
    return True


def find_pipe(path: str) -> None:
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


def listener_pid(connected: socket.socket) -> int | None:
    """The process that opened the socket for listening, where the system tells (Linux)."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    pid: int = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))[0]
    return pid or None


def tls_of(folder: str | None) -> Any:  # noqa: ANN401 - False or the SDK's own type
    """The SDK's TLS settings from ca.pem, cert.pem and key.pem in `folder`."""
    if folder is None:
        return False
    from docker.tls import TLSConfig

    files = {name: Path(folder) / f"{name}.pem" for name in ("ca", "cert", "key")}
    client = (str(files["cert"]), str(files["key"])) if files["cert"].exists() else None
    ca = str(files["ca"]) if files["ca"].exists() else None
    return TLSConfig(client_cert=client, ca_cert=ca, verify=ca is not None)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
