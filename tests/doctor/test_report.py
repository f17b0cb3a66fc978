import json
from dataclasses import replace

import pytest

from devkit.cli.output import dump_json
from devkit.doctor.model import Confidence, Crashed, Fix, Passed, Severity, Skipped
from devkit.doctor.registry import CHECKS
from devkit.doctor.report.documents import build_check_list_document, build_matches_document
from devkit.doctor.report.lines import ASCII_MARKS, UNICODE_MARKS, Tone
from devkit.doctor.report.page import format_match
from devkit.doctor.report.report import Health, build_report
from devkit.doctor.report.stack import build_stack
from devkit.doctor.report.text import format_report
from devkit.doctor.signatures.model import Cause, Consequence, Match
from devkit.release import DOCUMENTATION_URL
from tests.doctor.machines import healthy, without_gpu
from tests.doctor.running import a_finding, a_report, an_outcome, build_full_report

ROOT = an_outcome("AAA001", a_finding(subject="GPU 0"), causes=("AAA002",))
CONSEQUENCE = an_outcome("AAA002", a_finding(message="the consequence", subject="GPU 0"))
WARNING = an_outcome("AAA003", a_finding(Severity.WARNING, "a warning"))
NOTE = an_outcome("AAA004", a_finding(Severity.NOTE, "a note"))
INSIDE = an_outcome("AAA010", a_finding(Severity.NOTE, "a note", seen_in="dev container"))
PASSED = an_outcome("AAA005", verdict=Passed())
SKIPPED = an_outcome("AAA006", verdict=Skipped("nothing to judge"))
HUNG = an_outcome("AAA008", verdict=Skipped("`modinfo` did not answer in time", is_lost=True))
MINOR = replace(HUNG, check=replace(HUNG.check, code="AAA009", worst=Severity.WARNING))
CRASHED = an_outcome("AAA007", verdict=Crashed("KeyError: 'x'"))


def text(*outcomes, width=80, verbose=False, marks=UNICODE_MARKS):
    lines = format_report(a_report(*outcomes), width=width, marks=marks, verbose=verbose)
    return "\n".join(line.text for line in lines)


@pytest.mark.parametrize(
    ("outcomes", "health", "root_causes"),
    [
        pytest.param([PASSED, SKIPPED], Health.HEALTHY, (), id="nothing found"),
        pytest.param([PASSED, NOTE], Health.HEALTHY, (), id="a note is no problem"),
        pytest.param([WARNING, NOTE], Health.WARNINGS, ("AAA003",), id="a warning"),
        pytest.param([WARNING, ROOT], Health.PROBLEMS, ("AAA001",), id="an error outweighs a warning"),
        pytest.param([ROOT, CONSEQUENCE], Health.PROBLEMS, ("AAA001",), id="a consequence is no root cause"),
        pytest.param([PASSED, CRASHED], Health.WARNINGS, (), id="a crashed check is not healthy"),
        pytest.param([PASSED, HUNG], Health.INCOMPLETE, (), id="a lost fact that a check for errors needs"),
        pytest.param([HUNG, WARNING], Health.INCOMPLETE, ("AAA003",), id="a lost fact outweighs a warning"),
        pytest.param([HUNG, ROOT], Health.PROBLEMS, ("AAA001",), id="an error outweighs a lost fact"),
        pytest.param([PASSED, MINOR], Health.HEALTHY, (), id="a lost fact that only a check for warnings needs"),
    ],
)
def test_verdict_and_root_causes(outcomes, health, root_causes):
    assert a_report(*outcomes).health is health
    assert a_report(*outcomes).root_causes == root_causes


@pytest.mark.parametrize(
    ("outcomes", "line"),
    [
        ([PASSED, CRASHED], "warnings: AAA007 crashed"),
        ([HUNG, WARNING], "incomplete: `modinfo` did not answer in time"),
        ([an_outcome("AAA011", a_finding(message="\x1b[2Jtwo\nlines"))], "problems: AAA011 [2Jtwo lines"),
        ([ROOT, an_outcome("AAA011", a_finding())], "problems: AAA001 the cause (AAA011 too)"),
    ],
    ids=["crashed", "incomplete", "hostile", "two causes"],
)
def test_one_line_holds_the_verdict_and_the_first_cause(outcomes, line):
    assert a_report(*outcomes).line == line


