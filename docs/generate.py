"""Pages of the documentation site that are generated: one for each check, the failure catalog, and the settings.

A hook of mkdocs (see mkdocs.yml): `make docs` builds the site. The pages are not committed.
"""

import json
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from devkit.cli import devkit
from devkit.cli.documents import DOCUMENTS, build_document_schema
from devkit.doctor.explain import find_symptom
from devkit.doctor.fixes import DistroFamily
from devkit.doctor.model import Check
from devkit.doctor.problems import Remedy, group_problems, show_commands
from devkit.doctor.registry import CHECKS
from devkit.doctor.signatures.catalog import Failure, find_symptoms, load_failures
from devkit.formats.documents import load
from devkit.release import DOCUMENTATION_URL
from devkit.render.devkit_toml import SECTIONS
from devkit.render.html import render_report_page
from devkit.text import join_words
from tests.doctor.running import build_full_report
from tests.hosts.golden import expected_facts

DOCS = Path(__file__).parent
MACHINES = DOCS.parent / "tests" / "hosts"

GROUPS = {
    "A": "Driver and kernel",
    "B": "Health of the GPU",
    "C": "MIG, vGPU and Fabric Manager",
    "D": "WSL and Windows",
    "E": "Docker engine, permissions and contexts",
    "F": "Container Toolkit, CDI and rootless engines",
    "G": "CUDA, driver, image and architecture",
    "H": "Python packages in the container",
    "I": "Memory, limits and several GPUs",
    "J": "Dev containers and Compose",
    "K": "Storage, network and the model hub",
}
"""The heading of each group of failures, by the first letter of their IDs."""


def on_config(config: Any) -> Any:  # noqa: ANN401 - mkdocs is only installed where the site is built
    """Set the navigation: every guide and decision, and of the generated pages the two lists."""
    config.site_url = f"{DOCUMENTATION_URL}/"
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    config.repo_url = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    config.repo_name, config.edit_uri = config.repo_url.rpartition("github.com/")[2], "edit/main/docs/"
    folders = {folder: sorted((DOCS / folder).glob("*.md")) for folder in ("guides", "decisions")}
    pages = {folder: [path.relative_to(DOCS).as_posix() for path in paths] for folder, paths in folders.items()}
    config.nav = [
        {"Home": "index.md"},
        {"Tutorial": "tutorial.md"},
        {"How-to guides": ["symptoms.md", "team.md", *pages["guides"], "faq.md"]},
        {
            "Reference": [
                {"Commands": "reference/commands.md"},
                {"Settings": "settings.md"},
                {"Exit codes, variables, JSON": "reference/interface.md"},
                {"Checks": ["checks/README.md", {"What the doctor recognizes": "failures.md"}]},
                {"Rules of the solver": "rules.md"},
                {"Jobs of others": "reference/jobs.md"},
            ]
        },
        {"Explanation": ["architecture.md", "comparison.md", "threat-model.md", {"Decisions": pages["decisions"]}]},
    ]
    return config


def on_files(files: Any, config: Any) -> Any:  # noqa: ANN401 - as above
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File

    for path, text in render_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def render_pages() -> dict[str, str]:
    """Return every generated page, most as Markdown, by its path below docs/."""
    pages = {f"checks/{check.code}.md": render_check(check) for check in CHECKS}
    lists = {
        "checks/README.md": render_check_index(),
        "failures.md": render_failures(),
        "symptoms.md": render_symptoms(),
    }
    schemas = {f"reference/schemas/{name[7:-2]}.json": json.dumps(build_document_schema(name)) for name in DOCUMENTS}
    facts = expected_facts("driver-lib-mismatch")
    others = {
        "settings.md": render_settings(),
        "reference/jobs.md": render_jobs(),
        "reference/commands.md": render_commands(),
        "screens/report.html": render_report_page(facts, build_full_report(facts)),
    }
    return pages | lists | schemas | others


