"""Flags of `devkit doctor` that contradict each other: refused at once, before anything is read."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from devkit.errors import DevkitError

_OF_THIS_MACHINE = (
    ("fix", "--fix", "run it on the machine itself"),
    ("deep", "--deep", "save facts with --deep on the machine itself"),
    ("smoke", "--smoke", "save facts with --smoke on the machine itself"),
    ("project", "--project", "save facts with --project on the machine itself"),
)


def refuse_what_does_not_fit(flags: Mapping[str, object]) -> None:
    """Raises DevkitError for the first contradiction. `flags` are the command's parameters by name."""
    for message, hint in _contradictions(flags):
        raise DevkitError(message, hint)


def _contradictions(flags: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    project, output = flags["project"], flags["output"]
    yield from _of_format(flags)
    yield from _of_saved_facts(flags)
    if flags["yes"] and not flags["fix"]:
        yield "--yes answers the questions of --fix, which was not given", "Add --fix, or leave --yes away."
    if isinstance(project, Path) and not project.is_dir():
        yield f"{project} is no directory", "Name the project's folder: devkit doctor --project DIR"
    if output is not None and output == flags["save_facts"]:
        yield f"--output and --save-facts both name {output}", "Name two files."


def _of_format(flags: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    style = flags["style"]
    if flags["as_json"] and style not in (None, "json"):
        yield f"--json and --format {style} contradict each other", "Give one of the two."
    if flags["show_list"] and style in ("sarif", "markdown", "html"):
        yield f"--list has no {style} form", "Take --format text or json."
    if flags["show_list"] and flags["fix"]:
        yield "--list only lists the checks, and --fix changes files", "Give one of the two."


def _of_saved_facts(flags: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    files = flags["facts_files"]
    if not isinstance(files, tuple) or not files:
        return
    for name, flag, instead in _OF_THIS_MACHINE:
        if flags[name]:
            yield f"{flag} works on this machine, and --facts judges a saved one", f"Leave one away, or {instead}."
    if len(files) > 2:
        yield f"--facts was given {len(files)} times", "Give one machine, or a host and a container on it."
