"""The explanation of a check, as text and as a document."""

import re
from difflib import get_close_matches

from devkit.doctor.checks.loader import list_codes, load_check
from devkit.doctor.model import Check, find_check_page
from devkit.doctor.problems import list_problem_rows, show_commands, show_condition, show_template
from devkit.doctor.report.lines import Line, Tone, fold_lines
from devkit.doctor.signatures.catalog import find_symptoms, load_check_rows
from devkit.text import format_count, join_words

_CODE = re.compile(r"[A-Za-z]{3}-?\d{1,4}")


def find_check(text: str) -> Check | None:
    """Return the check whose code `text` is, however it is written; None where it is no code."""
    code = _normalize_code(text)
    return load_check(code) if code in load_check_rows(code[:3]) else None


def is_code(text: str) -> bool:
    """Return True if `text` has the form of a code, even if no check has it."""
    return _CODE.fullmatch(text.strip()) is not None


def suggest_codes(text: str) -> tuple[str, ...]:
    """Return up to three codes that resemble `text`."""
    return tuple(get_close_matches(_normalize_code(text), list_codes(), n=3, cutoff=0.5))


def _normalize_code(text: str) -> str:
    return text.strip().upper().replace("-", "")


def format_explanation(check: Check, *, width: int) -> tuple[Line, ...]:
    """Format a check: its condition, why it matters, how it is seen, what it finds with the fix, and what follows."""
    lines = fold_lines(f"{check.code} {check.title}", width)
    for heading, text in check.explanation:
        lines += [Line(""), *fold_lines(f"{heading}: {text}" if heading else text, width)]
    for row in list_problem_rows(check.code).values():
        lines += [Line(""), *fold_lines(f"Problem: {show_template(row.message)}", width)]
        for fix in row.known_fixes:
            condition = show_condition(fix)
            lines += fold_lines(f"Fix{f' ({condition})' if condition else ''}: {show_template(fix.summary)}", width)
            lines += [Line(f"  {command}") for command in show_commands(fix)]
    if symptoms := find_symptoms(check.code):
        lines += [Line(""), Line("You may have seen:"), *(Line(f"  {words}") for words in symptoms)]
    if check.causes:
        said = f"{format_count(len(check.causes), 'check')} may find what follows from it: {join_words(check.causes)}"
        lines += [Line(""), *fold_lines(said, width, tone=Tone.QUIET)]
    return (*lines, Line(""), Line(f"more: {find_check_page(check.code)}", Tone.QUIET))
