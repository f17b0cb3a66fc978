"""Start and stop a Docker Engine of the tests' own, in one of three flavors."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from . import host, leftovers
from .binaries import NEWEST, Binaries
from .cache import CACHE, STEPS, is_tight, say, step
from .commands import CommandError, environment, run
from .network import BRIDGE, POOL, mtu

START_DEADLINE_S = 60.0
REMOVAL_DEADLINE_S = 60.0
INJECTED_FILE = "/etc/devkit-injected-by-cdi"
MIG_SLICES = ("0:1", "MIG-5c25bfa8-4a2e-5b8f-8d5a-2f0f3f1f0f0f")
CDI_DEVICES = (*map(str, range(8)), *MIG_SLICES, "all")
"""As for the eight GPUs that the stand-in for NVML shows, and a slice of the first by both its names."""


class Flavor(StrEnum):
    """What the engine offers for a GPU: nothing, the nvidia runtime with its hook, or CDI devices alone."""

    CPU = "cpu"
    NVIDIA = "nvidia"
    CDI = "cdi"


@dataclass(frozen=True)
class Engine:
    """A running engine. `env` makes docker, Compose, the dev container CLI and devkit talk to it."""

    flavor: Flavor
    state: Path
    env: Mapping[str, str]
    versions: str
    origin: str

    @property
    def socket(self) -> Path:
        """The engine's API socket."""
        return self.state / "docker.sock"

    def on_host(self, *words: str | Path) -> list[str | Path]:
        """A command line as run on this engine's host, which has a GPU's device node unless the flavor is CPU."""
        return host.on_host(self.state, *words)

    def docker(self, *words: str | Path, cwd: Path | None = None, deadline_s: float = 900.0) -> str:
        """What `docker …` printed. Raises CommandError when it fails."""
        return run(["docker", *words], env=self.env, cwd=cwd, deadline_s=deadline_s).stdout

    def containers(self) -> list[str]:
        """Names of every container, stopped ones too."""
        return self.docker("ps", "--all", "--format", "{{.Names}}").split()

    def inspect(self, name: str) -> dict[str, object]:
        """`docker inspect` of one container or image."""
        found: dict[str, object] = json.loads(self.docker("inspect", name))[0]
        return found

    def clear(self) -> None:
        """Remove every container, volume and network that a test left; images and the build cache stay if there is room."""
        self._remove("container", "ls", "--all")
        self._remove("volume", "ls")
        self.docker("network", "prune", "--force")
        if is_tight():
            with step("the disk is nearly full: remove images and build cache"):
                self.docker("image", "prune", "--all", "--force")
                self.docker("builder", "prune", "--all", "--force")

    def _remove(self, kind: str, *listing: str) -> None:
        until = time.monotonic() + REMOVAL_DEADLINE_S
        while names := self.docker(kind, *listing, "--quiet").split():
            try:
                self.docker(kind, "rm", "--force", *names)
            except CommandError as refused:
                # `docker run --rm` and the dev container CLI end before what they remove is gone.
                if "already in progress" not in str(refused) or time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def forget_wheels(self) -> None:
        """Empty the cache that builds mount: uv would take a stand-in from it for the real wheel of the same version."""
        self.docker("builder", "prune", "--force", "--filter", "type=exec.cachemount")

    def forget(self) -> None:
        """Remove what earlier days built and no test has a name for: a checkout kept for long would fill the disk."""
        self.docker("image", "prune", "--force", "--filter", "until=24h")


