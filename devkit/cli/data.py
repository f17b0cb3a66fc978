"""`devkit data`: show the version tables that answers rest on, and replace them by newer ones."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from devkit.cli.runtime import today
from devkit.cli.user_data import TABLES_FILE, load_user_tables, remove_user_file, save_user_tables
from devkit.compat.version_tables import TABLE_NAMES, TABLE_TYPES, read_shipped_table
from devkit.errors import DevkitError, ExitCode
from devkit.probe.documents import parse_toml
from devkit.text import format_count, format_table
from devkit.user_folder import find_user_file

if TYPE_CHECKING:
    from devkit.compat.validate import TableProblem

SCHEMA = "devkit.data/1"
MAX_TABLE_BYTES = 4 << 20
"""The largest of the shipped tables has a hundredth of that."""
MAX_ARCHIVE_MEMBERS = 1000
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
_HINT = f"Give a table file such as driver.toml, or a folder or archive of them. Known: {', '.join(TABLE_NAMES)}."
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
_MESSAGES = {
    "unchanged": "unchanged: these tables are in use already.",
    "would-update": "validated; nothing was written.",
    "updated": "validated and in use: doctor, plan and init use them now.",
}
"""The last line of `devkit data update`, by verdict."""


@dataclass(frozen=True)
class TableState:
    """A table that is in use. `origin` is "shipped" or "refreshed"."""

    name: str
    as_of: str
    age_days: int
    rows: int
    origin: str


@click.group()
def data() -> None:
    """Show the version tables that answers rest on, and replace them by newer ones."""


@data.command()
@_JSON
def show(as_json: bool) -> None:
    """Show the age and the origin of each version table."""
    states = _describe_tables(load_user_tables())
    if as_json:
        click.echo(_format_document(states, file=find_user_file(TABLES_FILE) if load_user_tables() else None))
        return
    _print_states(states)
    if load_user_tables():
        click.echo(
            f"Refreshed tables are kept in {find_user_file(TABLES_FILE)}; `devkit data reset` goes back to the shipped"
            " ones."
        )


@data.command("update", short_help="Use newer version tables.")
@click.argument("path", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Use tables that are older than the shipped ones or contradict them.")
@click.option("--dry-run", is_flag=True, help="Check the tables, and write nothing.")
@_JSON
def update_tables(path: Path, force: bool, dry_run: bool, as_json: bool) -> int:
    """Use newer version tables: a file such as driver.toml, or a folder or archive of them.

    Each is validated first: its shape and sources, the order of its rows, facts that are settled, and the shipped
    tables. Exit code 1: a table has problems; all are listed, and nothing was written.
    """
    from devkit.compat.validate import validate_tables

    given = read_table_files(path)
    before = load_user_tables()
    wanted = {name: each for name, each in {**before, **given}.items() if each != dict(read_shipped_table(name))}
    problems = validate_tables({**before, **given}, today=today())
    if not all(force and problem.may_be_forced for problem in problems):
        _print_refusal(problems, as_json=as_json)
        return ExitCode.ANSWER_IS_NO
    is_changed = wanted != before
    if is_changed and not dry_run:
        save_user_tables(wanted) if wanted else remove_user_file(TABLES_FILE)
    verdict = "unchanged" if not is_changed else "would-update" if dry_run else "updated"
    states = _describe_tables(wanted)
    if as_json:
        file = find_user_file(TABLES_FILE) if wanted else None
        click.echo(_format_document(states, verdict=verdict, problems=problems, file=file))
        return ExitCode.DONE
    for problem in problems:
        click.echo(f"! warning: {problem}")
    _print_states([state for state in states if state.name in given])
    click.echo(_MESSAGES[verdict])
    return ExitCode.DONE


@data.command()
@_JSON
def reset(as_json: bool) -> None:
    """Go back to the version tables that ship with devkit."""
    is_removed = remove_user_file(TABLES_FILE)
    if as_json:
        click.echo(_format_document(_describe_tables({}), verdict="updated" if is_removed else "unchanged"))
    elif is_removed:
        click.echo("The shipped tables are in use again.")
    else:
        click.echo("unchanged: the shipped tables are in use already.")


def _describe_tables(own: Mapping[str, Mapping[str, Any]]) -> list[TableState]:
    from devkit.compat.refresh import count_days

    states = []
    for name in TABLE_NAMES:
        table = own.get(name) or read_shipped_table(name)
        rows = sum(len(value) for value in table.values() if isinstance(value, list))
        origin = "refreshed" if name in own else "shipped"
        states.append(TableState(name, table["as_of"], count_days(table["as_of"], today()), rows, origin))
    return states


def _print_states(states: Iterable[TableState]) -> None:
    rows = []
    for each in states:
        age = f"{format_count(each.age_days, 'day')} old"
        rows.append((each.name, each.as_of, age, format_count(each.rows, "row"), each.origin))
    click.echo(format_table(rows))


def _print_refusal(problems: "tuple[TableProblem, ...]", *, as_json: bool) -> None:
    if as_json:
        click.echo(_format_document(_describe_tables(load_user_tables()), verdict="refused", problems=problems))
        return
    for problem in problems:
        click.echo(f"✗ {problem}")
    click.echo(f"{format_count(len(problems), 'fault')}: nothing was written.")
    if all(problem.may_be_forced for problem in problems):
        click.echo("They only differ from the shipped tables: if those are wrong, --force uses these.")


def _format_document(states: Iterable[TableState], *, problems: "Iterable[TableProblem]" = (), **more: object) -> str:
    faults = [
        {"table": each.table, "row": each.row, "says": each.says, "may_be_forced": each.may_be_forced}
        for each in problems
    ]
    document = {"schema": SCHEMA, **more, "tables": [asdict(state) for state in states], "faults": faults}
    return json.dumps(document, indent=2, ensure_ascii=False)


def read_table_files(path: Path) -> dict[str, dict[str, Any]]:
    """Read the version tables in a file, folder or archive, by name. Raises DevkitError where there are none."""
    tables: dict[str, dict[str, Any]] = {}
    for file, content in _read_contents(path):
        try:
            table = parse_toml(content.decode())
        except ValueError as error:
            raise DevkitError(f"{file} is not TOML: {error}", "Fetch it again; nothing was written.") from None
        name = _identify_table(Path(file).stem, table)
        if name is None:
            raise DevkitError(f"{file} is none of devkit's version tables", _HINT)
        if name in tables:
            raise DevkitError(f"{path} holds the table {name!r} twice", "Leave out one of the two.")
        tables[name] = table
    if not tables:
        raise DevkitError(f"{path} holds no version table", _HINT)
    return tables


def _read_contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Read each table file, with its name. Folders within a folder are not searched: a project has other TOML files."""
    try:
        if path.is_dir():
            files = [each for each in sorted(path.glob("*.toml")) if _is_table_file(each)]
            yield from ((str(file), _read_limited(file.open("rb"), str(file))) for file in files)
        elif path.name.endswith(_ARCHIVES):
            yield from _read_members(path)
        else:
            yield str(path), _read_limited(path.open("rb"), str(path))
    except OSError as error:
        raise DevkitError(f"cannot read {path}: {error.strerror or error}", _HINT) from None


