"""`devkit compare`: what differs between machines, and which one is the outlier.

Reports come as files, folders or lines of JSON, compressed or not, and are read one at a time.
"""

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

from devkit.cli.output import OutputOptions, choose_marks, format_json, style_lines, write_output
from devkit.cli.terminal import show_status
from devkit.errors import DevkitError, ExitCode
from devkit.reading import MAX_DOCUMENT_BYTES, MAX_PIPED_BYTES, read_chunks
from devkit.text import format_bytes

if TYPE_CHECKING:
    from devkit.doctor.comparison.model import Comparison
    from devkit.doctor.comparison.outliers import ComparisonBuilder

_HOW_TO_SAVE = (
    "Save one on each machine: devkit doctor --save-facts NODE.json, or devkit verify --here --output NODE.json"
)
_HOW_TO_CONTINUE = f"{_HOW_TO_SAVE}\nWith --keep-going the others are compared without it."

STDIN = "-"
MAX_REPORT_BYTES = MAX_DOCUMENT_BYTES
_CHUNK_BYTES = 1 << 20
_SUFFIXES = (".json", ".jsonl", ".ndjson")
_GZIP_SUFFIX = ".gz"
_GZIP_MAGIC = b"\x1f\x8b"
"""Source: RFC 1952, 2.3.1."""


@click.command()
@click.argument("reports", metavar="REPORT...", nargs=-1, required=True)
@click.option(
    "--all",
    "keeps_all",
    is_flag=True,
    help="Also show what matters to no check: times, serials, temperatures, free space.",
)
@click.option("--keep-going", is_flag=True, help="Compare the others where a report cannot be read; ends with 1 then.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--format", "style", type=click.Choice(["text", "json", "html"]), default="text", help="Text, JSON, or a page."
)
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the result to FILE instead of printing it.",
)
@click.pass_context
def compare(
    ctx: click.Context,
    *,
    reports: tuple[str, ...],
    keeps_all: bool,
    keep_going: bool,
    as_json: bool,
    style: str,
    output: Path | None,
) -> None:
    """Show what differs between machines, and which one is the outlier.

    REPORT is a file of saved facts, of a report of doctor or verify, or of such reports one a line; a folder of files;
    or - for standard input. Each may be compressed by gzip. Ends with 0 when nothing differs that matters, and with 1
    when something does.
    """
    from devkit.doctor.comparison.report import build_comparison_document, format_comparison

    with ReportReader(reports) as reader, show_status("comparing the reports"):
        comparison = _compare(reader, keeps_all=keeps_all, keep_going=keep_going)
    options = OutputOptions("json" if as_json else style, output, is_verbose=keeps_all)
    if options.style == "json":
        text = format_json(build_comparison_document(comparison))
    elif options.style == "html":
        from devkit.render.html import render_comparison_page

        text = render_comparison_page(build_comparison_document(comparison))
    else:
        width = shutil.get_terminal_size().columns
        lines = format_comparison(comparison, width=width, marks=choose_marks(options), shows_all=keeps_all)
        text = style_lines(lines, is_plain=output is not None)
    write_output(text, options)
    ctx.exit(ExitCode.ANSWER_IS_NO if comparison.has_differences else ExitCode.DONE)


