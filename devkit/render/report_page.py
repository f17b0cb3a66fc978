"""The report as one HTML page that needs nothing else: no network, no script, no font, no other file."""

import base64
import hashlib
from collections.abc import Mapping

from devkit.doctor.model import Confidence, Crashed, Passed, Restart, Severity, Skipped
from devkit.doctor.report.report import Health, Report, ReportedFinding
from devkit.doctor.report.stack import LayerState, build_stack
from devkit.facts.model import Facts
from devkit.render.templates import render_html, render_template
from devkit.text import format_count, join_words

_CLASSES: Mapping[LayerState, str] = {
    LayerState.CAUSE: "cause",
    LayerState.PROBLEM: "problem",
    LayerState.WARNING: "warning",
    LayerState.FOLLOWS: "follows",
    LayerState.FINE: "fine",
    LayerState.UNJUDGED: "unjudged",
}
_SEVERITIES = {Severity.ERROR: "problem", Severity.WARNING: "warning", Severity.NOTE: "note"}
_RESTARTS = {
    Restart.NONE: "",
    Restart.ENGINE: "restarts the engine",
    Restart.LOGIN: "needs a new login",
    Restart.WSL: "restarts WSL",
    Restart.HOST: "restarts the machine",
}
_HEADLINES = {Health.HEALTHY: "healthy", Health.WARNINGS: "warning", Health.PROBLEMS: "problem"}
_PALEST = 5


def render_report_page(facts: Facts, report: Report) -> str:
    """The page. Give it redacted facts and report: it is made to be passed on."""
    style = render_template("report/page.css.j2").strip()
    layers = build_stack(facts, report)
    states = [layer.state for layer in layers]
    broken_at = states.index(LayerState.CAUSE) if LayerState.CAUSE in states else None
    return render_html(
        "report/page.html.j2",
        style=style,
        style_hash=_hash_of(style),
        report=report,
        headline=_headline(report),
        health=_HEADLINES[report.health],
        first=_first(report),
        others=report.roots if _first(report) is None else report.roots[1:],
        layers=[(layer, _CLASSES[layer.state], _fade(place, broken_at)) for place, layer in enumerate(layers)],
        counts=_counts(report),
        followers={code: len(report.following(code)) for code in {shown.check.code for shown in report.roots}},
        severities=_SEVERITIES,
        restarts=_RESTARTS,
        certain=Confidence.CERTAIN,
        note=Severity.NOTE,
        kinds={Passed: "passed", Skipped: "not judged", Crashed: "crashed"},
    )


def _hash_of(style: str) -> str:
    """What the page's security policy allows by content: this style, and no other that got in."""
    return base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()


def _first(report: Report) -> ReportedFinding | None:
    """The cause to begin with; None when there are only notes. Roots are sorted, so it stands first among them."""
    first = next(iter(report.roots), None)
    return None if first is None or first.finding.severity is Severity.NOTE else first


def _headline(report: Report) -> str:
    first = _first(report)
    if first is not None:
        return first.finding.message
    if report.crashed:
        return f"{format_count(len(report.crashed), 'check')} crashed; the others found nothing that stops GPU work"
    return "nothing found that stops GPU work"


def _fade(place: int, broken_at: int | None) -> int:
    """How far behind the break a layer is: 0 before it and at it, then paler and paler."""
    return 0 if broken_at is None or place <= broken_at else min(place - broken_at, _PALEST)


def _counts(report: Report) -> str:
    errors = sum(shown.finding.severity is Severity.ERROR for shown in report.roots)
    warnings = sum(shown.finding.severity is Severity.WARNING for shown in report.roots)
    following = sum(shown.finding.follows_from is not None for shown in report.findings)
    passed = sum(isinstance(outcome.verdict, Passed) for outcome in report.outcomes)
    skipped = sum(isinstance(outcome.verdict, Skipped) for outcome in report.outcomes)
    parts = [format_count(errors, "root problem")] if errors else []
    parts += [format_count(warnings, "warning")] if warnings else []
    parts += [format_count(following, "consequence")] if following else []
    return join_words([*parts, f"{passed} passed", f"{skipped} not judged"])
