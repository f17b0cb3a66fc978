"""Readers of training records: from what `--data` names to records, one at a time. Importable without torch.

JSON errors are reported with file, line and column. Parquet, Arrow, saved data sets and the hub are read by the
libraries that own these formats; none of them is required, and where one is missing, the error names it.
"""

import importlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
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

TEXT_SUFFIX = ".txt"

JSON_LINES_HINT = "Every line of a .jsonl file is one JSON object, without commas or brackets between the lines."

RECORD_LIST_KEYS = ("data", "train", "records", "examples")
"""Keys under which a .json file that is one object may have its list of records."""

_OPEN = "Unterminated string"
"""The beginning of Python's message for a text without an end. Source: CPython, json/decoder.py."""

BYTE_ORDER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}

SAVED_DATASET_FILES = ("dataset_info.json", "state.json")
SAVED_SPLITS_FILE = "dataset_dict.json"
"""Files that `save_to_disk` of the library datasets leaves in a folder.
Source: https://huggingface.co/docs/datasets/process#save"""

DEFAULT_SPLIT = "train"

PARQUET_BATCH_ROWS = 1000

READ_ERRORS = (OSError, ValueError, KeyError, TypeError)
"""Errors of these libraries for a file that was cut off or damaged; Arrow's own errors derive from the first two."""

_UNPACKED_BY = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd", ".zip": "unzip"}
_TABLES = {".csv": "", ".tsv": ', sep="\\t"'}
"""Suffix of a table -> argument of pandas.read_csv after the file's name."""

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:\w[\w.-]*)?")

Entries = Iterator[tuple[Any, RecordLocation]]
"""Entries before they are parsed, with their locations."""


@dataclass(frozen=True)
class DatasetSummary:
    """Counts of the records. `empty` ones have nothing to train on and are left out; `first_empty` explains one."""

    records: int
    kinds: tuple[tuple[RecordKind, int], ...]
    sources: tuple[str, ...]
    empty: int = 0
    first_empty: str = ""

    def __str__(self) -> str:
        """Return one line: 12 chat records in 1 source, 2 more left out with nothing to train on (the first: ...)."""
        kinds = join_words(f"{number} {kind}" for kind, number in self.kinds)
        noun = "record" if self.records == 1 else "records"
        shown = f"{kinds} {noun} in {format_count(len(self.sources), 'source')}"
        files = [os.path.realpath(source) if Path(source).exists() else source for source in self.sources]
        repeated = [name for name, times in Counter(files).items() if times > 1]
        if repeated:
            shown += f", {join_words(repeated)} more than once"
        if self.empty:
            shown += f", {self.empty} more left out with nothing to train on (the first: {self.first_empty})"
        return shown


class RecordReader:
    """The records of all sources that have something to train on, in order, read anew with each iteration.

    A source is a file, a folder whose readable files are taken in the order of their names, a folder saved by the
    library datasets, or the id of a data set on the hub. Within one source all records are of one kind.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Find the sources. Raises DevkitError for a name of nothing."""
        if not names:
            raise DevkitError("no data is named", "Give --data FILE, a folder, or the id of a data set on the hub.")
        self._names = tuple(names)
        self.sources = tuple(source for name in names for source in _find_sources(name))
        self._summary: DatasetSummary | None = None

    def __iter__(self) -> Iterator[Record]:
        """Read all records. Raises DevkitError at the first invalid record, and where nothing can be trained on."""
        kinds: Counter[RecordKind] = Counter()
        empty, first_empty = 0, None
        for source in self.sources:
            for record in _require_one_kind(_read_source(source)):
                if record.is_empty:
                    empty, first_empty = empty + 1, first_empty or record
                else:
                    kinds[record.kind] += 1
                    yield record
        lack, hint = _explain_empty(first_empty) if first_empty is not None else ("", RECORD_FORMATS_HINT)
        if not kinds:
            cause = "there is no record at all"
            if first_empty is not None:
                cause = f"{first_empty.place} {lack}"
                cause = cause if empty == 1 else f"none of {empty} records has anything; {cause}"
            raise DevkitError(f"there is nothing to train on in {join_words(self._names)}: {cause}", hint)
        self._summary = DatasetSummary(
            records=kinds.total(),
            kinds=tuple(sorted(kinds.items())),
            sources=self.sources,
            empty=empty,
            first_empty=f"{first_empty.place} {lack}" if first_empty is not None else "",
        )

    def summarize(self) -> DatasetSummary:
        """Return the counts of the last iteration; without one, all records are read. Raises as an iteration does."""
        if self._summary is None:
            for _ in self:
                pass
        assert self._summary is not None  # noqa: S101 - set by every iteration that ends
        return self._summary


