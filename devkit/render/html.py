"""HTML: the doctor's report as a page that needs no network, font or other file."""

import base64
import hashlib

from devkit.doctor.model import Confidence, Crashed, Passed, Restart, Severity, Skipped
from devkit.doctor.report.page import RESTART_WORDS, SEVERITY_WORDS
from devkit.doctor.report.report import Health, Report
from devkit.doctor.report.stack import LayerState, build_stack
from devkit.facts.model import Facts
from devkit.release import DOCUMENTATION_URL
from devkit.render.templates import render_template
from devkit.text import format_count, join_words

_HEALTH = {
    Health.HEALTHY: "healthy",
    Health.NO_GPU: "no-gpu",
    Health.WARNINGS: "warning",
    Health.INCOMPLETE: "incomplete",
    Health.PROBLEMS: "problem",
}
_MAX_FADE = 5


def render_report_page(facts: Facts, report: Report) -> str:
    """Render the page. Pass redacted facts and report: the page is made to be shared."""
    style = render_template("report/page.css.j2").strip()
    layers = build_stack(facts, report)
    states = [layer.state for layer in layers]
    broken_at = states.index(LayerState.CAUSE) if LayerState.CAUSE in states else len(states)
    # Roots are sorted, so the cause to begin with is the first; a report of notes alone has none.
    first = next(iter(report.roots), None)
    if first is not None and first.finding.severity is Severity.NOTE:
        first = None
    headline = report.headline
    if report.health is Health.INCOMPLETE:
        headline = f"not read: {join_words(each.reason for each in report.lost)}"
    elif first is not None:
        headline = first.finding.message
    elif report.crashed:
        crashed = format_count(len(report.crashed), "check")
        headline = f"{crashed} crashed; the other checks found nothing that stops GPU work"
    script = render_template("report/page.js.j2").strip()
    return render_template(
        "report/page.html.j2",
        style=style,
        script=script,
        # The page's security policy allows this style and this script by their hashes, and no other.
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        documentation=DOCUMENTATION_URL,
        report=report,
        headline=headline,
        health="untried" if report.health is Health.HEALTHY and not report.tried else _HEALTH[report.health],
        first=first,
        others=report.roots if first is None else report.roots[1:],
        layers=[
            # Layers behind the break are paler and paler.
            (layer, layer.state.name.lower(), min(max(number - broken_at, 0), _MAX_FADE))
            for number, layer in enumerate(layers)
        ],
        counts=_format_counts(report),
        followers={code: len(report.following(code)) for code in {root.check.code for root in report.roots}},
        severities=SEVERITY_WORDS,
        restarts={Restart.NONE: "", **RESTART_WORDS},
        certain=Confidence.CERTAIN,
        note=Severity.NOTE,
        kinds={Passed: "passed", Skipped: "not judged", Crashed: "crashed"},
    )


def _format_counts(report: Report) -> str:
    errors = sum(root.finding.severity is Severity.ERROR for root in report.roots)
    warnings = sum(root.finding.severity is Severity.WARNING for root in report.roots)
    following = sum(each.finding.follows_from is not None for each in report.findings)
    passed = sum(isinstance(outcome.verdict, Passed) for outcome in report.outcomes)
    skipped = sum(isinstance(outcome.verdict, Skipped) for outcome in report.outcomes)
    counts = ((errors, "root problem"), (warnings, "warning"), (following, "consequence"))
    parts = [format_count(count, name) for count, name in counts if count]
    return join_words([*parts, f"{passed} passed", f"{skipped} not judged"])