def render_commands() -> str:
    """Return the page of every command with its options, from the command line itself."""
    lines = ["# Commands", "", "`devkit COMMAND --help` prints the same. Exit codes: [interface](interface.md)."]
    for path, command in walk_commands(devkit, click.Context(devkit, info_name="devkit")):
        with click.Context(command, info_name=path) as context:
            usage = command.get_usage(context).removeprefix("Usage: ")
            text = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
            options = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
        lines += ["", f"## {path}", "", f"`{usage}`", "", text, ""]
        if options:
            lines += ["| Option | Meaning |", "|---|---|"]
            lines += [f"| `{escape_cell(name)}` | {escape_cell(meaning)} |" for name, meaning in options]
    return "\n".join([*lines, ""])


def render_jobs() -> str:
    """Return the page of jobs that others published, each with the command that carries it as it is."""
    table = tomllib.loads((DOCS.parent / "tests/export/public_jobs.toml").read_text(encoding="utf-8"))
    lines = [
        "# Jobs that others published",
        "",
        "Each is carried as it is, its own command and image, by `devkit init` and this one command. A test exports all of them, and",
        "lets the engines' schemas, bash and the launchers' own programs read what is written.",
    ]
    for job in table["job"]:
        lines += ["", f"## {job['name']}", "", f"[Source]({job['source']})", ""]
        lines += ["```sh", f"devkit export {shlex.join(job['export'])}", "```"]
    return "\n".join([*lines, ""])


def walk_commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its words, groups before what is in them."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None:
            continue
        words = f"{context.command_path} {name}"
        yield words, command
        if isinstance(command, click.Group):
            yield from walk_commands(command, click.Context(command, info_name=words))