def _explain_empty(record: Record) -> tuple[str, str]:
    """Return what an empty record lacks, and a hint."""
    match record:
        case TextRecord():
            return "holds no text", "Give a text with something in it."
        case PromptRecord():
            return "has an empty completion", "Training is on the completion, after the prompt."
        case ChatRecord(messages=messages):
            roles = join_words(dict.fromkeys(to_one_line(each["role"])[:40] for each in messages))
            return (
                f'has no answer by "assistant", only turns by {roles}',
                'Training is on the messages whose role is "assistant".',
            )


def _require_one_kind(records: Iterable[Record]) -> Iterator[Record]:
    first: Record | None = None
    for record in records:
        first = first or record
        if record.kind is not first.kind:
            raise DevkitError(
                f"{record.place} is a {record.kind} record, and {first.place} is a {first.kind} record",
                "Keep one kind of record to a file; --data takes several files.",
            )
        yield record


def _find_sources(name: str) -> list[str]:
    path = Path(name).expanduser()
    if path.is_dir():
        return _find_sources_in(path)
    _require_link_target(path)
    if path.exists():
        if path.suffix.lower() not in READABLE_SUFFIXES:
            raise DevkitError(f"{name} is not of a kind that devkit reads", _conversion_hint(path))
        return [f"{path}"]
    if _HUB_ID.fullmatch(name) and Path(name).suffix.lower() not in READABLE_SUFFIXES:
        return [name]
    try:
        siblings = sorted(each.name for each in path.parent.iterdir())
    except OSError:
        raise DevkitError(f"there is no file or folder {name}", f"There is no folder {path.parent} either.") from None
    near = [f"{path.parent / each}" for each in get_close_matches(path.name, siblings, n=3)]
    hint = f"Did you mean {join_words(near, 'or')}?" if near else "Check the path; a data set on the hub is owner/name."
    raise DevkitError(f"there is no file or folder {name}", hint)


def _find_sources_in(folder: Path) -> list[str]:
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
                _require_link_target(Path(place) / file)
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


