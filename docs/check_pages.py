"""The page of each check, from its docstring and the failure catalog."""

from collections.abc import Iterable

from devkit.doctor.model import Check, split_explanation
from devkit.doctor.signatures.catalog import find_symptoms
from devkit.text import join_words


def render_check_page(check: Check) -> str:
    """Return the page of a check as Markdown."""
    (_, summary), *sections = split_explanation(check)
    lines = [f"# {check.code}: {check.title}", "", summary, ""]
    for heading, body in sections:
        lines += [f"## {heading}", "", body[:1].upper() + body[1:], ""]
    if symptoms := find_symptoms(check.code):
        lines += ["## What you may have searched for", "", *(f"- `{words}`" for words in symptoms), ""]
    if check.causes:
        lines += ["## What follows from it", "", f"Findings of these checks: {join_words(sorted(check.causes))}.", ""]
    lines += ["[All checks](README.md). Generated from the docstring; `python docs/generate.py` writes it."]
    return "\n".join(lines).rstrip() + "\n"


def render_check_index(checks: Iterable[Check]) -> str:
    """The list of all pages."""
    rows = [f"| [{check.code}]({check.code}.md) | {check.title} |" for check in checks]
    head = ["# Checks of devkit doctor", "", "In the order of printing. A title states the healthy condition.", ""]
    foot = ["", "Generated from the docstrings; `python docs/generate.py` writes it."]
    return "\n".join([*head, "| Code | Title |", "|---|---|", *rows, *foot]) + "\n"
