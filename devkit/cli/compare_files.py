"""The reports that `devkit compare` is given: files, folders, lines of JSON, packed or not, read one at a time."""

import gzip
import json
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from devkit.errors import DevkitError

STDIN = "-"
MOST_BYTES = 64 << 20
"""The longest report: thousands of times what the doctor writes, and still no danger to a machine's memory."""

_ENDINGS = (".json", ".jsonl", ".ndjson")
_PACKED = ".gz"
_MAGIC = b"\x1f\x8b"
"""The first bytes of gzip. Source: RFC 1952, 2.3.1."""


class NotRead(Exception):  # noqa: N818 - told beside the others' results, or as the one error
    """A file or a line that holds no JSON; the text says why."""


@dataclass(frozen=True)
class Place:
    """Where a document stands: a file, and its line in a file of lines, 0 for the whole file."""

    file: int
    line: int


@dataclass(frozen=True)
class Found:
    """A document, or why there is none. `name` is its node's: said by the document, else by the file."""

    place: Place
    name: str
    document: Any
    problem: str = ""


class Reports:
    """All reports of some arguments, in order. What comes through a pipe is kept in a file: some are read twice."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._files = [file for argument in arguments for file in _files_of(argument)]
        self._names = _short_names(self._files)
        self._kept: dict[int, BinaryIO] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for kept in self._kept.values():
            kept.close()

    def __iter__(self) -> Iterator[Found]:
        """Every document, and every file or line that holds none."""
        for number, name in enumerate(self._names):
            place = Place(number, 0)
            try:
                with self._open(number) as stream:
                    for line, text in _texts(stream):
                        place = Place(number, line)
                        yield _found(place, f"{name}:{line}" if line else name, text)
            except (OSError, EOFError, zlib.error, NotRead) as error:
                yield Found(place, self._files[number], None, _reason(error))

    def again(self, places: Sequence[Place]) -> Iterator[tuple[Place, Any]]:
        """The documents at some places, once more. Raises DevkitError where a file changed in between."""
        wanted: dict[int, set[int]] = {}
        for place in places:
            wanted.setdefault(place.file, set()).add(place.line)
        for number, lines in wanted.items():
            try:
                with self._open(number) as stream:
                    for line, text in _texts(stream):
                        if line in lines:
                            yield Place(number, line), json.loads(text)
                        if line >= max(lines):
                            break
            except (OSError, EOFError, zlib.error, NotRead, ValueError) as error:
                changed = f"{self._files[number]} was changed while it was read"
                raise DevkitError(changed, "Compare again when nothing writes to it.") from error

    @contextmanager
    def _open(self, number: int) -> Iterator[BinaryIO]:
        file = self._files[number]
        if file != STDIN and Path(file).is_file():
            with Path(file).open("rb") as stream:
                yield _unpacked(stream)
            return
        if number not in self._kept:
            self._kept[number] = _kept(file)
        self._kept[number].seek(0)
        yield _unpacked(self._kept[number])


def _unpacked(stream: BinaryIO) -> BinaryIO:
    is_packed = stream.read(len(_MAGIC)) == _MAGIC
    stream.seek(0)
    return gzip.GzipFile(fileobj=stream) if is_packed else stream  # type: ignore[return-value]  # it reads as one


def _kept(file: str) -> BinaryIO:
    """What comes through a pipe, in a file of its own that nobody else sees."""
    kept = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the command
    if file == STDIN:
        shutil.copyfileobj(sys.stdin.buffer, kept)
    else:
        with Path(file).open("rb") as stream:
            shutil.copyfileobj(stream, kept)
    return kept


def _files_of(argument: str) -> list[str]:
    """The files that an argument names. Raises DevkitError where there are none."""
    path = Path(argument)
    if argument == STDIN or (path.exists() and not path.is_dir()):
        return [argument]
    if not path.is_dir():
        raise DevkitError(f"there is no file {argument}", "Name files or folders of reports; - is standard input.")
    found = sorted(str(each) for each in path.rglob("*") if each.is_file() and _is_report(each.name))
    if not found:
        raise DevkitError(
            f"{argument} holds no reports", f"Looked for files that end with {', '.join(_ENDINGS)} or .gz."
        )
    return found


def _is_report(name: str) -> bool:
    return name.removesuffix(_PACKED).endswith(_ENDINGS)


def _stem(name: str) -> str:
    name = name.removesuffix(_PACKED)
    ending = next((each for each in _ENDINGS if name.endswith(each) and name != each), "")
    return name.removesuffix(ending)


def _short_names(files: Sequence[str]) -> list[str]:
    """Each file's name without endings, with as many of its folders as tell it from the others."""
    parts = [[STDIN] if file == STDIN else [*Path(file).parts[:-1], _stem(Path(file).name)] for file in files]
    if len({each[-1] for each in parts}) == 1 and all(len(each) > 1 for each in parts) and len(parts) > 1:
        parts = [each[:-1] for each in parts]  # node-1/facts.json, node-2/facts.json
    names = [each[-1] for each in parts]
    for depth in range(2, max(map(len, parts), default=1) + 1):
        counts: dict[str, int] = {}
        for name in names:
            counts[name] = counts.get(name, 0) + 1
        if len(counts) == len(names):
            break
        names = ["/".join(own[-depth:]) if counts[name] > 1 else name for name, own in zip(names, parts, strict=True)]
    return names


def _texts(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Each document's text with its line, or 0 where the stream is one document. Raises NotRead."""
    first, second, number = _line(stream), _line(stream), 2
    while second and not second.strip():
        second, number = _line(stream), number + 1
    if not second or not _is_object(first):
        yield 0, _joined(first, second, stream)
        return
    yield 1, first
    line = second
    while line:
        if line.strip():
            yield number, line
        number, line = number + 1, _line(stream)


def _line(stream: BinaryIO) -> bytes:
    line = stream.readline(MOST_BYTES + 1)
    if len(line) > MOST_BYTES:
        raise NotRead(f"a line is longer than {MOST_BYTES >> 20} MiB, which no report is")
    return line


def _joined(first: bytes, second: bytes, stream: BinaryIO) -> bytes:
    rest = stream.read(MOST_BYTES + 1)
    if len(rest) > MOST_BYTES:
        raise NotRead(f"it is larger than {MOST_BYTES >> 20} MiB, which no report is")
    return first + second + rest


def _is_object(line: bytes) -> bool:
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _found(place: Place, name: str, text: bytes) -> Found:
    try:
        document = json.loads(text)
    except RecursionError:
        return Found(place, name, None, "not JSON: it is nested too deep")
    except ValueError as error:
        return Found(place, name, None, f"not JSON: {error}" if text.strip() else "it is empty")
    # Whoever collects reports adds it: it is no part of them, and their hash does not count it.
    node = document.pop("node", None) if isinstance(document, dict) else None
    return Found(place, node if isinstance(node, str) and node else name, document)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or "it ends too early"