def _require_link_target(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise DevkitError(
            f"{path} is a link to {path.readlink()}, which does not exist", "Mend the link, or remove it."
        )


def _conversion_hint(path: Path) -> str:
    """Return a hint how a file of another kind becomes a readable one."""
    kinds = f"Readable are files that end in {join_words(READABLE_SUFFIXES, 'or')}."
    suffix = path.suffix.lower()
    if suffix in _UNPACKED_BY:
        return f"Unpack it first: {_UNPACKED_BY[suffix]} {path.name}\n{kinds}"
    if suffix in _TABLES:
        jsonl = path.with_suffix(".jsonl").name
        command = f'pandas.read_csv("{path.name}"{_TABLES[suffix]}).to_json("{jsonl}", orient="records", lines=True)'
        return f"As JSON lines: {command}\n{kinds}"
    return f"{kinds} A text by another name can be copied to one that ends in {TEXT_SUFFIX}."


def _read_source(source: str) -> Iterator[Record]:
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix == TEXT_SUFFIX and path.is_file():
        # A text file is one record, whatever ends its lines.
        yield TextRecord("\n".join(line for _, line in read_text_lines(path)), RecordLocation(f"{path}"))
        return
    if path.is_dir():
        entries = read_saved_dataset(path)
    elif path.exists():
        entries = READERS_BY_SUFFIX[suffix](path)
    else:
        entries = read_hub_dataset(source)
    for entry, place in entries:
        yield parse_record(entry, place)


def read_text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read a UTF-8 file line by line: numbers from 1, and lines without their ends or a byte order mark.

    Raises DevkitError, with the line, for a file that is not text.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise DevkitError(f"{path} cannot be read: {error.strerror}", "Check the path and its permissions.") from error
    with file:
        for number, raw in enumerate(file, start=1):
            if number == 1 and (encoding := BYTE_ORDER_MARKS.get(raw[:2])) is not None:
                raise DevkitError(
                    f"{path} is {encoding}, and must be UTF-8", f"iconv -f {encoding} -t UTF-8 {path.name}"
                )
            line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if b"\0" in line:
                raise DevkitError(
                    f"{path}:{number} holds a NUL byte",
                    "The file is binary, or was damaged when a disk filled up: write it again.",
                )
            try:
                yield number, line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                byte = f"byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line"
                raise DevkitError(
                    f"{path}:{number} is not UTF-8: {byte}", "Convert the file: iconv -f ORIGINAL-ENCODING -t UTF-8."
                ) from error


def read_json_lines(path: Path) -> Entries:
    """Read the entries of a file of JSON lines; blank lines are skipped. Raises DevkitError for the first bad line."""
    for number, line in read_text_lines(path):
        text = line.strip()
        if not text:
            continue
        hint = JSON_LINES_HINT
        if text.endswith((",", "[")) or text.startswith(("[", "]")):
            hint = f"{hint} A list in brackets belongs into a .json file."
        elif "'" in text and '"' not in text:
            hint = f"{hint} JSON has texts in double quotes."
        yield _parse_json(line, f"{path}:{number}", hint=hint), RecordLocation(f"{path}", number)


def read_json_records(path: Path) -> Entries:
    """Read the entries of a .json file: a list, one object with the list, a single record, or JSON lines."""
    lines = [line for _, line in read_text_lines(path)]
    beginning = next((line.strip() for line in lines if line.strip()), "")
    if not beginning.startswith("[") and _is_json(beginning) and sum(bool(line.strip()) for line in lines) > 1:
        yield from read_json_lines(path)
        return
    if not beginning:
        return
    document = _parse_json("\n".join(lines), f"{path}", hint="A .json file is a list of records.", by_line=True)
    if isinstance(document, dict):
        document = _find_record_list(document, path)
    if not isinstance(document, list):
        raise DevkitError(f"{path} holds no list of records", "Write [{...}, {...}], or one object a line.")
    for number, entry in enumerate(document, start=1):
        yield entry, RecordLocation(f"{path}", number, "record")


def _find_record_list(document: dict[str, Any], path: Path) -> list[Any]:
    """Return the records in one object, or the object itself if it is a record."""
    for name in RECORD_LIST_KEYS:
        if isinstance(document.get(name), list):
            return list(document[name])
    lists = [name for name, value in document.items() if isinstance(value, list) and value]
    if lists and document.keys().isdisjoint(RECORD_FIELDS):
        raise DevkitError(
            f'{path} is one object, with a list under "{to_one_line(lists[0])[:40]}"',
            f"A list of records is expected under {join_words(RECORD_LIST_KEYS, 'or')}: rename the key.",
        )
    return [document]


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _parse_json(text: str, where: str, *, hint: str, by_line: bool = False) -> Any:  # noqa: ANN401 - JSON holds anything
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        place = f"{where}:{error.lineno}:{error.colno}" if by_line else f"{where}:{error.colno}"
        rest = to_one_line(error.doc[error.pos :].strip())[:30]
        cause = f"{error.msg[0].lower()}{error.msg[1:]} (here: {rest})"
        if not rest:
            cause = "it ends too early"
        elif error.msg.startswith(_OPEN):
            cause = f"this text has no closing quote on its line (here: {rest})"
        if error.msg.startswith(_OPEN):
            hint = "A line break within a text is written \\n. Or the file was cut off here: write it again."
        raise DevkitError(f"{place}: not JSON: {cause}", hint) from error
    except RecursionError as error:
        raise DevkitError(f"{where}: nested too deeply to be a record", hint) from error
    except ValueError as error:
        raise DevkitError(f"{where}: {to_one_line(str(error))}", hint) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'the key "{to_one_line(twice)[:40]}" occurs twice in one object, so one value would be lost')
    return found


def read_parquet_rows(path: Path) -> Entries:
    """Read the rows of a Parquet file, a few at a time."""
    parquet = _import_library("pyarrow.parquet", f"{path}")
    batches = _open(path, lambda: parquet.ParquetFile(path).iter_batches(batch_size=PARQUET_BATCH_ROWS))
    yield from _number_rows((row for batch in batches for row in batch.to_pylist()), f"{path}")


def read_arrow_rows(path: Path) -> Entries:
    """Read the rows of an Arrow file in either of its formats, stream or file."""
    arrow = _import_library("pyarrow", f"{path}")
    ipc = _import_library("pyarrow.ipc", f"{path}")
    with _open(path, lambda: arrow.memory_map(f"{path}")) as source:
        try:
            reader = ipc.open_stream(source)
            batches = iter(reader)
        except arrow.ArrowInvalid:
            reader = _open(path, lambda: ipc.open_file(source))
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        yield from _number_rows((row for batch in batches for row in batch.to_pylist()), f"{path}")


