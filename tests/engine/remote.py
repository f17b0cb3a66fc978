"""Another machine with an engine: a real sshd on this one, and an ssh command that knows the way to it."""

import getpass
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .binaries import unpack
from .cache import made_once
from .commands import run
from .daemon import Engine

PACKAGES = ("openssh-server", "libwrap0")
SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/client_key.pub
PidFile {folder}/sshd.pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
SetEnv PATH={path} DOCKER_HOST={engine} DOCKER_CONFIG={config}
"""
CLIENT = """
Host gpu-box
    HostName 127.0.0.1
    Port {port}
    User {user}
    IdentityFile {folder}/client_key
    UserKnownHostsFile /dev/null
    StrictHostKeyChecking no
    LogLevel ERROR
"""


@contextmanager
def gpu_box(engine: Engine, folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the engine as ssh://gpu-box for the block; yields what a client's environment needs."""
    root = made_once("sshd", lambda made: unpack("bookworm", PACKAGES, made))
    libraries = next(root.glob("usr/lib/*-linux-gnu"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name in ("host_key", "client_key"):
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name])
    path, config = engine.env["PATH"], engine.env["DOCKER_CONFIG"]
    values = {"port": port, "folder": folder, "path": path, "config": config, "user": getpass.getuser()}
    (folder / "sshd_config").write_text(SERVER.format(**values, engine=engine.env["DOCKER_HOST"]))
    (folder / "ssh_config").write_text(CLIENT.format(**values))
    programs = folder / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/ssh_config "$@"\n')
    (programs / "ssh").chmod(0o755)
    # Its own user and folder exist for it alone.
    (folder / "passwd").write_text(
        Path("/etc/passwd").read_text() + "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
    )
    script = f'mount --bind {folder}/passwd /etc/passwd && mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec "$@"'
    server_argv = [root / "usr/sbin/sshd", "-D", "-e", "-f", folder / "sshd_config"]
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *map(str, server_argv)]
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen(argv, env={**os.environ, "LD_LIBRARY_PATH": str(libraries)}, stderr=log)
    try:
        while server.poll() is None and b"listening" not in (folder / "sshd.log").read_bytes():
            time.sleep(0.1)
        yield {"PATH": f"{programs}:{path}", "DOCKER_HOST": ""}
    finally:
        server.terminate()
        server.wait(30)
