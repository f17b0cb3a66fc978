"""What the engine tests download, ahead of them: `python -m tests.engine.prepare`, beside all that needs no engine.

With the word `before-install` it fetches what any Python of this machine can, while devkit is being installed.
"""

import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import authority, binaries, image, project, tools, wheels
from .cache import say
from .commands import CommandError

BEFORE_INSTALL = "before-install"
SIDE_BY_SIDE = 3
"""They mostly wait for the network."""

Downloads = tuple[tuple[str, Callable[[], object]], ...]


def _wheels() -> None:
    """Those of the project that the tests build, and those that stand beside their light ones."""
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / "draft"
        project.wheels_for(draft)
        wheels.light_wheelhouse(Path(folder) / "light", draft / ".devcontainer/Dockerfile", *wheels.lockers())


ALONE: Downloads = (
    ("the base image", image.archive),
    ("the newest engine", binaries.find),
    ("the dev container CLI", tools.devcontainer_cli),
    ("a company's authority", authority.provide),
)
"""The longest first."""

WITH_DEVKIT: Downloads = (("wheels", _wheels),)


def main(words: list[str]) -> int:
    """Fetch all of it; 1 when something cannot be had. Each is fetched on its own, and said when it fails."""
    downloads = ALONE if BEFORE_INSTALL in words else (*WITH_DEVKIT, *ALONE)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return int(not all(list(pool.map(_fetched, downloads))))


def _fetched(download: tuple[str, Callable[[], object]]) -> bool:
    name, fetch = download
    try:
        fetch()
    except (binaries.NoEngineError, CommandError, OSError) as error:
        say(f"{name} cannot be had: {error}")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
