"""Families of errors: classes with typed parameters, so that a new wording falls into one.

`families.toml` has a `[[family]]` for each class and below it a `[[family.cause]]` for each cause, the most frequent
first.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from devkit.doctor.model import Confidence, Fix, Severity
from devkit.doctor.problems import FixRow
from devkit.doctor.signatures.catalog import decode_fix
from devkit.doctor.signatures.computed_fixes import COMPUTED_FIXES
from devkit.doctor.signatures.log_text import Words, is_about_gpus
from devkit.doctor.signatures.matching import MAX_SHOWN, find_template, list_given
from devkit.doctor.signatures.model import Cause, Match
from devkit.doctor.signatures.rendering import render_fix_of
from devkit.doctor.signatures.text_facts import TextFacts
from devkit.facts.decode import decode_fields
from devkit.formats.shipped import load

MAX_CAUSES = 3
_PROVED = 4
_GIVEN = 3
_FOR = 2
_AGAINST = 3
"""Weights of the words for and against a cause: one against outweighs one for it, and neither a proof.

A fact that the row needs outweighs words."""
_NAMED = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class FamilyCause:
    """One cause of a family's errors.

    `where` are regular expressions of captures, without which the cause does not apply. `proof` are words of the text
    that exclude every other cause (a cause with nothing else applies only with them), `speaks_for` and `speaks_against`
    such that make it more or less probable. Without one of `needs` the cause does not apply. `given` is that of
    `Signature`, and `excluded_by` are facts that exclude the cause, in the same form.
    `computed` names the function that makes the fix of the values in the text; `fix` is for texts without them.
    A cause with its own `texts` is the only one of their errors, and is found beside other errors of its family.
    """

    cause: str
    fix: Fix
    where: Mapping[str, str]
    variants: tuple[FixRow, ...] = ()
    texts: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    code: str = ""
    proof: tuple[str, ...] = ()
    speaks_for: tuple[str, ...] = ()
    speaks_against: tuple[str, ...] = ()
    computed: str = ""
    given: Mapping[str, str] = field(default_factory=dict)
    excluded_by: Mapping[str, str] = field(default_factory=dict)
    is_only: bool = False
    """True if the error's own words leave no other cause, once `where` holds."""
    is_plain: bool = False
    """True if the error's own words name the cause in a text of any field."""
    is_report: bool = False
    """True if the error only reports that something failed, as those of an `is_consequence` family do."""


@dataclass(frozen=True)
class Family:
    """A class of errors: its texts, what decides between its causes, and the causes.

    A `is_consequence` error names no cause: it counts only where the text has no other. `overrides` are codes
    of known wordings that only follow from the family's errors. The errors of a `is_general` family occur in every field:
    they count in a text about GPUs alone; those of a `is_common` one unless a program of another field reports them.
    Those with their own causes in a `is_plain` one name the cause in a text of any field.
    The texts of a `is_whole_line` one count where a line has nothing else.
    The lines of a `is_harmless` one look like errors, and say that all is well.
    The captures of a `has_changes` one are completed by the releases that added or removed the name.
    """

    id: str
    name: str
    texts: tuple[str, ...]
    sources: tuple[str, ...]
    causes: tuple[FamilyCause, ...]
    question: str = ""
    unless: tuple[str, ...] = ()
    is_consequence: bool = False
    overrides: tuple[str, ...] = ()
    is_general: bool = False
    is_common: bool = False
    is_plain: bool = False
    has_changes: bool = False
    is_harmless: bool = False
    is_whole_line: bool = False


@cache
def load_families() -> tuple[Family, ...]:
    """Return every family; a cause with its own texts is a family of one cause."""
    return tuple(family for row in load(__package__, "families")["family"] for family in _parse_family(row))


def _parse_family(row: Mapping[str, Any]) -> Iterator[Family]:
    causes = tuple(map(_parse_cause, row["cause"]))
    shared = {key: value for key, value in row.items() if key != "cause"}
    family = Family(
        **decode_fields({"texts": [], **shared}, Family), causes=tuple(cause for cause in causes if not cause.texts)
    )
    if family.texts:
        yield family
    own = replace(family, is_general=False, is_common=False) if family.is_plain else family
    for cause in causes:
        if cause.texts:
            is_report = own.is_consequence or cause.is_report
            yield replace(own, texts=cause.texts, causes=(cause,), is_consequence=is_report)


def _parse_cause(row: Mapping[str, Any]) -> FamilyCause:
    (fix, variants), where = decode_fix(row["fix"]), row.get("where", {})
    plain = {key: value for key, value in row.items() if key not in ("fix", "where")}
    return FamilyCause(**decode_fields(plain, FamilyCause), fix=fix, variants=variants, where=where)


