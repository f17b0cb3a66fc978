"""TOML files of the user's: the positions of keys, which tomllib does not tell, settings of a table, and edits."""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from devkit.errors import DevkitError
from devkit.facts.decode import InvalidValue, describe_type, get_field_decoders, get_field_types
from devkit.facts.settings import SETTING_NAMES, describe_settings, find_setting_type, format_flag
from devkit.probe.documents import parse_toml
from devkit.text import find_similar, join_words, suggest

_KEY = r"""(?:[\w-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEYS = re.compile(rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*(=|\])")
_PART = re.compile(_KEY)
_SCALAR = re.compile(r"true|false|[+-]?\d[\d_.]*(?:[eE][+-]?\d+)?")
_ERROR_POSITION = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)")


def find_key_position(text: str, path: tuple[str, ...]) -> str:
    """Return LINE:COLUMN of the key at `path`, such as ("versions", "torch"), or of its table; "" when not found."""
    best, position = 0, ""
    for keys, found in _list_keys(text):
        if len(keys) > best and keys == path[: len(keys)]:
            best, position = len(keys), found
    return position


def split_toml_error(message: str, text: str) -> tuple[str, str]:
    """Split an error of tomllib into its message and LINE:COLUMN."""
    found = _ERROR_POSITION.search(message)
    if found is None:
        return message, ""
    lines = text.split("\n")
    position = f"{found[1]}:{found[2]}" if found[1] else f"{len(lines)}:{len(lines[-1]) + 1}"
    return _ERROR_POSITION.sub("", message), position


def parse_file(content: bytes, shown_as: str) -> tuple[str, dict[str, Any]]:
    """Return the text of a TOML file and its document. Raises DevkitError with line and column."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        lines = content[: error.start].split(b"\n")
        place = f"{shown_as}:{len(lines)}:{len(lines[-1]) + 1}"
        raise DevkitError(f"{place} is not TOML: it is not UTF-8", "Save the file as UTF-8.") from None
    try:
        return text, parse_toml(text)
    except ValueError as error:
        problem, position = split_toml_error(str(error), text)
        place = f"{shown_as}:{position}" if position else shown_as
        other = re.search(r"\.(ya?ml|json)$", shown_as)
        hint = (
            f'By its name it is {other[1].upper()}: write TOML, as in model = "NAME".'
            if other
            else "Correct that line."
        )
        raise DevkitError(f"{place} is not TOML: {problem}", hint) from None


