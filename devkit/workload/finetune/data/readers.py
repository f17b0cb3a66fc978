"""From what `--data` names to records, one at a time. Importable without torch."""

import importlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.text import format_count, join_words, to_one_line
from devkit.workload.finetune.data.records import (
    RECORD_FIELDS,
    RECORD_FORMATS_HINT,
    ChatRecord,
    PromptRecord,
    Record,
    RecordKind,
    RecordLocation,
    TextRecord,
    parse_record,
)
from devkit.workload.finetune.model.hub import HubRepository, explain_hub_error

# JSON and JSON lines, read so that whatever is wrong is named by file, line and column. Importable without torch.

JSON_LINES_HINT = "Every line of a .jsonl file is one JSON object, without commas or brackets between the lines."
RECORD_LIST_KEYS = ("data", "train", "records", "examples")
"""Where a .json file that is one object keeps its list of records."""

_OPEN = "Unterminated string"
"""How Python's reader begins to say that a text does not end. Source: CPython, json/decoder.py."""

BYTE_ORDER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def read_text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their numbers, from 1, without line ends or a byte order mark; one at a time.

    Raises DevkitError for a file that is not text, naming the line.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise DevkitError(f"{path} cannot be read: {error.strerror}", "Check the path and its permissions.") from error
    with file:
        for number, raw in enumerate(file, start=1):
            line = _without_mark(raw, path) if number == 1 else raw
            yield number, _decoded(line, f"{path}:{number}").rstrip("\r\n")


def _without_mark(raw: bytes, path: Path) -> bytes:
    encoding = BYTE_ORDER_MARKS.get(raw[:2])
    if encoding is not None:
        raise DevkitError(f"{path} is {encoding}, and must be UTF-8", f"iconv -f {encoding} -t UTF-8 {path.name}")
    return raw.removeprefix(b"\xef\xbb\xbf")


def _decoded(raw: bytes, where: str) -> str:
    if b"\0" in raw:
        raise DevkitError(
            f"{where} holds a NUL byte", "The file is binary, or was damaged when a disk filled up: write it again."
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DevkitError(
            f"{where} is not UTF-8: byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line",
            "Convert the file: iconv -f ORIGINAL-ENCODING -t UTF-8.",
        ) from error


def read_json_lines(path: Path) -> Iterator[tuple[Any, RecordLocation]]:
    """What stands on each line that is not blank, and where. Raises DevkitError at the first line that is not JSON."""
    for number, line in read_text_lines(path):
        if line.strip():
            yield _parsed(line, f"{path}:{number}", hint=_hint_for(line)), RecordLocation(f"{path}", number)


def read_json_records(path: Path) -> Iterator[tuple[Any, RecordLocation]]:
    """The records of a .json file: a list of them, one object that holds the list, a single record, or JSON lines."""
    lines = [line for _, line in read_text_lines(path)]
    beginning = next((line.strip() for line in lines if line.strip()), "")
    if not beginning.startswith("[") and _is_whole(beginning) and sum(bool(line.strip()) for line in lines) > 1:
        yield from read_json_lines(path)
        return
    if not beginning:
        return
    document = _parsed("\n".join(lines), f"{path}", hint="A .json file is a list of records.", by_line=True)
    if isinstance(document, dict):
        document = _unwrapped(document, path)
    if not isinstance(document, list):
        raise DevkitError(f"{path} holds no list of records", "Write [{...}, {...}], or one object a line.")
    for number, entry in enumerate(document, start=1):
        yield entry, RecordLocation(f"{path}", number, "record")


def _unwrapped(document: dict[str, Any], path: Path) -> list[Any]:
    """The records in one object; the object, where it is a record itself."""
    for name in RECORD_LIST_KEYS:
        if isinstance(document.get(name), list):
            return list(document[name])
    lists = [name for name, value in document.items() if isinstance(value, list) and value]
    if lists and document.keys().isdisjoint(RECORD_FIELDS):
        raise DevkitError(
            f'{path} is one object, with a list under "{to_one_line(lists[0])[:40]}"',
            f"A list of records is looked for under {join_words(RECORD_LIST_KEYS, 'or')}: call it one of these.",
        )
    return [document]


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _parsed(text: str, where: str, *, hint: str, by_line: bool = False) -> Any:  # noqa: ANN401 - JSON holds anything
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        place = f"{where}:{error.lineno}:{error.colno}" if by_line else f"{where}:{error.colno}"
        if error.msg.startswith(_OPEN):
            hint = "A line break within a text is written \\n. Or the file was cut off here: write it again."
        raise DevkitError(f"{place}: not JSON: {_cause(error)}", hint) from error
    except RecursionError as error:
        raise DevkitError(f"{where}: nested too deeply to be a record", hint) from error
    except ValueError as error:
        raise DevkitError(f"{where}: {to_one_line(str(error))}", hint) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f'the key "{to_one_line(twice)[:40]}" stands twice in one object, and only one value could be learned'
        )
    return found


