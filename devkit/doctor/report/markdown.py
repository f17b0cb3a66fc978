"""The report as Markdown, for an issue or a chat: the cause first, the rest folded."""

import re
from collections.abc import Iterable, Iterator

from devkit.doctor.model import Crashed, Passed, Severity, Skipped
from devkit.doctor.report.page import RESTART_WORDS, SEVERITY_WORDS
from devkit.doctor.report.report import Health, Report, ReportedFinding
from devkit.doctor.report.stack import build_stack
from devkit.facts.model import Facts
from devkit.text import escape_text, format_count

_ICONS = {Severity.ERROR: "❌", Severity.WARNING: "⚠️", Severity.NOTE: "i"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~])")
_BLOCK = re.compile(r"^(\d*)(?:(?<=\d)([.)])|(?<!\d)([#+=-]))")
"""At the beginning of an entry: a number of a list, a heading, a list, a line below a heading."""
_MENTION = re.compile(r"([@#])(?=\w)")


def render_markdown_report(facts: Facts, report: Report) -> str:
    """Render one Markdown document. Give it redacted facts and report: strangers will read it."""
    tables = f", by version tables as of {_escape(report.data_as_of)}" if report.data_as_of else ""
    rows = [
        f"| {layer.title} | {layer.state.value} "
        f"| {_escape('; '.join(f'{value.name}: {value.value}' for value in layer.readings)) or '–'} |"  # noqa: RUF001
        for layer in build_stack(facts, report)
    ]
    evidence = (
        line
        for shown in report.findings
        if (lines := shown.finding.evidence)
        for line in (f"{shown.check.code}: {_escape(shown.check.title)}", "", *_render_code_block(lines, "text"), "")
    )
    consequences = (
        f"- `{shown.check.code}` {_escape(shown.finding.message)} (follows from `{shown.finding.follows_from}`)"
        for shown in report.findings
        if shown.finding.follows_from
    )
    sections = (
        _render_summary(report),
        _render_root_table(report),
        *(_render_fix(shown, report) for shown in report.roots if shown.finding.severity is not Severity.NOTE),
        ["| Layer | State | Read there |", "|---|---|---|", *rows],
        _fold("Evidence", evidence),
        _fold("Consequences, which disappear with their cause", consequences),
        _fold("Not judged, and why", _list_unjudged(report)),
        [f"<sub>devkit doctor {_escape(report.devkit)}, read at {_escape(report.taken_at)}{tables}</sub>"],
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _render_summary(report: Report) -> list[str]:
    first = report.roots[0].finding if report.roots else None
    if report.health is Health.HEALTHY:
        passed = sum(isinstance(outcome.verdict, Passed) for outcome in report.outcomes)
        word = "healthy: " if report.tried else ""
        return [f"### ✅ devkit doctor: {word}{report.headline}", "", f"{format_count(passed, 'check')} passed."]
    if report.health is Health.NO_GPU:
        return ["### ⚪ devkit doctor: nothing to judge", "", f"{_escape(report.headline)}."]
    if report.health is Health.INCOMPLETE:
        lost = [f"- {_escape(each.reason)} (needed by {', '.join(each.checks)})" for each in report.lost]
        return [
            "### ❔ devkit doctor: incomplete",
            "",
            "devkit may have missed a problem that stops GPU work. Not read:",
            "",
            *lost,
        ]
    if first is None or first.severity is Severity.NOTE:
        return [f"### ⚠️ devkit doctor: {format_count(len(report.crashed), 'check')} crashed"]
    heading = f"### {_ICONS[first.severity]} devkit doctor: {SEVERITY_WORDS[first.severity]}"
    return [heading, "", f"**{_escape(first.message)}**"]


def _render_root_table(report: Report) -> list[str]:
    rows = []
    for shown in report.roots:
        finding = shown.finding
        if finding.location:
            # Put text into a code span that it cannot end, not even inside a table.
            text = f"{finding.location.path}:{finding.location.line}"
            longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
            fence = "`" * (longest + 1)
            pad = " " if longest else ""
            place = f"{fence}{pad}{' '.join(text.split())}{pad}{fence}".replace("|", "\\|")
        else:
            place = _escape(", ".join(part for part in (finding.subject, finding.seen_in) if part)) or "machine"
        rows.append(
            f"| {_ICONS[finding.severity]} {SEVERITY_WORDS[finding.severity]} | {_escape(finding.message)} "
            f"| `{shown.check.code}` | {finding.confidence.value} | {place} |"
        )
    return ["| | Finding | Check | Confidence | Where |", "|---|---|---|---|---|", *rows] if rows else []


def _render_fix(shown: ReportedFinding, report: Report) -> list[str]:
    fix = shown.finding.fix
    restart = [RESTART_WORDS[fix.restart]] if fix.restart in RESTART_WORDS else []
    place = ", ".join([f"on the {fix.where.value}", *(["as root"] if fix.root else []), *restart])
    lines = [f"**Fix for {shown.check.code}** ({place}): {_escape(fix.summary)}"]
    if fix.commands:
        lines += ["", *_render_code_block(fix.commands, "sh")]
    followers = {other.check.code for other in report.following(shown.check.code)}
    if followers:
        lines += ["", f"{format_count(len(followers), 'other check')} found consequences of it."]
    return lines


def _list_unjudged(report: Report) -> Iterator[str]:
    for outcome in report.outcomes:
        name = f"- `{outcome.check.code}` {_escape(outcome.check.title)}"
        if isinstance(outcome.verdict, Skipped):
            yield f"{name}: {_escape(outcome.verdict.reason)}"
        elif isinstance(outcome.verdict, Crashed):
            yield f"{name}: crashed, a bug in devkit: {_escape(outcome.verdict.error)}"


def _fold(title: str, lines: Iterable[str]) -> list[str]:
    body = list(lines)
    return [f"<details><summary>{title}</summary>", "", *body, "", "</details>"] if body else []


def _escape(text: str) -> str:
    """Escape text for Markdown: on one line, without formatting, mentions or links to issues."""
    escaped = _SPECIAL.sub(r"\\\1", " ".join(escape_text(text.replace("&", "&amp;")).split()))
    escaped = _BLOCK.sub(lambda found: f"{found[1]}\\{found[2] or found[3]}", escaped)
    return _MENTION.sub(lambda found: f"&#{ord(found[1])};", escaped)


def _render_code_block(lines: Iterable[str], language: str) -> list[str]:
    """Put lines into a block whose fence is longer than any run of backticks inside."""
    text = escape_text("\n".join(lines))
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return [f"{fence}{language}", text, fence]
