"""Values put into a TOML file of the user's: comments, order and spelling of everything else stay."""

import tomllib
from collections.abc import Mapping, MutableMapping
from typing import Any

from devkit.errors import DevkitError

_MARK = "\ufeff"
_LONGEST_COMMENT = 100


def with_values(
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
            _put(document, path, value, comments.get(path, ""))
        made = tomlkit.dumps(document)
        stands = all(_found(tomllib.loads(made), path) == value for path, value in values.items())
    except (TOMLKitError, ValueError, TypeError):
        stands = False
    if not stands:
        raise DevkitError(
            f"{shown_as} is written in a way that {_listed(values)} cannot be put into",
            f"Write the table as [{'.'.join(next(iter(values))[:-1])}] with a line for each setting.",
        )
    return (mark + made).encode()


def _put(document: Any, path: tuple[str, ...], value: object, comment: str) -> None:  # noqa: ANN401 - tomlkit's
    import tomlkit
    from tomlkit.items import InlineTable

    table = document
    for key in path[:-1]:
        table = _inner(table, key)
    item = tomlkit.item(value)
    line = f"{path[-1]} = {item.as_string()}  # {comment}"
    is_inline = isinstance(table, InlineTable)
    if path[-1] not in table and comment and not is_inline and len(line) <= _LONGEST_COMMENT:
        item.comment(comment)
        item.trivia.comment_ws = "  "
    table[path[-1]] = item


def _inner(table: Any, key: str) -> Any:  # noqa: ANN401 - tomlkit's
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


def _found(document: Any, path: tuple[str, ...]) -> object:  # noqa: ANN401 - TOML's values
    for key in path:
        document = document.get(key) if isinstance(document, Mapping) else None
    found: object = document
    return found


def _listed(values: Mapping[tuple[str, ...], object]) -> str:
    return ", ".join(".".join(path) for path in values)
