"""The report for people: the true cause in the first line, its fix right below, and the rest in a line or two."""

from collections.abc import Iterable
from enum import StrEnum

from devkit.doctor.model import Check, Crashed, Finding, Fix, Outcome, Passed, Restart, Severity, Skipped
from devkit.doctor.report.report import Health, Report, ReportedFinding
from devkit.facts.values import record
from devkit.text import format_count, join_words, wrap_text

MIN_WIDTH = 40
MAX_WIDTH = 100


class Tone(StrEnum):
    """How a line may be coloured. The words alone carry the meaning."""

    PLAIN = "plain"
    BAD = "bad"
    WARN = "warn"
    GOOD = "good"
    QUIET = "quiet"
    COMMAND = "command"


@record
class Line:
    """One printed line and its tone."""

    text: str
    tone: Tone = Tone.PLAIN


@record
class Marks:
    """The glyphs in front of words."""

    error: str
    warning: str
    note: str
    passed: str
    skipped: str


UNICODE_MARKS = Marks(error="✗", warning="!", note="i", passed="✓", skipped="–")  # noqa: RUF001 - a dash, meant
ASCII_MARKS = Marks(error="x", warning="!", note="i", passed="+", skipped="-")

_WORDS = {Severity.ERROR: "problem", Severity.WARNING: "warning", Severity.NOTE: "note"}
_TONES = {Severity.ERROR: Tone.BAD, Severity.WARNING: Tone.WARN, Severity.NOTE: Tone.PLAIN}
_RESTARTS = {
    Restart.ENGINE: "restarts the engine",
    Restart.LOGIN: "needs a new login",
    Restart.WSL: "restarts WSL",
    Restart.HOST: "restarts the machine",
}


def format_report(report: Report, *, width: int, marks: Marks, verbose: bool = False) -> tuple[Line, ...]:
    """The report in lines of at most `width` columns; commands and paths are never broken.

    Findings that follow from another are only counted, unless `verbose`; so are passed and skipped checks.
    """
    page = _Page(width=max(MIN_WIDTH, min(width, MAX_WIDTH)), marks=marks)
    roots = report.roots
    has_said_first = _headline(page, report)
    for place, shown in enumerate(roots):
        if place or not has_said_first:
            page.opening(shown.finding)
        page.place(shown.finding)
        page.fix(shown.finding.fix)
        # Several findings of one check share what follows from it.
        is_last = shown.check.code not in {later.check.code for later in roots[place + 1 :]}
        followers = report.following(shown.check.code) if is_last else ()
        if followers:
            page.consequences(followers)
        page.reasons(shown)
        if verbose:
            _followers(page, followers)
    for outcome in report.crashed:
        page.crash(outcome)
    _summary(page, report, verbose=verbose)
    return tuple(page.lines)


def format_finding(shown: ReportedFinding, *, width: int, marks: Marks) -> tuple[Line, ...]:
    """One finding by itself, with what was seen and its fix."""
    page = _Page(width=max(MIN_WIDTH, min(width, MAX_WIDTH)), marks=marks)
    page.say(page.first_line(shown.finding), hanging="  ", tone=_TONES[shown.finding.severity])
    page.details(shown)
    return tuple(page.lines)


def format_checks(checks: Iterable[Check]) -> tuple[Line, ...]:
    """One line for each check: code and title."""
    return tuple(Line(f"{check.code}  {check.title}") for check in checks)