def test_the_document_is_the_contract():
    document = a_report(ROOT, CONSEQUENCE, PASSED, SKIPPED, CRASHED).to_document()
    assert json.loads(json.dumps(document)) == document
    assert {key: document[key] for key in ("schema", "devkit", "taken_at", "verdict", "root_causes")} == {
        "schema": "devkit.doctor/1",
        "devkit": "0.1.0",
        "taken_at": "2026-01-01T00:00:00+00:00",
        "verdict": "problems",
        "root_causes": ["AAA001"],
    }
    assert [(row["status"], row["reason"]) for row in document["outcomes"]] == [
        ("found", ""),
        ("found", ""),
        ("passed", ""),
        ("skipped", "nothing to judge"),
        ("crashed", "KeyError: 'x'"),
    ]
    assert document["outcomes"][1]["findings"] == [
        {
            "severity": "error",
            "message": "the consequence",
            "subject": "GPU 0",
            "evidence": ["a reading"],
            "confidence": "likely",
            "follows_from": "AAA001",
            "seen_in": "",
            "location": None,
            "fix": {
                "summary": "Do this.",
                "commands": ["sudo do"],
                "where": "host",
                "root": True,
                "restart": "host",
                "docs": f"{DOCUMENTATION_URL}/checks/AAA002/",
                "is_automatic": False,
            },
        }
    ]


def test_the_document_names_what_was_lost_and_for_which_checks():
    assert a_report(PASSED, SKIPPED).to_document()["lost"] == []
    document = a_report(HUNG, MINOR, PASSED).to_document()
    assert document["verdict"] == "incomplete"
    assert document["lost"] == [{"reason": "`modinfo` did not answer in time", "checks": ["AAA008"]}]


def test_of_much_that_was_lost_five_are_named_and_the_rest_is_counted():
    codes = [f"AAA02{number}" for number in range(6)]
    alike = text(*(replace(HUNG, check=replace(HUNG.check, code=code)) for code in codes))
    assert "needed by AAA020, AAA021, AAA022, AAA023, AAA024 and 1 more" in " ".join(alike.split())
    others = [an_outcome(code, verdict=Skipped(f"{code} hung", is_lost=True)) for code in codes]
    assert "AAA024 hung; needed by AAA024\n  and 1 other reading (--json lists all)\n" in text(*others)
    assert "other reading" not in text(*others[1:])


def test_what_was_lost_is_in_the_first_lines_and_below_a_problem():
    first, second, *_ = text(HUNG, WARNING).splitlines()
    assert first == "? incomplete: 1 check for problems that stop GPU work could not run"
    assert second == "  not read: `modinfo` did not answer in time; needed by AAA008"
    assert "healthy" not in text(HUNG, WARNING)
    below = text(HUNG, ROOT)
    assert below.startswith("✗ problem: the cause")
    assert "not read: `modinfo` did not answer in time" in below


def test_incomplete_has_a_glyph_and_a_color_of_its_own():
    lines = format_report(a_report(HUNG), width=80, marks=ASCII_MARKS)
    assert lines[0].text.startswith("? incomplete")
    assert lines[0].tone is lines[-1].tone is Tone.UNKNOWN


def test_the_list_names_every_check_and_its_page():
    document = build_check_list_document(CHECKS)
    assert document["schema"] == "devkit.checks/1"
    assert [row["code"] for row in document["checks"]] == [check.code for check in CHECKS]
    assert all(row["docs"] == f"{DOCUMENTATION_URL}/checks/{row['code']}/" for row in document["checks"])


@pytest.mark.parametrize(
    ("outcomes", "first_line"),
    [
        pytest.param(
            [PASSED], "✓ settings look right, but not tried; 1 check passed (--verbose shows all)", id="nothing"
        ),
        pytest.param([NOTE], "i note: a note", id="one thing to know"),
        pytest.param([WARNING, CONSEQUENCE, ROOT], "✗ problem: the cause", id="the cause, not what stands first"),
        pytest.param([WARNING], "! warning: a warning", id="a warning"),
        pytest.param([PASSED, CRASHED, NOTE], "! crashed: AAA007 AAA007 is fine: KeyError: 'x'", id="a crash"),
    ],
)
def test_the_first_line_is_the_true_cause(outcomes, first_line):
    assert text(*outcomes).splitlines()[0] == first_line


