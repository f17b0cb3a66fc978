"""`devkit compare`: what differs between machines, and which one is the odd one out."""

import gzip
import json
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import click

from devkit.cli import exit_codes
from devkit.cli.output import OutputOptions, choose_marks, format_json, style_lines, write_output
from devkit.errors import DevkitError

if TYPE_CHECKING:
    from devkit.doctor.comparison.model import Comparison, ComparisonGroup
    from devkit.doctor.comparison.outliers import ComparisonBuilder

_HOW_TO_SAVE = (
    "Save one on each machine: devkit doctor --save-facts NODE.json, or devkit verify --here --output NODE.json"
)
_HOW_TO_GO_ON = f"{_HOW_TO_SAVE}\nWith --keep-going the others are compared without it."


@click.command()
@click.argument("reports", metavar="REPORT...", nargs=-1, required=True)
@click.option(
    "--all", "keeps_all", is_flag=True, help="Show what matters to no check, too: times, serials, heat, space."
)
@click.option("--keep-going", is_flag=True, help="Compare the others where a report cannot be read; ends with 1 then.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the answer to FILE instead of printing it.",
)
@click.pass_context
def compare(
    ctx: click.Context,
    *,
    reports: tuple[str, ...],
    keeps_all: bool,
    keep_going: bool,
    as_json: bool,
    output: Path | None,
) -> None:
    """Say what differs between machines, and which one is the odd one out.

    REPORT is a file of saved facts, of a report of doctor or verify, of such reports one a line, a folder of files, or
    - for standard input; packed with gzip or not. Ends with 0 when nothing differs that matters, and with 1 when
    something does.
    """
    from devkit.doctor.comparison.report import build_comparison_document, format_comparison

    with ReportReader(reports) as found:
        comparison = _compared(found, keeps_all=keeps_all, keep_going=keep_going)
    printing = OutputOptions("json" if as_json else "text", output, is_verbose=keeps_all)
    if as_json:
        text = format_json(build_comparison_document(comparison))
    else:
        width = shutil.get_terminal_size().columns
        lines = format_comparison(comparison, width=width, marks=choose_marks(printing), shows_all=keeps_all)
        text = style_lines(lines, is_plain=output is not None)
    write_output(text, printing)
    ctx.exit(exit_codes.ANSWER_IS_NO if comparison.has_differences else exit_codes.DONE)


def _compared(reports: "ReportReader", *, keeps_all: bool, keep_going: bool) -> "Comparison":
    from devkit.doctor.comparison.model import Comparison, UnreadableReport
    from devkit.doctor.comparison.outliers import ComparisonBuilder

    gathering = ComparisonBuilder(keeps_all=keeps_all)
    places: list[ReportLocation] = []
    names: dict[str, int] = {}
    unreadable: list[UnreadableReport] = []
    for found in reports:
        problem = found.problem or _added(gathering, found, names)
        if not problem:
            places.append(found.place)
        elif keep_going:
            unreadable.append(UnreadableReport(found.name, problem))
        else:
            raise DevkitError(f"{found.name} cannot be compared: {problem}", _HOW_TO_GO_ON)
    _require_two_of_a_kind(gathering)

    return Comparison(_finished(gathering, reports, places), tuple(unreadable))


