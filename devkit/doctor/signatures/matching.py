"""Finds the known errors in a text, and puts the one that explains the others first."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

from devkit.doctor.model import Confidence, Severity
from devkit.doctor.signatures.model import Match, Signature
from devkit.doctor.signatures.patterns import Pattern, compile_pattern
from devkit.facts.values import record

# Takes the noise out of pasted text: colours, time stamps, names in front of lines, escapes, quotation marks.

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


def clip_middle(text: str) -> str:
    """`text`, or its beginning and end where it is too long to be read as a whole."""
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n{text[-TAIL:]}"


def strip_noise(text: str) -> str:
    """The words of `text` on one line, with single blanks. Wrapped lines thereby read as they were written."""
    return " ".join(_lines(clip_middle(text)))


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


NEAR = 600
"""How far around a match, in characters, `beside` and `unless` are looked for."""
LONGEST_SHOWN = 240
LONGEST_BROKEN = 64 * 1024
"""Only what one can paste from a terminal is searched for words broken in the middle."""
SURE_WITHOUT_BLANKS = 24
"""Fixed characters that a pattern needs before it is trusted where blanks are gone."""

_SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.NOTE)
_CONFIDENCES = (Confidence.CERTAIN, Confidence.LIKELY, Confidence.POSSIBLE)


@record
class _Text:
    """A text to search: as it is shown, and in lower case with the same positions."""

    shown: str
    lowered: str


def _text(words: str) -> _Text:
    # ASCII alone is put in lower case: other letters may change their number on the way.
    return _Text(words, words.encode("ascii", "replace").lower().decode("ascii"))


def search_text(
    text: str, table: Iterable[Signature], *, causes: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[Match, ...]:
    """The known errors in `text`, best first: one for each code.

    A match that `causes` (code -> codes that follow from it) derives from another stands behind it and names it. Then
    the heavier, the surer, and the later in the text come first: the last line of a traceback says more than the
    warnings before it.
    """
    table = tuple(table)
    words = strip_noise(text)
    matches = _search(_text(words), table, is_squeezed=False)
    if not matches and len(words) <= LONGEST_BROKEN:
        # A narrow terminal breaks lines within words.
        matches = _search(_text(words.replace(" ", "")), table, is_squeezed=True)
    return _ordered(_one_for_each_code(_outermost(matches)), causes or {})


def _search(text: _Text, table: tuple[Signature, ...], *, is_squeezed: bool) -> list[Match]:
    matches = []
    for signature in table:
        for template in signature.texts:
            pattern = _compiled(template, is_squeezed=is_squeezed)
            if is_squeezed and pattern.specificity < SURE_WITHOUT_BLANKS:
                continue
            match = _match(signature, pattern, text, is_squeezed=is_squeezed)
            if match:
                matches.append(match)
    return matches


@cache
def _compiled(template: str, *, is_squeezed: bool) -> Pattern:
    return compile_pattern(template, is_squeezed=is_squeezed)


def _match(signature: Signature, pattern: Pattern, text: _Text, *, is_squeezed: bool) -> Match | None:
    found = pattern.find(text.shown, text.lowered)
    if found is None:
        return None
    around = _text(text.shown[max(0, found.start() - NEAR) : found.end() + NEAR])

    def is_near(template: str) -> bool:
        return _compiled(template, is_squeezed=is_squeezed).find(around.shown, around.lowered) is not None

    if any(map(is_near, signature.unless)) or (signature.beside and not any(map(is_near, signature.beside))):
        return None
    return Match(
        code=signature.code,
        cause=signature.cause.format_map(pattern.captures(found)),
        severity=signature.severity,
        confidence=signature.confidence,
        fix=signature.fix,
        matched=found[0][:LONGEST_SHOWN],
        position=found.start(),
        specificity=pattern.specificity,
        also=signature.also,
    )


def _outermost(matches: list[Match]) -> list[Match]:
    """Without those that lie inside of another, more specific one: the longer text has the last word."""

    def is_inside(inner: Match, outer: Match) -> bool:
        overlap = min(_end(inner), _end(outer)) - max(inner.position, outer.position)
        return overlap > 0 and inner.specificity < outer.specificity

    return [match for match in matches if not any(is_inside(match, other) for other in matches)]


def _end(match: Match) -> int:
    return match.position + len(match.matched)


def _one_for_each_code(matches: list[Match]) -> list[Match]:
    """The surest and most specific match of each code."""
    best: dict[str, Match] = {}
    for match in sorted(matches, key=lambda match: (*_weight(match), -match.specificity, -match.position)):
        best.setdefault(match.code, match)
    return list(best.values())


def _weight(match: Match) -> tuple[int, int]:
    return _SEVERITIES.index(match.severity), _CONFIDENCES.index(match.confidence)


def _ordered(matches: list[Match], causes: Mapping[str, tuple[str, ...]]) -> tuple[Match, ...]:
    by_code = {match.code: match for match in matches}
    ranked = sorted(
        (replace(match, follows_from=_root(match, by_code, causes)) for match in matches),
        key=lambda match: (*_weight(match), -match.position),
    )
    ordered: list[Match] = []
    for root in (match for match in ranked if match.follows_from is None):
        ordered += [root, *(match for match in ranked if match.follows_from == root.code)]
    return tuple(ordered)


def _root(match: Match, by_code: Mapping[str, Match], causes: Mapping[str, tuple[str, ...]]) -> str | None:
    """The code at the top of the chain above `match`; a lighter match never explains a heavier one."""
    for code, other in by_code.items():
        if match.code in causes.get(code, ()) and _weight(other)[0] <= _weight(match)[0]:
            return _root(other, by_code, causes) or code
    return None
