"""The report as text: the root cause in the first line, its fix right below, and the rest in a line or two."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from devkit.doctor.danger import put_restarts_last
from devkit.doctor.model import Check, Crashed, Found, Passed, Severity, Skipped
from devkit.doctor.report.lines import Line, Marks, Tone
from devkit.doctor.report.page import SEVERITY_WORDS, Page
from devkit.doctor.report.report import Health, Report, ReportedFinding
from devkit.doctor.report.stack import LayerState, StackLayer
from devkit.text import format_count, join_words

FIRST_LINES = 12
"""Lines of the root cause with its fix; at 80 columns they leave half a screen for what was seen."""
_ALWAYS_SHOWN = ("hardware", "trials")
_STATE_WORDS = {LayerState.CAUSE: "problem"}
"""Where a layer's state has another word: the cause itself is above it."""

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

    The root cause and its fix come first, in `FIRST_LINES` lines, then a line for each layer with what was seen there,
    then the other findings, and the verdict last. Findings that follow from another are only counted, unless `verbose`;
    so are passed and skipped checks.
    """
    page = Page(width=width, marks=marks)
    groups = _fold_gpus(report.roots)
    # Several findings of one check share their consequences: shown below the last of them.
    last = {group[0].check.code: number for number, group in enumerate(groups)}
    followers = {number: report.following(code) for code, number in last.items()}
    first = groups[0][0].finding if groups else None
    is_broken = first is not None and first.severity is not Severity.NOTE and report.health is not Health.INCOMPLETE
    if is_broken:
        _add_group(page, groups[0], followers=followers.get(0, ()), verbose=verbose, max_lines=FIRST_LINES)
        page.add("")
    elif report.health is Health.INCOMPLETE:
        _add_lost(page, report)
        page.add("")
    elif report.crashed:
        _add_crashed(page, report)
        page.add("")
    _add_layers(page, layers)
    for number, group in enumerate(groups):
        if number or not is_broken:
            _add_gap(page)
            _add_group(page, group, followers=followers.get(number, ()), verbose=verbose)
    if is_broken or report.health is Health.INCOMPLETE:
        _add_gap(page)
        _add_crashed(page, report)
    _add_summary(page, report, verbose=verbose)
    return tuple(page.lines)


def _add_group(
    page: Page, group: list[ReportedFinding], *, followers: Sequence[ReportedFinding], verbose: bool, max_lines: int = 0
) -> None:
    """Add a root finding, the same of other GPUs, its fix, its evidence, and what follows from it.

    With `max_lines`, what comes after the fix and exceeds so many lines is left to `verbose`.
    """
    shown, *others = group
    page.add_message(shown.finding)
    if others:
        page.add(f"the same of {join_words(other.finding.subject for other in others)}", indent="  ")
    commands = put_restarts_last(dict.fromkeys(command for each in group for command in each.finding.fix.commands))
    page.add_fix(replace(shown.finding, fix=replace(shown.finding.fix, commands=commands)), shown.check)
    needed = len(page.lines)
    if followers:
        codes = dict.fromkeys(follower.check.code for follower in followers)
        verb = "follows" if len(followers) == 1 else "follow"
        checks = f" of {format_count(len(codes), 'check')}" if len(codes) < len(followers) else ""
        says = f"{format_count(len(followers), 'finding')}{checks} {verb} from it: {join_words(codes)}"
        page.add(says, indent="  ", tone=Tone.QUIET)
    page.add_evidence(shown.finding)
    if max_lines and not verbose and len(page.lines) > max(max_lines, needed):
        kept = max(max_lines - 1, needed)
        while kept > needed and page.lines[kept].text.startswith("    "):
            kept -= 1  # the rest of a reading
        del page.lines[kept:]
        page.add("… --verbose shows the rest", indent="  ", tone=Tone.QUIET)
    for follower in followers if verbose else ():
        page.add("")
        page.add_message(follower.finding)
        page.add(f"follows from {follower.finding.follows_from}", indent="  ", tone=Tone.QUIET)
        page.add_fix(follower.finding, follower.check)
        page.add_evidence(follower.finding)


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
    """Add one line for each layer of which something is known: what was seen there, and the codes of what is wrong."""
    for layer in layers:
        wrong = dict.fromkeys(
            each.check.code
            for each in (*layer.roots, *layer.consequences)
            if each.finding.severity is not Severity.NOTE
        )
        is_known = layer.state is not LayerState.UNJUDGED or layer.name in _ALWAYS_SHOWN
        if not wrong and (not is_known or layer.summary == layer.state.value):
            continue
        mark, tone = find_layer_mark(layer, page.marks)
        seen = [] if layer.summary == layer.state.value else [layer.summary]
        codes = [f"{_STATE_WORDS.get(layer.state, layer.state.value)} {join_words(wrong)}"] if wrong else []
        page.add(f"{mark} {layer.title}: {'; '.join(seen + codes)}", hanging="    ", tone=tone)


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
        f"{page.marks.unknown} incomplete: {format_count(count, 'check')} for problems that stop GPU work could not run",
        hanging="  ",
        tone=Tone.UNKNOWN,
    )
    for each in report.lost[:MAX_LOST]:
        named = [*each.checks[:MAX_LOST], *([f"{more} more"] if (more := len(each.checks) - MAX_LOST) > 0 else [])]
        page.add(f"not read: {each.reason}; needed by {join_words(named)}", indent="  ", hanging="  ")
    if (more := len(report.lost) - MAX_LOST) > 0:
        page.add(f"and {format_count(more, 'other reading')} (--json lists all)", indent="  ")
    if any(_SLOW.search(each.reason) for each in report.lost):
        page.add("To allow more time for slow readings:", indent="  ")
        page.lines.append(Line("      devkit doctor --timeout 30", Tone.COMMAND))


def _add_gap(page: Page) -> None:
    """Add an empty line after text."""
    if page.lines and page.lines[-1].text:
        page.add("")


def _add_crashed(page: Page, report: Report) -> None:
    for outcome in report.crashed:
        if isinstance(outcome.verdict, Crashed):
            name = f"{outcome.check.code} {outcome.check.title}"
            page.add(f"{page.marks.warning} crashed: {name}: {outcome.verdict.error}", tone=Tone.WARN)
            page.add("This is a bug in devkit; the other checks are not affected.", indent="  ")


def _add_summary(page: Page, report: Report, *, verbose: bool) -> None:
    """Add the checks that passed and were skipped, and the verdict with the counts."""
    marks = page.marks
    passed, skipped = [], []
    for outcome in report.outcomes:
        name = f"{outcome.check.code} {outcome.check.title}"
        match outcome.verdict:
            case Passed():
                passed.append(f"{marks.passed} passed: {name}")
            case Skipped(reason):
                skipped.append(f"{marks.skipped} skipped: {name}: {reason}")
            case Found() | Crashed():
                pass
    if verbose:
        _add_gap(page)
        for line in (*passed, *skipped):
            page.add(line, tone=Tone.QUIET)
    if report.health is Health.PROBLEMS and report.lost:
        _add_gap(page)
        _add_lost(page, report)
    _add_gap(page)
    verdict, tone = _format_verdict(report, marks)
    passed_words = f"{format_count(len(passed), 'check')} passed{'' if verbose else ' (--verbose shows all)'}"
    page.add(f"{verdict}; {passed_words}", hanging="  ", tone=tone)


def _format_verdict(report: Report, marks: Marks) -> tuple[str, Tone]:
    """Return the last line's verdict: healthy only where something was tried."""
    counts = Counter(shown.finding.severity for shown in report.roots)
    parts = [
        format_count(counts[severity], SEVERITY_WORDS[severity])
        for severity in (Severity.ERROR, Severity.WARNING)
        if counts[severity]
    ]
    if report.crashed:
        parts.append(f"{format_count(len(report.crashed), 'check')} crashed")
    match report.health:
        case Health.HEALTHY:
            word = f"healthy: {report.headline}" if report.tried else report.headline
            return f"{marks.passed} {word}", Tone.GOOD
        case Health.NO_GPU:
            return f"{marks.skipped} nothing to judge: {report.headline}{report.untried}", Tone.UNKNOWN
        case Health.INCOMPLETE:
            return (
                f"{marks.unknown} incomplete{f', {join_words(parts)}' if parts else ''}{report.untried}",
                Tone.UNKNOWN,
            )
        case _:
            # Beside a warning, the cause may still be in what was not tried.
            return f"{join_words(parts)}{report.untried if report.health is Health.WARNINGS else ''}", Tone.PLAIN


def format_checks(checks: Iterable[Check]) -> tuple[Line, ...]:
    """Format one line for each check: code and title."""
    return tuple(Line(f"{check.code}  {check.title}") for check in checks)
