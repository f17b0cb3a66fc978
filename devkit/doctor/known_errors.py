"""The explanation of a pasted error text, as text and as a document."""

from collections.abc import Iterable
from typing import Any

from devkit.doctor.checks.loader import load_check
from devkit.doctor.explain import SCHEMA
from devkit.doctor.model import Finding
from devkit.doctor.report.lines import Line, Marks, Tone, fold_lines
from devkit.doctor.report.report import ReportedFinding, build_fix_document
from devkit.doctor.report.text import format_finding
from devkit.doctor.signatures.matching import match_signatures
from devkit.doctor.signatures.model import Match
from devkit.text import join_words

NOTHING_KNOWN = (
    "no known error in this text",
    "  Paste all of it, not only the last line: the first error says most.",
    "  devkit doctor                          looks at the machine where it happened",
    "  devkit doctor --save-facts facts.json  saves what it saw, without names, for whoever helps you",
)


def find_known_errors(text: str) -> tuple[Match, ...]:
    """Find the known errors in a text, each root cause before what follows from it."""
    return match_signatures(text, find_consequences=lambda code: load_check(code).causes)


def build_matches_document(found: Iterable[Match]) -> dict[str, Any]:
    """Return the matches as the document devkit.explain/1, best first."""
    matches = [
        {
            "code": match.code,
            "title": load_check(match.code).title,
            "severity": match.severity.value,
            "cause": match.cause,
            "confidence": match.confidence.value,
            "matched": match.matched,
            "follows_from": match.follows_from,
            "also": list(match.also),
            "fix": build_fix_document(_to_finding(match)),
        }
        for match in found
    ]
    return {"schema": SCHEMA, "matches": matches}


def _to_finding(match: Match) -> ReportedFinding:
    """Return a match as the report shows a finding, with the matched words as its evidence."""
    finding = Finding(
        match.severity,
        match.cause,
        match.fix,
        evidence=(match.matched,),
        confidence=match.confidence,
        follows_from=match.follows_from,
    )
    return ReportedFinding(load_check(match.code), finding)


def format_matches(found: tuple[Match, ...], *, width: int, marks: Marks) -> tuple[Line, ...]:
    """Format the matches, each with its fix; what follows from another takes one line."""
    lines: list[Line] = []
    for match in found:
        if match.follows_from:
            said = f"follows from {match.follows_from}: {match.code}: {match.cause}"
            lines += fold_lines(said, width, indent="  ", tone=Tone.QUIET)
        else:
            lines += [*([Line("")] if lines else []), *format_finding(_to_finding(match), width=width, marks=marks)]
            if match.also:
                lines += fold_lines(f"may also be: {join_words(match.also, 'or')}", width, indent="  ", tone=Tone.QUIET)
    hint = "This is what the text says; `devkit doctor` looks at the machine itself and gives the fix for it."
    return (*lines, Line(""), *fold_lines(hint, width, tone=Tone.QUIET))
