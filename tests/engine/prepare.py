"""What the engine tests download, ahead of them: `python -m tests.engine.prepare`, beside tests that need no engine."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from . import authority, binaries, image, podman, prometheus, tools
from .cache import say
from .commands import CommandError

SIDE_BY_SIDE = 3
"""They mostly wait for the network."""

DOWNLOADS: tuple[tuple[str, Callable[[], object]], ...] = (
    ("the base image", image.archive),
    ("the newest engine", binaries.find),
    ("the older engine", lambda: binaries.find(binaries.OLDER)),
    ("the dev container CLI", tools.devcontainer_cli),
    ("Podman", podman.installed),
    ("Prometheus", prometheus.programs),
    ("a company's authority", authority.provide),
)
"""The longest first."""


def main() -> int:
    """Fetch all of it; 1 when something cannot be had. Each is fetched on its own, and said when it fails."""
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return int(not all(list(pool.map(_fetched, DOWNLOADS))))


def _fetched(download: tuple[str, Callable[[], object]]) -> bool:
    name, fetch = download
    try:
        fetch()
    except (binaries.NoEngineError, CommandError, OSError) as error:
        say(f"{name} cannot be had: {error}")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
