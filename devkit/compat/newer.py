"""Tables newer than those that ship with devkit: offered by whoever can read the user's folder, as this room cannot.

One reader for the process: every check and the solver ask for the tables, and none of them could hand them on.
"""

from collections.abc import Callable, Mapping
from typing import Any

Reader = Callable[[str], Mapping[str, Any] | None]
"""Gives the newer document of a table by its name, None where there is none to use."""


def _none(_name: str) -> None:
    """Nothing was offered."""


_reader: Reader = _none


def offer(reader: Reader) -> None:
    """Let `tables()` take from `reader` what it has. To be called before the first table is read."""
    global _reader
    _reader = reader


def newer_table(name: str) -> Mapping[str, Any] | None:
    """The offered document of a table; None without one."""
    return _reader(name)
