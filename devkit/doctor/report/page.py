"""A page of terminal output: messages, fixes and evidence in lines of one width."""

from devkit.doctor.model import Check, Confidence, Finding, Restart, Severity
from devkit.doctor.report.lines import MAX_WIDTH, MIN_WIDTH, Line, Marks, Tone
from devkit.doctor.signatures.model import Cause, Match
from devkit.text import wrap_text

SEVERITY_WORDS = {Severity.ERROR: "problem", Severity.WARNING: "warning", Severity.NOTE: "note"}
RESTART_WORDS = {
    Restart.ENGINE: "restarts the engine",
    Restart.LOGIN: "needs a new login",
    Restart.WSL: "restarts WSL",
    Restart.HOST: "restarts the machine",
}
_TONES = {Severity.ERROR: Tone.BAD, Severity.WARNING: Tone.WARN, Severity.NOTE: Tone.PLAIN}


class Page:
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

    def add_fix(self, finding: Finding, check: Check | None = None) -> None:
        """Add the file and line to look at, and the fix with its side, rights, restart and commands.

        With `check`, also the check that says so, its confidence unless certain, and the command that explains it.
        """
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
        if check:
            certainty = "" if finding.confidence is Confidence.CERTAIN else f"{finding.confidence.value}: "
            explain = f"{certainty}{check.code} {self.marks.dot} devkit explain {check.code}"
            self.add(explain, indent="  ", tone=Tone.QUIET)
        if fix.docs:
            self.lines.append(Line(f"  more: {fix.docs}", Tone.QUIET))

    def add_weights(self, cause: Match | Cause) -> None:
        """Add the words of the text for and against a cause."""
        for label, words in (("for it", cause.speaks_for), ("against it", cause.speaks_against)):
            if words:
                self.add(f"{label}: {'; '.join(words)}", indent="  ", hanging="  ", tone=Tone.QUIET)

    def add_evidence(self, finding: Finding) -> None:
        """Add the readings that show it."""
        for reading in finding.evidence:
            self.add(f"seen: {reading}", indent="  ", hanging="  ", tone=Tone.QUIET)


def format_match(match: Match, *, width: int, marks: Marks) -> tuple[Line, ...]:
    """Format a known error of a text: its causes, each with its fix and what speaks for it, and what decides."""
    page = Page(width=width, marks=marks)
    finding = Finding(match.severity, match.cause, match.fix)
    page.add_message(finding)
    page.add_fix(finding)
    explain = f": {match.code} {page.marks.dot} devkit explain {match.code}"
    source = explain if match.code else f", as {match.family}"
    page.add(f"{match.confidence.value}{source}", indent="  ", tone=Tone.QUIET)
    place = f" in line {match.line}" if match.line > 1 else ""
    place += f" of {match.source}" if match.source else ""
    page.add(f"seen{place}: {match.matched}", indent="  ", hanging="  ", tone=Tone.QUIET)
    page.add_weights(match)
    for cause in match.alternatives:
        page.add(f"or {cause.confidence.value}: {cause.cause}", indent="  ", hanging="  ", tone=Tone.WARN)
        page.add_fix(Finding(match.severity, cause.cause, cause.fix))
        page.add_weights(cause)
    if match.question:
        page.add(f"{'decides' if match.alternatives else 'more'}:", indent="  ")
        page.lines.append(Line(f"      {match.question}", Tone.COMMAND))
    for each in match.consequences:
        page.add(
            f"follows in line {each.line}: {each.matched}: {each.family}", indent="  ", hanging="  ", tone=Tone.QUIET
        )
    return tuple(page.lines)
