"""Text for people: bytes, durations, counts, lists, wrapping and tables; the only place that formats them."""

import codecs
import re
import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime

MAX_CHARACTERS = 1000
ESCAPE_ERRORS = "devkit.escape"
"""The name under which `escape_unencodable` is registered as a codec's error handler."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")
"""Everything that ends a line, moves the cursor, sets colors or turns the direction of writing."""
_CI_COMMAND = re.compile(
    r"(?m)(?<!\S)(?=::(?:error|warning|notice|debug|group|endgroup|echo|(?:add|remove|set|save|stop)-))|(?<=#)(?=#(?:vso)?\[)"
)
"""Where a log of GitHub or Azure would read a command: folding a text may put any word at the beginning of a line."""

MIN_SIMILARITY = 0.7
"""Share of letters that a misspelled name has in common with the one that was meant."""
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)?")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def escape_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Write what an encoding lacks as \\u00b0, which JSON reads, too; Python's own handler writes \\xb0.

    Raises the error itself if it is not about encoding.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    units = (int.from_bytes(lacking[at : at + 2]) for at in range(0, len(lacking), 2))
    return "".join(f"\\u{unit:04x}" for unit in units), error.end


codecs.register_error(ESCAPE_ERRORS, escape_unencodable)


def to_one_line(text: str) -> str:
    """Return text from outside as one line that is safe for a terminal, cut after a thousand characters."""
    plain = _CONTROL.sub(" ", text).strip() if _CONTROL.search(text) else text
    plain = escape_ci_commands(plain)
    return plain if len(plain) <= MAX_CHARACTERS else f"{plain[: MAX_CHARACTERS - 1]}…"


def escape_ci_commands(text: str) -> str:
    """Escape what the log of a CI system would take for a command."""
    return _CI_COMMAND.sub(r"\\", text)


def escape_controls(text: str) -> str:
    """Escape what a terminal would act on or no encoding has, as in \\x1b; cut like `to_one_line`."""
    shown = text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
    shown = "".join(char if char.isprintable() or char == "\t" else ascii(char)[1:-1] for char in shown)
    return escape_ci_commands(shown)


def escape_text(text: str) -> str:
    """Escape what a terminal would act on, or would show elsewhere, and keep the lines; never cut."""
    text = _CONTROL.sub(lambda found: "".join(char if char in "\n\t" else ascii(char)[1:-1] for char in found[0]), text)
    return escape_ci_commands(text)


def find_similar(typed: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """Return the names that a misspelled, scrambled or shortened one resembles, best first, whatever its case; often none.

    A wrong suggestion costs more than none: `version` is not `verify`, and `start` is not `estimate`.
    """
    from difflib import get_close_matches  # only a name that is unknown is compared with all

    typed, by_lower = typed.lower(), {each.lower(): each for each in known}
    close = get_close_matches(typed, by_lower, count, MIN_SIMILARITY)
    close += [each for each in by_lower if sorted(each) == sorted(typed) or (each.startswith(typed) and typed[2:])]
    # A numeronym, such as k8s, has the number of letters between the first and the last.
    close += [each for each in by_lower if typed == f"{each[:1]}{len(each) - 2}{each[-1:]}"]
    return [by_lower[each] for each in dict.fromkeys(close)][:count]


def suggest(near: Sequence[str], otherwise: str) -> str:
    """Return the hint for a name that is unknown: what was probably meant, or else what to do."""
    return f"Did you mean {join_words(near, 'or')}?" if near else otherwise


def format_bytes(count: int) -> str:
    """Format bytes in powers of two: 512 B, 64 MiB, 139.8 GiB."""
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    shown = f"{value:.1f}".removesuffix(".0")
    return f"{shown} {unit}"


def format_duration(seconds: float) -> str:
    """Format a duration: 0.4 s, 12 s, 3 min 05 s."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def format_count(number: int, singular: str, plural: str | None = None) -> str:
    """Format a number with its noun: 1 problem, 2 problems."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def count_days(earlier: str, later: str) -> int:
    """Count the days from one ISO 8601 date to another; negative when they are the other way round."""
    return (date.fromisoformat(later) - date.fromisoformat(earlier)).days


def compute_seconds_between(earlier: str, later: str) -> int | None:
    """Compute the seconds from the first ISO 8601 time in `earlier` to that in `later`; None where either has none.

    A date alone means midnight, and a time without a zone is taken for UTC.
    """
    found = [_TIMESTAMP.search(text) for text in (earlier, later)]
    try:
        start, end = (datetime.fromisoformat(each[0] if each else "") for each in found)
    except ValueError:
        return None
    start, end = (each if each.tzinfo else each.replace(tzinfo=UTC) for each in (start, end))
    return int((end - start).total_seconds())


def join_words(items: Iterable[str], last: str = "and") -> str:
    """Join items for a sentence: a, b and c."""
    rest = list(items)
    if len(rest) < 2:
        return "".join(rest)
    return f"{', '.join(rest[:-1])} {last} {rest[-1]}"


def join_some(items: Sequence[str], limit: int = 8) -> str:
    """Join the first items for a sentence, and count the others."""
    more = len(items) - limit
    return join_words(items if more <= 0 else [*items[:limit], f"{more} more"])


def wrap_text(text: str, *, width: int, indent: str = "", hanging: str = "") -> str:
    """Fold text, escaped, to `width` columns, with `hanging` before every line but the first; long words stay whole."""
    return textwrap.fill(
        escape_text(text),
        width=width,
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def format_table(rows: Sequence[Sequence[str]], *, indent: str = "", width: int = 0) -> str:
    """Format rows in columns, each as wide as its widest cell; the last one is folded to `width`, 0 for no limit."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    hanging = " " * min(len(indent) + sum(widths[:-1]) + 2 * len(widths[:-1]), width // 2)
    lines = []
    for row in rows:
        cells = [cell.ljust(each) for cell, each in zip(row[:-1], widths, strict=False)]
        line = escape_text(indent + "  ".join([*cells, row[-1]])).rstrip()
        lines.append(wrap_text(line, width=width, hanging=hanging) if width else line)
    return "\n".join(lines)


def format_number(value: float) -> str:
    """Format a measured number to three digits: 0.000254, 7.22, 1.6e-07, nan."""
    return f"{value:.3g}"
