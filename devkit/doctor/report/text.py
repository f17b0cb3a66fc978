"""The report as text: the root cause in the first line, its fix right below, and the rest in a line or two."""

from collections import Counter
from collections.abc import Iterable

from devkit.doctor.model import Check, Crashed, Finding, Found, Passed, Severity, Skipped
from devkit.doctor.report.lines import MAX_WIDTH, MIN_WIDTH, Line, Marks, Tone
from devkit.doctor.report.report import RESTART_WORDS, SEVERITY_WORDS, Health, Report, ReportedFinding
from devkit.doctor.signatures.model import Cause, Match
from devkit.text import format_count, join_words, wrap_text

MAX_LOST = 5
"""Lost readings that are shown, and checks of each."""

_TONES = {Severity.ERROR: Tone.BAD, Severity.WARNING: Tone.WARN, Severity.NOTE: Tone.PLAIN}


def format_report(report: Report, *, width: int, marks: Marks, verbose: bool = False) -> tuple[Line, ...]:
    """Format the report in lines of at most `width` columns; commands and paths are never wrapped.

    Findings that follow from another are only counted, unless `verbose`; so are passed and skipped checks.
    """
    page = _Page(width=width, marks=marks)
    roots = report.roots
    first = roots[0].finding if roots else None
    if report.health is Health.HEALTHY:
        healthy = first.message if first else "nothing found that stops GPU work"
        page.add(f"{marks.passed} healthy: {healthy}", tone=Tone.GOOD)
        headline = first
    elif report.health is Health.INCOMPLETE:
        page.add_lost(report)
        headline = None
    elif first is None or first.severity is Severity.NOTE:
        page.add(f"{marks.warning} warning: {format_count(len(report.crashed), 'check')} crashed", tone=Tone.WARN)
        headline = None
    else:
        page.add_message(first)
        headline = first
    for number, shown in enumerate(roots):
        if number or headline is None:
            page.add("")
            page.add_message(shown.finding)
        page.add_fix(shown.finding)
        # Several findings of one check share their consequences: shown below the last of them.
        is_last = shown.check.code not in {later.check.code for later in roots[number + 1 :]}
        followers = report.following(shown.check.code) if is_last else ()
        if followers:
            codes = join_words(dict.fromkeys(follower.check.code for follower in followers))
            verb = "follows" if len(followers) == 1 else "follow"
            page.add(f"{format_count(len(followers), 'finding')} {verb} from it: {codes}", indent="  ", tone=Tone.QUIET)
        page.add_evidence(shown)
        for follower in followers if verbose else ():
            page.add("")
            page.add_message(follower.finding)
            page.add(f"follows from {follower.finding.follows_from}", indent="  ", tone=Tone.QUIET)
            page.add_fix(follower.finding)
            page.add_evidence(follower)
    _add_summary(page, report, verbose=verbose)
    return tuple(page.lines)


def _add_summary(page: "_Page", report: Report, *, verbose: bool) -> None:
    """Add the checks that crashed, passed and were skipped, and the counts."""
    marks = page.marks
    passed, skipped = [], []
    for outcome in report.outcomes:
        name = f"{outcome.check.code} {outcome.check.title}"
        match outcome.verdict:
            case Passed():
                passed.append(f"{marks.passed} passed: {name}")
            case Skipped(reason):
                skipped.append(f"{marks.skipped} skipped: {name}: {reason}")
            case Crashed(error):
                page.add("")
                page.add(f"{marks.warning} crashed: {name}: {error}", tone=Tone.WARN)
                page.add("This is a bug in devkit; the other checks are not affected.", indent="  ")
            case Found():
                pass
    if verbose:
        page.add("")
        for line in (*passed, *skipped):
            page.add(line, tone=Tone.QUIET)
    if report.health is Health.PROBLEMS and report.lost:
        page.add("")
        page.add_lost(report)
    counts = Counter(shown.finding.severity for shown in report.roots)
    parts = [
        format_count(counts[severity], SEVERITY_WORDS[severity])
        for severity in (Severity.ERROR, Severity.WARNING)
        if counts[severity]
    ]
    page.add("")
    page.add(
        f"{f'{join_words(parts)}; ' if parts else ''}{len(passed)} passed, {len(skipped)} skipped"
        f"{'' if verbose else ' (--verbose shows all)'}",
        tone=Tone.QUIET,
    )


