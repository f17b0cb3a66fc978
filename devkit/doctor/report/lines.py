"""Lines of terminal output, each with a tone."""

from dataclasses import dataclass
from enum import StrEnum

from devkit.text import escape_text, wrap_text

MIN_WIDTH = 40
MAX_WIDTH = 100


class Tone(StrEnum):
    """The color of a line. The words alone carry the meaning."""

    PLAIN = "plain"
    BAD = "bad"
    WARN = "warn"
    GOOD = "good"
    UNKNOWN = "unknown"
    QUIET = "quiet"
    COMMAND = "command"


@dataclass(frozen=True)
class Line:
    """One printed line and its tone. What a terminal or a CI log would act on is escaped in it."""

    text: str
    tone: Tone = Tone.PLAIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", escape_text(self.text))


@dataclass(frozen=True)
class Marks:
    """The glyphs in front of lines."""

    error: str
    warning: str
    note: str
    passed: str
    skipped: str
    unknown: str = "?"
    dot: str = "·"


UNICODE_MARKS = Marks(error="✗", warning="!", note="i", passed="✓", skipped="–")  # noqa: RUF001 - a dash, meant
ASCII_MARKS = Marks(error="x", warning="!", note="i", passed="+", skipped="-", dot="-")


def fold_lines(text: str, width: int, *, indent: str = "", tone: Tone = Tone.PLAIN) -> list[Line]:
    """Wrap a text into lines of one tone."""
    return [Line(line, tone) for line in wrap_text(text, width=width, indent=indent).split("\n")]
