"""From what `--data` names to records, one at a time. Importable without torch."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.text import count_of, listed
from devkit.workload.finetune.reading_json import json_entries, json_lines, text_lines
from devkit.workload.finetune.reading_tables import arrow_rows, hub_rows, is_saved_dataset, parquet_rows, saved_rows
from devkit.workload.finetune.records import FORMS_HINT, Kind, Place, Record, TextRecord, record_of

READERS = {
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".json": json_entries,
    ".parquet": parquet_rows,
    ".arrow": arrow_rows,
}
"""Suffix -> who reads its entries."""

TEXT = ".txt"
READABLE = (TEXT, *READERS)

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:\w[\w.-]*)?")


@dataclass(frozen=True)
class Survey:
    """What the data holds. `empty` records have nothing to learn and are left out; one stands at `first_empty`."""

    records: int
    kinds: tuple[tuple[Kind, int], ...]
    sources: tuple[str, ...]
    empty: int = 0
    first_empty: str = ""

    def __str__(self) -> str:
        """In a line: 12 chat records in 1 source, 2 more left out as empty (the first at chats.jsonl:3)."""
        kinds = listed(f"{number} {kind}" for kind, number in self.kinds)
        noun = "record" if self.records == 1 else "records"
        shown = f"{kinds} {noun} in {count_of(len(self.sources), 'source')}"
        return (
            f"{shown}, {self.empty} more left out as empty (the first at {self.first_empty})" if self.empty else shown
        )


class Records:
    """The records of all sources that have something to learn, in order, read anew with each pass over them.

    A source is a file, a folder whose readable files are taken in the order of their names, a folder saved by the
    library datasets, or the id of a data set on the hub. Within one source all records are of one kind.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Raises DevkitError for a name of nothing."""
        if not names:
            raise DevkitError("no data is named", "Give --data FILE, a folder, or the id of a data set on the hub.")
        self._names = tuple(names)
        self.sources = tuple(source for name in names for source in _sources(name))
        self._survey: Survey | None = None

    def __iter__(self) -> Iterator[Record]:
        """Raises DevkitError at the first record that is not right, and where there is nothing to learn at all."""
        kinds: Counter[Kind] = Counter()
        empty: list[str] = []
        for source in self.sources:
            for record in _of_one_kind(_records_in(source)):
                if record.is_empty:
                    empty.append(f"{record.place}")
                else:
                    kinds[record.kind] += 1
                    yield record
        if not kinds:
            because = f"all {len(empty)} records are empty" if empty else "there is no record at all"
            raise DevkitError(f"there is nothing to learn from in {listed(self._names)}: {because}", FORMS_HINT)
        self._survey = Survey(
            records=kinds.total(),
            kinds=tuple(sorted(kinds.items())),
            sources=self.sources,
            empty=len(empty),
            first_empty=next(iter(empty), ""),
        )

    def survey(self) -> Survey:
        """What the last pass saw; without one, all is read for it. Raises as a pass does."""
        if self._survey is None:
            for _ in self:
                pass
        assert self._survey is not None  # noqa: S101 - a pass that ends has made it
        return self._survey


def _sources(name: str) -> list[str]:
    path = Path(name).expanduser()
    if path.is_dir():
        return _sources_in(path)
    if path.exists():
        if path.suffix.lower() not in READABLE:
            raise DevkitError(
                f"{name} is of no kind that is read", f"Readable are files that end in {listed(READABLE, 'or')}."
            )
        return [f"{path}"]
    if _HUB_ID.fullmatch(name) and Path(name).suffix.lower() not in READABLE:
        return [name]
    raise DevkitError(f"there is no file or folder {name}", _nearest(path))


def _nearest(path: Path) -> str:
    try:
        around = sorted(each.name for each in path.parent.iterdir())
    except OSError:
        return f"There is no folder {path.parent} either."
    near = [f"{path.parent / each}" for each in get_close_matches(path.name, around, n=3)]
    return f"Did you mean {listed(near, 'or')}?" if near else "Check the path; a data set on the hub is owner/name."


def _sources_in(folder: Path) -> list[str]:
    found: list[str] = []
    others: Counter[str] = Counter()
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        if is_saved_dataset(Path(place)):
            found.append(place)
            folders.clear()
            continue
        for file in sorted(each for each in files if not each.startswith(".")):
            suffix = Path(file).suffix.lower()
            if suffix in READABLE:
                found.append(f"{Path(place) / file}")
            else:
                others[suffix or "no suffix"] += 1
    if not found:
        shown = listed(f"{number} with {suffix}" for suffix, number in others.most_common(5))
        holds = f"it holds files of other kinds: {shown}" if others else "it holds no file"
        raise DevkitError(
            f"there is nothing to read in {folder}: {holds}", f"Readable are files in {listed(READABLE, 'or')}."
        )
    return found


def _records_in(source: str) -> Iterator[Record]:
    path = Path(source)
    if path.is_dir():
        return _of_entries(saved_rows(path))
    if not path.exists():
        return _of_entries(hub_rows(source))
    suffix = path.suffix.lower()
    return _text(path) if suffix == TEXT else _of_entries(READERS[suffix](path))


def _text(path: Path) -> Iterator[Record]:
    """A text file is one record, whatever ends its lines."""
    yield TextRecord("\n".join(line for _, line in text_lines(path)), Place(f"{path}"))


def _of_entries(entries: Iterable[tuple[Any, Place]]) -> Iterator[Record]:
    for entry, place in entries:
        yield record_of(entry, place)


def _of_one_kind(records: Iterable[Record]) -> Iterator[Record]:
    first: Record | None = None
    for record in records:
        first = first or record
        if record.kind is not first.kind:
            raise DevkitError(
                f"{record.place} is a {record.kind} record, and {first.place} is a {first.kind} record",
                "Keep one kind of record to a file; --data takes several files.",
            )
        yield record