def _finished(
    gathering: "ComparisonBuilder", reports: "ReportReader", places: "Sequence[ReportLocation]"
) -> "tuple[ComparisonGroup, ...]":
    from devkit.doctor.comparison.documents import InvalidReport

    def reread(numbers: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        number_of = {places[number]: number for number in numbers}
        yield from ((number_of[place], document) for place, document in reports.again(list(number_of)))

    try:
        return gathering.finish(reread)
    except InvalidReport as error:
        raise DevkitError(f"a report cannot be compared: {error}", _HOW_TO_SAVE) from error


def _added(gathering: "ComparisonBuilder", found: "ReadReport", names: dict[str, int]) -> str:
    """Count a document; why it cannot be, "" when it is. A node's second report gets a name of its own."""
    from devkit.doctor.comparison.documents import InvalidReport

    count = names.get(found.name, 0) + 1
    name = found.name if count == 1 else f"{found.name} #{count}"
    try:
        gathering.add(name, found.document, is_changed=_was_changed(found.document))
    except InvalidReport as error:
        return str(error)
    names[found.name] = count
    return ""


def _was_changed(document: object) -> bool:
    """Whether a report has a hash that is not its own."""
    from devkit.verify.report import HASH_FIELD, hash_document

    return isinstance(document, Mapping) and HASH_FIELD in document and document[HASH_FIELD] != hash_document(document)


def _require_two_of_a_kind(gathering: "ComparisonBuilder") -> None:
    counts = gathering.kinds
    if any(count > 1 for count in counts.values()):
        return
    said = ", ".join(f"{count} of {kind.value}" for kind, count in counts.items()) or "none that can be read"
    raise DevkitError(
        f"there are no two reports of one kind: {said}",
        "Facts are compared with facts, reports with reports of the same.",
    )


# The reports that `devkit compare` is given: files, folders, lines of JSON, packed or not, read one at a time.

STDIN = "-"
MAX_REPORT_BYTES = 64 << 20
"""The longest report: thousands of times what the doctor writes, and still no danger to a machine's memory."""

_ENDINGS = (".json", ".jsonl", ".ndjson")
_PACKED = ".gz"
_MAGIC = b"\x1f\x8b"
"""The first bytes of gzip. Source: RFC 1952, 2.3.1."""


class ReportReadError(Exception):
    """A file or a line that holds no JSON; the text says why."""


@dataclass(frozen=True)
class ReportLocation:
    """Where a document stands: a file, and its line in a file of lines, 0 for the whole file."""

    file: int
    line: int


@dataclass(frozen=True)
class ReadReport:
    """A document, or why there is none. `name` is its node's: said by the document, else by the file."""

    place: ReportLocation
    name: str
    document: Any
    problem: str = ""


class ReportReader:
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

    def __iter__(self) -> Iterator[ReadReport]:
        """Every document, and every file or line that holds none."""
        for number, name in enumerate(self._names):
            place = ReportLocation(number, 0)
            try:
                with self._open(number) as stream:
                    for line, text in _texts(stream):
                        place = ReportLocation(number, line)
                        yield _found(place, f"{name}:{line}" if line else name, text)
            except (OSError, EOFError, zlib.error, ReportReadError) as error:
                yield ReadReport(place, self._files[number], None, _reason(error))

    def again(self, places: Sequence[ReportLocation]) -> Iterator[tuple[ReportLocation, Any]]:
        """The documents at some places, once more. Raises DevkitError where a file changed in between."""
        wanted: dict[int, set[int]] = {}
        for place in places:
            wanted.setdefault(place.file, set()).add(place.line)
        for number, lines in wanted.items():
            try:
                with self._open(number) as stream:
                    for line, text in _texts(stream):
                        if line in lines:
                            yield ReportLocation(number, line), json.loads(text)
                        if line >= max(lines):
                            break
            except (OSError, EOFError, zlib.error, ReportReadError, ValueError) as error:
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
    line = stream.readline(MAX_REPORT_BYTES + 1)
    if len(line) > MAX_REPORT_BYTES:
        raise ReportReadError(f"a line is longer than {MAX_REPORT_BYTES >> 20} MiB, which no report is")
    return line


def _joined(first: bytes, second: bytes, stream: BinaryIO) -> bytes:
    rest = stream.read(MAX_REPORT_BYTES + 1)
    if len(rest) > MAX_REPORT_BYTES:
        raise ReportReadError(f"it is larger than {MAX_REPORT_BYTES >> 20} MiB, which no report is")
    return first + second + rest


def _is_object(line: bytes) -> bool:
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _found(place: ReportLocation, name: str, text: bytes) -> ReadReport:
    try:
        document = json.loads(text)
    except RecursionError:
        return ReadReport(place, name, None, "not JSON: it is nested too deep")
    except ValueError as error:
        return ReadReport(place, name, None, f"not JSON: {error}" if text.strip() else "it is empty")
    # Whoever collects reports adds it: it is no part of them, and their hash does not count it.
    node = document.pop("node", None) if isinstance(document, dict) else None
    return ReadReport(place, node if isinstance(node, str) and node else name, document)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or "it ends too early"
