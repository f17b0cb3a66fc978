"""What the documentation says is what the program does."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from devkit.cli import devkit

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = [
    path
    for pattern in ("*.md", "docs/**/*.md", "devkit/**/*.py", "templates/**/*", "examples/**/*", "Makefile", ".ci/*")
    for path in sorted(ROOT.glob(pattern))
    if path.is_file() and path.suffix not in {".whl", ".png", ".svg"}
]
NOT_OURS = re.compile(r"pip3? install (?:-\S+ )*['\"]?devkit(?![-\w/.])")
"""The name devkit on the package index belongs to somebody else."""


def test_help_blocks_in_the_readme_are_what_the_program_prints():
    done = subprocess.run(
        [sys.executable, ".ci/help_blocks.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_has_a_help_block_for_every_command():
    from devkit.cli import COMMANDS

    blocks = set(re.findall(r"<!-- help: devkit ([\w-]+) -->", (ROOT / "README.md").read_text()))
    assert blocks == set(COMMANDS)


def test_nobody_is_told_to_install_the_other_devkit():
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8", errors="replace") for path in WRITTEN}
    assert not {name: found for name, text in texts.items() if (found := NOT_OURS.findall(text))}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pip install devkit", True),
        ("pip install -U 'devkit[workload]'", True),
        ("pip install devkit-gpu", False),
        ("pip install 'devkit-gpu[workload]'", False),
        ("pip install .devcontainer/devkit_gpu-0.1.0-py3-none-any.whl", False),
    ],
    ids=["bare", "with an extra", "our distribution", "our distribution with an extra", "a wheel file"],
)
def test_the_pattern_knows_the_other_devkit_from_ours(text, wrong):
    assert bool(NOT_OURS.search(text)) is wrong


def test_every_relative_link_in_the_documentation_leads_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    link = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
    links = [(page, target) for page in pages for target in link.findall(page.read_text(encoding="utf-8"))]
    assert links
    assert not [f"{page.name} -> {target}" for page, target in links if not (page.parent / target).exists()]


def commands_in_the_documentation() -> list[list[str]]:
    """Each `devkit` call in the shell blocks of the README and the guides, as words."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    blocks = [block for page in pages for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)]
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [words[1:] for words in lines if words and words[0] == "devkit"]


def test_every_command_line_in_the_documentation_has_flags_that_the_program_knows():
    found = commands_in_the_documentation()
    assert len(found) > 20
    unknown = []
    for words in found:
        command: click.Command = devkit
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0)) or click.Command("none")
        known = {flag for each in command.params for flag in each.opts}
        words = words[: words.index("--")] if "--" in words else words
        unknown += [f"{command.name} {word}" for word in words if word.startswith("--") and word not in known]
    assert unknown == []
