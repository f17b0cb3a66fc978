"""Documents that ship with devkit: TOML in the source tree, compiled to JSON in the wheel (hatch_build.py)."""

import json
import tomllib
from functools import cache
from pkgutil import get_data
from typing import Any


@cache
def load(package: str, name: str) -> dict[str, Any]:
    """Load a document of a package by its name without ending, once. Callers share it, so they must not change it.

    Raises:
        FileNotFoundError: for a name that no document has.
    """
    try:
        return dict(json.loads(get_data(package, f"{name}.json") or b"{}"))
    except FileNotFoundError:
        return tomllib.loads((get_data(package, f"{name}.toml") or b"").decode())