def test_a_note_is_listed_below_the_verdict_with_its_side():
    assert "i note in the dev container: a note\n" in text(INSIDE)


def test_a_finding_is_never_followed_by_the_healthy_title():
    shown = text(ROOT, NOTE, verbose=True)
    assert "AAA001 is fine" not in shown
    assert "\n  likely: AAA001 · devkit explain AAA001\n" in shown


@pytest.mark.parametrize(
    ("outcomes", "health"),
    [
        pytest.param([PASSED, NOTE], Health.NO_GPU, id="nothing found"),
        pytest.param([WARNING], Health.WARNINGS, id="a warning outweighs it"),
        pytest.param([HUNG], Health.INCOMPLETE, id="so does a lost fact"),
        pytest.param([ROOT], Health.PROBLEMS, id="and an error"),
    ],
)
def test_a_machine_without_a_gpu_is_never_healthy(outcomes, health):
    judged = build_report(without_gpu(), outcomes, devkit="0.1.0")
    assert judged.health is health
    shown = "\n".join(line.text for line in format_report(judged, width=80, marks=UNICODE_MARKS))
    assert "healthy" not in shown
    assert ("– nothing to judge: no NVIDIA GPU found" in shown) is (health is Health.NO_GPU)  # noqa: RUF001


def test_the_report_leads_with_one_line_a_layer_and_the_versions():
    facts = healthy()
    judged = build_full_report(facts)
    lines = format_report(judged, build_stack(facts, judged), width=100, marks=UNICODE_MARKS)
    assert [line.text for line in lines][:9] == [
        "✓ Hardware: NVIDIA GeForce RTX 4090, 24 GiB",
        "✓ Kernel driver: Ubuntu 24.04.3 LTS, module 580.95.05 (open)",
        "✓ NVML and libcuda: libcuda 580.95.05, driver 580.95.05, CUDA up to 13.0",
        "✓ Container engine: Docker 28.5.1, Compose 2.40.0",
        "✓ Container Toolkit and CDI: toolkit 1.18.2, CDI: 2 devices for 580.95.05",
        "– Trial containers: none",  # noqa: RUF001
        "✓ CUDA: driver up to 13.0",
        "✓ Project, hub and storage: 500 GiB free",
        "",
    ]
    assert lines[9].text.startswith("✓ settings look right, but not tried; ")


def test_the_document_has_the_layers():
    facts = without_gpu()
    judged = build_full_report(facts)
    layers = judged.to_document(build_stack(facts, judged))["layers"]
    assert layers[0] == {
        "name": "hardware",
        "title": "Hardware",
        "state": "unjudged",
        "readings": [{"name": "PCI", "value": "no NVIDIA GPU"}],
    }


def test_consequences_are_counted_and_shown_only_when_asked():
    brief, long = text(ROOT, CONSEQUENCE), text(ROOT, CONSEQUENCE, verbose=True)
    assert "the consequence" not in brief
    assert "1 finding follows from it: AAA002" in brief
    assert "the consequence" in long
    assert "follows from AAA001" in long
    assert long.count("fix (host, root") == long.count("a reading") == 2 * brief.count("fix (host, root") == 2


def test_passed_and_skipped_are_counted_and_shown_only_when_asked():
    brief, long = text(PASSED, SKIPPED), text(PASSED, SKIPPED, verbose=True)
    assert "1 check passed (--verbose shows all)" in brief
    assert "skipped" not in brief
    assert "✓ passed: AAA005 AAA005 is fine" in long
    assert "– skipped: AAA006 AAA006 is fine: nothing to judge" in long  # noqa: RUF001


def test_a_fix_says_where_as_whom_and_what_restarts():
    assert "fix (host, root, restarts the machine): Do this.\n      sudo do" in text(ROOT)


