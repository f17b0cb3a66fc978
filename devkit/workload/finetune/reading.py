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
from devkit.text import count_of, listed, on_one_line
from devkit.workload.finetune.reading_json import json_entries, json_lines, text_lines
from devkit.workload.finetune.reading_tables import arrow_rows, hub_rows, is_saved_dataset, parquet_rows, saved_rows
from devkit.workload.finetune.records import (
    FORMS_HINT,
    ChatRecord,
    Kind,
    Place,
    PromptRecord,
    Record,
    TextRecord,
    record_of,
)

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

_UNPACKED_BY = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd", ".zip": "unzip"}
_TABLES = {".csv": "", ".tsv": ', sep="\\t"'}
"""What pandas is to be told beside the name of such a file."""

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:\w[\w.-]*)?")


@dataclass(frozen=True)
class Survey:
    """What the data holds. `empty` records have nothing to learn and are left out; `first_empty` says why of one."""

    records: int
    kinds: tuple[tuple[Kind, int], ...]
    sources: tuple[str, ...]
    empty: int = 0
    first_empty: str = ""

    def __str__(self) -> str:
        """In a line: 12 chat records in 1 source, 2 more left out with nothing to learn (the first: c.jsonl:3 ...)."""
        kinds = listed(f"{number} {kind}" for kind, number in self.kinds)
        noun = "record" if self.records == 1 else "records"
        shown = f"{kinds} {noun} in {count_of(len(self.sources), 'source')}"
        again = [name for name, times in Counter(map(_really, self.sources)).items() if times > 1]
        if again:
            shown += f", {listed(again)} more than once"
        if self.empty:
            shown += f", {self.empty} more left out with nothing to learn (the first: {self.first_empty})"
        return shown


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
        empty, first_empty = 0, None
        for source in self.sources:
            for record in _of_one_kind(_records_in(source)):
                if record.is_empty:
                    empty, first_empty = empty + 1, first_empty or record
                else:
                    kinds[record.kind] += 1
                    yield record
        if not kinds:
            raise _nothing_in(self._names, empty, first_empty)
        self._survey = Survey(
            records=kinds.total(),
            kinds=tuple(sorted(kinds.items())),
            sources=self.sources,
            empty=empty,
            first_empty=f"{first_empty.place} {_lack(first_empty)[0]}" if first_empty is not None else "",
        )

    def survey(self) -> Survey:
        """What the last pass saw; without one, all is read for it. Raises as a pass does."""
        if self._survey is None:
            for _ in self:
                pass
        assert self._survey is not None  # noqa: S101 - a pass that ends has made it
        return self._survey


def _nothing_in(names: Sequence[str], empty: int, first: Record | None) -> DevkitError:
    if first is None:
        return DevkitError(f"there is nothing to learn from in {listed(names)}: there is no record at all", FORMS_HINT)
    lack, hint = _lack(first)
    because = f"{first.place} {lack}" if empty == 1 else f"none of {empty} records has anything; {first.place} {lack}"
    return DevkitError(f"there is nothing to learn from in {listed(names)}: {because}", hint)


def _lack(record: Record) -> tuple[str, str]:
    """What a record lacks of which nothing can be learned, and what to do about it."""
    match record:
        case TextRecord():
            return "holds no text", "Give a text with something in it."
        case PromptRecord():
            return "has an empty completion", "What is learned is the completion, after the prompt."
        case ChatRecord(messages=messages):
            roles = listed(dict.fromkeys(on_one_line(each["role"])[:40] for each in messages))
            return (
                f'has no answer by "assistant", only turns by {roles}',
                'What is learned are the messages whose role is "assistant".',
            )


def _really(source: str) -> str:
    return os.path.realpath(source) if Path(source).exists() else source


def _sources(name: str) -> list[str]:
    path = Path(name).expanduser()
    if path.is_dir():
        return _sources_in(path)
    _require_target(path)
    if path.exists():
        if path.suffix.lower() not in READABLE:
            raise DevkitError(f"{name} is of no kind that is read", _readable_hint(path))
        return [f"{path}"]
    if _HUB_ID.fullmatch(name) and Path(name).suffix.lower() not in READABLE:
        return [name]
    raise DevkitError(f"there is no file or folder {name}", _nearest(path))


def _require_target(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise DevkitError(f"{path} is a link to {path.readlink()}, which is not there", "Mend the link, or remove it.")


def _readable_hint(path: Path) -> str:
    """How a file of another kind becomes one that is read."""
    kinds = f"Readable are files that end in {listed(READABLE, 'or')}."
    suffix = path.suffix.lower()
    if suffix in _UNPACKED_BY:
        return f"Unpack it first: {_UNPACKED_BY[suffix]} {path.name}\n{kinds}"
    if suffix in _TABLES:
        jsonl = path.with_suffix(".jsonl").name
        how = f'pandas.read_csv("{path.name}"{_TABLES[suffix]}).to_json("{jsonl}", orient="records", lines=True)'
        return f"As JSON lines: {how}\n{kinds}"
    return f"{kinds} A text by another name can be copied to one that ends in {TEXT}."


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
                _require_target(Path(place) / file)
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