def format_match(match: Match, *, title: str, width: int, marks: Marks) -> tuple[Line, ...]:
    """Format a known error of a text: its causes, each with its fix and what speaks for it, and what decides."""
    page = _Page(width=width, marks=marks)
    finding = Finding(match.severity, match.cause, match.fix)
    page.add_message(finding)
    page.add_fix(finding)
    page.add(f"{match.confidence.value}, says {title}", indent="  ", tone=Tone.QUIET)
    page.add(f"seen: {match.matched}", indent="  ", hanging="  ", tone=Tone.QUIET)
    page.add_weights(match)
    for cause in match.alternatives:
        page.add(f"or {cause.confidence.value}: {cause.cause}", indent="  ", hanging="  ", tone=Tone.WARN)
        page.add_fix(Finding(match.severity, cause.cause, cause.fix))
        page.add_weights(cause)
    if match.question:
        page.add(f"{'decides' if match.alternatives else 'more'}:", indent="  ")
        page.lines.append(Line(f"      {match.question}", Tone.COMMAND))
    return tuple(page.lines)


def format_checks(checks: Iterable[Check]) -> tuple[Line, ...]:
    """Format one line for each check: code and title."""
    return tuple(Line(f"{check.code}  {check.title}") for check in checks)


class _Page:
    """Lines of one width and one set of glyphs."""

    def __init__(self, *, width: int, marks: Marks) -> None:
        self.width = max(MIN_WIDTH, min(width, MAX_WIDTH))
        self.marks = marks
        self.lines: list[Line] = []

    def add(self, text: str, *, indent: str = "", hanging: str = "", tone: Tone = Tone.PLAIN) -> None:
        """Add `text`, wrapped; `hanging` indents the lines after the first."""
        wrapped = wrap_text(text, width=self.width, indent=indent, hanging=hanging) if text else ""
        self.lines += [Line(line, tone) for line in wrapped.split("\n")]

    def add_message(self, finding: Finding) -> None:
        """Add glyph, severity and message."""
        mark = {Severity.ERROR: self.marks.error, Severity.WARNING: self.marks.warning}
        place = f" in the {finding.seen_in}" if finding.seen_in else ""
        self.add(
            f"{mark.get(finding.severity, self.marks.note)} {SEVERITY_WORDS[finding.severity]}{place}:"
            f" {finding.message}",
            hanging="  ",
            tone=_TONES[finding.severity],
        )

    def add_lost(self, report: Report) -> None:
        """Add what could not be read, with the checks for errors that needed it."""
        count = len({code for each in report.lost for code in each.checks})
        self.add(
            f"{self.marks.unknown} incomplete: {format_count(count, 'check')} for what stops GPU work could not be made",
            hanging="  ",
            tone=Tone.UNKNOWN,
        )
        for each in report.lost[:MAX_LOST]:
            named = [*each.checks[:MAX_LOST], *([f"{more} more"] if (more := len(each.checks) - MAX_LOST) > 0 else [])]
            self.add(f"not read: {each.reason}; needed by {join_words(named)}", indent="  ", hanging="  ")
        if (more := len(report.lost) - MAX_LOST) > 0:
            self.add(f"and {format_count(more, 'other reading')} (--json lists all)", indent="  ")
        self.add("Repair what hangs, or give it more time:", indent="  ")
        self.lines.append(Line("      devkit doctor --timeout 30", Tone.COMMAND))

    def add_fix(self, finding: Finding) -> None:
        """Add the file and line to look at, and the fix with its side, rights, restart and commands."""
        if finding.location:
            # Terminals and editors make a link of file:line: never wrapped.
            self.lines.append(Line(f"  at {finding.location.path}:{finding.location.line}"))
        fix = finding.fix
        place = [fix.where.value, *(["root"] if fix.root else [])]
        if fix.restart in RESTART_WORDS:
            place.append(RESTART_WORDS[fix.restart])
        self.add(f"fix ({', '.join(place)}): {fix.summary}", indent="  ")
        # Commands are for copying: never wrapped.
        self.lines += [Line(f"      {command}", Tone.COMMAND) for command in fix.commands]
        if fix.repairs:
            self.lines += [Line("      devkit doctor --fix", Tone.COMMAND)]
        if fix.docs:
            self.lines.append(Line(f"  more: {fix.docs}", Tone.QUIET))

    def add_weights(self, cause: Match | Cause) -> None:
        """Add the words of the text for and against a cause."""
        for label, words in (("for it", cause.speaks_for), ("against it", cause.speaks_against)):
            if words:
                self.add(f"{label}: {'; '.join(words)}", indent="  ", hanging="  ", tone=Tone.QUIET)

    def add_evidence(self, shown: ReportedFinding) -> None:
        """Add the check that says so, its confidence, and the readings that show it."""
        finding = shown.finding
        self.add(
            f"{finding.confidence.value}, says {shown.check.code} {shown.check.title}", indent="  ", tone=Tone.QUIET
        )
        for reading in finding.evidence:
            self.add(f"seen: {reading}", indent="  ", hanging="  ", tone=Tone.QUIET)
