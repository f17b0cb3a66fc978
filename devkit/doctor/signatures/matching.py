"""The search for known errors in a text, with the one that explains the others first."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache

from devkit.doctor.model import Confidence, Severity
from devkit.doctor.signatures.catalog import load_signatures
from devkit.doctor.signatures.log_text import NEAR, Words
from devkit.doctor.signatures.model import Match, Signature
from devkit.doctor.signatures.patterns import Pattern, compile_pattern, find_anchor
from devkit.doctor.signatures.rendering import render_fix_of
from devkit.doctor.signatures.text_facts import TextFacts, read_text_facts

FindConsequences = Callable[[str], tuple[str, ...]]

MAX_SHOWN = 240
MAX_BROKEN = 64 * 1024
"""Only what one can paste from a terminal is searched for words broken in the middle."""
MIN_SQUEEZED_SPECIFICITY = 24
"""Fixed characters that a pattern needs before it is trusted where white space is gone."""

GIVEN_SPECIFICITY = 80
"""Fixed characters that a fact of the text, which a row needs, is worth: such a row goes before one that only has the words."""

_SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.NOTE)
_CONFIDENCES = (Confidence.CERTAIN, Confidence.LIKELY, Confidence.POSSIBLE)


def search_words(
    words: Words,
    signatures: Iterable[Signature] | None = None,
    *,
    facts: TextFacts | None = None,
    find_consequences: FindConsequences = lambda _: (),
) -> tuple[Match, ...]:
    """Find the errors of `signatures`, those of the catalog by default, in the words of a text; `facts` are the text's."""
    signatures = load_signatures() if signatures is None else tuple(signatures)
    facts = read_text_facts(words) if facts is None else facts
    matches = _search(words, signatures, facts, is_squeezed=False)
    if not matches and len(words.shown) <= MAX_BROKEN:
        # A narrow terminal breaks lines within words.
        matches = _search(words.squeeze(), signatures, facts, is_squeezed=True)
    # The surest and most specific match of each code.
    best: dict[str, Match] = {}
    for match in sorted(
        _drop_inner_matches(matches), key=lambda match: (*_rank(match), -match.specificity, -match.position)
    ):
        best.setdefault(match.code, match)
    return _order_matches(list(best.values()), find_consequences)


@cache
def compile_template(template: str, *, is_squeezed: bool = False) -> Pattern:
    """Compile an error text, once."""
    return compile_pattern(template, is_squeezed=is_squeezed)


_find_anchor = cache(find_anchor)


def find_template(template: str, text: Words, *, is_squeezed: bool = False) -> tuple[Pattern, re.Match[str]] | None:
    """Find an error text in the words of a text; it is compiled only where its longest words occur."""
    anchor = _find_anchor(template, is_squeezed=is_squeezed)
    if not text.may_hold(anchor) or anchor not in text.lowered:
        return None
    pattern = compile_template(template, is_squeezed=is_squeezed)
    found = pattern.find(text.shown, text.lowered)
    return (pattern, found) if found else None


def list_given(
    given: Mapping[str, str], facts: Mapping[str, str], *, excluded_by: Mapping[str, str] | None = None
) -> tuple[str, ...] | None:
    """List the values of the facts that a row needs; None where the text lacks one, or states what excludes the row."""
    found = tuple(facts.get(name, "") for name in given)
    is_excluded = any(re.match(rule, facts.get(name, "")) for name, rule in (excluded_by or {}).items())
    has_all = all(value and re.match(given[name], value) for name, value in zip(given, found, strict=True))
    return found if has_all and not is_excluded else None


def _search(text: Words, signatures: tuple[Signature, ...], facts: TextFacts, *, is_squeezed: bool) -> list[Match]:
    matches = []
    stated = facts.as_captures()
    for signature in signatures:
        if list_given(signature.given, stated) is None:
            continue
        for template in signature.texts:
            hit = find_template(template, text, is_squeezed=is_squeezed)
            if hit is None or (is_squeezed and hit[0].specificity < MIN_SQUEEZED_SPECIFICITY):
                continue
            pattern, found = hit
            if _is_confirmed(signature, found, text, is_squeezed=is_squeezed):
                captures = {**stated, **pattern.format_captures(found)}
                matches.append(
                    Match(
                        code=signature.code,
                        cause=signature.cause.format_map(captures),
                        severity=signature.severity,
                        confidence=signature.confidence,
                        fix=render_fix_of(signature, captures, facts),
                        matched=found[0][:MAX_SHOWN],
                        position=found.start(),
                        line=text.find_line(text.find_first(found)),
                        source=text.find_source(text.find_first(found)),
                        specificity=pattern.specificity + GIVEN_SPECIFICITY * bool(signature.given),
                        also=signature.also,
                        is_common=signature.is_common,
                    )
                )
    return matches


def _is_confirmed(signature: Signature, found: re.Match[str], text: Words, *, is_squeezed: bool) -> bool:
    """Check the text around a match for `beside` and `unless`."""
    around = text.cut(max(0, found.start() - NEAR), found.end() + NEAR)

    def is_near(template: str) -> bool:
        return find_template(template, around, is_squeezed=is_squeezed) is not None

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
