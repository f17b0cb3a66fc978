"""A failure is told once: the doctor's finding, `devkit explain CODE` and the check's page are of one row."""

import re

import pytest

from devkit.doctor.explain import format_explanation
from devkit.doctor.fixes import DistroFamily
from devkit.doctor.model import Finding
from devkit.doctor.problems import group_problems, show_commands
from devkit.doctor.registry import BY_CODE
from tests.doctor.running import report_of
from tests.doctor.test_docs import load_generator
from tests.hosts import MACHINES

FREQUENT = (
    *("DRV001", "DRV002", "DRV003", "DRV004", "DRV006", "ENG001", "ENG003", "CTK001", "CTK002", "CTK003", "CON002"),
    *("CDI001", "CON001", "CON003", "CUD004", "PYT006", "GPU006", "PYT001", "PYT002", "STO002"),
)
"""The checks of the failures that people ask about most: driver, engine, toolkit, CDI, shared memory, torch, disk."""

ENGINES = ("docker", "snap", "desktop", "podman", "rootless")
FIXES_OF_ERRORS = ("CON011", "DRV016", "ENG018", "ENG019", "CTK018")
"""Checks of programs and containers that failed: where the error is known, its own row has the fix."""

GENERATE = load_generator()


def to_pattern(shown: str) -> re.Pattern[str]:
    """Return a pattern of a shown text: the name of a value stands for any value."""
    parts = re.split(r"<[a-z][a-z0-9 ]*>", shown)
    return re.compile(".*".join(map(re.escape, parts)), re.DOTALL)


def show_page(code: str) -> str:
    return GENERATE.render_check(BY_CODE[code]).replace("&lt;", "<")


def list_untold(finding: Finding, code: str) -> list[str]:
    """List what a finding says and no row of its check has."""
    groups = group_problems(code)
    remedies = [remedy for group in groups for remedy in group.remedies]
    commands = {
        command
        for each in remedies
        for family in DistroFamily
        for engine in ENGINES
        for command in show_commands(each.row, family=family, engine=engine)
    }
    shown = [(finding.message, [message for group in groups for message in group.messages])]
    shown += [(finding.fix.summary, [each.summary for each in remedies])]
    shown += [
        (
            command.replace("uv pip", "pip").replace("sudo service docker restart", "sudo systemctl restart docker"),
            commands,
        )
        for command in finding.fix.commands
    ]
    shown = shown[:1] if code in FIXES_OF_ERRORS else shown
    return [said for said, rows in shown if not any(to_pattern(row).search(said) for row in rows)]


@pytest.mark.parametrize("code", FREQUENT)
def test_explain_and_the_page_have_every_problem_with_its_fixes(code):
    page, explained = show_page(code), "\n".join(line.text for line in format_explanation(BY_CODE[code], width=10_000))
    for group in group_problems(code):
        for remedy in group.remedies:
            for text in (*group.messages, remedy.summary, *show_commands(remedy.row, family=DistroFamily.UBUNTU)):
                assert text in explained
        for text in (*group.messages, *(remedy.summary for remedy in group.remedies)):
            assert text in page


def test_findings_on_recorded_machines_are_in_the_words_of_their_rows():
    found = [(machine, each) for machine in MACHINES for each in report_of(machine).findings]
    untold = {
        f"{machine}: {each.check.code}: {text}"
        for machine, each in found
        for text in list_untold(each.finding, each.check.code)
    }
    assert untold == set()
    assert len({each.check.code for _, each in found if each.check.code in FREQUENT}) == len(FREQUENT)
