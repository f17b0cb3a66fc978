"""The search for the errors of the catalog in a text, each with its causes ranked."""

import re
from collections.abc import Iterator, Mapping
from functools import cache

from devkit.doctor.model import Confidence, Severity
from devkit.doctor.signatures.catalog import find_candidates
from devkit.doctor.signatures.computed_fixes import COMPUTED_FIXES
from devkit.doctor.signatures.log_text import NEAR, Words
from devkit.doctor.signatures.model import Cause, Family, FamilyCause, Match
from devkit.doctor.signatures.patterns import Pattern, compile_pattern, list_whole_words
from devkit.doctor.signatures.rendering import render_fix_of
from devkit.doctor.signatures.text_facts import TextFacts

MAX_CAUSES = 3
MAX_SHOWN = 240
GIVEN_SPECIFICITY = 80
"""Fixed characters that a fact of the text, which a row needs, is worth: such a row goes before one that only has the words."""
_PROVED = 4
_GIVEN = 3
_FOR = 2
_AGAINST = 3
"""Weights of the words for and against a cause: one against outweighs one for it, and neither a proof.

A fact that the row needs outweighs words."""
_NAMED = re.compile(r"\{(\w+)\}")
_CAPTURED = re.compile(r"\{(\w+):\w+\}")
_OPEN = re.compile(r"(?<![{$])\{([a-z_]+)\}(?!\})")

_compile = cache(compile_pattern)
_list_whole_words = cache(list_whole_words)


def find_template(template: str, text: Words) -> tuple[Pattern, re.Match[str]] | None:
    """Find an error text in the words of a text; it is compiled only where its words occur."""
    if not _list_whole_words(template) <= text.words:
        return None
    pattern = _compile(template)
    found = pattern.find(text.shown, text.lowered)
    if found and pattern.runs_on:
        # A capture of any words ends with the line of its error.
        search = re.compile(pattern.regex, re.IGNORECASE)
        places = (found.start(), found.start(found.lastindex or 0))
        inside = (search.match(text.shown, found.start(), text.find_line_end(place)) for place in places)
        found = next(filter(None, inside), found)
    return (pattern, found) if found else None


def find_errors(text: Words, values: TextFacts) -> Iterator[tuple[Family, Match]]:
    """Find the errors of the catalog in a text, one for each wording, with its causes ranked.

    Args:
        values: Those of the text, and of the machine that it comes from.
    """
    for family in find_candidates(text.words):
        match = match_family(family, text, values)
        is_ours = match and (text.is_about_gpus or not family.is_general)
        if match and is_ours and not any(_finds(template, text) for template in family.silenced_by):
            yield family, match


def match_family(family: Family, text: Words, values: TextFacts) -> Match | None:
    """Find the first of a family's errors that a text has."""
    for template in family.texts:
        hit = find_template(template, text)
        if hit is None or (family.is_whole_line and not text.is_whole_line(hit[1])):
            continue
        pattern, found = hit
        if not _is_confirmed(family, found, text):
            continue
        own = pattern.format_captures(found)
        captures = {**values.as_captures(), **own}
        if family.has_changes:
            from devkit.doctor.signatures.library_changes import describe_change

            is_read = values.read.get("missing") in captures.values()
            captures |= values.read if is_read else describe_change(captures, text, found.start())
        position = text.find_first(found)
        line = text.find_line(position)
        # What texts of the family capture is what its conditions ask for, not the fact of that name.
        unfound = {name: "" for each in family.texts for name in _CAPTURED.findall(each) if name not in own}
        ranked = _rank_causes(family, captures, {**captures, **unfound}, text, values, line)
        if not ranked:
            continue
        (first, row), *others = ranked
        return Match(
            code=first.code,
            cause=first.cause,
            severity=Severity.NOTE if family.is_harmless else family.severity,
            confidence=first.confidence,
            fix=first.fix,
            matched=found[0][:MAX_SHOWN],
            position=found.start(),
            line=line,
            source=text.find_source(position),
            specificity=pattern.specificity + GIVEN_SPECIFICITY * bool(row.given),
            also=(*family.also, *row.also),
            family=family.name,
            speaks_for=(*(values.evidence if "said" in captures else ()), *first.speaks_for),
            speaks_against=first.speaks_against,
            alternatives=tuple(cause for cause, _ in others),
            question=_OPEN.sub(lambda found: f"<{found[1].replace('_', ' ')}>", fill_in(family.question, captures))
            if others
            else "",
            is_harmless=family.is_harmless,
            is_common=family.is_common and not row.is_plain,
            # What a function computes for other texts, the row itself only describes.
            is_decided=row.confidence is Confidence.CERTAIN
            and not first.fix.leaves_choice
            and not (row.computed and first.fix == row.fix),
            refers=row.refers,
        )
    return None