@pytest.mark.parametrize("width", [10, 40, 57, 80, 300])
def test_lines_fit_the_terminal_but_never_below_40_columns(width):
    long = an_outcome("AAA001", a_finding(message="a long story " * 20))
    lines = text(long, width=width).splitlines()
    assert max(len(line) for line in lines) <= max(40, min(width, 100))


def test_commands_are_never_folded():
    fix = Fix("Do this.", ("sudo " + "very-long-word " * 20,))
    long = an_outcome("AAA001", a_finding(fix=fix))
    assert f"      {fix.commands[0]}" in text(long, width=40).split("\n")


def test_plain_terminals_get_plain_marks():
    assert text(ROOT, PASSED, SKIPPED, verbose=True, marks=ASCII_MARKS).isascii()


def test_tones_follow_the_severity():
    lines = format_report(a_report(ROOT, WARNING), width=80, marks=UNICODE_MARKS)
    assert lines[0].tone is Tone.BAD
    assert next(line for line in lines if "a warning" in line.text).tone is Tone.WARN


def of_gpus(message, *subjects, code="AAA011"):
    found = (
        a_finding(
            message=message.format(subject),
            fix=Fix("Do this.", (f"sudo do {subject}", "sudo do it all")),
            subject=subject,
        )
        for subject in subjects
    )
    return an_outcome(code, *found)


def test_one_finding_of_many_gpus_is_printed_once_with_every_command():
    shown = text(of_gpus("{} is hot", *(f"GPU {number}" for number in range(8))), width=120)
    assert shown.count("is hot") == 1
    assert "the same of GPU 1, GPU 2, GPU 3, GPU 4, GPU 5, GPU 6 and GPU 7" in shown
    assert shown.count("sudo do it all") == 1
    assert "sudo do GPU 7" in shown
    assert "8 problems" in shown


@pytest.mark.parametrize(
    "outcomes",
    [
        pytest.param((of_gpus("{} is hot", "GPU 0"), of_gpus("{} is lost", "GPU 1", code="AAA012")), id="two checks"),
        pytest.param((of_gpus("{} is hot", "/etc/a", "/etc/b"),), id="no GPUs"),
    ],
)
def test_different_things_are_not_folded(outcomes):
    assert "the same of" not in text(*outcomes)


def test_a_known_error_is_shown_with_all_that_is_known_of_it():
    fix, cause = Fix("Do this.", ("sudo do",)), Cause("", "another", Fix("Do that."), Confidence.POSSIBLE, ("a word",))
    consequences = (Consequence("it failed", 9, "a failure"),)
    match = Match("DRV001", "the cause", Severity.ERROR, Confidence.LIKELY, fix, "no driver", line=3, source="worker 1")
    match = replace(
        match, speaks_against=("no", "word"), alternatives=(cause,), question="look", consequences=consequences
    )
    lines = format_match(match, width=80, marks=ASCII_MARKS)
    assert [line.text for line in lines] == [
        *(
            "x problem: the cause",
            "  fix (host): Do this.",
            "      sudo do",
            "  likely: DRV001 - devkit explain DRV001",
        ),
        *("  seen in line 3 of worker 1: no driver", "  against it: no; word", "  or possible: another"),
        *("  fix (host): Do that.", "  for it: a word", "  decides:", "      look"),
        "  follows in line 9: it failed: a failure",
    ]
    brief = replace(match, code="", family="a family", line=1, source="", alternatives=(), consequences=())
    shown = "\n".join(line.text for line in format_match(brief, width=80, marks=ASCII_MARKS))
    assert "likely, as a family\n  seen: no driver\n" in shown and shown.endswith("  more:\n      look")
    known, named = build_matches_document([match, brief])["matches"]
    keys = ("code", "line", "source", "family", "question")
    assert [known[key] for key in keys] == ["DRV001", 3, "worker 1", None, "look"]
    assert [named[key] for key in keys] == [None, 1, None, "a family", "look"]
    assert named["title"] == "a family" != known["title"]
    assert dump_json({"a": "\x7f##[x]"}) == '{\n  "a": "\\u007f#\\u0023[x]"\n}'