def _read_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Read the table files of an archive in memory: nothing is unpacked, so no name can lead anywhere."""
    import tarfile
    import zipfile

    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist()[:MAX_ARCHIVE_MEMBERS]:
                    if _is_table_file(Path(entry.filename)):
                        yield entry.filename, _read_limited(archive.open(entry), entry.filename)
            return
        with tarfile.open(path) as tape:
            for member in tape.getmembers()[:MAX_ARCHIVE_MEMBERS]:
                file = tape.extractfile(member) if _is_table_file(Path(member.name)) and member.isreg() else None
                if file is not None:
                    yield member.name, _read_limited(file, member.name)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, NotImplementedError, RuntimeError) as error:
        raise DevkitError(f"{path} is no readable archive: {error}", _HINT) from None


def _is_table_file(path: Path) -> bool:
    return path.suffix == ".toml" and path.stem in TABLE_NAMES


def _read_limited(file: IO[bytes], name: str) -> bytes:
    with file:
        content = file.read(MAX_TABLE_BYTES + 1)
    if len(content) > MAX_TABLE_BYTES:
        raise DevkitError(f"{name} is too large for a version table", _HINT)
    return content


def _identify_table(stem: str, table: dict[str, Any]) -> str | None:
    """Return the table's name: the file's, or that of the one table with the same arrays; None if there is none."""
    if stem in TABLE_NAMES:
        return stem
    arrays = {name for name, value in table.items() if isinstance(value, list)}
    alike = [name for name, kind in TABLE_TYPES.items() if {each.name for each in kind.arrays()} == arrays]
    return alike[0] if len(alike) == 1 else None