def _compare(reader: "ReportReader", *, keeps_all: bool, keep_going: bool) -> "Comparison":
    from devkit.doctor.comparison.documents import InvalidReport
    from devkit.doctor.comparison.model import Comparison, UnreadableReport
    from devkit.doctor.comparison.outliers import ComparisonBuilder

    builder = ComparisonBuilder(keeps_all=keeps_all)
    locations: list[ReportLocation] = []
    names: dict[str, int] = {}
    unreadable: list[UnreadableReport] = []
    for report in reader:
        problem = report.problem or _add_report(builder, report, names)
        if not problem:
            locations.append(report.location)
        elif keep_going:
            unreadable.append(UnreadableReport(report.name, problem))
        else:
            raise DevkitError(f"{report.name} cannot be compared: {problem}", _HOW_TO_CONTINUE)
    if all(count < 2 for count in builder.kinds.values()):
        kinds = ", ".join(f"{count} of {kind.value}" for kind, count in builder.kinds.items())
        raise DevkitError(
            f"there are no two reports of one kind: {kinds or 'none that can be read'}",
            "Facts are compared with facts, reports with reports of the same.",
        )

    def reread(numbers: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        number_at = {locations[number]: number for number in numbers}
        yield from ((number_at[location], document) for location, document in reader.reread(list(number_at)))

    try:
        groups = builder.finish(reread)
    except InvalidReport as error:
        raise DevkitError(f"a report cannot be compared: {error}", _HOW_TO_SAVE) from error
    return Comparison(groups, tuple(unreadable))


def _add_report(builder: "ComparisonBuilder", report: "ReadReport", names: dict[str, int]) -> str:
    """Add a report; return why it cannot be compared, "" when it can. A node's second report gets its own name."""
    from devkit.doctor.comparison.documents import InvalidReport
    from devkit.verify.report import HASH_FIELD, hash_document

    document = report.document
    is_hashed = isinstance(document, Mapping) and HASH_FIELD in document
    count = names.get(report.name, 0) + 1
    name = report.name if count == 1 else f"{report.name} #{count}"
    try:
        builder.add(name, document, is_changed=is_hashed and document[HASH_FIELD] != hash_document(document))
    except InvalidReport as error:
        return str(error)
    names[report.name] = count
    return ""


class ReportReadError(Exception):
    """A file or a line holds no JSON; the message says why."""


@dataclass(frozen=True)
class ReportLocation:
    """A file, and the line in a file of JSON lines; 0 for the whole file."""

    file: int
    line: int


@dataclass(frozen=True)
class ReadReport:
    """A document, or the problem with it. `name` is its node's: that in the document, else that of the file."""

    location: ReportLocation
    name: str
    document: Any
    problem: str = ""


class ReportReader:
    """The reports that the arguments name, in order. Piped input is kept in a temporary file: some is read twice."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._files = [file for argument in arguments for file in _find_files(argument)]
        self._names = _shorten_names(self._files)
        self._copies: dict[int, BinaryIO] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for copy in self._copies.values():
            copy.close()

    def __iter__(self) -> Iterator[ReadReport]:
        """Yield every document, and every file or line that holds none."""
        for number, name in enumerate(self._names):
            location = ReportLocation(number, 0)
            try:
                with self._open(number) as stream:
                    for line, text in _split_documents(stream):
                        location = ReportLocation(number, line)
                        yield _parse_report(location, f"{name}:{line}" if line else name, text)
            except (OSError, EOFError, zlib.error, ReportReadError) as error:
                reason = error.strerror if isinstance(error, OSError) else None
                yield ReadReport(location, self._files[number], None, reason or str(error) or "it ends too early")

    def reread(self, locations: Sequence[ReportLocation]) -> Iterator[tuple[ReportLocation, Any]]:
        """Yield the documents at these locations again. Raises DevkitError where a file changed in between."""
        wanted: dict[int, set[int]] = {}
        for location in locations:
            wanted.setdefault(location.file, set()).add(location.line)
        for number, lines in wanted.items():
            try:
                with self._open(number) as stream:
                    for line, text in _split_documents(stream):
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
                yield _decompress(stream)
            return
        if number not in self._copies:
            self._copies[number] = _copy_to_temporary(file)
        self._copies[number].seek(0)
        yield _decompress(self._copies[number])


def _decompress(stream: BinaryIO) -> BinaryIO:
    is_compressed = stream.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    stream.seek(0)
    return gzip.GzipFile(fileobj=stream) if is_compressed else stream  # type: ignore[return-value]  # it reads as one


def _copy_to_temporary(file: str) -> BinaryIO:
    """Copy piped input to a temporary file without a name."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the command
    if file == STDIN:
        while chunk := sys.stdin.buffer.read(_CHUNK_BYTES):
            copy.write(chunk)
            if copy.tell() > MAX_PIPED_BYTES:
                raise ReportReadError(f"not read: larger than {format_bytes(MAX_PIPED_BYTES)}")
    else:
        for chunk in read_chunks(file, MAX_PIPED_BYTES):
            copy.write(chunk)
    return copy


def _find_files(argument: str) -> list[str]:
    """Return the files that an argument names. Raises DevkitError where there are none."""
    path = Path(argument)
    if argument == STDIN or (path.exists() and not path.is_dir()):
        return [argument]
    if not path.is_dir():
        raise DevkitError(f"there is no file {argument}", "Name files or folders of reports; - is standard input.")
    found = sorted(
        str(each)
        for each in path.rglob("*")
        if each.is_file() and each.name.removesuffix(_GZIP_SUFFIX).endswith(_SUFFIXES)
    )
    if not found:
        raise DevkitError(
            f"{argument} holds no reports", f"Looked for files that end with {', '.join(_SUFFIXES)} or .gz."
        )
    return found


def _remove_suffixes(name: str) -> str:
    name = name.removesuffix(_GZIP_SUFFIX)
    suffix = next((each for each in _SUFFIXES if name.endswith(each) and name != each), "")
    return name.removesuffix(suffix)


def _shorten_names(files: Sequence[str]) -> list[str]:
    """Return each file's name without suffixes, with as many of its folders as make it unique."""
    parts = [
        [STDIN] if file == STDIN else [*Path(file).parts[:-1], _remove_suffixes(Path(file).name)] for file in files
    ]
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


def _split_documents(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield each document's text with its line, 0 where the stream is one document. Raises ReportReadError."""
    first, second, number = _read_line(stream), _read_line(stream), 2
    while second and not second.strip():
        second, number = _read_line(stream), number + 1
    if not second or not _is_object(first):
        rest = stream.read(MAX_REPORT_BYTES + 1)
        if len(rest) > MAX_REPORT_BYTES:
            raise ReportReadError(f"it is larger than {MAX_REPORT_BYTES >> 20} MiB, which no report is")
        yield 0, first + second + rest
        return
    yield 1, first
    line = second
    while line:
        if line.strip():
            yield number, line
        number, line = number + 1, _read_line(stream)


def _read_line(stream: BinaryIO) -> bytes:
    line = stream.readline(MAX_REPORT_BYTES + 1)
    if len(line) > MAX_REPORT_BYTES:
        raise ReportReadError(f"a line is longer than {MAX_REPORT_BYTES >> 20} MiB, which no report is")
    return line


def _is_object(line: bytes) -> bool:
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _parse_report(location: ReportLocation, name: str, text: bytes) -> ReadReport:
    try:
        document = json.loads(text)
    except RecursionError:
        return ReadReport(location, name, None, "not JSON: it is nested too deep")
    except ValueError as error:
        return ReadReport(location, name, None, f"not JSON: {error}" if text.strip() else "it is empty")
    # Added when reports are collected: it is no part of them, and their hash does not cover it.
    node = document.pop("node", None) if isinstance(document, dict) else None
    return ReadReport(location, node if isinstance(node, str) and node else name, document)