def _is_confirmed(family: Family, found: re.Match[str], text: Words) -> bool:
    """Check the text around an error for `beside` and `unless`."""
    if not (family.beside or family.unless):
        return True
    around = text.cut(max(0, found.start() - NEAR), found.end() + NEAR)

    def is_near(template: str) -> bool:
        return find_template(template, around) is not None

    return not any(map(is_near, family.unless)) and (not family.beside or any(map(is_near, family.beside)))


def _rank_causes(
    family: Family, captures: Mapping[str, str], asked: Mapping[str, str], text: Words, values: TextFacts, line: int
) -> list[tuple[Cause, FamilyCause]]:
    """Rank the causes that the captures allow: proved ones, then by the words for and against, then by frequency.

    `asked` are the captures that conditions ask for.
    """
    scored = []
    for row in family.causes:
        given = list_given(row.given, captures)
        # The text has every value that the cause names.
        is_named = all(name in captures for name in _NAMED.findall(row.cause))
        if (
            given is None
            or not is_named
            or not all(re.match(rule, asked.get(name, ""), re.IGNORECASE) for name, rule in row.where.items())
            or (row.needs and not any(_finds(template, text) for template in row.needs))
        ):
            continue
        proved = [found for template in row.proof if (found := _finds(template, text))]
        likely = [found for template in (*row.needs, *row.speaks_for) if (found := _finds(template, text))]
        unlikely = [found for template in row.speaks_against if (found := _finds(template, text))]
        is_only = bool(proved) or row.is_only or (row.confidence is Confidence.CERTAIN and not row.proof)
        score = _PROVED * is_only + _FOR * bool(likely) - _AGAINST * bool(unlikely) + _GIVEN * bool(given)
        likely.extend(given)
        if proved or row.speaks_for or not row.proof:
            scored.append((score, row, proved + likely, unlikely, is_only))
    scored.sort(key=lambda each: -each[0])
    ranked: list[tuple[Cause, FamilyCause]] = []
    for _, row, speaks_for, speaks_against, is_only in scored[:MAX_CAUSES]:
        is_certain = not ranked and is_only and not speaks_against
        # A cause that words would speak for, in a text without them, is only the one left of its family.
        is_left = bool(row.speaks_for) and not (speaks_for or row.where)
        is_possible = ranked or is_left or row.confidence is Confidence.POSSIBLE
        computed = COMPUTED_FIXES[row.computed](captures, values) if row.computed else None
        cause = Cause(
            code=row.code,
            cause=fill_in(row.cause, captures),
            fix=computed or render_fix_of(row, captures, values, line),
            confidence=Confidence.CERTAIN if is_certain else Confidence.POSSIBLE if is_possible else Confidence.LIKELY,
            speaks_for=tuple(speaks_for),
            speaks_against=tuple(speaks_against),
        )
        ranked.append((cause, row))
        if is_certain:
            break
    return ranked


def list_given(given: Mapping[str, str], facts: Mapping[str, str]) -> tuple[str, ...] | None:
    """List the values of the facts that a row needs; None where the text lacks one."""
    found = tuple(facts.get(name, "") for name in given)
    has_all = all(value and re.match(given[name], value) for name, value in zip(given, found, strict=True))
    return found if has_all else None


def _finds(template: str, text: Words) -> str:
    hit = find_template(template, text)
    return hit[1][0][:MAX_SHOWN] if hit else ""


def fill_in(sentence: str, captures: Mapping[str, str]) -> str:
    """Put captures in the place of their names in braces; a sentence may have other braces."""
    for name, value in captures.items():
        sentence = sentence.replace(f"{{{name}}}", value)
    return sentence
