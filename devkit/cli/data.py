"""`devkit data`: which version tables answers rest on, and how newer ones take their place."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from devkit.cli import exit_codes
from devkit.cli.user_tables import find_user_tables_file, load_user_tables, remove_user_tables, save_user_tables
from devkit.compat.version_tables import TABLE_NAMES, TABLE_TYPES
from devkit.errors import DevkitError
from devkit.text import format_count, format_table

if TYPE_CHECKING:
    from devkit.compat.validate import TableProblem
    from devkit.compat.version_tables import TableDocument

SCHEMA = "devkit.data/1"
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@dataclass(frozen=True)
class TableState:
    """One table as it is in use. `origin` is "shipped" or "refreshed"."""

    name: str
    as_of: str
    age_days: int
    rows: int
    origin: str


@click.group()
def data() -> None:
    """Show the version tables that answers rest on, and take newer ones."""


@data.command()
@_JSON
def show(as_json: bool) -> None:
    """Say of each version table how old it is and where it comes from."""
    states = _states(load_user_tables())
    if as_json:
        click.echo(_document(states, file=find_user_tables_file() if load_user_tables() else None))
        return
    _print(states)
    if load_user_tables():
        click.echo(
            f"Refreshed tables are kept in {find_user_tables_file()}; `devkit data reset` goes back to the shipped ones."
        )


@data.command()
@click.argument("path", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Take tables that are older than the shipped ones or contradict them.")
@click.option("--dry-run", is_flag=True, help="Check the tables, and write nothing.")
@_JSON
def update(path: Path, force: bool, dry_run: bool, as_json: bool) -> int:
    """Use newer version tables: a file such as driver.toml, or a folder or archive of them.

    Each is signed off first: its shape and sources, the order among its rows, facts that are settled, and what the
    shipped tables say. Exit code 1: something speaks against them, all of which is listed, and nothing was written.
    """
    from devkit.cli.runtime import today
    from devkit.compat.validate import validate_tables
    from devkit.compat.version_tables import read_shipped_table

    given = read_table_files(path)
    before = load_user_tables()
    wanted = {name: each for name, each in {**before, **given}.items() if each != dict(read_shipped_table(name))}
    faults = validate_tables({**before, **given}, today=today())
    refused = [fault for fault in faults if not (force and fault.may_be_forced)]
    if refused:
        _print_refusal(faults, as_json=as_json)
        return exit_codes.ANSWER_IS_NO
    changes = wanted != before
    if changes and not dry_run:
        save_user_tables(wanted) if wanted else remove_user_tables()
    verdict = "unchanged" if not changes else "would-update" if dry_run else "updated"
    states = _states(wanted)
    if as_json:
        click.echo(_document(states, verdict=verdict, faults=faults, file=find_user_tables_file() if wanted else None))
        return exit_codes.DONE
    for fault in faults:
        click.echo(f"! warning: {fault}")
    _print([state for state in states if state.name in given])
    click.echo(_SAID[verdict])
    return exit_codes.DONE


_SAID = {
    "unchanged": "unchanged: these tables are in use already.",
    "would-update": "signed off; nothing was written.",
    "updated": "signed off and in use: doctor, plan and init answer from them now.",
}


@data.command()
@_JSON
def reset(as_json: bool) -> None:
    """Go back to the version tables that ship with devkit."""
    dropped = remove_user_tables()
    if as_json:
        click.echo(_document(_states({}), verdict="updated" if dropped else "unchanged"))
    elif dropped:
        click.echo("The shipped tables are in use again.")
    else:
        click.echo("unchanged: the shipped tables are in use already.")


def _states(own: "Mapping[str, Mapping[str, Any]]") -> list[TableState]:
    from devkit.cli.runtime import today
    from devkit.compat.refresh import count_days
    from devkit.compat.version_tables import TABLE_NAMES, read_shipped_table

    now = today()

    def state(name: str, found: "TableDocument") -> TableState:
        rows = sum(len(value) for value in found.values() if isinstance(value, list))
        as_of = found["as_of"]
        return TableState(name, as_of, count_days(as_of, now), rows, "refreshed" if name in own else "shipped")

    return [state(name, own.get(name) or read_shipped_table(name)) for name in TABLE_NAMES]


def _print(states: Iterable[TableState]) -> None:
    rows = [
        (
            each.name,
            each.as_of,
            f"{format_count(each.age_days, 'day')} old",
            format_count(each.rows, "row"),
            each.origin,
        )
        for each in states
    ]
    click.echo(format_table(rows))


def _print_refusal(faults: "tuple[TableProblem, ...]", *, as_json: bool) -> None:
    if as_json:
        click.echo(_document(_states(load_user_tables()), verdict="refused", faults=faults))
        return
    for fault in faults:
        click.echo(f"✗ {fault}")
    click.echo(f"{format_count(len(faults), 'fault')}: nothing was written.")
    if all(fault.may_be_forced for fault in faults):
        click.echo("They only differ from the shipped tables: if those are wrong, --force takes these.")


def _document(states: Iterable[TableState], *, faults: "Iterable[TableProblem]" = (), **more: object) -> str:
    listed = [
        {"table": each.table, "row": each.row, "says": each.says, "may_be_forced": each.may_be_forced}
        for each in faults
    ]
    document = {"schema": SCHEMA, **more, "tables": [asdict(state) for state in states], "faults": listed}
    return json.dumps(document, indent=2, ensure_ascii=False)


# Version tables out of a file, a folder or an archive that somebody was given.

MAX_TABLE_BYTES = 4 << 20
"""The largest of the shipped tables has a hundredth of that."""
MAX_ARCHIVE_MEMBERS = 1000
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
_HINT = f"Give a table file such as driver.toml, or a folder or archive of them. Known: {', '.join(TABLE_NAMES)}."


def read_table_files(path: Path) -> dict[str, dict[str, Any]]:
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
                for entry in archive.infolist()[:MAX_ARCHIVE_MEMBERS]:
                    if _is_table_file(Path(entry.filename)):
                        yield entry.filename, _read(archive.open(entry), entry.filename)
            return
        with tarfile.open(path) as tape:
            for member in tape.getmembers()[:MAX_ARCHIVE_MEMBERS]:
                file = tape.extractfile(member) if _is_table_file(Path(member.name)) and member.isreg() else None
                if file is not None:
                    yield member.name, _read(file, member.name)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, NotImplementedError, RuntimeError) as error:
        raise DevkitError(f"{path} is no readable archive: {error}", _HINT) from None


def _is_table_file(path: Path) -> bool:
    return path.suffix == ".toml" and path.stem in TABLE_NAMES


def _read(file: IO[bytes], shown: str) -> bytes:
    with file:
        content = file.read(MAX_TABLE_BYTES + 1)
    if len(content) > MAX_TABLE_BYTES:
        raise DevkitError(f"{shown} is too large for a version table", _HINT)
    return content


def _parsed(shown: str, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise DevkitError(f"{shown} is not TOML: {error}", "Fetch it again; nothing was written.") from None


def _table_of(stem: str, document: dict[str, Any]) -> str | None:
    """By the file's name; a file of another name is known by its arrays."""
    if stem in TABLE_NAMES:
        return stem
    arrays = {name for name, value in document.items() if isinstance(value, list)}
    alike = [name for name, kind in TABLE_TYPES.items() if {each.name for each in kind.arrays()} == arrays]
    return alike[0] if len(alike) == 1 else None
