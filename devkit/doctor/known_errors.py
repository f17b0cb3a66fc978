"""The explanation of a pasted error text, as text and as a document."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from devkit.doctor.model import Confidence, Severity
from devkit.doctor.report.lines import Line, Marks, Tone, fold_lines
from devkit.doctor.report.page import format_match
from devkit.doctor.signatures.catalog import find_general_cause
from devkit.doctor.signatures.contradictions import describe_set, find_contradiction
from devkit.doctor.signatures.log_text import NEAR, Excerpt, Words, is_about_gpus, read_words
from devkit.doctor.signatures.matching import MAX_CAUSES, find_errors
from devkit.doctor.signatures.missing_names import describe_history, find_missing_name
from devkit.doctor.signatures.model import Cause, Consequence, Family, Match
from devkit.doctor.signatures.rendering import render_fix_of
from devkit.doctor.signatures.text_facts import TextFact, TextFacts, read_text_facts
from devkit.doctor.signatures.unknown import CHAINED, Unknown, describe_unknown, find_first_error, goes_on_well
from devkit.doctor.signatures.witnesses import Machine, rank_by_machine
from devkit.facts.releases import Contradiction, MissingName, NameHistory, SolvedSet
from devkit.facts.secrets import redact_tokens
from devkit.facts.values import Unknown as NotRead

if TYPE_CHECKING:
    from devkit.doctor.signatures.nearest import Nearest

ReadHistory = Callable[[MissingName], NameHistory | NotRead]
Solve = Callable[[Contradiction], SolvedSet | NotRead]

NOTHING_KNOWN = "no known error in this text"
NOT_READ = "not tried on the package index"
NOTHING_WRONG = "no failure in this text"

MAX_BROKEN = 64 * 1024
"""Only what one can paste from a terminal is searched for words broken in the middle."""

_PLACEHOLDER = re.compile(r"<[a-zA-Z][\w .'/-]{1,40}>|(?<!\w)…(?!$)")
"""What a person must fill in before a command runs."""


def find_known_errors(
    text: str | Iterable[Excerpt], *, machine: Machine | None = None, is_ours: bool = False
) -> tuple[Match, ...]:
    """Find the known errors in a text, each root cause before what follows from it, as `explain_text` does."""
    answer = explain_text(text, machine=machine, is_ours=is_ours)
    return tuple(match for match in answer.matches if not match.is_harmless)


@dataclass(frozen=True)
class TextAnswer:
    """The content of a text: its known errors, best first, and where there are none what it says itself and what is nearest."""

    matches: tuple[Match, ...]
    unknown: Unknown | None = None
    nearest: "tuple[Nearest, ...]" = ()
    not_read: str = ""
    """Why the index did not answer what the text leaves to it."""

    @property
    def is_healthy(self) -> bool:
        """True if the text shows no failure."""
        is_harmless = bool(self.matches) and all(match.is_harmless for match in self.matches)
        return is_harmless or (self.unknown is not None and self.unknown.is_healthy)


def explain_text(
    text: str | Iterable[Excerpt],
    *,
    machine: Machine | None = None,
    is_ours: bool = False,
    read_history: "ReadHistory | None" = None,
    solve: "Solve | None" = None,
) -> TextAnswer:
    """Find the known errors in a text, each root cause before what follows from it; describe a text without any.

    Where the wording is unknown, a family of errors explains it; where both explain the same words, the family does if
    it names the same check, because it weighs further causes and computes the fix of the values in the text.

    What programs of any field report is not named where a program of another field reports it.

    Args:
        text: As a user pasted it, or the excerpts of a long log.
        machine: The machine to ask about the causes.
        is_ours: Whether the text comes of a GPU project, whatever its words say.
        read_history: Reads the releases of a library for a name that it lacks; called only where a failure of the text
            names one.
        solve: Finds releases for requirements that contradict each other; called only where a failure of the text has some.
    """
    words = read_words(text)
    facts = read_text_facts(words)
    if machine:
        facts = facts.complete(machine.values)
    answer = _explain_words(words, facts, machine=machine, is_ours=is_ours)
    if read_history is None or answer.is_healthy:
        return answer
    if solve and (contradiction := find_contradiction(words, facts)):
        solved = solve(contradiction)
        if isinstance(solved, NotRead):
            return replace(answer, not_read=solved.reason)
        stated = tuple(TextFact(name, value) for name, value in describe_set(solved).items())
        return _explain_words(words, replace(facts, stated=(*facts.stated, *stated)), machine=machine, is_ours=is_ours)
    if (missing := find_missing_name(words, facts)) is None:
        return answer
    history = read_history(missing)
    if isinstance(history, NotRead):
        return replace(answer, not_read=history.reason)
    facts = replace(facts, read=describe_history(missing, history), evidence=history.evidence)
    return _explain_words(words, facts, machine=machine, is_ours=is_ours)


def _explain_words(words: Words, facts: TextFacts, *, machine: Machine | None, is_ours: bool) -> TextAnswer:
    errors, reports, rivals = ([], [], []) if words.is_history else _find_errors(words, facts)
    harmless = [match for match in errors if match.is_harmless]
    errors = [match for match in errors if not match.is_harmless]
    if not (errors or words.is_history):
        from devkit.doctor.signatures.advice import read_advice

        advice = read_advice(words, facts)
        errors = [advice] if advice else []
    ordered, reports = _put_in_order(errors, reports, words)
    if goes_on_well(words, (*ordered, *reports)):
        harmless, ordered, reports = [*harmless, *(replace(each, is_harmless=True) for each in ordered)], [], []
    # Errors of any field that a program of another one reports; a lone line is asked about.
    is_asked = is_ours or (machine and machine.is_of_text) or len(words.starts) == 1
    common = () if is_asked else tuple(each for each in ordered if each.is_common)
    weak = tuple(each for each in common if words.is_of_another_field(each.position, _find_end(each)))
    ordered = [match for match in ordered if match not in weak]
    ordered = [_add_rivals(_add_alternatives(match, facts), rivals) for match in ordered]
    answer = TextAnswer(tuple(_judge_certainty(_limit_causes(ordered))))
    if not answer.matches:
        answer = _describe_rest(words, facts, harmless=harmless, reports=reports, weak=weak)
    answer = redact_tokens(answer)
    if machine:
        answer = replace(answer, matches=tuple(rank_by_machine(match, machine) for match in answer.matches))
    return answer


def _find_errors(words: Words, facts: TextFacts) -> tuple[list[Match], list[Match], list[Match]]:
    """Find the errors in a text, the lines that only report that something failed, and further explanations of its words."""
    found = list(find_errors(words, facts))
    if all(family.is_consequence for family, _ in found) and words.starts and len(words.shown) <= MAX_BROKEN:
        # A narrow terminal breaks lines within words. An error counts beside the report that it failed.
        reports = [match for _, match in found]
        found += [
            each
            for each in find_errors(words.join_lines(), facts)
            if not reports or (not each[0].is_consequence and any(_is_of_same_error(each[1], near) for near in reports))
        ]
    direct = [each for each in found if not each[0].is_consequence]
    kept = [match for _, match in _keep_one_of_each(_drop_overlapping(direct))]
    checked = [match for match in kept if match.code]
    # An error that no check looks for is left out where one that a check looks for is near and as sure.
    errors = [
        match
        for match in kept
        if match.code
        or not any(
            each.severity is match.severity and _rank(each) <= _rank(match) and _is_of_same_error(match, each)
            for each in checked
        )
    ]
    rivals = [match for _, match in direct if match not in errors]
    telling = [match for match in errors if not match.refers]
    referring = [match for match in errors if telling and match not in telling]
    errors = telling or errors
    for family, match in found:
        # Of what programs of any field report, the words around it have to be of this one.
        around = words.lowered[max(0, match.position - NEAR) : _find_end(match) + NEAR]
        if family.is_consequence and (not (family.is_general and family.is_common) or is_about_gpus(around)):
            referring.append(match)
    return _chain(_follow(errors), words), referring, rivals


def _drop_overlapping(found: list[tuple[Family, Match]]) -> list[tuple[Family, Match]]:
    """Keep of errors in the same words the one that knows their release, else the more specific, the surer.

    Those that another one overrides only follow from it.
    """
    overridden = {(family.id, code) for family, _ in found for code in family.overrides}
    kept: list[tuple[Family, Match]] = []
    for family, match in sorted(
        found, key=lambda each: (not each[0].has_changes, -each[1].specificity, _rank(each[1]))
    ):
        is_overridden = any(code == match.code and name != family.id for name, code in overridden)
        if not is_overridden and not any(_overlap(match, other) for _, other in kept):
            kept.append((family, match))
    return kept


def _keep_one_of_each(found: list[tuple[Family, Match]]) -> list[tuple[Family, Match]]:
    """Keep of the errors of a check the surest, the one with words for it, the most specific, the last.

    Of those that no check looks for, one for each cause.
    """
    best: dict[str, tuple[Family, Match]] = {}
    for each in sorted(
        found, key=lambda each: (_rank(each[1]), not each[1].speaks_for, -each[1].specificity, -each[1].position)
    ):
        best.setdefault(each[1].code or each[1].cause, each)
    return list(best.values())


def _rank(match: Match) -> tuple[int, int]:
    """Rank by severity, then by certainty: the lowest comes first."""
    return tuple(reversed(Severity)).index(match.severity), tuple(Confidence).index(match.confidence)


def _follow(errors: list[Match]) -> list[Match]:
    """Name for each error the code of the one at the top of its chain of causes.

    A less severe or less sure error never explains another one.
    """
    from devkit.doctor.checks.loader import load_check

    by_code = {match.code: match for match in errors if match.code}

    def find_root(match: Match) -> str | None:
        for code, other in by_code.items():
            if other is not match and match.code in load_check(code).causes and _rank(other) <= _rank(match):
                return find_root(other) or code
        return None

    return [replace(match, follows_from=find_root(match)) if match.code else match for match in errors]


def _put_in_order(errors: list[Match], reports: list[Match], words: Words) -> tuple[list[Match], list[Match]]:
    """Order the errors with the reports that follow from them; return also the reports whose error no row knows."""
    if any(match.severity is Severity.ERROR for match in errors):
        first, *others = _order(errors, words)
        after = sorted((each for each in reports if each.line >= first.line), key=lambda each: each.line)
        following = tuple(Consequence(each.matched, each.line or None, each.family) for each in after)
        return [replace(first, consequences=(*first.consequences, *following)), *others], []
    # The error that reports only follow from may be above them, in a line that no row knows.
    before = min((each.line for each in reports if each.confidence is not Confidence.CERTAIN), default=0)
    if not errors and before > 1 and find_first_error(words, before=before):
        return [], reports
    # Of lines that only report a failure, one that a check looks for says most, then what any program may meet, such as a
    # connection that breaks, and the first is nearest to the cause.
    reports.sort(
        key=lambda each: (
            not (each.code or each.is_common),
            _rank(each)[1],
            not each.code,
            not each.is_common,
            each.position,
        )
    )
    return [*reports, *_order(errors, words)], []


def _describe_rest(
    words: Words, facts: TextFacts, *, harmless: list[Match], reports: list[Match], weak: Iterable[Match]
) -> TextAnswer:
    """Describe a text without a known error."""
    by_line = {each.line: Consequence(each.matched, each.line or None, each.family) for each in reports}
    unknown = describe_unknown(
        words,
        facts,
        reports=tuple(by_line[line] for line in sorted(by_line)),
        harmless=(match.line for match in harmless),
        weak=(match.line for match in weak),
    )
    notes = [each for each in harmless if each.severity is Severity.NOTE]
    if notes and unknown.is_healthy:
        return TextAnswer(_order(notes, words))
    if unknown.is_healthy:
        return TextAnswer((), unknown)
    from devkit.doctor.signatures.nearest import MAX_NEAREST, Nearest, find_nearest

    # What it resembles: errors too weak to be named, else entries of the catalog.
    named = tuple(Nearest(match.code or match.family, match.cause, match.matched) for match in weak)
    return TextAnswer((), unknown, named[:MAX_NEAREST] or find_nearest(words.lowered))


def _judge_certainty(matches: list[Match]) -> list[Match]:
    """Call only a cause certain that is one, with a fix that leaves no choice; of one error at most one.

    Text that leaves no other row does not decide between two causes of that row, or two ways of its fix.
    """
    judged: list[Match] = []
    for match in matches:
        is_second = any(_is_of_same_error(match, each) for each in judged if each.confidence is Confidence.CERTAIN)
        is_open = is_second or not match.is_decided or any(map(_PLACEHOLDER.search, match.fix.commands))
        is_certain = match.confidence is Confidence.CERTAIN
        judged.append(replace(match, confidence=Confidence.LIKELY) if is_certain and is_open else match)
    return judged


def _is_of_same_error(one: Match, other: Match) -> bool:
    gap = max(one.position, other.position) - min(_find_end(one), _find_end(other))
    return gap < NEAR and one.source == other.source


def _find_end(match: Match) -> int:
    return match.position + len(match.matched)


def _overlap(one: Match, other: Match) -> bool:
    return min(_find_end(one), _find_end(other)) > max(one.position, other.position)


def _add_alternatives(match: Match, facts: TextFacts) -> Match:
    """Add the causes that the catalog names beside this one, each with its fix, and the command that decides."""
    rows = ((code, find_general_cause(code)) for code in match.also)
    causes = [Cause(code, row.cause, render_fix_of(row, {}, facts), Confidence.POSSIBLE) for code, row in rows if row]
    if not causes or match.alternatives or match.confidence is Confidence.CERTAIN:
        return match
    causes = causes[: MAX_CAUSES - 1]
    codes = " ".join(f"--only {code}" for code in (match.code, *(cause.code for cause in causes)))
    return replace(match, alternatives=tuple(causes), question=f"devkit doctor {codes}")


def _add_rivals(match: Match, rivals: list[Match]) -> Match:
    """Add the first causes of other families whose words are at the same place, as what else it may be."""
    if match.confidence is Confidence.CERTAIN:
        return match
    known = {match.cause, *(cause.cause for cause in match.alternatives)}
    near = [each for each in rivals if each.cause not in known and _overlap(each, match)]
    causes = tuple(Cause(each.code, each.cause, each.fix, Confidence.POSSIBLE, (each.matched,)) for each in near)
    return replace(match, alternatives=(*match.alternatives[:1], *causes, *match.alternatives[1:])[: MAX_CAUSES - 1])


def _limit_causes(matches: list[Match]) -> list[Match]:
    """Leave out causes with the fix of the first, and those for which no word speaks where other errors are among the first causes."""
    left = MAX_CAUSES - len(matches)
    kept = []
    for match in matches:
        others = (
            each for each in match.alternatives if each.fix.commands != match.fix.commands or not each.fix.commands
        )
        causes = [each for each in others if each.speaks_for or len(matches) == 1]
        kept.append(replace(match, alternatives=tuple(causes[: max(left, 0)])))
        left -= len(causes)
    return kept


def _order(matches: list[Match], words: Words) -> tuple[Match, ...]:
    """Order matches by severity and certainty, what follows from another behind it.

    Of equal ones a line that calls itself a warning comes last, and the later in the text first, because the last line
    of a traceback says more than the warnings before it; of several services or ranks the earlier, because the others
    fail for it.
    """
    is_of_many = len({match.source for match in matches if match.source}) > 1
    codes = {match.code for match in matches}
    roots = sorted(
        (match for match in matches if match.follows_from not in codes),
        key=lambda match: (
            _rank(match)[0],
            match.position if is_of_many else _rank(match)[1],
            words.is_warning(match.position),
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
        if last and is_error and not match.follows_from and any(words in between for words in CHAINED):
            said = Consequence(match.matched, match.line or None, match.cause)
            chained[-1] = replace(last, consequences=(*last.consequences, said))
        else:
            chained.append(match)
    return chained


def format_text_answer(answer: TextAnswer, *, width: int, marks: Marks) -> tuple[Line, ...]:
    """Format what a text says: its known errors, or what it says itself where it has none."""
    unknown = answer.unknown
    not_read = (
        [Line(""), *fold_lines(f"{NOT_READ}: {answer.not_read}", width, tone=Tone.QUIET)] if answer.not_read else []
    )
    if unknown is None:
        return (*format_matches(answer.matches, width=width, marks=marks), *not_read)
    if unknown.is_healthy:
        return (Line(NOTHING_WRONG), *_format_stated(unknown, width))
    lines: list[Line] = []
    if error := unknown.first_error:
        lines += fold_lines(f"{error.text} (line {error.line})", width, tone=Tone.WARN)
        lines += [Line(f"  {NOTHING_KNOWN}; this line is the failure as the text reports it", Tone.QUIET)]
        raised = f"raised in {unknown.package}" if unknown.package else ""
        raised += f" ({unknown.file})" if raised and unknown.file else ""
        raised += f", called by {unknown.caller}" if raised and unknown.caller else ""
        lines += fold_lines(raised, width, indent="  ") if raised else []
    else:
        lines += [Line(NOTHING_KNOWN)]
    for each in unknown.reports:
        lines += fold_lines(f"line {each.line} only reports it: {each.matched}", width, indent="  ", tone=Tone.QUIET)
    lines += _format_stated(unknown, width)
    for advice in unknown.advice:
        lines += fold_lines(f"the text says: {advice}", width, indent="  ")
    if answer.nearest:
        lines += [Line(""), Line("known errors with the same words, which may not be the cause:")]
        lines += [
            line
            for each in answer.nearest
            for line in fold_lines(f"{each.name} {each.about}: {each.text}", width, indent="  ")
        ]
    if unknown.search:
        lines += [Line(""), Line("search for:"), Line(f"  {unknown.search}", Tone.COMMAND)]
    lines += [*not_read, Line(""), Line("next:"), *(Line(f"  {command}", Tone.COMMAND) for command in unknown.commands)]
    return tuple(lines)


def _format_stated(unknown: Unknown, width: int) -> list[Line]:
    stated = (("versions", ", ".join(unknown.versions)), ("stated", "; ".join(unknown.facts)))
    return [
        line
        for label, said in stated
        if said
        for line in fold_lines(f"{label}: {said}", width, indent="  ", tone=Tone.QUIET)
    ]


def format_matches(found: tuple[Match, ...], *, width: int, marks: Marks) -> tuple[Line, ...]:
    """Format the matches, each with its fix; what follows from another takes one line."""
    lines: list[Line] = []
    for match in found:
        if match.follows_from:
            said = f"follows from {match.follows_from}: {match.code}: {match.cause}"
            lines += fold_lines(said, width, indent="  ", tone=Tone.QUIET)
        else:
            lines += [*([Line("")] if lines else []), *format_match(match, width=width, marks=marks)]
    if all(match.is_harmless for match in found):
        lines = [Line(NOTHING_WRONG), Line(""), *lines]
    hint = "This is based only on the text; `devkit doctor` checks the machine itself and prints its fix."
    return (*lines, Line(""), *fold_lines(hint, width, tone=Tone.QUIET))
