"""JSON and JSON lines, read so that whatever is wrong is named by file, line and column. Importable without torch."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.text import listed, on_one_line
from devkit.workload.finetune.records import FIELDS, Place

LINES_HINT = "Every line of a .jsonl file is one JSON object, without commas or brackets between the lines."
WRAPPED_IN = ("data", "train", "records", "examples")
"""Where a .json file that is one object keeps its list of records."""

_OPEN = "Unterminated string"
"""How Python's reader begins to say that a text does not end. Source: CPython, json/decoder.py."""

BYTE_ORDER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
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


def json_lines(path: Path) -> Iterator[tuple[Any, Place]]:
    """What stands on each line that is not blank, and where. Raises DevkitError at the first line that is not JSON."""
    for number, line in text_lines(path):
        if line.strip():
            yield _parsed(line, f"{path}:{number}", hint=_hint_for(line)), Place(f"{path}", number)


def json_entries(path: Path) -> Iterator[tuple[Any, Place]]:
    """The records of a .json file: a list of them, one object that holds the list, a single record, or JSON lines."""
    lines = [line for _, line in text_lines(path)]
    beginning = next((line.strip() for line in lines if line.strip()), "")
    if not beginning.startswith("[") and _is_whole(beginning) and sum(bool(line.strip()) for line in lines) > 1:
        yield from json_lines(path)
        return
    if not beginning:
        return
    document = _parsed("\n".join(lines), f"{path}", hint="A .json file is a list of records.", by_line=True)
    if isinstance(document, dict):
        document = _unwrapped(document, path)
    if not isinstance(document, list):
        raise DevkitError(f"{path} holds no list of records", "Write [{...}, {...}], or one object a line.")
    for number, entry in enumerate(document, start=1):
        yield entry, Place(f"{path}", number, "record")


def _unwrapped(document: dict[str, Any], path: Path) -> list[Any]:
    """The records in one object; the object, where it is a record itself."""
    for name in WRAPPED_IN:
        if isinstance(document.get(name), list):
            return list(document[name])
    lists = [name for name, value in document.items() if isinstance(value, list) and value]
    if lists and document.keys().isdisjoint(FIELDS):
        raise DevkitError(
            f'{path} is one object, with a list under "{on_one_line(lists[0])[:40]}"',
            f"A list of records is looked for under {listed(WRAPPED_IN, 'or')}: call it one of these.",
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
        raise DevkitError(f"{where}: {on_one_line(str(error))}", hint) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f'the key "{on_one_line(twice)[:40]}" stands twice in one object, and only one value could be learned'
        )
    return found


def _cause(error: json.JSONDecodeError) -> str:
    rest = error.doc[error.pos :].strip()
    if not rest:
        return "it ends too early"
    if error.msg.startswith(_OPEN):
        return f"this text has no closing quote on its line (here: {on_one_line(rest)[:30]})"
    plain = error.msg[0].lower() + error.msg[1:]
    return f"{plain} (here: {on_one_line(rest)[:30]})"


def _hint_for(line: str) -> str:
    text = line.strip()
    if text.endswith((",", "[")) or text.startswith(("[", "]")):
        return f"{LINES_HINT} A list in brackets belongs into a .json file."
    if "'" in text and '"' not in text:
        return f"{LINES_HINT} JSON has texts in double quotes."
    return LINES_HINT
