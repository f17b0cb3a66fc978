"""Markdown as it is pasted into an issue."""

import pytest

from devkit.doctor.model import Fix
from devkit.doctor.report.markdown import render_markdown_report
from tests.doctor.machines import healthy, without_gpu
from tests.doctor.reports import (
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
)
from tests.doctor.running import build_full_report


def shown(*outcomes):
    return render_markdown_report(healthy(), a_report(*outcomes))


@pytest.mark.parametrize(
    ("outcomes", "start"),
    [
        pytest.param([PASSED], "### ✅ devkit doctor: healthy", id="healthy"),
        pytest.param([NOTE, ROOT], "### ❌ devkit doctor: problem\n\n**the cause**", id="the cause first"),
        pytest.param([IN_A_FILE], "### ⚠️ devkit doctor: warning\n\n**a line is wrong**", id="a warning"),
        pytest.param([CRASHED], "### ⚠️ devkit doctor: 1 check crashed", id="a crash"),
        pytest.param([HUNG, PASSED], "### ❔ devkit doctor: incomplete", id="a lost fact"),
    ],
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
        "<summary>Consequences, which go away with their cause",
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


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        pytest.param("a | b", "a \\| b", id="a column's end"),
        pytest.param("<script>x</script>", "\\<script\\>x\\</script\\>", id="HTML"),
        pytest.param("*bold* _it_ `code`", "\\*bold\\* \\_it\\_ \\`code\\`", id="formatting"),
        pytest.param("ask @alice in #12", "ask &#64;alice in &#35;12", id="a mention and an issue"),
        pytest.param("two\nlines", "two lines", id="a line end"),
        pytest.param("[x](http://y)", "\\[x\\](http://y)", id="a link"),
    ],
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
