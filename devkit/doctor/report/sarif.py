"""The report as SARIF 2.1.0, for code hosts and editors that show findings beside the code.

Root findings are results. What follows from one is a result too, but suppressed, with the cause as justification:
a viewer counts one problem for each chain, and can still show the rest. A check that could not judge gives no result
but a notification of the run, for it neither failed nor passed.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) 2.1.0, errata 01.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from devkit.doctor.model import Check, Confidence, Crashed, Finding, Skipped
from devkit.doctor.report.documents import build_fix_document
from devkit.doctor.report.report import Report
from devkit.doctor.signatures.catalog import find_covered_failures

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
SOURCE_ROOT = "%SRCROOT%"
"""The project's folder, whatever its path on this machine."""

_RANKS = {Confidence.CERTAIN: 100.0, Confidence.LIKELY: 70.0, Confidence.POSSIBLE: 40.0}
_THREAD = re.compile(r"\b([A-Za-z0-9][\w-]*/[A-Za-z0-9][\w.-]*) (?:issues?|pull(?: requests?)?) (\d+)")
_URL = re.compile(r"https://[^\s,;<>\"']+[^\s,;<>\"'.)]")


def build_sarif_document(report: Report, *, exit_code: int) -> dict[str, Any]:
    """Build the document; `exit_code` is the status with which the command that writes it ends."""
    checks = [outcome.check for outcome in report.outcomes]
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "devkit doctor",
                        "version": report.devkit,
                        "semanticVersion": report.devkit,
                        "rules": [_build_rule(check) for check in checks],
                    }
                },
                "automationDetails": {"id": "devkit/doctor/"},
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {SOURCE_ROOT: {"description": {"text": "The folder of the project."}}},
                "invocations": [_build_invocation(report, exit_code)],
                "results": list(_build_results(report, {check.code: index for index, check in enumerate(checks)})),
                "properties": {"verdict": report.health.value, "root_causes": list(report.root_causes)},
            }
        ],
    }


def _build_rule(check: Check) -> dict[str, Any]:
    explained = dict(check.explanation)
    page = "\n".join(f"{heading}: {text}" for heading, text in explained.items() if heading)
    rule: dict[str, Any] = {
        "id": check.code,
        "shortDescription": {"text": check.title},
        "fullDescription": {"text": explained.get("") or check.title},
        "help": {"text": page or check.title},
        "properties": {"tags": ["gpu", *find_covered_failures(check.code)]},
    }
    # The first source that has an address: a URL or a GitHub thread.
    sources = explained.get("Source", "")
    if url := _URL.search(sources):
        rule["helpUri"] = url[0]
    elif thread := _THREAD.search(sources):
        # GitHub redirects from the address to a pull request of the same number.
        rule["helpUri"] = f"https://github.com/{thread[1]}/issues/{thread[2]}"
    return rule


def _build_invocation(report: Report, exit_code: int) -> dict[str, Any]:
    notifications = []
    for outcome in report.outcomes:
        match outcome.verdict:
            case Crashed(error):
                level, text = "error", f"{outcome.check.code} crashed, which is a bug in devkit: {error}"
            case Skipped(reason):
                level, text = "note", f"{outcome.check.code} was skipped: {reason}"
            case _:
                continue
        notifications.append({"level": level, "message": {"text": text}, "associatedRule": {"id": outcome.check.code}})
    invocation: dict[str, Any] = {
        "executionSuccessful": not report.crashed,
        "exitCode": exit_code,
        "toolExecutionNotifications": notifications,
    }
    end = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\+00:00|Z)", report.taken_at)
    return {**invocation, "endTimeUtc": f"{end[1]}Z"} if end else invocation


def _build_results(report: Report, rule_indexes: dict[str, int]) -> Iterator[dict[str, Any]]:
    seen: Counter[str] = Counter()
    for shown in report.findings:
        finding = shown.finding
        # Stays the same from run to run, while versions and sizes in the message change.
        path = finding.location.path if finding.location else ""
        identity = "\n".join((shown.check.code, finding.subject, finding.seen_in, path))
        seen[identity] += 1
        fingerprint = hashlib.sha256(f"{identity}\n{seen[identity]}".encode(errors="backslashreplace")).hexdigest()
        commands = "".join(f"\n    {command}" for command in finding.fix.commands)
        message = f"{finding.message}. Fix ({finding.fix.where.value}): {finding.fix.summary}{commands}"
        result: dict[str, Any] = {
            "ruleId": shown.check.code,
            "ruleIndex": rule_indexes[shown.check.code],
            "kind": "fail",
            "level": finding.severity.value,
            "rank": _RANKS[finding.confidence],
            "message": {"text": message},
            "locations": [_build_location(finding)],
            "partialFingerprints": {"devkitFinding/v1": fingerprint},
            "properties": {
                "confidence": finding.confidence.value,
                "evidence": list(finding.evidence),
                "follows_from": finding.follows_from,
                "seen_in": finding.seen_in,
                "subject": finding.subject,
                "fix": build_fix_document(shown.finding.fix, shown.check.code),
            },
        }
        if finding.follows_from is not None:
            because = f"follows from {finding.follows_from}; if you fix that, this disappears"
            result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": because}]
        yield result


def _build_location(finding: Finding) -> dict[str, Any]:
    """Build the file and line where there is one; else the machine's part that the finding is about."""
    if finding.location is None:
        side = finding.seen_in or "machine"
        name = finding.subject or side
        return {"logicalLocations": [{"name": name, "fullyQualifiedName": f"{side}/{name}", "kind": "resource"}]}
    path = finding.location.path.replace("\\", "/")
    if path.startswith("/") or re.match(r"[A-Za-z]:/", path):
        artifact = {"uri": f"file:///{quote(path.lstrip('/'), safe='/:', errors='replace')}"}
    else:
        artifact = {"uri": quote(path.removeprefix("./"), safe="/", errors="replace"), "uriBaseId": SOURCE_ROOT}
    region = {"startLine": max(1, finding.location.line)}
    return {"physicalLocation": {"artifactLocation": artifact, "region": region}}