class _Page:
    """Collects lines of one width and one set of glyphs."""

    def __init__(self, *, width: int, marks: Marks) -> None:
        self.width = width
        self.marks = marks
        self.lines: list[Line] = []

    def say(self, text: str, *, indent: str = "", hanging: str = "", tone: Tone = Tone.PLAIN) -> None:
        """Add `text`, folded; `hanging` indents what is folded further."""
        folded = wrap_text(text, width=self.width, indent=indent, hanging=hanging) if text else ""
        self.lines += [Line(line, tone) for line in folded.split("\n")]

    def opening(self, finding: Finding) -> None:
        """The first line of a finding, after an empty one."""
        self.say("")
        self.say(self.first_line(finding), hanging="  ", tone=_TONES[finding.severity])

    def first_line(self, finding: Finding) -> str:
        """Glyph, word and message."""
        mark = {Severity.ERROR: self.marks.error, Severity.WARNING: self.marks.warning}
        place = f" in the {finding.seen_in}" if finding.seen_in else ""
        return f"{mark.get(finding.severity, self.marks.note)} {_WORDS[finding.severity]}{place}: {finding.message}"

    def details(self, shown: ReportedFinding) -> None:
        """Everything about a finding below its first line: the fix first."""
        self.place(shown.finding)
        self.fix(shown.finding.fix)
        self.reasons(shown)

    def place(self, finding: Finding) -> None:
        """The file and line to look at."""
        if finding.location:
            # Terminals and editors make a link of file:line: never folded.
            self.lines.append(Line(f"  at {finding.location.path}:{finding.location.line}"))

    def fix(self, fix: Fix) -> None:
        """What to do, where, as whom, what it restarts, and the commands."""
        place = [fix.where.value, *(["root"] if fix.root else [])]
        if fix.restart in _RESTARTS:
            place.append(_RESTARTS[fix.restart])
        self.say(f"fix ({', '.join(place)}): {fix.summary}", indent="  ")
        # Commands are for copying: never folded.
        self.lines += [Line(f"      {command}", Tone.COMMAND) for command in fix.commands]
        if fix.repairs:
            self.lines += [Line("      devkit doctor --fix", Tone.COMMAND)]
        if fix.docs:
            self.lines.append(Line(f"  more: {fix.docs}", Tone.QUIET))

    def reasons(self, shown: ReportedFinding) -> None:
        """Which check says so, how sure it is, and what it saw."""
        finding = shown.finding
        self.say(
            f"{finding.confidence.value}, says {shown.check.code} {shown.check.title}", indent="  ", tone=Tone.QUIET
        )
        for reading in finding.evidence:
            self.say(f"seen: {reading}", indent="  ", hanging="  ", tone=Tone.QUIET)

    def consequences(self, followers: tuple[ReportedFinding, ...]) -> None:
        """How many findings follow, and from which checks."""
        codes = join_words(dict.fromkeys(shown.check.code for shown in followers))
        verb = "follows" if len(followers) == 1 else "follow"
        self.say(f"{format_count(len(followers), 'finding')} {verb} from it: {codes}", indent="  ", tone=Tone.QUIET)

    def crash(self, outcome: Outcome) -> None:
        """A check that broke."""
        if isinstance(outcome.verdict, Crashed):
            self.say("")
            self.say(
                f"{self.marks.warning} crashed: {outcome.check.code} {outcome.check.title}: {outcome.verdict.error}",
                tone=Tone.WARN,
            )
            self.say("This is a bug in devkit; the other checks are not affected.", indent="  ")


def _headline(page: _Page, report: Report) -> bool:
    """The first line: the true cause, or that all is well. Returns whether it spoke of the first root."""
    first = next(iter(report.roots), None)
    if report.health is Health.HEALTHY:
        said = first.finding.message if first else "nothing found that stops GPU work"
        page.say(f"{page.marks.passed} healthy: {said}", tone=Tone.GOOD)
        return first is not None
    if first is None or first.finding.severity is Severity.NOTE:
        page.say(f"{page.marks.warning} warning: {format_count(len(report.crashed), 'check')} crashed", tone=Tone.WARN)
        return False
    page.say(page.first_line(first.finding), hanging="  ", tone=_TONES[first.finding.severity])
    return True


def _followers(page: _Page, followers: tuple[ReportedFinding, ...]) -> None:
    """In full, what follows from the check that was just shown."""
    for follower in followers:
        page.opening(follower.finding)
        page.say(f"follows from {follower.finding.follows_from}", indent="  ", tone=Tone.QUIET)
        page.details(follower)


def _summary(page: _Page, report: Report, *, verbose: bool) -> None:
    passed = [outcome for outcome in report.outcomes if isinstance(outcome.verdict, Passed)]
    skipped = [outcome for outcome in report.outcomes if isinstance(outcome.verdict, Skipped)]
    if verbose:
        page.say("")
        for outcome in passed:
            page.say(f"{page.marks.passed} passed: {outcome.check.code} {outcome.check.title}", tone=Tone.QUIET)
        for outcome in skipped:
            reason = outcome.verdict.reason if isinstance(outcome.verdict, Skipped) else ""
            page.say(
                f"{page.marks.skipped} skipped: {outcome.check.code} {outcome.check.title}: {reason}", tone=Tone.QUIET
            )
    page.say("")
    hint = "" if verbose else " (--verbose shows all)"
    page.say(f"{_counts(report)}{len(passed)} passed, {len(skipped)} skipped{hint}", tone=Tone.QUIET)


def _counts(report: Report) -> str:
    errors = sum(shown.finding.severity is Severity.ERROR for shown in report.roots)
    warnings = sum(shown.finding.severity is Severity.WARNING for shown in report.roots)
    parts = [format_count(errors, "problem")] if errors else []
    parts += [format_count(warnings, "warning")] if warnings else []
    return f"{join_words(parts)}; " if parts else ""