def render_symptoms() -> str:
    """Return the page that starts from what is seen: the error text, what it is, and the check that finds it."""
    lines = [
        "# Start from a symptom",
        "",
        "Paste the error into `devkit explain`, or find it here. Each check has a page with the reason; `devkit doctor` runs",
        "all of them and gives the fix for your machine.",
        "",
    ]
    for letter, title in GROUPS.items():
        rows = [
            f"| {escape_cell(failure.symptom)} | {escape_cell(failure.name)} "
            f"| {', '.join(f'[{code}](checks/{code}.md)' for code in failure.checks)} |"
            for failure in load_failures()
            if failure.id.startswith(letter) and failure.checks
        ]
        lines += [f"## {title}", "", "| You see | What it is | Check |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def escape_cell(text: str) -> str:
    """Escape text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def render_check(check: Check) -> str:
    """Return the page of a check, from its row of the catalog: what it finds and the fixes, then why and how."""
    (_, summary), *sections = check.explanation
    lines = [f"# {check.code}: {escape(find_symptom(check))}", ""]
    for group in group_problems(check.code):
        lines += [*(f"- {escape(message)}" for message in group.messages), "", "## How to fix it", ""]
        for remedy in group.remedies:
            lines += _render_fix(remedy, is_only=len(group.remedies) == 1)
    lines += [f"## {check.title}", "", summary, ""]
    for heading, body in sections:
        lines += [f"## {heading}", "", body[:1].upper() + body[1:], ""]
    lines += ["## What you may have searched for", "", *(f"- `{words}`" for words in find_symptoms(check.code)), ""]
    if check.causes:
        links = join_words(f"[{code}]({code}.md)" for code in sorted(check.causes))
        lines += ["## What follows from it", "", f"Findings of these checks: {links}.", ""]
    return "\n".join([*lines, "[All checks](README.md)", ""])


def escape(text: str) -> str:
    """Escape the names of values."""
    return text.replace("<", "&lt;")


FAMILIES = {
    **{"ubuntu": "Ubuntu", "debian": "Debian", "fedora": "Fedora", "rhel": "RHEL"},
    **{"suse": "SUSE", "arch": "Arch", "nixos": "NixOS"},
}


def _render_fix(remedy: Remedy, *, is_only: bool) -> Iterator[str]:
    """Yield the lines of one fix, its commands with a tab for each distribution where they differ."""
    fix = remedy.row
    where = {"machine": "the host", "driver": "the host", "workload": "where the program runs"}.get(
        fix.where, fix.where
    )
    case = remedy.condition or "in all other cases"
    yield from () if is_only else (f"### {escape(case[:1].upper() + case[1:])}", "")
    yield f"{escape(remedy.summary)} ({where})"
    yield ""
    by_family = {family: show_commands(fix, family=DistroFamily(family)) for family in FAMILIES}
    if len(set(by_family.values())) == 1:
        by_family = {"": show_commands(fix)}
    for family, commands in by_family.items():
        indent = "    " if family else ""
        yield from ([f'=== "{FAMILIES[family]}"', ""] if family else [])
        yield from (
            [f"{indent}```sh", *(f"{indent}{line}" for line in commands), f"{indent}```", ""] if commands else []
        )
    if fix.docs:
        address = load("devkit.doctor.signatures", "docs").get(fix.docs, fix.docs)
        yield from (f"See <{address}>.", "")


def render_settings() -> str:
    """Return the page of devkit.toml: an example of every setting."""
    lines = ["# Settings", "", "Every key of devkit.toml. Flags of `devkit init` are recorded there.", "", "```toml"]
    for section, (purpose, keys) in SECTIONS.items():
        lines += ["", f"[{section}]", f"# {purpose}"] if section else []
        lines += [f"{key} = {example}  # {meaning}" for key, (example, meaning) in keys.items()]
    return "\n".join([*lines, "```", ""])


def render_check_index() -> str:
    """Return the list of all checks."""
    rows = [
        f"| [{check.code}]({check.code}.md) | {escape_cell(find_symptom(check))} | {check.title} |" for check in CHECKS
    ]
    head = ["# Checks of devkit doctor", "", "In the order of the report.", ""]
    return "\n".join([*head, "| Code | Problem | Healthy |", "|---|---|---|", *rows, ""])


def render_failures() -> str:
    """Return the failure catalog, with the recorded machines that show each failure."""
    failures, machines = load_failures(), _read_machines()
    recognized = sum(bool(failure.checks) for failure in failures)
    lines = [
        "# What devkit doctor recognizes",
        "",
        f"{recognized} of the {len(failures)} failures below are recognized by a check. A recorded machine is a folder of",
        "`tests/hosts` on which the tests prove it; sources are public threads and manuals.",
        "",
    ]
    for letter, title in GROUPS.items():
        rows = [_render_row(failure, machines) for failure in failures if failure.id.startswith(letter)]
        head = "| | Failure | Seen as | Recognized by | Recorded machines | Sources |"
        lines += [f"## {letter}. {title}", "", head, "|---|---|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _render_row(failure: Failure, machines: dict[str, list[str]]) -> str:
    checks = ", ".join(f"[{code}](checks/{code}.md)" for code in failure.checks)
    shown = ", ".join(f"`{name}`" for name in machines.get(failure.id, ())) or failure.no_recording
    recognized = checks or f"not seen: {failure.not_seen}"
    cells = (failure.id, failure.name, failure.symptom, recognized, shown, ", ".join(failure.sources))
    return f"| {' | '.join(escape_cell(cell) for cell in cells)} |"


def _read_machines() -> dict[str, list[str]]:
    """Return the names of the recorded machines that show each failure."""
    machines = {
        path.parent.name: tomllib.loads(path.read_text(encoding="utf-8")) for path in MACHINES.glob("*/machine.toml")
    }
    for path in MACHINES.glob("*/variants.toml"):
        machines |= tomllib.loads(path.read_text(encoding="utf-8"))
    found: dict[str, list[str]] = {}
    for name, machine in sorted(machines.items()):
        for failure in machine.get("shows", ()):
            found.setdefault(failure, []).append(name)
    return found