@contextmanager
def engine(binaries: Binaries, flavor: Flavor) -> Iterator[Engine]:
    """Run dockerd for the block; its containers, state and socket are gone afterwards, its images are kept."""
    # A Unix socket's path holds 107 bytes, so state cannot lie in a deep checkout.
    state = Path(tempfile.mkdtemp(prefix="devkit-engine-"))
    state.chmod(0o755)
    search = _stubs(state, flavor) + [str(folder) for folder in binaries.path]
    path = os.pathsep.join([*search, "/usr/local/sbin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    host.prepare(state, has_gpu=flavor is not Flavor.CPU)
    config = state / "daemon.json"
    images = CACHE / ("data-root" if binaries.origin == NEWEST else f"data-root-{binaries.origin}")
    config.write_text(json.dumps(_configuration(state, flavor, images), indent=1), encoding="utf-8")
    log = state / "dockerd.log"
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            [*leftovers.WITH_THIS_SESSION, "TERM", "dockerd", "--config-file", str(config)],
            env=environment(PATH=path),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        running = Engine(flavor, state, _client_environment(state, binaries), binaries.versions, binaries.origin)
        seconds = _await(daemon, running, log)
        STEPS.append((f"start the {flavor} flavor: {binaries.versions} from {binaries.origin}", seconds))
        say(f"{flavor} flavor ready in {seconds:.1f} s: {binaries.versions} from {binaries.origin}")
        running.clear()
        yield running
        running.clear()
        running.forget()
    finally:
        _stop(daemon)
        leftovers.delete(state)


def _configuration(state: Path, flavor: Flavor, images: Path) -> dict[str, object]:
    network_bytes = str(mtu())
    configuration: dict[str, object] = {
        "hosts": [f"unix://{state}/docker.sock"],
        "data-root": str(images),
        "exec-root": str(state / "exec"),
        "pidfile": str(state / "dockerd.pid"),
        "bridge": BRIDGE,
        "mtu": mtu(),
        "default-address-pools": [{"base": POOL, "size": 24}],
        "default-network-opts": {"bridge": {"com.docker.network.driver.mtu": network_bytes}},
        "iptables": False,
        "ip6tables": False,
        "ip-forward": False,
        "builder": {"gc": {"enabled": True, "defaultKeepStorage": "4GB"}},
        "features": {"cdi": flavor is Flavor.CDI},
        "cdi-spec-dirs": [str(state / "cdi")],
    }
    if flavor is Flavor.NVIDIA:
        configuration["runtimes"] = {"nvidia": {"path": str(state / "stubs/nvidia-container-runtime")}}
    return configuration


def _stubs(state: Path, flavor: Flavor) -> list[str]:
    """Write what stands in for NVIDIA's part; the folder to put on dockerd's PATH, if any."""
    (state / "cdi").mkdir()
    match flavor:
        case Flavor.CPU:
            return []
        case Flavor.NVIDIA:
            folder = state / "stubs"
            folder.mkdir()
            # The dev container CLI looks for this very name, and dockerd accepts a device request only with the hook.
            for name, line in (
                ("nvidia-container-runtime", 'exec runc "$@"'),
                ("nvidia-container-runtime-hook", "exit 0"),
            ):
                (folder / name).write_text(f"#!/bin/sh\n{line}\n", encoding="ascii")
                (folder / name).chmod(0o755)
            return [str(folder)]
        case Flavor.CDI:
            (state / "cdi/nvidia.json").write_text(json.dumps(_cdi_specification(state)), encoding="ascii")
            return []


def _cdi_specification(state: Path) -> dict[str, object]:
    """Devices that leave their names in variables, and all of them one file."""
    injected = state / "injected"
    injected.write_text("from the CDI specification\n", encoding="ascii")
    mount = {"hostPath": str(injected), "containerPath": INJECTED_FILE, "options": ["ro", "bind"]}
    # Not by a GPU's name inside: the proof would rightly fail a CPU build of torch beside a GPU.
    node = {"path": "/dev/stand-in-gpu", "hostPath": str(state / "dev/nvidia0")}
    devices = [
        # The first variable names the last device injected, the other one each of them.
        {
            "name": name,
            "containerEdits": {
                "env": [f"DEVKIT_CDI_DEVICE={name}", f"DEVKIT_CDI_DEVICE_{number}={name}"],
                "deviceNodes": [node],
            },
        }
        for number, name in enumerate(CDI_DEVICES)
    ]
    edits = {"mounts": [mount]}
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": edits}


def _client_environment(state: Path, binaries: Binaries) -> dict[str, str]:
    """A client's environment with no trace of this user's own Docker set-up."""
    config = state / "client"
    (config / "cli-plugins").mkdir(parents=True)
    for plugin in ("docker-compose", "docker-buildx"):
        (config / "cli-plugins" / plugin).symlink_to(binaries.plugins / plugin)
    for folder in (config, config / "cli-plugins"):
        folder.chmod(0o777)
    path = os.pathsep.join([*map(str, binaries.path), os.environ.get("PATH", "/usr/bin:/bin")])
    home = state / "home"
    home.mkdir()
    socket = f"unix://{state}/docker.sock"
    # `devkit up` leaves the output of what failed in TMPDIR.
    env = environment(PATH=path, HOME=home, TMPDIR=state, DOCKER_HOST=socket, DOCKER_CONFIG=config)
    for name in (
        "DOCKER_CONTEXT",
        "DOCKER_TLS_VERIFY",
        "DOCKER_CERT_PATH",
        "DEVKIT_GPU",
        "DEVKIT_DEVICES",
        "COMPOSE_FILE",
    ):
        env.pop(name, None)
    return env


def _await(daemon: subprocess.Popen[bytes], running: Engine, log: Path) -> float:
    started = time.monotonic()
    while time.monotonic() - started < START_DEADLINE_S:
        if daemon.poll() is not None:
            break
        if run(["docker", "version"], env=running.env, expect=None).returncode == 0:
            # Any user may talk to this engine, as members of the docker group may on a developer's machine.
            running.socket.chmod(0o666)
            return time.monotonic() - started
        time.sleep(0.2)
    raise RuntimeError(f"dockerd did not start:\n{log.read_text(errors='replace')[-4000:]}")


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    if daemon.poll() is not None:
        return
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
