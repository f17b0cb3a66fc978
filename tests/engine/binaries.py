"""Find a container engine that runs on this machine, without installing one.

Debian's packages are unpacked into the cache under an apt state of their own: the system's package
lists, sources and installed packages are left as they are. The Docker, Compose, buildx and containerd programs of later
suites need only glibc 2.34; their runc needs more, so the system's is used.
"""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .cache import made_once, say
from .commands import CommandError, environment, run

PACKAGES = ("docker.io", "docker-cli", "docker-compose", "docker-buildx", "containerd")
SUITES = {"unstable": (*PACKAGES, "tini-static"), "trixie": (*PACKAGES, "tini")}
"""Newest first: Docker Engine 28 or later, then 26.1. The init process for containers changed its package."""

NEWEST = "unstable"
OLDER = "trixie"
"""Docker Engine 26.1 and Compose 2.26, which ignores `gpus:` without a word."""

PLUGIN_FOLDERS = ("usr/libexec/docker/cli-plugins", "usr/local/lib/docker/cli-plugins", "usr/lib/docker/cli-plugins")
NEEDED = ("iptables", "ip", "runc", "mmdebstrap")


@dataclass(frozen=True)
class Binaries:
    """An unpacked engine: folders for PATH, the folder of CLI plugins, and where it came from."""

    path: tuple[Path, ...]
    plugins: Path
    origin: str
    versions: str


class NoEngineError(Exception):
    """No engine can be started here; the text says why."""


def find(suite: str = "") -> Binaries:
    """The newest engine whose programs run here, or that of a suite. Raises NoEngineError with every reason."""
    if os.name != "posix" or os.geteuid() != 0:
        raise NoEngineError("an engine of one's own needs root on Linux")
    missing = [name for name in NEEDED if shutil.which(name, path=_system_path()) is None]
    if missing:
        raise NoEngineError(
            f"missing programs: {', '.join(missing)} (apt-get install iptables iproute2 runc mmdebstrap)"
        )
    reasons = []
    for origin, unpack in _candidates(suite):
        try:
            return _checked(unpack, origin)
        except (CommandError, OSError) as error:
            reasons.append(f"{origin}: {error}")
            say(f"the engine from {origin} does not run here, trying the next: {error}")
    raise NoEngineError("; ".join(reasons))


def _candidates(suite: str) -> Iterator[tuple[str, Path | None]]:
    if suite:
        yield suite, None
        return
    for each in SUITES:
        yield each, None
    yield "this machine's own PATH", Path("/")


def _checked(root: Path | None, suite: str) -> Binaries:
    if root is None:
        root = made_once(f"engine-{suite}", lambda folder: unpack(suite, SUITES[suite], folder))
    folders = (root / "usr/bin", root / "usr/sbin", root / "usr/local/bin")
    plugins = next((root / folder for folder in PLUGIN_FOLDERS if (root / folder / "docker-compose").exists()), None)
    if plugins is None:
        raise FileNotFoundError("no Compose plugin")
    path = os.pathsep.join(map(str, folders))
    said = {
        "Docker Engine": run([shutil.which("dockerd", path=path) or "dockerd", "--version"]).stdout,
        "client": run([shutil.which("docker", path=path) or "docker", "--version"]).stdout,
        "Compose": run([plugins / "docker-compose", "version"]).stdout,
        "buildx": run([plugins / "docker-buildx", "version"]).stdout,
    }
    versions = [
        f"{name} {found[0]}" for name, line in said.items() if (found := re.search(r"\d+\.\d+\.\d+[^\s,]*", line))
    ]
    return Binaries(folders, plugins, suite, ", ".join(versions))


def unpack(suite: str, packages: Sequence[str], folder: Path) -> None:
    """Put the files of Debian packages into a folder: none is installed, and what they depend on is not fetched."""
    state = folder / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (state / part).mkdir(parents=True)
    (state / "status").touch()
    (state / "sources.list").write_text(f"deb http://deb.debian.org/debian {suite} main\n", encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": state / "lists",
        "Dir::Cache": state / "cache",
        "Dir::State::status": state / "status",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        # A mirror frozen on some day is as good; signatures are checked all the same.
        "Acquire::Check-Valid-Until": "false",
    }
    lines = [f'{name} "{value}";\n' for name, value in settings.items()]
    (state / "apt.conf").write_text("".join(lines), encoding="utf-8")
    env = environment(APT_CONFIG=state / "apt.conf", LC_ALL="C")
    run(["apt-get", "update"], env=env)
    run(["apt-get", "download", *packages], env=env, cwd=state)
    for package in sorted(state.glob("*.deb")):
        run(["dpkg", "-x", package, folder])
    shutil.rmtree(state)


def _system_path() -> str:
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))