def is_saved_dataset(folder: Path) -> bool:
    """Return True if `folder` was written by `save_to_disk` of the library datasets."""
    return (folder / SAVED_SPLITS_FILE).is_file() or all((folder / name).is_file() for name in SAVED_DATASET_FILES)


def read_saved_dataset(folder: Path) -> Entries:
    """Read the rows of a folder that `save_to_disk` wrote; of several splits, those of "train"."""
    datasets = _import_library("datasets", f"{folder}")
    found = _open(folder, lambda: datasets.load_from_disk(f"{folder}"))
    if isinstance(found, dict):
        if DEFAULT_SPLIT not in found:
            raise DevkitError(
                f'{folder} has no split "{DEFAULT_SPLIT}"',
                f"Name the folder of one of its splits: {join_words((f'{folder / name}' for name in found), 'or')}.",
            )
        found = found[DEFAULT_SPLIT]
    yield from _number_rows(iter(found), f"{folder}")


def read_hub_dataset(name: str) -> Entries:
    """Read the rows of a data set on the hub: owner/name, or owner/name:split; without a split those of "train"."""
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
        explained = _explain_dataset_error(repository, error)
        if explained is None:
            raise
        raise explained from error
    yield from _number_rows(iter(found), name)


def _explain_dataset_error(repository: str, error: Exception) -> DevkitError | None:
    """Explain an error of the library datasets by the hub's own response; None for an error of neither."""
    from huggingface_hub import errors

    response = _request_dataset(repository)
    match response:
        case None if isinstance(error, ValueError):
            return DevkitError(f"{repository}: {to_one_line(str(error))[:200]}", "Name a split as in owner/name:split.")
        case None:
            return None
        case errors.RepositoryNotFoundError() if not isinstance(response, errors.GatedRepoError):
            return DevkitError(
                f"there is no file or folder {repository}, and no such data set on the hub",
                "Check the path. If the data set is private, log in with `hf auth login` or set HF_TOKEN.",
            )
        case errors.HfHubHTTPError():
            return explain_hub_error(HubRepository(repository, is_data=True), response, nearest=())
        case _:
            return DevkitError(
                f"there is no file or folder {repository}, and the hub cannot be reached",
                "Check the path, or fetch the data set where there is a network and name its files.",
            )


def _request_dataset(repository: str) -> Exception | None:
    """Return the hub's error for a request of this data set; None for none.

    A new request, because the library datasets drops the response and keeps a text that is the same for data sets that
    are gated and that do not exist. Source: datasets 5.2, load.py, dataset_module_factory (`raise e1 from None`).
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(repository, "README.md", repo_type="dataset"))
    except errors.EntryNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError) as error:
        return error
    except Exception as error:
        # The HTTP client of the hub's library raises errors of its own where there is no network.
        if "Connect" in type(error).__name__ or "Timeout" in type(error).__name__:
            return error
        raise
    return None


def _import_library(name: str, wanted_for: str) -> Any:  # noqa: ANN401 - optional, and its types may not be installed
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise DevkitError(
            f"{wanted_for} is read by the package {package}, which is not installed",
            "pip install datasets, which installs all that is needed, or write the records as JSON lines.",
        ) from error


def _open(path: Path, opening: Callable[[], Any]) -> Any:  # noqa: ANN401 - what an optional library returns
    try:
        return opening()
    except READ_ERRORS as error:
        raise _unreadable(f"{path}", error) from error


def _number_rows(rows: Iterator[Any], source: str) -> Entries:
    for number in count():
        try:
            row = next(rows)
        except StopIteration:
            return
        except READ_ERRORS as error:
            raise _unreadable(source, error) from error
        yield row, RecordLocation(source, number, "row")


def _unreadable(source: str, error: Exception) -> DevkitError:
    cause = to_one_line(str(error))[:200] or type(error).__name__
    return DevkitError(f"{source} cannot be read: {cause}", "Check that it was written completely.")


READERS_BY_SUFFIX: dict[str, Callable[[Path], Entries]] = {
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json_records,
    ".parquet": read_parquet_rows,
    ".arrow": read_arrow_rows,
}

READABLE_SUFFIXES = (TEXT_SUFFIX, *READERS_BY_SUFFIX)
