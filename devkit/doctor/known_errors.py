"""The explanation of a pasted error text, as text and as a document."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from devkit.doctor.model import Confidence, Severity
from devkit.doctor.report.lines import Line, Marks, Tone, fold_lines
from devkit.doctor.report.page import format_match
from devkit.doctor.signatures.catalog import find_general_signature, load_fixes
from devkit.doctor.signatures.families import MAX_CAUSES, Family, find_families
from devkit.doctor.signatures.log_text import Excerpt, Words, read_words
from devkit.doctor.signatures.matching import NEAR, search_words
from devkit.doctor.signatures.model import Cause, Consequence, Match
from devkit.doctor.signatures.nearest import Nearest
from devkit.doctor.signatures.text_values import fix_gpu_request, read_text_values
from devkit.doctor.signatures.witnesses import Machine, rank_by_machine

NOTHING_KNOWN = (
    "no known error in this text",
    "  Paste all of it, not only the last line: the first error says most.",
    "  devkit doctor                          looks at the machine where it happened",
    "  devkit doctor --save-facts facts.json  saves what it saw, without names, for whoever helps you",
)

_CHAINED = ("the above exception was the direct cause of", "during handling of the above exception, another")
"""Words between the exceptions of a chained traceback: the first is the cause."""

_TOKEN_MARKS = (
    *("hf_", "api_org_", "gho_", "ghp_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "sk-", "nvapi-"),
    *("AKIA", "ASIA", "xox", "eyJ", "dckr_pat_", "pypi-"),
)
"""Words that a text with an access token has: only then the patterns of tokens are loaded."""


def find_known_errors(text: str | Iterable[Excerpt], *, machine: Machine | None = None) -> tuple[Match, ...]:
    """Find the known errors in a text, each root cause before what follows from it.

    Where the wording is unknown, a family of errors explains it; where both explain the same words, the family does if
    it names the same check, because it weighs further causes and computes the fix of the values in the text.

    Args:
        text: As a user pasted it, or the excerpts of a long log.
        machine: The machine to ask about the causes.
    """
    words = read_words(text)
    values = read_text_values(words.shown)
    matches = search_words(words, find_consequences=_find_consequences)
    found = list(find_families(words, values.complete(machine.values) if machine else values))
    direct = _drop_overlapping([each for each in found if not each[0].is_consequence])
    merged = []
    overridden = {code for family, _ in direct for code in family.overrides}
    for match in matches:
        if match.code in overridden:
            continue
        better = next((each for each in direct if _replaces(*each, match)), None)
        if better is None:
            merged.append(match)
        else:
            direct.remove(better)
            merged.append(replace(better[1], also=match.also, follows_from=match.follows_from))
    merged += [match for _, match in direct if not any(_is_near(match, known) for known in merged)]
    merged = _chain(merged, words)
    reports = [match for family, match in found if family.is_consequence]
    if any(match.severity is Severity.ERROR for match in merged):
        first, *others = _order(merged)
        after = sorted((each for each in reports if each.line >= first.line), key=lambda each: each.line)
        following = tuple(Consequence(each.matched, each.line, each.family) for each in after)
        ordered = [replace(first, consequences=(*first.consequences, *following)), *others]
    else:
        ordered = list(_order(merged + reports))
    answer = tuple(_fit_to_engine(_add_alternatives(match), values.engine) for match in ordered)
    if any(mark in words.shown for mark in _TOKEN_MARKS):
        from devkit.facts.redact import redact_tokens

        answer = redact_tokens(answer)
    return tuple(rank_by_machine(match, machine) for match in answer) if machine else answer


def _fit_to_engine(match: Match, engine: str) -> Match:
    """Say how the engine of the text gives a GPU, where the fix says how Docker does."""
    own, dockers = fix_gpu_request(engine), load_fixes()["give-gpu"]
    if own is None:
        return match
    causes = (replace(cause, fix=own) if cause.fix == dockers else cause for cause in match.alternatives)
    return replace(match, fix=own if match.fix == dockers else match.fix, alternatives=tuple(causes))


def _find_consequences(code: str) -> tuple[str, ...]:
    from devkit.doctor.checks.loader import load_check

    return load_check(code).causes


def _is_near(family: Match, known: Match) -> bool:
    """Say if a known wording, no less sure, is so close that both are of one error."""
    gap = max(family.position, known.position) - min(_find_end(family), _find_end(known))
    confidences = tuple(Confidence)
    is_surer = confidences.index(known.confidence) <= confidences.index(family.confidence)
    return (gap < NEAR and is_surer) or (family.code != "" and family.code == known.code)


def _find_end(match: Match) -> int:
    return match.position + len(match.matched)


def _replaces(family: Family, match: Match, known: Match) -> bool:
    """Say if a family explains the same words better: it names the same check, or has words of the text for another."""
    confidences = tuple(Confidence)
    if match.code == known.code and confidences.index(match.confidence) < confidences.index(known.confidence):
        return True
    is_named = match.code == known.code or (
        (bool(match.speaks_for) or match.confidence is Confidence.CERTAIN)
        and known.specificity <= match.specificity
        and known.code in {cause.code for cause in family.causes}
    )
    return is_named and _overlap(match, known)


def _overlap(one: Match, other: Match) -> bool:
    return min(_find_end(one), _find_end(other)) > max(one.position, other.position)


def _drop_overlapping(found: list[tuple[Family, Match]]) -> list[tuple[Family, Match]]:
    """Keep of families that explain the same words the more specific one."""
    kept: list[tuple[Family, Match]] = []
    for each in sorted(found, key=lambda each: -each[1].specificity):
        if not any(_overlap(each[1], other) for _, other in kept):
            kept.append(each)
    return kept


def _add_alternatives(match: Match) -> Match:
    """Add the causes that the catalog names beside this one, each with its fix, and the command that decides."""
    rows = ((code, find_general_signature(code)) for code in match.also)
    causes = [Cause(code, row.cause, row.fix, Confidence.POSSIBLE) for code, row in rows if row]
    if not causes or match.alternatives or (match.family and match.confidence is Confidence.CERTAIN):
        return match
    causes = causes[: MAX_CAUSES - 1]
    codes = " ".join(f"--only {code}" for code in (match.code, *(cause.code for cause in causes)))
    confidence = Confidence.LIKELY if match.confidence is Confidence.CERTAIN else match.confidence
    return replace(match, confidence=confidence, alternatives=tuple(causes), question=f"devkit doctor {codes}")


def _order(matches: list[Match]) -> tuple[Match, ...]:
    """Order matches by severity and certainty, what follows from another behind it.

    Of equal ones the later in the text comes first, because the last line of a traceback says more than the warnings
    before it; of several services or ranks the earlier, because the others fail for it.
    """
    severities, confidences = tuple(reversed(Severity)), tuple(Confidence)
    is_of_many = len({match.source for match in matches if match.source}) > 1
    roots = sorted(
        (match for match in matches if match.follows_from is None),
        key=lambda match: (
            severities.index(match.severity),
            match.position if is_of_many else confidences.index(match.confidence),
            -match.position,
        ),
    )
    return tuple(
        each
        for root in roots
        for each in (root, *(match for match in matches if match.follows_from and match.follows_from == root.code))
    )


def _chain(matches: list[Match], words: Words) -> list[Match]:
    """Put errors that a chained traceback raises because of an earlier one behind it, as its consequences."""
    chained: list[Match] = []
    for match in sorted(matches, key=lambda match: match.position):
        last = chained[-1] if chained else None
        between = words.lowered[_find_end(last) : match.position] if last else ""
        is_error = last is not None and last.severity is match.severity is Severity.ERROR
        if last and is_error and not match.follows_from and any(words in between for words in _CHAINED):
            said = Consequence(match.matched, match.line, match.cause)
            chained[-1] = replace(last, consequences=(*last.consequences, said))
        else:
            chained.append(match)
    return chained


def format_nearest(nearest: Iterable[Nearest], *, width: int) -> tuple[Line, ...]:
    """Format the entries that resemble a text in which nothing is known."""
    lines = [
        line for each in nearest for line in fold_lines(f"{each.name} {each.about}: {each.text}", width, indent="  ")
    ]
    return (Line(""), Line("nothing known; nearest:"), *lines) if lines else ()


def build_matches_document(found: Iterable[Match], nearest: Iterable[Nearest] = ()) -> dict[str, Any]:
    """Return the matches as the document devkit.explain/1, best first, and what is nearest where there are none."""
    from devkit.doctor.checks.loader import load_check
    from devkit.doctor.explain import SCHEMA
    from devkit.doctor.report.report import build_fix_document

    def build_cause_document(cause: Cause) -> dict[str, Any]:
        return {
            "code": cause.code or None,
            "cause": cause.cause,
            "confidence": cause.confidence.value,
            "speaks_for": list(cause.speaks_for),
            "speaks_against": list(cause.speaks_against),
            "fix": build_fix_document(cause.fix, cause.code),
        }

    matches = [
        {
            "code": match.code or None,
            "title": load_check(match.code).title if match.code else match.family,
            "severity": match.severity.value,
            "cause": match.cause,
            "confidence": match.confidence.value,
            "matched": match.matched,
            "line": match.line or None,
            "source": match.source or None,
            "follows_from": match.follows_from,
            "also": list(match.also),
            "fix": build_fix_document(match.fix, match.code),
            "family": match.family or None,
            "speaks_for": list(match.speaks_for),
            "speaks_against": list(match.speaks_against),
            "alternatives": [build_cause_document(cause) for cause in match.alternatives],
            "question": match.question or None,
            "consequences": [
                {"line": each.line or None, "matched": each.matched, "family": each.family}
                for each in match.consequences
            ],
        }
        for match in found
    ]
    like = [{"name": each.name, "about": each.about, "text": each.text} for each in nearest]
    return {"schema": SCHEMA, "matches": matches, "nearest": like}


def format_matches(found: tuple[Match, ...], *, width: int, marks: Marks) -> tuple[Line, ...]:
    """Format the matches, each with its fix; what follows from another takes one line."""
    lines: list[Line] = []
    for match in found:
        if match.follows_from:
            said = f"follows from {match.follows_from}: {match.code}: {match.cause}"
            lines += fold_lines(said, width, indent="  ", tone=Tone.QUIET)
        else:
            lines += [*([Line("")] if lines else []), *format_match(match, width=width, marks=marks)]
    hint = "This is what the text says; `devkit doctor` looks at the machine itself and gives the fix for it."
    return (*lines, Line(""), *fold_lines(hint, width, tone=Tone.QUIET))


def format_log(found: tuple[Match, ...], *, width: int, marks: Marks) -> tuple[Line, ...]:
    """Format the matches of a log below the report on the machine that it comes from."""
    if not found:
        return (Line(""), Line("log: no known error"))
    return (Line(""), Line("log:"), *format_matches(found, width=width, marks=marks)[:-2])
