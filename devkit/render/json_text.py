"""JSON for people: what fits on a line is on one line."""

import json

_COLUMNS = 120


def format_json(value: object, *, width: int = _COLUMNS, listed: int = 1, deepest: int = 99, level: int = 0) -> str:
    """Format a value as JSON, in lines where it does not fit into `width` columns.

    Args:
        listed: the levels whose entries have lines of their own, however short. Below, entries without entries of their
            own share lines.
        deepest: below this level a value is on one line, however long.
        level: the level of `value`.
    """
    line = json.dumps(value, ensure_ascii=False)
    is_short = level >= listed and 2 * level + len(line) <= width
    if not isinstance(value, dict | list) or not value or is_short or level > deepest:
        return line
    inner = {"width": width, "listed": listed, "deepest": deepest, "level": level + 1}
    if isinstance(value, dict):
        entries = [
            f"{json.dumps(key, ensure_ascii=False)}: {format_json(each, **inner)}" for key, each in value.items()
        ]
    else:
        entries = [format_json(each, **inner) for each in value]
    indent = "  " * level
    values = value.values() if isinstance(value, dict) else value
    if level >= listed and not any(isinstance(each, dict | list) for each in values):
        entries = _fill(entries, _COLUMNS - len(indent))
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    body = ",\n".join(f"{indent}  {entry}" for entry in entries)
    return f"{opening}\n{body}\n{indent}{closing}"


def _fill(entries: list[str], width: int) -> list[str]:
    lines = entries[:1]
    for entry in entries[1:]:
        if len(lines[-1]) + len(entry) + 4 <= width:
            lines[-1] += f", {entry}"
        else:
            lines.append(entry)
    return lines