def find_families(text: Words, values: TextFacts) -> Iterator[tuple[Family, Match]]:
    """Find the families whose errors are in a text, each as a match with its causes ranked.

    Args:
        values: Those of the text, and of the machine that it comes from.
    """
    has_gpus = is_about_gpus(text.lowered)
    for family in load_families():
        match = _match_family(family, text, values) if has_gpus or not family.is_general else None
        if match and not any(_finds(template, text) for template in family.unless):
            yield family, match


def _match_family(family: Family, text: Words, values: TextFacts) -> Match | None:
    for template in family.texts:
        hit = find_template(template, text)
        if hit is None or (family.is_whole_line and not text.is_whole_line(hit[1])):
            continue
        pattern, found = hit
        captures = {**values.as_captures(), **pattern.format_captures(found)}
        if family.has_changes:
            from devkit.doctor.signatures.library_changes import describe_change

            captures |= describe_change(captures, text, found.start())
        ranked = _rank_causes(family, captures, text, values)
        if ranked:
            first = ranked[0]
            return Match(
                code=first.code,
                cause=first.cause,
                severity=Severity.NOTE if family.is_harmless else Severity.ERROR,
                confidence=first.confidence,
                fix=first.fix,
                matched=found[0][:MAX_SHOWN],
                position=found.start(),
                line=text.find_line(text.find_first(found)),
                source=text.find_source(text.find_first(found)),
                specificity=pattern.specificity,
                family=family.name,
                speaks_for=first.speaks_for,
                speaks_against=first.speaks_against,
                alternatives=tuple(ranked[1:]),
                question=_OPEN.sub(_name_open, fill_in(family.question, captures)) if len(ranked) > 1 else "",
                is_harmless=family.is_harmless,
                is_common=family.is_common
                and first.cause not in (cause.cause for cause in family.causes if cause.is_plain),
            )
    return None


def _rank_causes(family: Family, captures: Mapping[str, str], text: Words, values: TextFacts) -> list[Cause]:
    """Rank the causes that the captures allow: proved ones, then by the words for and against, then by frequency."""
    scored = []
    for row in family.causes:
        given = list_given(row.given, captures, excluded_by=row.excluded_by)
        if (
            given is None
            or not _applies(row, captures)
            or (row.needs and not any(_finds(template, text) for template in row.needs))
        ):
            continue
        proved = [found for template in row.proof if (found := _finds(template, text))]
        likely = [found for template in (*row.needs, *row.speaks_for) if (found := _finds(template, text))]
        unlikely = [found for template in row.speaks_against if (found := _finds(template, text))]
        score = _PROVED * bool(proved or row.is_only) + _FOR * bool(likely) - _AGAINST * bool(unlikely)
        score += _GIVEN * bool(given)
        likely.extend(given)
        if proved or row.speaks_for or not row.proof:
            scored.append((score, row, proved + likely, unlikely, bool(proved or row.is_only)))
    scored.sort(key=lambda each: -each[0])
    causes: list[Cause] = []
    for _, row, speaks_for, speaks_against, is_proved in scored[:MAX_CAUSES]:
        is_first = not causes
        is_certain = is_first and is_proved and not speaks_against
        causes.append(
            Cause(
                code=row.code,
                cause=fill_in(row.cause, captures),
                fix=_compute_fix(row, captures, values),
                confidence=Confidence.CERTAIN if is_certain else Confidence.LIKELY if is_first else Confidence.POSSIBLE,
                speaks_for=tuple(speaks_for),
                speaks_against=tuple(speaks_against),
            )
        )
        if is_certain:
            break
    return causes


def _applies(row: FamilyCause, captures: Mapping[str, str]) -> bool:
    """Check `where`, and that the text has every value that the cause names."""
    is_named = all(name in captures for name in _NAMED.findall(row.cause))
    return is_named and all(re.match(rule, captures.get(name, ""), re.IGNORECASE) for name, rule in row.where.items())


def _finds(template: str, text: Words) -> str:
    hit = find_template(template, text)
    return hit[1][0][:MAX_SHOWN] if hit else ""


def _compute_fix(row: FamilyCause, captures: Mapping[str, str], values: TextFacts) -> Fix:
    computed = COMPUTED_FIXES[row.computed](captures, values) if row.computed else None
    return computed or render_fix_of(row, captures, values)


_OPEN = re.compile(r"(?<![{$])\{([a-z_]+)\}(?!\})")


def _name_open(found: re.Match[str]) -> str:
    """Write a value that the text does not have as one to fill in."""
    return f"<{found[1].replace('_', ' ')}>"


def fill_in(sentence: str, captures: Mapping[str, str]) -> str:
    """Put captures in the place of their names in braces; a sentence may have other braces."""
    for name, value in captures.items():
        sentence = sentence.replace(f"{{{name}}}", value)
    return sentence