def _list_keys(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each header and key with its whole path and position; multi-line strings are skipped."""
    section: tuple[str, ...] = ()
    fence = ""
    for number, line in enumerate(text.split("\n"), start=1):
        if fence:
            fence = "" if fence in line else fence
            continue
        bracket = line.lstrip().startswith("[")
        start = len(line) - len(line.lstrip().lstrip("[").lstrip())
        found = _KEYS.match(line, start)
        if found is not None and bracket == (found[2] == "]"):
            keys = tuple(part.strip("\"'") for part in _PART.findall(found[1]))
            section = keys if bracket else section
            yield (keys if bracket else (*section, *keys)), f"{number}:{found.start(1) + 1}"
        fence = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")


@dataclass(frozen=True)
class TableSource:
    """The origin of a table: the file's name for messages, its text, and the keys that lead to the table."""

    shown_as: str
    text: str
    within: tuple[str, ...] = ()

    def at(self, *keys: str) -> str:
        """Return FILE:LINE:COLUMN of a key in the table, or FILE alone."""
        position = find_key_position(self.text, (*self.within, *keys))
        return f"{self.shown_as}:{position}" if position else self.shown_as


def write_value(text: str, kind: type) -> str:
    """Write the value of a command line's KEY=VALUE as TOML, for a setting of this type: a list has commas."""
    is_plain = issubclass(kind, bool | int | float) and _SCALAR.fullmatch(text)
    if is_plain or text.lstrip().startswith(("[", "{", '"', "'")):
        return text
    return json.dumps(text.split(",") if kind is tuple else text, ensure_ascii=False)


def parse_table(table: Mapping[str, Any], settings: type, source: TableSource) -> dict[str, Any]:
    """Decode the settings of a table, by name. Raises DevkitError with line and column for unknown keys, wrong types.

    Keys may be spelled as flags are, and a string may replace a list of one.
    """
    found: dict[str, Any] = {}
    decoders = get_field_decoders(settings)
    for key, value in table.items():
        name = SETTING_NAMES.get(format_flag(key), key.replace("-", "_"))
        if name not in describe_settings(settings):
            known = describe_settings(settings)
            hint = suggest(find_similar(name, known, count=1), f"The settings are {join_words(known)}.")
            raise DevkitError(f"{source.at(key)}: the setting {key!r} does not exist", hint)
        if name in found:
            raise DevkitError(f"{source.at(key)}: {name} is set twice", "Remove one of them.")
        is_single = find_setting_type(settings, name) is tuple and isinstance(value, str)
        try:
            found[name] = decoders[name]([value] if is_single else value)
            if found[name] in ("", ()):
                raise InvalidValue(describe_type(get_field_types(settings)[name]), value)
        except InvalidValue as error:
            wanted, where = error.expected, source.at(key)
            raise DevkitError(f"{where}: {name} must be {wanted}, not {value!r}", f"Write it as {wanted}.") from None
    return found


def parse_assignments(texts: Iterable[str], *kinds: type, is_toml: bool = False, without: str = "") -> dict[str, Any]:
    """Parse KEY=VALUE of --set into settings of the classes `kinds`; what is given twice is a list of both.

    With `is_toml`, a value may be TOML, and a list has commas; otherwise texts are taken as they are. Raises DevkitError,
    also for the setting `without`, which is given otherwise.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        name = key.strip().replace("-", "_")
        kind = next((each for each in kinds if name in describe_settings(each) and name != without), None)
        if kind is None or not value:
            known = {each: None for kind in kinds for each in describe_settings(kind)}
            problem = "expected KEY=VALUE" if kind else f"{name} is not a setting"
            hint = suggest(() if kind else find_similar(name, known), f"Known keys: {', '.join(known)}.")
            raise DevkitError(f"invalid --set {text}: {problem}", hint)
        setting_type = find_setting_type(kind, name)
        if is_toml or issubclass(setting_type, int | float):
            written = write_value(value, setting_type)
        else:
            written = json.dumps(value, ensure_ascii=False)
        try:
            document = parse_toml(f"{name} = {written}")
        except ValueError as error:
            raise DevkitError(f"invalid --set {text}: {error}", describe_settings(kind)[name][1].meaning) from None
        made = parse_table(document, kind, TableSource(f"invalid --set {text}", ""))
        found[name] = (*found.get(name, ()), *made[name]) if setting_type is tuple else made[name]
    return found


_BOM = "\ufeff"
_MAX_COMMENTED_LINE = 100


def set_toml_values(
    content: bytes | None,
    values: Mapping[tuple[str, ...], object],
    comments: Mapping[tuple[str, ...], str],
    *,
    shown_as: str,
) -> bytes:
    """Set values at their paths, such as ("job", "gpus"); comments, order and spelling of everything else stay.

    `content` is TOML, None for no file yet. A new key gets its comment, a new table an empty line before it.
    Raises: DevkitError for a layout into which no value can be put.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    text = (content or b"").decode()
    bom = _BOM if text.startswith(_BOM) else ""
    try:
        document = tomlkit.parse(text.removeprefix(bom))
        for path, value in values.items():
            _set_item(document, path, value, comments.get(path, ""))
        edited = tomlkit.dumps(document)
        is_set = all(_get_value(tomllib.loads(edited), path) == value for path, value in values.items())
    except (TOMLKitError, ValueError, TypeError):
        is_set = False
    if not is_set:
        raise DevkitError(
            f"{shown_as} is written in a way that {', '.join('.'.join(path) for path in values)} cannot be put into",
            f"Write the table as [{'.'.join(next(iter(values))[:-1])}] with a line for each setting.",
        )
    return (bom + edited).encode()


def _set_item(document: Any, path: tuple[str, ...], value: object, comment: str) -> None:  # noqa: ANN401 - tomlkit's
    import tomlkit
    from tomlkit.items import InlineTable

    table = document
    for key in path[:-1]:
        table = _get_or_add_table(table, key)
    item = tomlkit.item(value)
    line = f"{path[-1]} = {item.as_string()}  # {comment}"
    is_inline = isinstance(table, InlineTable)
    if path[-1] not in table and comment and not is_inline and len(line) <= _MAX_COMMENTED_LINE:
        item.comment(comment)
        item.trivia.comment_ws = "  "
    table[path[-1]] = item


def _get_or_add_table(table: Any, key: str) -> Any:  # noqa: ANN401 - tomlkit's
    import tomlkit
    from tomlkit.items import InlineTable

    if key not in table:
        if isinstance(table, InlineTable):
            table[key] = tomlkit.inline_table()
            return table[key]
        if table and not str(table.as_string()).endswith("\n\n"):
            table.add(tomlkit.nl())
        table.append(key, tomlkit.table())
    inner = table[key]
    if not isinstance(inner, MutableMapping):
        raise TypeError(f"{key} is not a table")
    return inner


def _get_value(document: Any, path: tuple[str, ...]) -> object:  # noqa: ANN401 - TOML's values
    for key in path:
        document = document.get(key) if isinstance(document, Mapping) else None
    found: object = document
    return found
