"""The report as text: the root cause in the first line, its fix right below, and the rest in a line or two."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from devkit.doctor.model import Check, Crashed, Found, Passed, Severity, Skipped
from devkit.doctor.report.lines import Line, Marks, Tone
from devkit.doctor.report.page import SEVERITY_WORDS, Page
from devkit.doctor.report.report import Health, Report, ReportedFinding
from devkit.doctor.report.stack import LayerState, StackLayer
from devkit.text import format_count, join_words

_QUIET_STATES = (LayerState.FINE, LayerState.UNJUDGED)
"""States that the glyph says well enough."""

_SLOW = re.compile(r"in time\b|within \d|after \d")
"""In reasons of readings that were late."""
MAX_LOST = 5
"""Lost readings that are shown, and checks of each."""

_GPU = re.compile(r"GPU [0-9]+|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]")
"""The subject of a finding about one GPU: its number, or its PCI address."""

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def format_report(
    report: Report, layers: Sequence[StackLayer] = (), *, width: int, marks: Marks, verbose: bool = False
) -> tuple[Line, ...]:
    """Format the report in lines of at most `width` columns; commands and paths are never wrapped.

    The layers come first, one line each with what was seen there, then the root cause and its fix.
    Findings that follow from another are only counted, unless `verbose`; so are passed and skipped checks.
    """
    page = Page(width=width, marks=marks)
    _add_layers(page, layers)
    roots = report.roots
    first = roots[0].finding if roots else None
    if report.health is Health.HEALTHY:
        page.add(f"{marks.passed} healthy: {report.headline}", tone=Tone.GOOD)
        headline = None
    elif report.health is Health.NO_GPU:
        page.add(f"{marks.skipped} nothing to judge: {report.headline}", hanging="  ", tone=Tone.UNKNOWN)
        headline = None
    elif report.health is Health.INCOMPLETE:
        _add_lost(page, report)
        headline = None
    elif first is None or first.severity is Severity.NOTE:
        page.add(f"{marks.warning} warning: {format_count(len(report.crashed), 'check')} crashed", tone=Tone.WARN)
        headline = None
    else:
        page.add_message(first)
        headline = first
    groups = _fold_gpus(roots)
    for number, (shown, *others) in enumerate(groups):
        if number or headline is None:
            page.add("")
            page.add_message(shown.finding)
        if others:
            page.add(f"the same of {join_words(other.finding.subject for other in others)}", indent="  ")
        commands = dict.fromkeys(command for each in (shown, *others) for command in each.finding.fix.commands)
        page.add_fix(replace(shown.finding, fix=replace(shown.finding.fix, commands=tuple(commands))))
        # Several findings of one check share their consequences: shown below the last of them.
        is_last = shown.check.code not in {later[0].check.code for later in groups[number + 1 :]}
        followers = report.following(shown.check.code) if is_last else ()
        if followers:
            codes = join_words(dict.fromkeys(follower.check.code for follower in followers))
            verb = "follows" if len(followers) == 1 else "follow"
            page.add(f"{format_count(len(followers), 'finding')} {verb} from it: {codes}", indent="  ", tone=Tone.QUIET)
        page.add_evidence(shown.finding, shown.check)
        for follower in followers if verbose else ():
            page.add("")
            page.add_message(follower.finding)
            page.add(f"follows from {follower.finding.follows_from}", indent="  ", tone=Tone.QUIET)
            page.add_fix(follower.finding)
            page.add_evidence(follower.finding, follower.check)
    _add_summary(page, report, verbose=verbose)
    return tuple(page.lines)


def find_layer_mark(layer: StackLayer, marks: Marks) -> tuple[str, Tone]:
    """Return the glyph and the tone of a layer's state."""
    match layer.state:
        case LayerState.FINE:
            return marks.passed, Tone.GOOD
        case LayerState.UNJUDGED:
            return marks.skipped, Tone.QUIET
        case LayerState.WARNING:
            return marks.warning, Tone.WARN
        case LayerState.CAUSE | LayerState.PROBLEM | LayerState.FOLLOWS:
            return marks.error, Tone.BAD


def _add_layers(page: Page, layers: Sequence[StackLayer]) -> None:
    """Add one line for each layer: its state and what was seen there."""
    for layer in layers:
        mark, tone = find_layer_mark(layer, page.marks)
        said = layer.summary if layer.state in _QUIET_STATES else f"{layer.state.value}: {layer.summary}"
        page.add(f"{mark} {layer.title}: {said}", hanging="    ", tone=tone)
    if layers:
        page.add("")


def _fold_gpus(roots: tuple[ReportedFinding, ...]) -> list[list[ReportedFinding]]:
    """Group findings that say the same of several GPUs: only numbers and addresses in their messages differ."""
    groups: dict[tuple[object, ...], list[ReportedFinding]] = {}
    for shown in roots:
        finding = shown.finding
        key: tuple[object, ...] = (shown.check.code, finding.severity, finding.seen_in, finding.fix.summary)
        if _GPU.fullmatch(finding.subject):
            message = finding.message.replace(finding.subject, "")
            key = (*key, _NUMBER.sub("", message))
        else:
            key = (id(shown),)
        groups.setdefault(key, []).append(shown)
    return list(groups.values())


def _add_lost(page: Page, report: Report) -> None:
    """Add what could not be read, with the checks for errors that needed it."""
    count = len({code for each in report.lost for code in each.checks})
    page.add(
        f"{page.marks.unknown} incomplete: {format_count(count, 'check')} for what stops GPU work could not be made",
        hanging="  ",
        tone=Tone.UNKNOWN,
    )
    for each in report.lost[:MAX_LOST]:
        named = [*each.checks[:MAX_LOST], *([f"{more} more"] if (more := len(each.checks) - MAX_LOST) > 0 else [])]
        page.add(f"not read: {each.reason}; needed by {join_words(named)}", indent="  ", hanging="  ")
    if (more := len(report.lost) - MAX_LOST) > 0:
        page.add(f"and {format_count(more, 'other reading')} (--json lists all)", indent="  ")
    if any(_SLOW.search(each.reason) for each in report.lost):
        page.add("To give what is slow more time:", indent="  ")
        page.lines.append(Line("      devkit doctor --timeout 30", Tone.COMMAND))


def _add_summary(page: Page, report: Report, *, verbose: bool) -> None:
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
        _add_lost(page, report)
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


def format_checks(checks: Iterable[Check]) -> tuple[Line, ...]:
    """Format one line for each check: code and title."""
    return tuple(Line(f"{check.code}  {check.title}") for check in checks)
