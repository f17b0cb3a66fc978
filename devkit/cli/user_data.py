"""The user's own data files: newer version tables, and measured runs. Each is written whole or not at all.

The first line of the tables' file holds a checksum of the second, which holds the tables as they were validated.
"""

import json
import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

import click

from devkit.errors import DevkitError
from devkit.user_folder import find_user_file

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "devkit.tables/1"
TABLES_FILE = "tables.json"
_REPAIR = "run `devkit data update` with newer tables, or `devkit data reset`"


def require_user_file(name: str) -> "Path":
    """Return the path of one of the user's data files. Raises DevkitError without a home folder."""
    from pathlib import Path

    path = find_user_file(name)
    if path is None:
        raise DevkitError(f"there is no home folder to keep {name} in", "Set HOME or XDG_DATA_HOME to a folder.")
    return Path(path)


def write_user_file(name: str, content: bytes) -> "Path":
    """Write one of the user's data files atomically. Raises DevkitError when the disk refuses."""
    from tempfile import NamedTemporaryFile

    path = require_user_file(name)
    staged = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("wb", dir=path.parent, prefix=f"{path.stem}-", delete=False) as file:
            staged = path.parent / file.name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except OSError as error:
        if staged is not None:
            staged.unlink(missing_ok=True)
        hint = "Free some space, remove what is in its place, or name another folder in XDG_DATA_HOME."
        raise DevkitError(f"cannot write {path}: {error.strerror}", hint) from None
    return path


def remove_user_file(name: str) -> bool:
    """Remove one of the user's data files; False when there was none. Raises DevkitError when the disk refuses."""
    path = require_user_file(name)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DevkitError(f"cannot remove {path}: {error.strerror}", "Remove it yourself.") from None
    return True


def find_user_table(name: str) -> Mapping[str, Any] | None:
    """Return the user's version table of that name, None without one. For `register_table_reader`."""
    return load_user_tables().get(name)


@cache
def load_user_tables() -> dict[str, dict[str, Any]]:
    """Return the user's version tables by name. A file that cannot be used is ignored with one warning."""
    path = find_user_file(TABLES_FILE)
    # Checked before pathlib is loaded: few users have such a file.
    if path is None or not os.access(path, os.F_OK):
        return {}
    try:
        return _read_tables(path)
    except DevkitError as problem:
        click.echo(f"Warning: {path} is not used: it {problem}; {problem.hint}", err=True)
        return {}


def save_user_tables(documents: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the user's version tables, which were validated. Raises DevkitError when the disk refuses."""
    tables = json.dumps({name: dict(document) for name, document in documents.items()}, ensure_ascii=False)
    head = {"schema": SCHEMA, "crc32": crc32(tables.encode()), "beside": _checksum_shipped_tables()}
    write_user_file(TABLES_FILE, f"{json.dumps(head)}\n{tables}\n".encode())


def _read_tables(path: str) -> dict[str, dict[str, Any]]:
    from devkit.probe.host import LocalHost

    text = LocalHost().read(path)
    if text is None:
        raise DevkitError("cannot be read", _REPAIR)
    head_line, _, tables = text.partition("\n")
    try:
        head = json.loads(head_line)
        is_whole = (head["schema"], head["crc32"]) == (SCHEMA, crc32(tables.removesuffix("\n").encode()))
    except (ValueError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise DevkitError("is damaged", _REPAIR)
    if head["beside"] != _checksum_shipped_tables():
        raise DevkitError("was validated against other tables than this devkit ships", _REPAIR)
    documents: dict[str, dict[str, Any]] = json.loads(tables)
    return documents


def _checksum_shipped_tables() -> int:
    """Return one number for all shipped tables: another release of devkit may read and ship different ones."""
    from devkit.compat.version_tables import TABLE_NAMES, read_shipped_bytes

    total = 0
    for name in TABLE_NAMES:
        total = crc32(read_shipped_bytes(name), total)
    return total
