"""The reference dev container CLI, and wheels for building without an index."""

import re
import sys
import urllib.request
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from .cache import made_once
from .commands import run

DEVCONTAINER_CLI = "@devcontainers/cli@0.89.0"
CONTAINER_PYTHON = "3.11"
TORCH = "2.13.0"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux_2_27_x86_64",
)


DOCKER_FOR_THE_CLI = """#!/bin/sh
# The dev container CLI waits for its container by `docker events`, without end if that connects after the start.
PATH=${PATH#*"${0%/*}:"}
if [ "${1-}" = events ]; then
    shift
    set -- events --since "$(date +%s)" "$@"
fi
exec docker "$@"
"""


def devcontainer_cli() -> Path:
    """The folder that holds `devcontainer` and the `docker` for it, installed from npm into the cache."""
    name = "cli-" + re.sub(r"\W+", "-", DEVCONTAINER_CLI).strip("-")
    return made_once(name, _install_cli) / "node_modules/.bin"


def _install_cli(folder: Path) -> None:
    run(["npm", "install", "--no-fund", "--no-audit", "--prefix", folder, DEVCONTAINER_CLI])
    docker = folder / "node_modules/.bin/docker"
    docker.write_text(DOCKER_FOR_THE_CLI, encoding="ascii")
    docker.chmod(0o755)


def wheelhouse(requirements: Sequence[str]) -> Path:
    """Wheels for `requirements` and all they need, for the container's Python on Linux x86_64, cached by content."""
    lines = sorted(set(requirements))
    name = sha256("\n".join(lines).encode()).hexdigest()[:12]
    return made_once(f"wheels-{name}", lambda folder: _download(folder, lines))


def _download(folder: Path, lines: Sequence[str]) -> None:
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder, "--only-binary=:all:"]
    argv += ["--implementation", "cp", "--python-version", CONTAINER_PYTHON, *platforms, *_cpu_index(), *lines]
    run(argv, deadline_s=900)


def _cpu_index() -> list[str]:
    """PyTorch's CPU index where it answers: its wheel is a tenth of the default one. Else a local wheel must do."""
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=10):
            return ["--extra-index-url", CPU_INDEX]
    except OSError:
        return []
