"""Version tables out of a file, a folder or an archive that somebody was given."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from devkit.compat.load import FILES, TABLES
from devkit.errors import DevkitError

MOST_BYTES = 4 << 20
"""The largest of the shipped tables has a hundredth of that."""
MOST_MEMBERS = 1000
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
_HINT = f"Give a table file such as driver.toml, or a folder or archive of them. Known: {', '.join(FILES)}."


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """The documents in a file, folder or archive, by table name. Raises DevkitError where there are none to be read."""
    found: dict[str, dict[str, Any]] = {}
    for shown, content in _contents(path):
        document = _parsed(shown, content)
        name = _table_of(Path(shown).stem, document)
        if name is None:
            raise DevkitError(f"{shown} is none of devkit's version tables", _HINT)
        if name in found:
            raise DevkitError(f"{path} holds the table {name!r} twice", "Leave one of the two away.")
        found[name] = document
    if not found:
        raise DevkitError(f"{path} holds no version table", _HINT)
    return found


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        if path.is_dir():
            # Not what lies in folders below: an archive of the project would bring its other TOML files, too.
            files = [each for each in sorted(path.glob("*.toml")) if _is_table_file(each)]
            yield from ((str(file), _read(file.open("rb"), str(file))) for file in files)
        elif path.name.endswith(_ARCHIVES):
            yield from _members(path)
        else:
            yield str(path), _read(path.open("rb"), str(path))
    except OSError as error:
        raise DevkitError(f"cannot read {path}: {error.strerror or error}", _HINT) from None


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Table files of an archive, read in memory: nothing is unpacked, so no name can lead anywhere."""
    import tarfile
    import zipfile

    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist()[:MOST_MEMBERS]:
                    if _is_table_file(Path(entry.filename)):
                        yield entry.filename, _read(archive.open(entry), entry.filename)
            return
        with tarfile.open(path) as tape:
            for member in tape.getmembers()[:MOST_MEMBERS]:
                file = tape.extractfile(member) if _is_table_file(Path(member.name)) and member.isreg() else None
                if file is not None:
                    yield member.name, _read(file, member.name)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, NotImplementedError, RuntimeError) as error:
        raise DevkitError(f"{path} is no readable archive: {error}", _HINT) from None


def _is_table_file(path: Path) -> bool:
    return path.suffix == ".toml" and path.stem in FILES


def _read(file: IO[bytes], shown: str) -> bytes:
    with file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise DevkitError(f"{shown} is too large for a version table", _HINT)
    return content


def _parsed(shown: str, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise DevkitError(f"{shown} is not TOML: {error}", "Fetch it again; nothing was written.") from None


def _table_of(stem: str, document: dict[str, Any]) -> str | None:
    """By the file's name; a file of another name is known by its arrays."""
    if stem in FILES:
        return stem
    arrays = {name for name, value in document.items() if isinstance(value, list)}
    alike = [name for name, kind in TABLES.items() if {each.name for each in kind.arrays()} == arrays]
    return alike[0] if len(alike) == 1 else None
