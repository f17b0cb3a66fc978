"""The launchers' own programs, in an environment of their own: too heavy for the one that devkit is developed in."""

import hashlib
import sys
from pathlib import Path

from .binaries import NoEngineError
from .cache import made_once
from .commands import CommandError, run

PINS = ("daytona==0.226.1", "dstack==0.22.5", "skypilot==0.14.1")


def python() -> Path:
    """The interpreter that imports all of them. Raises NoEngineError when they are not to be had."""
    name = hashlib.sha256(" ".join((*PINS, sys.version)).encode()).hexdigest()[:12]
    try:
        return made_once(f"launchers-{name}", _install) / "environment/bin/python"
    except (CommandError, OSError) as error:
        raise NoEngineError(f"the launchers' packages: {error}") from None


def _install(folder: Path) -> None:
    environment = folder / "environment"
    uv = (sys.executable, "-m", "uv")
    run([*uv, "venv", "--quiet", "--python", sys.executable, environment])
    run([*uv, "pip", "install", "--quiet", "--python", environment / "bin/python", *PINS])
