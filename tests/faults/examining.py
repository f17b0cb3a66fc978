"""The whole doctor on one machine, and what must hold whatever is wrong with that machine."""

import dataclasses
import functools
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from devkit.cli import exits
from devkit.cli.printing import Printing, shown_report
from devkit.doctor.model import Confidence, Severity
from devkit.doctor.registry import CHECKS
from devkit.doctor.report import Report, report_of
from devkit.doctor.run import run
from devkit.facts.model import Facts
from devkit.facts.store import from_json, redacted, to_json
from devkit.probe.gather import gather

SCHEMA = json.loads((Path(__file__).parent / "doctor.schema.json").read_text(encoding="utf-8"))
OUTCOME = Draft202012Validator({**SCHEMA["$defs"]["outcome"], "$defs": SCHEMA["$defs"]})
DOCUMENT = Draft202012Validator(SCHEMA)
EXITS = {"healthy": exits.DONE, "warnings": exits.DONE, "problems": exits.ANSWER_IS_NO}
DEADLINE_S = 5.0
GRACE_S = 1.0


@dataclass(frozen=True)
class Examined:
    """What came of one run, and how long it took."""

    facts: Facts
    report: Report
    document: dict[str, Any]
    took_s: float

    @property
    def accusations(self) -> frozenset[str]:
        """Codes of the root errors that the doctor is certain of."""
        return frozenset(
            shown.check.code
            for shown in self.report.roots
            if shown.finding.severity is Severity.ERROR and shown.finding.confidence is Confidence.CERTAIN
        )


def examine(host, *, project, deadline_s=DEADLINE_S):
    """Read `host`, judge it, write the report down: everything that `devkit doctor` does, in this process."""
    started_s = time.monotonic()
    facts = gather(host, project=project, deadline_s=deadline_s)
    report = report_of(facts, run(CHECKS, facts, clock=lambda: 0.0), devkit="0")
    document = report.to_document()
    return Examined(facts, report, document, time.monotonic() - started_s)


def broken(examined, *, deadline_s=DEADLINE_S):
    """What is wrong with a run, one line for each thing; empty when it went as it must."""
    late = [f"took {examined.took_s:.1f} s of {deadline_s:g} s"] if examined.took_s > deadline_s + GRACE_S else []
    key = repr(dataclasses.replace(examined.facts, taken_at=""))
    if key not in _KNOWN:
        # Most damage changes nothing: what was looked at once need not be looked at again.
        _KNOWN[key] = tuple(_broken(examined))
    return [*late, *_KNOWN[key]]


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
    text = to_json(examined.facts)
    text.encode()
    if from_json(text) != examined.facts:
        problems.append("facts read back are not those that were saved")
    to_json(redacted(examined.facts)).encode()
    told = repr(examined.report.findings)
    if told in _PRINTED:
        return problems
    _PRINTED.add(told)
    return problems + unprintable(examined)


def unprintable(examined):
    """What is wrong with the report in each of its forms."""
    problems = []
    code = EXITS[examined.document["verdict"]]
    for form in ALL_FORMS:
        shown = shown_report(examined.facts, examined.report, Printing(form, None, is_verbose=True), exit_code=code)
        shown.encode()
        if UNPRINTABLE.search(shown):
            problems.append(f"{form}: {UNPRINTABLE.search(shown)[0]!r} reaches the reader")
        if form in ("json", "sarif"):
            json.loads(shown)
    return problems


ALL_FORMS = ("text", "json", "sarif", "markdown", "html")
_PRINTED: set[str] = set()
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
