"""Takes the noise out of pasted text: colours, time stamps, names in front of lines, escapes, quotation marks."""

import re
from collections.abc import Iterable

HEAD = 512 * 1024
TAIL = 1536 * 1024
"""How many characters of the beginning and of the end of a long text are looked at."""

SHORTEST_PREFIXED = 3

_ANSI = re.compile(r"(?:\x1b|\^\[|\\u001b|\\x1b|\\033)(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b]{0,300}(?:\x07|\x1b\\))")
_BARE_COLOUR = re.compile(r"\[(?:\d{1,3}(?:;\d{1,3}){0,4}m|m(?!\w))")
_PREFIX = re.compile(
    r"^(?:"
    r"(?:>[ ]?){1,9}"  # a quotation in mail or Markdown
    r"|#\d{1,4} \d{1,6}\.\d{1,6} "  # BuildKit
    r"|[\w.-]{1,80} {0,40}\| "  # Compose
    r"|[│║▏┃╎] ?"
    r"|<\d{1,3}>"  # syslog's priority
    r"|(?:stdout|stderr) [FP] "  # Kubernetes
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,:+Z-]{0,16} "
    r"|\[ {0,8}\d{1,9}\.\d{6}\] "  # the kernel's clock
    r"|NVRM: "  # the driver, at the start of each line of one message
    r")"
)
_FRAME_END = re.compile(r"[ ]?[│║▕┃╎]$")
_MARKS = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " ", "\u200b": "", "\ufeff": "", "\0": "",
    "\u2026": "...",
})  # fmt: skip
_ESCAPED = re.compile(r"(?<!\\)\\{1,40}+(?:r\\{1,40}n|[nrt\"'`])")
_ESCAPES = (
    ("\\u0026", "&"), ("\\u003e", ">"), ("\\u003c", "<"), ("&gt;", ">"), ("&lt;", "<"), ("&quot;", '"'), ("&#39;", "'"),
    ("&#x27;", "'"), ("&amp;", "&"),
)  # fmt: skip


def clipped(text: str) -> str:
    """`text`, or its beginning and end where it is too long to be read as a whole."""
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n{text[-TAIL:]}"


def cleaned(text: str) -> str:
    """The words of `text` on one line, with single blanks. Wrapped lines thereby read as they were written."""
    return " ".join(_lines(clipped(text)))


def _lines(text: str) -> Iterable[str]:
    if not text.isascii():
        text = text.translate(_MARKS)
    text = _ANSI.sub("", text)
    for escape, plain in _ESCAPES:
        text = text.replace(escape, plain)
    if "\\" in text:
        text = _ESCAPED.sub(_unescaped, text)
    text = _BARE_COLOUR.sub("", text)
    for line in text.splitlines():
        words = " ".join(line.split())
        if len(words) > SHORTEST_PREFIXED:
            yield _bare(words)
        elif words:
            yield words


def _unescaped(found: re.Match[str]) -> str:
    """What an escape stands for, however often it was escaped: \\n in JSON within a message within a message."""
    last = found[0][-1]
    return last if last in "\"'`" else "\n" if last in "nr" else " "


def _bare(line: str) -> str:
    """The line without what tools put in front of it; at most three of such prefixes."""
    for _ in range(3):
        shorter = _PREFIX.sub("", line, count=1)
        if shorter == line:
            break
        line = shorter
    return _FRAME_END.sub("", line)
