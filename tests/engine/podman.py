"""Podman 5.4 in a root file system of its own: made by mmdebstrap, entered with pivot_root, nothing installed here.

Podman 5.4 is the first whose socket passes on CDI devices. It runs as root, with a stand-in for a GPU and for NVIDIA's
CDI specification, in a network namespace that leads nowhere.
"""

import json
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import image, leftovers
from .binaries import Binaries
from .cache import made_once, say, step
from .commands import environment, run
from .daemon import CDI_DEVICES
from .host import NVIDIA_MAJOR

SUITE = "trixie"
PACKAGES = "podman,podman-compose,runc,conmon,netavark,aardvark-dns,catatonit,uidmap,iproute2,ca-certificates"
BASE = "localhost/devkit-test-base:latest"
START_DEADLINE_S = 60.0

# crun wants one kind of control groups, which this machine may not have; a limit above this user's own is refused.
CONTAINERS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
firewall_driver = "none"
"""
STORAGE = (
    '[storage]\ndriver = "overlay"\nrunroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers/storage"\n'
)
ENTER = """#!/bin/sh
set -eu
state=$1
base=$2
shift 2
ip link set lo up
mount -t overlay overlay -o "lowerdir=$base,upperdir=$state/upper,workdir=$state/work" "$state/root"
mount -t proc proc "$state/root/proc"
mount --rbind /sys "$state/root/sys"
mount -t overlay overlay -o "lowerdir=$state/dev:/dev" "$state/root/dev"
for folder in /dev/pts /dev/shm /dev/mqueue; do
    if [ -d "$folder" ]; then mount --bind "$folder" "$state/root$folder"; fi
done
mkdir -p "$state/root/old" "$state/root$state" "$state/root/var/lib/containers"
mount --bind "$state" "$state/root$state"
mount --bind "$state/storage" "$state/root/var/lib/containers"
cd "$state/root"
pivot_root . old
umount -l /old
cd /
exec catatonit -- "$@"
"""
"""Everything in there has the init process as its first, and dies with it: containers and name servers, too."""


@dataclass(frozen=True)
class Podman:
    """A running Podman. `env` makes Docker's client and Compose talk to its socket; `process` is the first in there."""

    state: Path
    env: Mapping[str, str]
    process: int

    def inside(self, *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] = {}) -> str:
        """What a program printed on Podman's own machine."""
        apart = ["nsenter", f"--target={self.process}", "--mount", "--net", "--pid", f"--wdns={cwd or '/'}"]
        settings = [f"{name}={value}" for name, value in {"HOME": "/root", "PATH": PATH, **env}.items()]
        return run([*apart, "env", "-i", *settings, "PODMAN_IGNORE_CGROUPSV1_WARNING=1", *words]).stdout

    def clear(self) -> None:
        """Remove every container, volume and network that a test left; images stay."""
        self.inside("podman", "rm", "--all", "--force", "--time=1")
        self.inside("podman", "volume", "prune", "--force")
        self.inside("podman", "network", "prune", "--force")


PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def installed() -> Path:
    """The folder whose `root` is a small Debian with Podman in it, cached."""
    return made_once(f"podman-{SUITE}", _bootstrap)


@contextmanager
def podman(binaries: Binaries) -> Iterator[Podman]:
    """Run Podman's service for the block, with the tests' base image in it."""
    base = installed()
    # A Unix socket's path holds 107 bytes; and Podman's file systems cannot lie on an overlay, as /tmp may.
    state = Path(tempfile.mkdtemp(prefix="devkit-podman-"))
    _prepare(state)
    log = state / "podman.log"
    namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    apart = [*leftovers.WITH_THIS_SESSION, "KILL", "unshare", *namespaces, "sh", state / "enter", state, base / "root"]
    with log.open("wb") as output:
        service = subprocess.Popen(
            [*map(str, apart), "podman", "system", "service", "--time=0", f"unix://{state}/podman.sock"],
            env={"PATH": PATH, "HOME": "/root", "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        running = _await(service, state, _client(state, binaries), log)
        with step("import the base image into Podman"):
            shutil.copy2(image.archive(), state / "rootfs.tar")
            running.inside("podman", "import", "--quiet", state / "rootfs.tar", BASE)
        yield running
        running.clear()
    finally:
        service.kill()
        service.wait()
        leftovers.delete(state)


def _bootstrap(folder: Path) -> None:
    image.install(SUITE, PACKAGES, folder / "root")


def _prepare(state: Path) -> None:
    state.chmod(0o755)
    for name in ("upper/etc/cdi", "upper/etc/containers", "work", "root", "storage", "dev"):
        (state / name).mkdir(parents=True)
    os.mknod(state / "dev/nvidia0", 0o666 | stat.S_IFCHR, os.makedev(NVIDIA_MAJOR, 0))
    devices = [
        {"name": name, "containerEdits": {"env": [f"DEVKIT_CDI_DEVICE_{number}={name}"]}}
        for number, name in enumerate(CDI_DEVICES)
    ]
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": {}}
    (state / "upper/etc/cdi/nvidia.json").write_text(json.dumps(spec), encoding="ascii")
    (state / "upper/etc/containers/containers.conf").write_text(CONTAINERS, encoding="ascii")
    (state / "upper/etc/containers/storage.conf").write_text(STORAGE, encoding="ascii")
    (state / "enter").write_text(ENTER, encoding="ascii")


def _client(state: Path, binaries: Binaries) -> dict[str, str]:
    """Docker's client without buildx, as `podman compose` runs it: buildx would fetch a builder of its own."""
    plugins = state / "client/cli-plugins"
    plugins.mkdir(parents=True)
    (plugins / "docker-compose").symlink_to(binaries.plugins / "docker-compose")
    path = os.pathsep.join([*map(str, binaries.path), os.environ.get("PATH", "/usr/bin:/bin")])
    env = environment(PATH=path, HOME=state, DOCKER_HOST=f"unix://{state}/podman.sock", DOCKER_CONFIG=state / "client")
    for name in ("DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DEVKIT_GPU", "DEVKIT_DEVICES"):
        env.pop(name, None)
    return env | {"DOCKER_BUILDKIT": "0"}


def _await(service: subprocess.Popen[bytes], state: Path, env: Mapping[str, str], log: Path) -> Podman:
    started = time.monotonic()
    while time.monotonic() - started < START_DEADLINE_S and service.poll() is None:
        if run(["docker", "version"], env=env, expect=None).returncode == 0:
            (first,) = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text(encoding="ascii").split()
            running = Podman(state, env, int(first))
            say(f"{running.inside('podman', '--version').strip()} from {SUITE} is ready")
            return running
        time.sleep(0.2)
    raise RuntimeError(f"Podman did not start:\n{log.read_text(errors='replace')[-4000:]}")
