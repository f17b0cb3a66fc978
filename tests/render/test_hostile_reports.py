"""Any text in a finding, a reason and a GPU's name: each form of the report shows it as text, as its own parser reads it."""

import io
import json
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from devkit.cli.output import OutputOptions, choose_marks
from devkit.doctor.model import Check, Finding, Fix, Location, Severity
from devkit.doctor.preconditions import NotApplicable
from devkit.doctor.report.lines import ASCII_MARKS, UNICODE_MARKS
from devkit.doctor.report.markdown import render_markdown_report
from devkit.doctor.report.report import build_report
from devkit.doctor.report.sarif import build_sarif_document
from devkit.doctor.report.stack import build_stack
from devkit.doctor.report.text import format_report
from devkit.doctor.runner import run_checks
from devkit.text import to_one_line
from tests.doctor.machines import healthy
from tests.doctor.running import nothing

HARMLESS = "harmless"
FRAGMENTS = ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", '" onload="alert(1)', "--><!--", "</details>")
FRAGMENTS += ("&lt;", "&#x3c;", "javascript:alert(1)", "![a](http://x)", "[a](javascript:b)", "| a |", "# a", "- a")
FRAGMENTS += ("+ a", "===", "```", "~~~", "> a", "\x1b]0;a\x07", "\x9b2J", "\u202e", "\r\n", "\0", "`", "*", "_", "\\")
FRAGMENTS += ("1. a", "@a", "#1", "{{ 7 }}", "$(a)", "a", " ", "\ud83d", "é")
texts = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=5).map("".join), st.text(min_size=1, max_size=30)
)


def report(text, *, is_found=True):
    """Facts and a report in which the text is wherever a machine or a project has a say."""

    def find(facts):
        fix = Fix(text, (f"run {text}",))
        location = Location(text, 7)
        yield Finding(Severity.ERROR, text, fix, subject=text, evidence=(text, "more"), location=location)
        yield Finding(Severity.WARNING, f"in {text}.", fix, subject=text, evidence=(text,))

    def skip(facts):
        raise NotApplicable(text, is_lost=True)
        yield

    find.__doc__ = skip.__doc__ = nothing.__doc__
    machine = healthy()
    gpus = (replace(machine.gpus[0], name=text), *machine.gpus[1:])
    facts = replace(machine, nvml=replace(machine.nvml, gpus=gpus))
    checks = [Check("DRV901", "a", find)] if is_found else []
    checks.append(Check("DRV001", "b", skip))
    return facts, build_report(facts, run_checks(checks, facts, clock=lambda: 0.0), devkit="0.1.0")


def plain(text):
    """A text without what may differ: spaces, backticks (code in a page), and what HTML and Markdown have no form for."""
    return re.sub(r"[\s`\0\ufffd\\]|[\ud800-\udfff]", "", to_one_line(text))


def markdown_parts(text, is_found):
    """Every block and inline element, with what HTML there is."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    blocks = parser.parse(render_markdown_report(*report(text, is_found=is_found)))
    tokens = [each for block in blocks for each in (block, *(block.children or ()))]
    assert plain(text) in plain_page(" ".join(each.content for each in tokens if each.type.startswith("text")))
    return [
        (each.type, each.tag, each.content if "html" in each.type else "") for each in tokens if each.type != "text"
    ]


def plain_page(text):
    return re.sub(r"[\s`\0\ufffd\\]|[\ud800-\udfff]", "", text)


expected_markdown = cache(lambda is_found: markdown_parts(HARMLESS, is_found))


def is_shown(text):
    return any(char.isprintable() and not char.isspace() and char != "`" for char in text)


@settings(max_examples=40, deadline=None)
@given(texts.filter(is_shown), st.booleans())
def test_markdown_has_the_same_blocks_whatever_it_shows(text, is_found):
    assert markdown_parts(text, is_found) == expected_markdown(is_found)


@settings(max_examples=40, deadline=None)
@given(texts.filter(is_shown))
def test_a_terminal_gets_no_control_characters_and_sarif_stays_json(text):
    facts, shown = report(text)
    lines = format_report(shown, build_stack(facts, shown), width=80, marks=choose_marks(OutputOptions("text", None)))
    printed = "".join(line.text for line in lines)
    assert not re.search(r"[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", re.sub(r"[\t\n]", "", printed)), repr(printed)
    (run,) = json.loads(json.dumps(build_sarif_document(shown, exit_code=1)))["runs"]
    assert [each["ruleId"] for each in run["results"]] == ["DRV901", "DRV901"]


@pytest.mark.parametrize(("output", "marks"), [(None, ASCII_MARKS), (Path("report.txt"), UNICODE_MARKS)])
def test_a_terminal_without_unicode_gets_plain_marks_and_a_file_all(monkeypatch, output, marks):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert choose_marks(OutputOptions("text", output)) is marks
