"""What a check's code or a pasted error text means, as text and as a document."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from devkit.doctor.model import Check, Finding, split_explanation
from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.doctor.report.report import ReportedFinding, build_fix_document, find_check_page
from devkit.doctor.report.text import Line, Marks, Tone, format_finding
from devkit.doctor.signatures.catalog import find_covered_failures, find_symptoms
from devkit.doctor.signatures.matching import match_signatures
from devkit.doctor.signatures.model import Match
from devkit.text import format_count, join_words, wrap_text

SCHEMA = "devkit.explain/1"
_CODE = re.compile(r"[A-Za-z]{3}-?\d{1,4}")

NOTHING_KNOWN = (
    "no known error in this text",
    "  Paste all of it, not only the last line: the first error tells most.",
    "  devkit doctor                          looks at the machine where it happened",
    "  devkit doctor --save-facts facts.json  saves what it saw, without names, for whoever helps you",
)


def find_known_errors(text: str) -> tuple[Match, ...]:
    """The known errors in `text`, the one that explains the others first."""
    return match_signatures(text, causes={check.code: check.causes for check in CHECKS})


def find_check(text: str) -> Check | None:
    """The check whose code `text` is."""
    return BY_CODE.get(text.strip().upper().replace("-", ""))


def is_code(text: str) -> bool:
    """Whether `text` is of a code's form, whether or not a check has it."""
    return _CODE.fullmatch(text.strip()) is not None


def suggest_codes(text: str) -> tuple[str, ...]:
    """Up to three codes that `text` may have meant."""
    return tuple(get_close_matches(text.strip().upper().replace("-", ""), BY_CODE, n=3, cutoff=0.5))


def build_matches_document(found: Iterable[Match]) -> dict[str, Any]:
    """The matches as JSON, best first."""
    return {"schema": SCHEMA, "matches": [_match(match) for match in found]}


def _match(match: Match) -> dict[str, Any]:
    return {
        "code": match.code,
        "title": BY_CODE[match.code].title,
        "severity": match.severity.value,
        "cause": match.cause,
        "confidence": match.confidence.value,
        "matched": match.matched,
        "follows_from": match.follows_from,
        "also": list(match.also),
        "fix": build_fix_document(_shown(match)),
    }


def _shown(match: Match) -> ReportedFinding:
    """The match as the report shows a finding, the matched words as what was seen."""
    return ReportedFinding(
        BY_CODE[match.code],
        Finding(
            match.severity,
            match.cause,
            match.fix,
            evidence=(match.matched,),
            confidence=match.confidence,
            follows_from=match.follows_from,
        ),
    )


def format_matches(found: tuple[Match, ...], *, width: int, marks: Marks) -> tuple[Line, ...]:
    """The matches for people, each with its fix; what follows from another in a line."""
    lines: list[Line] = []
    for match in found:
        if match.follows_from:
            said = f"follows from {match.follows_from}: {match.code}: {match.cause}"
            lines += _folded(said, width, indent="  ", tone=Tone.QUIET)
        else:
            lines += [*([Line("")] if lines else []), *format_finding(_shown(match), width=width, marks=marks)]
            if match.also:
                lines += _folded(f"may also be: {join_words(match.also, 'or')}", width, indent="  ", tone=Tone.QUIET)
    hint = "This is what the text says; `devkit doctor` looks at the machine itself and gives the fix for it."
    return (*lines, Line(""), *_folded(hint, width, tone=Tone.QUIET))


def build_explanation_document(check: Check) -> dict[str, Any]:
    """A check as JSON. `matches` is empty: no text was asked about."""
    return {
        "schema": SCHEMA,
        "check": {
            "code": check.code,
            "title": check.title,
            "explanation": dict(split_explanation(check)),
            "symptoms": list(find_symptoms(check.code)),
            "causes": list(check.causes),
            "covers": list(find_covered_failures(check.code)),
            "docs": find_check_page(check),
        },
        "matches": [],
    }


def format_explanation(check: Check, *, width: int) -> tuple[Line, ...]:
    """A check for people: its condition, why it matters, how it is seen, and what follows from it."""
    lines = _folded(f"{check.code} {check.title}", width)
    for heading, text in split_explanation(check):
        lines += [Line(""), *_folded(f"{heading}: {text}" if heading else text, width)]
    if symptoms := find_symptoms(check.code):
        lines += [Line(""), Line("You may have seen:"), *(Line(f"  {words}") for words in symptoms)]
    if check.causes:
        said = f"{format_count(len(check.causes), 'check')} may find what follows from it: {join_words(check.causes)}"
        lines += [Line(""), *_folded(said, width, tone=Tone.QUIET)]
    return (*lines, Line(""), Line(f"more: {find_check_page(check)}", Tone.QUIET))


def _folded(text: str, width: int, *, indent: str = "", tone: Tone = Tone.PLAIN) -> list[Line]:
    return [Line(line, tone) for line in wrap_text(text, width=width, indent=indent).split("\n")]
