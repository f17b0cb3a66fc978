"""The user's own, newer version tables: one file in the user's data folder, written whole or not at all.

Its first line says how to tell that the second, the tables, is as it was signed off.
"""

import json
import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

import click

from devkit.errors import DevkitError

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "devkit.tables/1"
_VARIABLES = {"win32": ("LOCALAPPDATA", "USERPROFILE", "AppData/Local")}
_ELSEWHERE = ("XDG_DATA_HOME", "HOME", "Library/Application Support" if sys.platform == "darwin" else ".local/share")
"""The variable that names the data folder, else the one of the home and the folder below it."""
_REPAIR = "run `devkit data update` with newer tables, or `devkit data reset`"


class _UnusableError(Exception):
    """The file is there and cannot be used; says why."""


def find_user_tables_file() -> str | None:
    """Where the user's tables are kept; None without a home.

    Source: XDG Base Directory Specification (an XDG_DATA_HOME that is not absolute counts for nothing).
    """
    variable, home, below = _VARIABLES.get(sys.platform, _ELSEWHERE)
    folder = _absolute(variable)
    if folder:
        return f"{folder}/devkit/tables.json"
    return f"{_absolute(home)}/{below}/devkit/tables.json" if _absolute(home) else None


def find_user_table(name: str) -> Mapping[str, Any] | None:
    """The user's table of that name, None without one. For `register_table_reader`."""
    return load_user_tables().get(name)


@cache
def load_user_tables() -> dict[str, dict[str, Any]]:
    """The user's tables by name; a file that cannot be used counts for nothing, which is said once."""
    path = find_user_tables_file()
    try:
        return _read(path) if path else {}
    except _UnusableError as problem:
        click.echo(f"Warning: {path} is not used: it {problem}; {_REPAIR}", err=True)
        return {}


def save_user_tables(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the user's tables, which were signed off, and say where. Raises DevkitError when the disk refuses."""
    from tempfile import NamedTemporaryFile

    path = _needed_file()
    tables = json.dumps({name: dict(document) for name, document in documents.items()}, ensure_ascii=False)
    head = {"schema": SCHEMA, "crc32": crc32(tables.encode()), "beside": _shipped_sum()}
    staged = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("wb", dir=path.parent, prefix="tables-", delete=False) as file:
            staged = path.parent / file.name
            file.write(f"{json.dumps(head)}\n{tables}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except OSError as error:
        if staged is not None:
            staged.unlink(missing_ok=True)
        hint = "Make room or take away what stands there, or name another folder in XDG_DATA_HOME."
        raise DevkitError(f"cannot write {path}: {error.strerror}", hint) from None
    return str(path)


def remove_user_tables() -> bool:
    """Remove the user's tables; False when there were none. Raises DevkitError when the disk refuses."""
    path = _needed_file()
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DevkitError(f"cannot remove {path}: {error.strerror}", "Remove it yourself.") from None
    return True


def _read(path: str) -> dict[str, dict[str, Any]]:
    # Asked before pathlib is loaded: every plan comes by here, and hardly anybody has such a file.
    if not os.access(path, os.F_OK):
        return {}
    from pathlib import Path

    try:
        head_line, _, tables = Path(path).read_bytes().partition(b"\n")
    except OSError as error:
        raise _UnusableError(f"cannot be read ({error.strerror})") from None
    try:
        head = json.loads(head_line)
        is_whole = (head["schema"], head["crc32"]) == (SCHEMA, crc32(tables.removesuffix(b"\n")))
    except (ValueError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise _UnusableError("is damaged")
    if head["beside"] != _shipped_sum():
        raise _UnusableError("was signed off beside other tables than this devkit ships")
    found: dict[str, dict[str, Any]] = json.loads(tables)
    return found


def _shipped_sum() -> int:
    """One number for all the tables that ship: another release of devkit may read and ship other ones."""
    from devkit.compat.version_tables import TABLE_NAMES, read_shipped_bytes

    total = 0
    for name in TABLE_NAMES:
        total = crc32(read_shipped_bytes(name), total)
    return total


def _absolute(variable: str) -> str:
    """The path in a variable, "" where there is none from the root."""
    path = os.environ.get(variable, "")
    return path if os.path.isabs(path) else ""  # noqa: PTH117 - without pathlib, as above


def _needed_file() -> "Path":
    from pathlib import Path

    path = find_user_tables_file()
    if path is None:
        raise DevkitError("there is no home folder to keep tables in", "Set HOME or XDG_DATA_HOME to a folder.")
    return Path(path)
