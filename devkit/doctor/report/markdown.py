"""The report as Markdown, for an issue or a chat: the cause first, the rest folded."""

import re
from collections.abc import Iterable, Iterator, Sequence

from devkit.doctor.model import Crashed, Finding, Fix, Outcome, Passed, Restart, Severity, Skipped
from devkit.doctor.report.report import Health, Report, ReportedFinding
from devkit.doctor.report.stack import build_stack
from devkit.facts.model import Facts
from devkit.text import format_count

_ICONS = {Severity.ERROR: "❌", Severity.WARNING: "⚠️", Severity.NOTE: "i"}
_WORDS = {Severity.ERROR: "problem", Severity.WARNING: "warning", Severity.NOTE: "note"}
_RESTARTS = {
    Restart.ENGINE: "restarts the engine",
    Restart.LOGIN: "needs a new login",
    Restart.WSL: "restarts WSL",
    Restart.HOST: "restarts the machine",
}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~])")
_MENTION = re.compile(r"([@#])(?=\w)")


def render_markdown_report(facts: Facts, report: Report) -> str:
    """One Markdown document. Give it redacted facts and report: it is made to be shown to strangers."""
    sections = (
        _summary(report),
        _table(report.roots),
        *(_repair(shown, report) for shown in report.roots if shown.finding.severity is not Severity.NOTE),
        _machine(facts, report),
        _folded("Evidence", _evidence(report.findings)),
        _folded("Consequences, which go away with their cause", _consequences(report)),
        _folded("Not judged, and why", _unjudged(report.outcomes)),
        [_footer(report)],
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _footer(report: Report) -> str:
    tables = f", by version tables as of {_plain(report.data_as_of)}" if report.data_as_of else ""
    return f"<sub>devkit doctor {_plain(report.devkit)}, read at {_plain(report.taken_at)}{tables}</sub>"


def _summary(report: Report) -> list[str]:
    passed = sum(isinstance(outcome.verdict, Passed) for outcome in report.outcomes)
    first = next(iter(report.roots), None)
    if report.health is Health.HEALTHY:
        return ["### ✅ devkit doctor: healthy", "", f"{format_count(passed, 'check')} passed."]
    if first is None or first.finding.severity is Severity.NOTE:
        return [f"### ⚠️ devkit doctor: {format_count(len(report.crashed), 'check')} crashed"]
    icon, word = _ICONS[first.finding.severity], _WORDS[first.finding.severity]
    return [f"### {icon} devkit doctor: {word}", "", f"**{_plain(first.finding.message)}**"]


def _table(roots: Sequence[ReportedFinding]) -> list[str]:
    if not roots:
        return []
    head = ["| | Finding | Check | Confidence | Where |", "|---|---|---|---|---|"]
    return head + [
        f"| {_ICONS[shown.finding.severity]} {_WORDS[shown.finding.severity]} | {_plain(shown.finding.message)} "
        f"| `{shown.check.code}` | {shown.finding.confidence.value} | {_place(shown.finding)} |"
        for shown in roots
    ]


def _place(finding: Finding) -> str:
    """The file and line, the part of the machine, or the side that it was seen on."""
    if finding.location:
        return _code(f"{finding.location.path}:{finding.location.line}")
    return _plain(", ".join(part for part in (finding.subject, finding.seen_in) if part)) or "machine"


def _repair(shown: ReportedFinding, report: Report) -> list[str]:
    fix = shown.finding.fix
    lines = [f"**Fix for {shown.check.code}** ({_how(fix)}): {_plain(fix.summary)}"]
    if fix.commands:
        lines += ["", *_fenced(fix.commands, "sh")]
    followers = {other.check.code for other in report.following(shown.check.code)}
    if followers:
        lines += ["", f"{format_count(len(followers), 'other check')} found consequences of it."]
    return lines


def _how(fix: Fix) -> str:
    restart = [_RESTARTS[fix.restart]] if fix.restart in _RESTARTS else []
    return ", ".join([f"on the {fix.where.value}", *(["as root"] if fix.root else []), *restart])


def _machine(facts: Facts, report: Report) -> list[str]:
    """The layers of the stack, the state of each, and what was read there."""
    rows = [
        f"| {layer.title} | {layer.state.value} "
        f"| {_plain('; '.join(f'{value.name}: {value.value}' for value in layer.readings)) or '–'} |"  # noqa: RUF001
        for layer in build_stack(facts, report)
    ]
    return ["| Layer | State | Read there |", "|---|---|---|", *rows]


def _evidence(found: Iterable[ReportedFinding]) -> Iterator[str]:
    for shown in found:
        if shown.finding.evidence:
            yield from (f"{shown.check.code}: {_plain(shown.check.title)}", "")
            yield from (*_fenced(shown.finding.evidence, "text"), "")


def _consequences(report: Report) -> Iterator[str]:
    for shown in report.findings:
        if shown.finding.follows_from:
            because = f"(follows from `{shown.finding.follows_from}`)"
            yield f"- `{shown.check.code}` {_plain(shown.finding.message)} {because}"


def _unjudged(outcomes: Iterable[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        said = f"- `{outcome.check.code}` {_plain(outcome.check.title)}"
        if isinstance(outcome.verdict, Skipped):
            yield f"{said}: {_plain(outcome.verdict.reason)}"
        elif isinstance(outcome.verdict, Crashed):
            yield f"{said}: crashed, a bug in devkit: {_plain(outcome.verdict.error)}"


def _folded(title: str, lines: Iterable[str]) -> list[str]:
    body = list(lines)
    return [f"<details><summary>{title}</summary>", "", *body, "", "</details>"] if body else []


def _plain(text: str) -> str:
    """Text that Markdown shows as it is: on one line, nothing formatted, nobody mentioned, no issue linked."""
    escaped = _SPECIAL.sub(r"\\\1", " ".join(text.replace("&", "&amp;").split()))
    return _MENTION.sub(lambda found: f"&#{ord(found[1])};", escaped)


def _code(text: str) -> str:
    """Text in a code span that it cannot end, not even inside of a table."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{' '.join(text.split())}{pad}{fence}".replace("|", "\\|")


def _fenced(lines: Iterable[str], language: str) -> list[str]:
    """A block whose fence is longer than any run of backticks inside."""
    text = "\n".join(lines)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return [f"{fence}{language}", text, fence]
