"""Finds the known errors in a text, and puts the one that explains the others first."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

from devkit.doctor.model import Confidence, Severity
from devkit.doctor.signatures.clean import cleaned
from devkit.doctor.signatures.model import Match, Signature
from devkit.doctor.signatures.pattern import Pattern, compiled
from devkit.facts.record import record

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


def found_in(
    text: str, table: Iterable[Signature], *, causes: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[Match, ...]:
    """The known errors in `text`, best first: one for each code.

    A match that `causes` (code -> codes that follow from it) derives from another stands behind it and names it. Then
    the heavier, the surer, and the later in the text come first: the last line of a traceback says more than the
    warnings before it.
    """
    table = tuple(table)
    words = cleaned(text)
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
    return compiled(template, is_squeezed=is_squeezed)


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