def _cause(error: json.JSONDecodeError) -> str:
    rest = error.doc[error.pos :].strip()
    if not rest:
        return "it ends too early"
    if error.msg.startswith(_OPEN):
        return f"this text has no closing quote on its line (here: {to_one_line(rest)[:30]})"
    plain = error.msg[0].lower() + error.msg[1:]
    return f"{plain} (here: {to_one_line(rest)[:30]})"


def _hint_for(line: str) -> str:
    text = line.strip()
    if text.endswith((",", "[")) or text.startswith(("[", "]")):
        return f"{JSON_LINES_HINT} A list in brackets belongs into a .json file."
    if "'" in text and '"' not in text:
        return f"{JSON_LINES_HINT} JSON has texts in double quotes."
    return JSON_LINES_HINT


# Records from Parquet and Arrow files, saved data sets and the hub, by the libraries that own these formats.
#
# None of them is required: where one is missing, one line says which. Importable without torch.

SAVED_DATASET_FILES = ("dataset_info.json", "state.json")
SAVED_SPLITS_FILE = "dataset_dict.json"
"""What `save_to_disk` of the library datasets leaves in a folder.
Source: https://huggingface.co/docs/datasets/process#save"""

DEFAULT_SPLIT = "train"

PARQUET_BATCH_ROWS = 1000
"""Rows that are taken from a Parquet file together."""

READ_ERRORS = (OSError, ValueError, KeyError, TypeError)
"""What these libraries raise for a file that was cut off or damaged; Arrow's own errors are kinds of the first two."""


def is_saved_dataset(folder: Path) -> bool:
    """Whether `folder` was written by `save_to_disk` of the library datasets."""
    return (folder / SAVED_SPLITS_FILE).is_file() or all((folder / name).is_file() for name in SAVED_DATASET_FILES)


def read_parquet_rows(path: Path) -> Iterator[tuple[Any, RecordLocation]]:
    """The rows of a Parquet file, a few at a time."""
    parquet = _library("pyarrow.parquet", f"{path}")
    batches = _opened(path, lambda: parquet.ParquetFile(path).iter_batches(batch_size=PARQUET_BATCH_ROWS))
    yield from _numbered((row for batch in batches for row in batch.to_pylist()), f"{path}")


def read_arrow_rows(path: Path) -> Iterator[tuple[Any, RecordLocation]]:
    """The rows of an Arrow file in either of its forms, as a stream or as a file."""
    arrow = _library("pyarrow", f"{path}")
    ipc = _library("pyarrow.ipc", f"{path}")
    with _opened(path, lambda: arrow.memory_map(f"{path}")) as source:
        try:
            reader = ipc.open_stream(source)
            batches = iter(reader)
        except arrow.ArrowInvalid:
            reader = _opened(path, lambda: ipc.open_file(source))
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        yield from _numbered((row for batch in batches for row in batch.to_pylist()), f"{path}")


def read_saved_dataset(folder: Path) -> Iterator[tuple[Any, RecordLocation]]:
    """The rows of a folder that `save_to_disk` wrote; of several splits, those of "train"."""
    datasets = _library("datasets", f"{folder}")
    found = _opened(folder, lambda: datasets.load_from_disk(f"{folder}"))
    if isinstance(found, dict):
        if DEFAULT_SPLIT not in found:
            raise DevkitError(
                f'{folder} has no split "{DEFAULT_SPLIT}"',
                f"Name the folder of one of its splits: {join_words((f'{folder / name}' for name in found), 'or')}.",
            )
        found = found[DEFAULT_SPLIT]
    yield from _numbered(iter(found), f"{folder}")


def read_hub_dataset(name: str) -> Iterator[tuple[Any, RecordLocation]]:
    """The rows of a data set on the hub: owner/name, or owner/name:split; without a split those of "train"."""
    repository, _, split = name.partition(":")
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise DevkitError(
            f"there is no file or folder {name}",
            "If it is a data set on the hub: pip install datasets, which reads it.",
        ) from error
    try:
        found = datasets.load_dataset(repository, split=split or DEFAULT_SPLIT)
    except Exception as error:
        refused = _hub_refusal(repository, error)
        if refused is None:
            raise
        raise refused from error
    yield from _numbered(iter(found), name)


