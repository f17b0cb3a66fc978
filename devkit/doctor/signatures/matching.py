"""The search for known errors in a text, with the one that explains the others first."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

from devkit.doctor.model import Confidence, Severity
from devkit.doctor.signatures.catalog import load_signatures_in
from devkit.doctor.signatures.model import Match, Signature
from devkit.doctor.signatures.patterns import Pattern, compile_pattern
from devkit.facts.values import record

FindConsequences = Callable[[str], tuple[str, ...]]

HEAD = 512 * 1024
TAIL = 1536 * 1024
"""Characters of the beginning and of the end of a long text that are searched."""
NEAR = 600
"""Characters around a match in which `beside` and `unless` are searched for."""
MAX_SHOWN = 240
MAX_BROKEN = 64 * 1024
"""Only what one can paste from a terminal is searched for words broken in the middle."""
MIN_SQUEEZED_SPECIFICITY = 24
"""Fixed characters that a pattern needs before it is trusted where white space is gone."""
MIN_PREFIXED = 4

_SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.NOTE)
_CONFIDENCES = (Confidence.CERTAIN, Confidence.LIKELY, Confidence.POSSIBLE)

_ANSI = re.compile(r"(?:\x1b|\^\[|\\u001b|\\x1b|\\033)(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b]{0,300}(?:\x07|\x1b\\))")
_BARE_COLOR = re.compile(r"\[(?:\d{1,3}(?:;\d{1,3}){0,4}m|m(?!\w))")
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
_TYPOGRAPHY = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " ", "\u200b": "", "\ufeff": "", "\0": "",
    "\u2026": "...",
})  # fmt: skip
_ESCAPED = re.compile(r"(?<!\\)\\{1,40}+(?:r\\{1,40}n|[nrt\"'`])")
_ESCAPES = (
    ("\\u0026", "&"), ("\\u003e", ">"), ("\\u003c", "<"), ("&gt;", ">"), ("&lt;", "<"), ("&quot;", '"'), ("&#39;", "'"),
    ("&#x27;", "'"), ("&amp;", "&"),
)  # fmt: skip


@record
class Words:
    """A text to search, and the same in lower case with the same positions."""

    shown: str
    lowered: str


def match_signatures(text: str, *, find_consequences: FindConsequences = lambda _: ()) -> tuple[Match, ...]:
    """Find the known errors in a text.

    Noise such as time stamps, colors and line prefixes does not matter.

    Args:
        text: The text as a user pasted it.
        find_consequences: Returns the codes that follow from a code: they are then listed after it and name it.

    Returns:
        The matches, best first, one for each code: the more severe, the surer, and the later in the text come first,
        because the last line of a traceback says more than the warnings before it.
    """
    return search_words(strip_noise(text), find_consequences=find_consequences)


def search_text(
    text: str, signatures: Iterable[Signature], *, find_consequences: FindConsequences = lambda _: ()
) -> tuple[Match, ...]:
    """Find the errors of `signatures` in a text, as `match_signatures` does."""
    return search_words(strip_noise(text), signatures, find_consequences=find_consequences)


def search_words(
    words: str, signatures: Iterable[Signature] | None = None, *, find_consequences: FindConsequences = lambda _: ()
) -> tuple[Match, ...]:
    """Find the errors of `signatures`, those of the catalog by default, in the words that `strip_noise` left of a text."""
    signatures = None if signatures is None else tuple(signatures)
    matches = _search(words, signatures, is_squeezed=False)
    if not matches and len(words) <= MAX_BROKEN:
        # A narrow terminal breaks lines within words.
        matches = _search(words.replace(" ", ""), signatures, is_squeezed=True)
    # The surest and most specific match of each code.
    best: dict[str, Match] = {}
    for match in sorted(
        _drop_inner_matches(matches), key=lambda match: (*_rank(match), -match.specificity, -match.position)
    ):
        best.setdefault(match.code, match)
    return _order_matches(list(best.values()), find_consequences)


def strip_noise(text: str) -> str:
    """Return the words of a text on one line with single spaces, so that wrapped lines read as they were written.

    Of a text that is too long the beginning and the end are kept.
    """
    if len(text) > HEAD + TAIL:
        text = f"{text[:HEAD]}\n{text[-TAIL:]}"
    if not text.isascii():
        text = text.translate(_TYPOGRAPHY)
    text = _ANSI.sub("", text)
    for escape, plain in _ESCAPES:
        text = text.replace(escape, plain)
    if "\\" in text:
        text = _ESCAPED.sub(_unescape, text)
    lines = (" ".join(line.split()) for line in _BARE_COLOR.sub("", text).splitlines())
    return " ".join(_strip_prefixes(line) if len(line) >= MIN_PREFIXED else line for line in lines if line)


def _unescape(found: re.Match[str]) -> str:
    """Replace an escape, however often it was escaped: \\n in JSON within a message within a message."""
    last = found[0][-1]
    return last if last in "\"'`" else "\n" if last in "nr" else " "


def _strip_prefixes(line: str) -> str:
    """Remove what tools put before a line, at most three prefixes, and the end of a frame around it."""
    for _ in range(3):
        shorter = _PREFIX.sub("", line, count=1)
        if shorter == line:
            break
        line = shorter
    return _FRAME_END.sub("", line)


@cache
def compile_template(template: str, *, is_squeezed: bool = False) -> Pattern:
    """Compile an error text, once."""
    return compile_pattern(template, is_squeezed=is_squeezed)


def lower_words(words: str) -> Words:
    """Put words in lower case without moving any."""
    # ASCII alone is put in lower case: other letters may become more or fewer.
    return Words(words, words.encode("ascii", "replace").lower().decode("ascii"))


def _search(words: str, signatures: tuple[Signature, ...] | None, *, is_squeezed: bool) -> list[Match]:
    text = lower_words(words)
    matches = []
    for signature in load_signatures_in(text.lowered, is_squeezed=is_squeezed) if signatures is None else signatures:
        for template in signature.texts:
            pattern = compile_template(template, is_squeezed=is_squeezed)
            if is_squeezed and pattern.specificity < MIN_SQUEEZED_SPECIFICITY:
                continue
            found = pattern.find(text.shown, text.lowered)
            if found and _is_confirmed(signature, found, text, is_squeezed=is_squeezed):
                matches.append(
                    Match(
                        code=signature.code,
                        cause=signature.cause.format_map(pattern.format_captures(found)),
                        severity=signature.severity,
                        confidence=signature.confidence,
                        fix=signature.fix,
                        matched=found[0][:MAX_SHOWN],
                        position=found.start(),
                        specificity=pattern.specificity,
                        also=signature.also,
                    )
                )
    return matches


def _is_confirmed(signature: Signature, found: re.Match[str], text: Words, *, is_squeezed: bool) -> bool:
    """Check the text around a match for `beside` and `unless`."""
    around = lower_words(text.shown[max(0, found.start() - NEAR) : found.end() + NEAR])

    def is_near(template: str) -> bool:
        return compile_template(template, is_squeezed=is_squeezed).find(around.shown, around.lowered) is not None

    return not any(map(is_near, signature.unless)) and (not signature.beside or any(map(is_near, signature.beside)))


def _drop_inner_matches(matches: list[Match]) -> list[Match]:
    """Drop matches that overlap a more specific one: the longer text decides."""

    def is_inside(inner: Match, outer: Match) -> bool:
        end = min(inner.position + len(inner.matched), outer.position + len(outer.matched))
        return end > max(inner.position, outer.position) and inner.specificity < outer.specificity

    return [match for match in matches if not any(is_inside(match, other) for other in matches)]


def _rank(match: Match) -> tuple[int, int]:
    return _SEVERITIES.index(match.severity), _CONFIDENCES.index(match.confidence)


def _order_matches(matches: list[Match], find_consequences: FindConsequences) -> tuple[Match, ...]:
    """Order matches by rank, each root cause before what follows from it."""
    by_code = {match.code: match for match in matches}

    def find_root(match: Match) -> str | None:
        """Return the code at the top of the chain of causes; a less severe match never explains a more severe one."""
        for code, other in by_code.items():
            if other is not match and match.code in find_consequences(code) and _rank(other)[0] <= _rank(match)[0]:
                return find_root(other) or code
        return None

    ranked = sorted(
        (replace(match, follows_from=find_root(match)) for match in matches),
        key=lambda match: (*_rank(match), -match.position),
    )
    ordered: list[Match] = []
    for root in (match for match in ranked if match.follows_from is None):
        ordered += [root, *(match for match in ranked if match.follows_from == root.code)]
    return tuple(ordered)
