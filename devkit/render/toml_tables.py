"""Settings from a TOML table whose keys are the settings' names, with the place of whatever is wrong."""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from devkit.errors import DevkitError
from devkit.facts.decode import InvalidValue, describe_type, get_field_decoders, get_field_types
from devkit.facts.settings import describe_settings, find_setting_type
from devkit.text import join_words

# Where a key stands in a TOML text: tomllib tells what it says, and not where.

_KEY = r"""(?:[\w-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEYS = re.compile(rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*(=|\])")
_PART = re.compile(_KEY)
_ERROR_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)")


def find_key_position(text: str, path: tuple[str, ...]) -> str:
    """LINE:COLUMN of the key at `path`, such as ("versions", "torch"), or of what holds it; "" when it is not found."""
    best, place = 0, ""
    for keys, found in _keys(text):
        if len(keys) > best and keys == path[: len(keys)]:
            best, place = len(keys), found
    return place


def split_toml_error(message: str, text: str) -> tuple[str, str]:
    """What tomllib has against a text, and LINE:COLUMN of it."""
    found = _ERROR_PLACE.search(message)
    if found is None:
        return message, ""
    lines = text.split("\n")
    place = f"{found[1]}:{found[2]}" if found[1] else f"{len(lines)}:{len(lines[-1]) + 1}"
    return _ERROR_PLACE.sub("", message), place


def _keys(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each header and key with its whole path and place; what stands inside of long strings is passed over."""
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
    """Where a table stands: the file as people name it, its text, and the keys that lead to the table."""

    shown_as: str
    text: str
    within: tuple[str, ...] = ()

    def at(self, *keys: str) -> str:
        """FILE:LINE:COLUMN of a key in the table, or FILE alone."""
        place = find_key_position(self.text, (*self.within, *keys))
        return f"{self.shown_as}:{place}" if place else self.shown_as


def parse_table(table: Mapping[str, Any], settings: type, source: TableSource) -> dict[str, Any]:
    """What the table sets, by name of setting. Raises DevkitError with line and column for unknown keys, wrong types.

    Keys may have dashes, as flags do, and a string may stand for a list of one.
    """
    found: dict[str, Any] = {}
    decoders = get_field_decoders(settings)
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in describe_settings(settings):
            close = difflib.get_close_matches(name, describe_settings(settings), n=1, cutoff=0.5)
            hint = (
                f"Did you mean {close[0]}?" if close else f"The settings are {join_words(describe_settings(settings))}."
            )
            raise DevkitError(f"{source.at(key)}: there is no setting {key!r}", hint)
        if name in found:
            raise DevkitError(f"{source.at(key)}: {name} is set twice", "Keep one of the two.")
        is_single = find_setting_type(settings, name) is tuple and isinstance(value, str)
        try:
            found[name] = decoders[name]([value] if is_single else value)
            if found[name] in ("", ()):
                raise InvalidValue(describe_type(get_field_types(settings)[name]), value)
        except InvalidValue as error:
            wanted, where = error.expected, source.at(key)
            raise DevkitError(f"{where}: {name} must be {wanted}, not {value!r}", f"Write it as {wanted}.") from None
    return found


# Values put into a TOML file of the user's: comments, order and spelling of everything else stay.

_MARK = "\ufeff"
_LONGEST_COMMENT = 100


def set_toml_values(
    content: bytes | None,
    values: Mapping[tuple[str, ...], object],
    comments: Mapping[tuple[str, ...], str],
    *,
    shown_as: str,
) -> bytes:
    """The file with `values` in the place of what stands at their paths, such as ("job", "gpus").

    `content` is TOML, None for no file yet. A new key gets its comment, a new table an empty line before it.
    Raises DevkitError where the file is written in a way that no value can be put into.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    text = (content or b"").decode()
    mark = _MARK if text.startswith(_MARK) else ""
    try:
        document = tomlkit.parse(text.removeprefix(mark))
        for path, value in values.items():
            _set_item(document, path, value, comments.get(path, ""))
        made = tomlkit.dumps(document)
        stands = all(_get_value(tomllib.loads(made), path) == value for path, value in values.items())
    except (TOMLKitError, ValueError, TypeError):
        stands = False
    if not stands:
        raise DevkitError(
            f"{shown_as} is written in a way that {_format_keys(values)} cannot be put into",
            f"Write the table as [{'.'.join(next(iter(values))[:-1])}] with a line for each setting.",
        )
    return (mark + made).encode()


def _set_item(document: Any, path: tuple[str, ...], value: object, comment: str) -> None:  # noqa: ANN401 - tomlkit's
    import tomlkit
    from tomlkit.items import InlineTable

    table = document
    for key in path[:-1]:
        table = _get_or_add_table(table, key)
    item = tomlkit.item(value)
    line = f"{path[-1]} = {item.as_string()}  # {comment}"
    is_inline = isinstance(table, InlineTable)
    if path[-1] not in table and comment and not is_inline and len(line) <= _LONGEST_COMMENT:
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
        raise TypeError(f"{key} is no table")
    return inner


def _get_value(document: Any, path: tuple[str, ...]) -> object:  # noqa: ANN401 - TOML's values
    for key in path:
        document = document.get(key) if isinstance(document, Mapping) else None
    found: object = document
    return found


def _format_keys(values: Mapping[tuple[str, ...], object]) -> str:
    return ", ".join(".".join(path) for path in values)