def _hub_refusal(repository: str, error: Exception) -> DevkitError | None:
    """What `error` of the library datasets means, by what the hub answers; None for what is neither's fault."""
    from huggingface_hub import errors

    answer = _answer(repository)
    match answer:
        case None if isinstance(error, ValueError):
            return DevkitError(f"{repository}: {to_one_line(str(error))[:200]}", "Name a split as in owner/name:split.")
        case None:
            return None
        case errors.RepositoryNotFoundError() if not isinstance(answer, errors.GatedRepoError):
            return DevkitError(
                f"there is no file or folder {repository}, and no such data set on the hub",
                "Check the path. If the data set is private, log in with `hf auth login` or set HF_TOKEN.",
            )
        case errors.HfHubHTTPError():
            return explain_hub_error(HubRepository(repository, is_data=True), answer, nearest=())
        case _:
            return DevkitError(
                f"there is no file or folder {repository}, and the hub cannot be asked for it",
                "Check the path, or fetch the data set where there is a network and name its files.",
            )


def _answer(repository: str) -> Exception | None:
    """What the hub has against handing out this data set; None for nothing.

    Asked anew: the library datasets drops the answer and keeps a text that says the same of data sets that are gated
    and that are not there. Source: datasets 5.2, load.py, dataset_module_factory (`raise e1 from None`).
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(repository, "README.md", repo_type="dataset"))
    except errors.EntryNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError) as answer:
        return answer
    except Exception as answer:
        # The client of HTTP that the hub's library uses raises kinds of its own where there is no network.
        if "Connect" in type(answer).__name__ or "Timeout" in type(answer).__name__:
            return answer
        raise
    return None


def _library(name: str, wanted_for: str) -> Any:  # noqa: ANN401 - optional, and its types may not be installed
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise DevkitError(
            f"{wanted_for} is read by the package {package}, which is not installed",
            "pip install datasets, which brings all that is needed, or write the records as JSON lines.",
        ) from error


def _opened(path: Path, opening: Any) -> Any:  # noqa: ANN401 - what an optional library hands out
    try:
        return opening()
    except READ_ERRORS as error:
        raise _broken(f"{path}", error) from error


def _broken(source: str, error: Exception) -> DevkitError:
    cause = to_one_line(str(error))[:200] or type(error).__name__
    return DevkitError(f"{source} cannot be read: {cause}", "Check that it was written to its end.")


def _numbered(rows: Iterator[Any], source: str) -> Iterator[tuple[Any, RecordLocation]]:
    for number in count():
        try:
            row = next(rows)
        except StopIteration:
            return
        except READ_ERRORS as error:
            raise _broken(source, error) from error
        yield row, RecordLocation(source, number, "row")


READERS_BY_SUFFIX = {
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json_records,
    ".parquet": read_parquet_rows,
    ".arrow": read_arrow_rows,
}
"""Suffix -> who reads its entries."""

TEXT_SUFFIX = ".txt"
READABLE_SUFFIXES = (TEXT_SUFFIX, *READERS_BY_SUFFIX)

_UNPACKED_BY = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd", ".zip": "unzip"}
_TABLES = {".csv": "", ".tsv": ', sep="\\t"'}
"""What pandas is to be told beside the name of such a file."""

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:\w[\w.-]*)?")


@dataclass(frozen=True)
class DatasetSummary:
    """What the data holds. `empty` records have nothing to learn and are left out; `first_empty` says why of one."""

    records: int
    kinds: tuple[tuple[RecordKind, int], ...]
    sources: tuple[str, ...]
    empty: int = 0
    first_empty: str = ""

    def __str__(self) -> str:
        """In a line: 12 chat records in 1 source, 2 more left out with nothing to learn (the first: c.jsonl:3 ...)."""
        kinds = join_words(f"{number} {kind}" for kind, number in self.kinds)
        noun = "record" if self.records == 1 else "records"
        shown = f"{kinds} {noun} in {format_count(len(self.sources), 'source')}"
        again = [name for name, times in Counter(map(_really, self.sources)).items() if times > 1]
        if again:
            shown += f", {join_words(again)} more than once"
        if self.empty:
            shown += f", {self.empty} more left out with nothing to learn (the first: {self.first_empty})"
        return shown


class RecordReader:
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
        self._survey: DatasetSummary | None = None

    def __iter__(self) -> Iterator[Record]:
        """Raises DevkitError at the first record that is not right, and where there is nothing to learn at all."""
        kinds: Counter[RecordKind] = Counter()
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
        self._survey = DatasetSummary(
            records=kinds.total(),
            kinds=tuple(sorted(kinds.items())),
            sources=self.sources,
            empty=empty,
            first_empty=f"{first_empty.place} {_lack(first_empty)[0]}" if first_empty is not None else "",
        )

    def summarize(self) -> DatasetSummary:
        """What the last pass saw; without one, all is read for it. Raises as a pass does."""
        if self._survey is None:
            for _ in self:
                pass
        assert self._survey is not None  # noqa: S101 - a pass that ends has made it
        return self._survey


def _nothing_in(names: Sequence[str], empty: int, first: Record | None) -> DevkitError:
    if first is None:
        return DevkitError(
            f"there is nothing to learn from in {join_words(names)}: there is no record at all", RECORD_FORMATS_HINT
        )
    lack, hint = _lack(first)
    because = f"{first.place} {lack}" if empty == 1 else f"none of {empty} records has anything; {first.place} {lack}"
    return DevkitError(f"there is nothing to learn from in {join_words(names)}: {because}", hint)


def _lack(record: Record) -> tuple[str, str]:
    """What a record lacks of which nothing can be learned, and what to do about it."""
    match record:
        case TextRecord():
            return "holds no text", "Give a text with something in it."
        case PromptRecord():
            return "has an empty completion", "What is learned is the completion, after the prompt."
        case ChatRecord(messages=messages):
            roles = join_words(dict.fromkeys(to_one_line(each["role"])[:40] for each in messages))
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
        if path.suffix.lower() not in READABLE_SUFFIXES:
            raise DevkitError(f"{name} is of no kind that is read", _readable_hint(path))
        return [f"{path}"]
    if _HUB_ID.fullmatch(name) and Path(name).suffix.lower() not in READABLE_SUFFIXES:
        return [name]
    raise DevkitError(f"there is no file or folder {name}", _nearest(path))


def _require_target(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise DevkitError(f"{path} is a link to {path.readlink()}, which is not there", "Mend the link, or remove it.")


def _readable_hint(path: Path) -> str:
    """How a file of another kind becomes one that is read."""
    kinds = f"Readable are files that end in {join_words(READABLE_SUFFIXES, 'or')}."
    suffix = path.suffix.lower()
    if suffix in _UNPACKED_BY:
        return f"Unpack it first: {_UNPACKED_BY[suffix]} {path.name}\n{kinds}"
    if suffix in _TABLES:
        jsonl = path.with_suffix(".jsonl").name
        how = f'pandas.read_csv("{path.name}"{_TABLES[suffix]}).to_json("{jsonl}", orient="records", lines=True)'
        return f"As JSON lines: {how}\n{kinds}"
    return f"{kinds} A text by another name can be copied to one that ends in {TEXT_SUFFIX}."


def _nearest(path: Path) -> str:
    try:
        around = sorted(each.name for each in path.parent.iterdir())
    except OSError:
        return f"There is no folder {path.parent} either."
    near = [f"{path.parent / each}" for each in get_close_matches(path.name, around, n=3)]
    return f"Did you mean {join_words(near, 'or')}?" if near else "Check the path; a data set on the hub is owner/name."


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
            if suffix in READABLE_SUFFIXES:
                _require_target(Path(place) / file)
                found.append(f"{Path(place) / file}")
            else:
                others[suffix or "no suffix"] += 1
    if not found:
        shown = join_words(f"{number} with {suffix}" for suffix, number in others.most_common(5))
        holds = f"it holds files of other kinds: {shown}" if others else "it holds no file"
        raise DevkitError(
            f"there is nothing to read in {folder}: {holds}",
            f"Readable are files in {join_words(READABLE_SUFFIXES, 'or')}.",
        )
    return found


def _records_in(source: str) -> Iterator[Record]:
    path = Path(source)
    if path.is_dir():
        return _of_entries(read_saved_dataset(path))
    if not path.exists():
        return _of_entries(read_hub_dataset(source))
    suffix = path.suffix.lower()
    return _text(path) if suffix == TEXT_SUFFIX else _of_entries(READERS_BY_SUFFIX[suffix](path))


def _text(path: Path) -> Iterator[Record]:
    """A text file is one record, whatever ends its lines."""
    yield TextRecord("\n".join(line for _, line in read_text_lines(path)), RecordLocation(f"{path}"))


def _of_entries(entries: Iterable[tuple[Any, RecordLocation]]) -> Iterator[Record]:
    for entry, place in entries:
        yield parse_record(entry, place)


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
