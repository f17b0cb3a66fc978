"""Where a key stands in a TOML text: tomllib tells what it says, and not where."""

import re
from collections.abc import Iterator

_KEY = r"""(?:[\w-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEYS = re.compile(rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*(=|\])")
_PART = re.compile(_KEY)
_ERROR_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)")


def place_of(text: str, path: tuple[str, ...]) -> str:
    """LINE:COLUMN of the key at `path`, such as ("versions", "torch"), or of what holds it; "" when it is not found."""
    best, place = 0, ""
    for keys, found in _keys(text):
        if len(keys) > best and keys == path[: len(keys)]:
            best, place = len(keys), found
    return place


def split_error(message: str, text: str) -> tuple[str, str]:
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
