"""The report as SARIF 2.1.0, for code hosts and editors that show findings beside the code.

Root findings are results. What follows from one is a result too, but suppressed, with the cause as justification:
a viewer counts one problem for each chain, and still shows the rest to whoever asks. What could not be judged is
no result but a notification of the run, for it is neither a failure nor a pass.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) 2.1.0, errata 01.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from devkit.doctor.model import Check, Confidence, Crashed, Finding, Location, Outcome, Severity, Skipped
from devkit.doctor.report.report import Report, ReportedFinding, build_fix_document
from devkit.doctor.signatures.catalog import find_covered_failures

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
SOURCE_ROOT = "%SRCROOT%"
"""The project's folder, whatever its path on this machine."""

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
_RANKS = {Confidence.CERTAIN: 100.0, Confidence.LIKELY: 70.0, Confidence.POSSIBLE: 40.0}
_THREAD = re.compile(r"\b([A-Za-z0-9][\w-]*/[A-Za-z0-9][\w.-]*) (?:issues?|pull(?: requests?)?) (\d+)")
_URL = re.compile(r"https://[^\s,;<>\"']+[^\s,;<>\"'.)]")


def build_sarif_document(report: Report, *, exit_code: int) -> dict[str, Any]:
    """The one document; `exit_code` is how the command that writes it ends."""
    checks = [outcome.check for outcome in report.outcomes]
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": _driver(report, checks)},
                "automationDetails": {"id": "devkit/doctor/"},
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {SOURCE_ROOT: {"description": {"text": "The folder of the project."}}},
                "invocations": [_invocation(report, exit_code)],
                "results": list(_results(report, {check.code: place for place, check in enumerate(checks)})),
                "properties": {"verdict": report.health.value, "root_causes": list(report.root_causes)},
            }
        ],
    }


def _driver(report: Report, checks: list[Check]) -> dict[str, Any]:
    return {
        "name": "devkit doctor",
        "version": report.devkit,
        "semanticVersion": report.devkit,
        "rules": [_rule(check) for check in checks],
    }


def _rule(check: Check) -> dict[str, Any]:
    summary, _, rest = check.explanation.partition("\n\n")
    page = re.sub(r"[ \t]*\n[ \t]*(?!\n)", " ", rest).strip()
    rule: dict[str, Any] = {
        "id": check.code,
        "shortDescription": {"text": check.title},
        "fullDescription": {"text": " ".join(summary.split()) or check.title},
        "help": {"text": page or check.title},
        "properties": {"tags": ["gpu", *find_covered_failures(check.code)]},
    }
    source = _source_on_the_web(rest)
    return {**rule, "helpUri": source} if source else rule


def _source_on_the_web(explanation: str) -> str:
    """The first source that has an address: a URL, or a GitHub thread; "" where only manuals are named."""
    sources = " ".join(explanation.partition("Source:")[2].split())
    if url := _URL.search(sources):
        return url[0]
    # GitHub leads from the address to a pull request of the same number.
    thread = _THREAD.search(sources)
    return f"https://github.com/{thread[1]}/issues/{thread[2]}" if thread else ""


def _invocation(report: Report, exit_code: int) -> dict[str, Any]:
    invocation: dict[str, Any] = {
        "executionSuccessful": not report.crashed,
        "exitCode": exit_code,
        "toolExecutionNotifications": [
            note for outcome in report.outcomes if (note := _notification(outcome)) is not None
        ],
    }
    moment = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\+00:00|Z)", report.taken_at)
    return {**invocation, "endTimeUtc": f"{moment[1]}Z"} if moment else invocation


def _notification(outcome: Outcome) -> dict[str, Any] | None:
    match outcome.verdict:
        case Crashed(error):
            level, text = "error", f"{outcome.check.code} crashed, which is a bug in devkit: {error}"
        case Skipped(reason):
            level, text = "note", f"{outcome.check.code} was skipped: {reason}"
        case _:
            return None
    return {"level": level, "message": {"text": text}, "associatedRule": {"id": outcome.check.code}}


def _results(report: Report, places: dict[str, int]) -> Iterator[dict[str, Any]]:
    seen: Counter[str] = Counter()
    for shown in report.findings:
        key = _identity(shown)
        seen[key] += 1
        yield _result(shown, places[shown.check.code], f"{key}\n{seen[key]}")


def _identity(shown: ReportedFinding) -> str:
    """What stays the same from run to run, while versions and sizes in the message change."""
    finding = shown.finding
    path = finding.location.path if finding.location else ""
    return "\n".join((shown.check.code, finding.subject, finding.seen_in, path))


def _digest(identity: str) -> str:
    return hashlib.sha256(identity.encode(errors="backslashreplace")).hexdigest()


def _result(shown: ReportedFinding, place: int, identity: str) -> dict[str, Any]:
    finding = shown.finding
    commands = "".join(f"\n    {command}" for command in finding.fix.commands)
    result: dict[str, Any] = {
        "ruleId": shown.check.code,
        "ruleIndex": place,
        "kind": "fail",
        "level": _LEVELS[finding.severity],
        "rank": _RANKS[finding.confidence],
        "message": {"text": f"{finding.message}. Fix ({finding.fix.where.value}): {finding.fix.summary}{commands}"},
        "locations": [_location(finding)],
        "partialFingerprints": {"devkitFinding/v1": _digest(identity)},
        "properties": {
            "confidence": finding.confidence.value,
            "evidence": list(finding.evidence),
            "follows_from": finding.follows_from,
            "seen_in": finding.seen_in,
            "subject": finding.subject,
            "fix": build_fix_document(shown),
        },
    }
    if finding.follows_from is not None:
        because = f"follows from {finding.follows_from}: repair that, and this goes with it"
        result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": because}]
    return result


def _location(finding: Finding) -> dict[str, Any]:
    """The file and line where there is one; else the machine's part that the finding is about."""
    if finding.location is not None:
        return {"physicalLocation": _physical(finding.location)}
    side = finding.seen_in or "machine"
    name = finding.subject or side
    return {"logicalLocations": [{"name": name, "fullyQualifiedName": f"{side}/{name}", "kind": "resource"}]}


def _physical(location: Location) -> dict[str, Any]:
    path = location.path.replace("\\", "/")
    is_absolute = path.startswith("/") or re.match(r"[A-Za-z]:/", path) is not None
    if is_absolute:
        artifact = {"uri": f"file:///{quote(path.lstrip('/'), safe='/:')}"}
    else:
        artifact = {"uri": quote(path.removeprefix("./"), safe="/"), "uriBaseId": SOURCE_ROOT}
    return {"artifactLocation": artifact, "region": {"startLine": max(1, location.line)}}
