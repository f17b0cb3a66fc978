"""The page of a check in docs/checks, made from its docstring."""

from collections.abc import Iterable

from devkit.doctor.model import Check
from devkit.text import listed


def markdown_of(check: Check) -> str:
    """The check's page in docs/checks, from its docstring."""
    summary, _, rest = check.explanation.partition("\n\n")
    lines = [f"# {check.code}: {check.title}", "", " ".join(summary.split()), ""]
    for section in _sections(rest):
        lines += section
    if check.symptoms:
        lines += ["## What you may have searched for", "", *(f"- `{words}`" for words in check.symptoms), ""]
    if check.causes:
        lines += ["## What follows from it", "", f"Findings of these checks: {listed(sorted(check.causes))}.", ""]
    lines += ["[All checks](README.md). Generated from the docstring; `python docs/generate.py` writes it."]
    return "\n".join(lines).rstrip() + "\n"


def sections_of(check: Check) -> tuple[tuple[str, str], ...]:
    """The docstring's parts with their headings; the first, what is so on a healthy machine, has none."""
    summary, _, rest = check.explanation.partition("\n\n")
    return (("", " ".join(summary.split())), *_parts(rest))


HEADINGS = ("Why it matters", "How it is seen", "Source")


def _sections(text: str) -> Iterable[list[str]]:
    """The labelled paragraphs of a docstring as Markdown sections."""
    for heading, body in _parts(text):
        yield [f"## {heading}", "", body[:1].upper() + body[1:], ""]


def _parts(text: str) -> Iterable[tuple[str, str]]:
    """The labelled paragraphs of a docstring. Raises ValueError when one is missing."""
    starts = [text.find(f"{heading}:") for heading in HEADINGS]
    if -1 in starts or starts != sorted(starts):
        raise ValueError(f"the docstring must have, in this order: {', '.join(HEADINGS)}")
    for heading, start, end in zip(HEADINGS, starts, [*starts[1:], len(text)], strict=True):
        yield heading, " ".join(text[start + len(heading) + 1 : end].split())


def index_of(checks: Iterable[Check]) -> str:
    """The list of all pages."""
    rows = [f"| [{check.code}]({check.code}.md) | {check.title} |" for check in checks]
    head = ["# Checks of devkit doctor", "", "In the order of printing. A title states the healthy condition.", ""]
    foot = ["", "Generated from the docstrings; `python docs/generate.py` writes it."]
    return "\n".join([*head, "| Code | Title |", "|---|---|", *rows, *foot]) + "\n"
