"""The explanation of a check, as text and as a document."""

import re

from devkit.doctor.checks.loader import load_check
from devkit.doctor.fixes import DistroFamily
from devkit.doctor.model import Check, find_check_page
from devkit.doctor.problems import group_problems, show_commands
from devkit.doctor.report.lines import Line, Tone, fold_lines
from devkit.doctor.signatures.catalog import find_symptoms, load_check_rows
from devkit.text import join_words

_CODE = re.compile(r"[A-Za-z]{3}-?\d{1,4}")


def find_check(text: str) -> Check | None:
    """Return the check whose code `text` is, however it is written; None where it is not a code."""
    code = text.strip().upper().replace("-", "")
    return load_check(code) if code in load_check_rows(code[:3]) else None


def is_code(text: str) -> bool:
    """Return True if `text` has the form of a code, even if no check has it."""
    return _CODE.fullmatch(text.strip()) is not None


def find_symptom(check: Check) -> str:
    """Find what people meet who have the problem: the symptom of the check's row, else its first problem."""
    groups = group_problems(check.code)
    return load_check_rows(check.code[:3])[check.code].symptom or (groups[0].messages[0] if groups else check.title)


def format_explanation(check: Check, *, width: int) -> tuple[Line, ...]:
    """Format a check: what it finds, each with its fixes, then the healthy condition, why it matters and how it is seen."""
    symptom = find_symptom(check)
    lines = fold_lines(f"{check.code} {symptom}", width)
    for group in group_problems(check.code):
        lines += [Line("")]
        for message in (each for each in group.messages if each != symptom):
            lines += fold_lines(f"Problem: {message}", width)
        lines += [Line("How to fix it:")]
        for remedy in group.remedies:
            condition = remedy.condition or ("otherwise" if len(group.remedies) > 1 else "")
            lines += fold_lines(f"- [{condition}] {remedy.summary}" if condition else f"- {remedy.summary}", width)
            commands = show_commands(remedy.row, family=DistroFamily.UBUNTU)
            if commands != show_commands(remedy.row):
                lines += [Line("  On Ubuntu (for other distributions, see the page below):")]
            lines += [Line(f"    {command}") for command in commands]
    lines += [Line(""), *fold_lines(f"Healthy: {check.title}.", width)]
    for heading, text in check.explanation:
        lines += [Line(""), *fold_lines(f"{heading}: {text}" if heading else text, width)]
    if symptoms := find_symptoms(check.code):
        lines += [Line(""), Line("You may have seen:"), *(Line(f"  {words}") for words in symptoms)]
    if check.causes:
        said = f"Checks that may report consequences: {join_words(check.causes)}"
        lines += [Line(""), *fold_lines(said, width, tone=Tone.QUIET)]
    return (*lines, Line(""), Line(f"more: {find_check_page(check.code)}", Tone.QUIET))
