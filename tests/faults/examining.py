"""The whole doctor on one machine, and what must hold whatever is wrong with that machine."""

import dataclasses
import functools
import json
import re
import time
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator

from devkit.cli.documents import build_document_schema
from devkit.cli.output import OutputOptions, format_doctor_report
from devkit.doctor.model import Confidence, Severity
from devkit.doctor.registry import CHECKS
from devkit.doctor.report.report import Report, build_report
from devkit.doctor.runner import run_checks
from devkit.errors import ExitCode
from devkit.facts.model import Facts, format_facts, parse_facts
from devkit.facts.values import Unknown
from devkit.probe.gather import gather_facts
from tests.faults.probes import PROBES

SCHEMA = build_document_schema("devkit.doctor/1")
OUTCOME = Draft202012Validator(SCHEMA["properties"]["outcomes"]["items"])
DOCUMENT = Draft202012Validator(SCHEMA)
EXITS = {
    "healthy": ExitCode.DONE,
    "no-gpu": ExitCode.DONE,
    "warnings": ExitCode.DONE,
    "incomplete": ExitCode.DONE,
    "problems": ExitCode.ANSWER_IS_NO,
}
DEADLINE_S = 5.0
GRACE_S = 1.0


@dataclass(frozen=True)
class Examined:
    """What came of one run, and how long it took."""

    facts: Facts
    report: Report
    document: dict[str, Any]
    took_s: float
    key: str

    @property
    def accusations(self) -> frozenset[str]:
        """Codes of the root errors that the doctor is certain of."""
        return frozenset(
            shown.check.code
            for shown in self.report.roots
            if shown.finding.severity is Severity.ERROR and shown.finding.confidence is Confidence.CERTAIN
        )


def examine(host, *, project, deadline_s=DEADLINE_S, clock=time.process_time):
    """Read `host`, judge it, write the report down: everything that `devkit doctor` does, in this process.

    On a recorded machine there is nothing to wait for, so what counts is the work, however busy this machine is. A test
    with real processes or sockets takes the time on the wall, and the mark `clock`.
    """
    started_s = clock()
    facts = gather_facts(host, project=project, deadline_s=deadline_s)
    return _judged(facts, lambda: clock() - started_s)


def examine_anew(sound, host, fields):
    """As `examine`, where only the probes of `fields` can find anything else than they did in the run `sound`."""
    started_s = time.thread_time()
    readings = {}
    for field in fields:
        try:
            readings[field] = PROBES[field](host)
        except Exception as error:  # noqa: BLE001 - as `gather` does
            readings[field] = Unknown(f"probe crashed: {type(error).__name__}: {error}")
    return _judged(dataclasses.replace(sound.facts, **readings), lambda: time.thread_time() - started_s)


def _judged(facts, took_s):
    key = repr(dataclasses.replace(facts, taken_at=""))
    if key not in _JUDGED:
        # Most damage changes nothing: what was judged once need not be judged again.
        report = build_report(facts, run_checks(CHECKS, facts, clock=lambda: 0.0), devkit="0")
        _JUDGED[key] = report, report.to_document()
    return Examined(facts, *_JUDGED[key], took_s(), key)


_JUDGED: dict[str, tuple[Report, dict[str, Any]]] = {}


def broken(examined, *, deadline_s=DEADLINE_S):
    """What is wrong with a run, one line for each thing; empty when it went as it must."""
    late = [f"took {examined.took_s:.1f} s of {deadline_s:g} s"] if examined.took_s > deadline_s + GRACE_S else []
    if examined.key not in _KNOWN:
        _KNOWN[examined.key] = tuple(_broken(examined))
    return [*late, *_KNOWN[examined.key]]


_KNOWN: dict[str, tuple[str, ...]] = {}


def _broken(examined):
    problems = [f"{outcome.check.code} crashed: {outcome.verdict.error}" for outcome in examined.report.crashed]
    problems += re.findall(r"probe crashed: [^)]{,120}", repr(examined.facts))
    return problems + _unwritable(examined) + wrong_document(examined.document)


def wrong_document(document):
    """Where the document is not what devkit.doctor/1 promises."""
    head = {**document, "outcomes": document["outcomes"][:1]}
    wrong = [f"{error.json_path}: {error.message[:200]}" for error in DOCUMENT.iter_errors(head)]
    for outcome in document["outcomes"]:
        wrong += _wrong_outcome(json.dumps({**outcome, "ms": 0}))
    return wrong


@functools.lru_cache(maxsize=4096)
def _wrong_outcome(text):
    # Most outcomes of a thousand runs are the same; validating each of them once is fifty times faster.
    outcome = json.loads(text)
    return [f"{outcome['code']}{error.json_path}: {error.message[:200]}" for error in OUTCOME.iter_errors(outcome)]


def _unwritable(examined):
    """What cannot be saved, read back, or printed in one of the forms."""
    problems = []
    text = format_facts(examined.facts)
    text.encode()
    if parse_facts(text) != examined.facts:
        problems.append("facts read back are not those that were saved")
    told = repr(examined.report.findings)
    if told in _PRINTED:
        return problems
    _PRINTED.add(told)
    # Each form costs more than all else together, so that a new report is printed in two of them by turns.
    return problems + unprintable(examined, ("text", PASSED_ON[len(_PRINTED) % len(PASSED_ON)]))


PASSED_ON = ("json", "sarif", "markdown", "html")
ALL_FORMS = ("text", *PASSED_ON)


def unprintable(examined, forms=ALL_FORMS):
    """What is wrong with the report in some of its forms."""
    problems = []
    code = EXITS[examined.document["verdict"]]
    for form in forms:
        shown = format_doctor_report(
            examined.facts, examined.report, OutputOptions(form, None, is_verbose=True), exit_code=code
        )
        shown.encode()
        if UNPRINTABLE.search(shown):
            problems.append(f"{form}: {UNPRINTABLE.search(shown)[0]!r} reaches the reader")
        if form in ("json", "sarif"):
            json.loads(shown)
    return problems


_PRINTED: set[str] = set()
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
