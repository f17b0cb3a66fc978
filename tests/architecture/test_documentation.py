"""What the documentation says is what the program does."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import click
import pytest
import yaml

from devkit.cli import COMMANDS, devkit
from devkit.release import DOCUMENTATION_URL
from docs.check_links import find_broken_links
from docs.generate import render_pages

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = [
    path
    for pattern in ("*.md", "docs/**/*.md", "devkit/**/*.py", "templates/**/*", "examples/**/*", "Makefile", ".ci/*")
    for path in sorted(ROOT.glob(pattern))
    if path.is_file() and path.suffix not in {".whl", ".png", ".svg"}
]
NOT_OURS = re.compile(r"pip3? install (?:-\S+ )*['\"]?devkit(?![-\w/.])")
"""The name devkit on the package index belongs to somebody else."""


def test_the_readme_is_short_and_shows_every_main_command():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    commands = (
        "doctor",
        "explain",
        "plan",
        "init",
        "update",
        "verify",
        "estimate",
        "finetune",
        "generate",
        "export",
        "fleet",
    )
    assert not [name for name in commands if f"\ndevkit {name}" not in text]


LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]*)\)")


def test_links_and_pictures_of_the_readme_lead_to_files_of_the_clone():
    links = LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) > 20
    assert any(link.endswith(".svg") for link in links)
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_on_a_package_index_the_readme_has_the_same_links_below_the_address_of_the_repository():
    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["metadata"]["hooks"]
    written = (ROOT / "README.md").read_text(encoding="utf-8")
    published = written
    for each in hooks["fancy-pypi-readme"]["substitutions"]:
        published = re.sub(each["pattern"], each["replacement"], published)
    repository = hooks["custom"]["repository"]
    published = published.replace("https://REPOSITORY/", f"{repository}/")
    assert LINK.findall(published) == []
    added = re.findall(re.escape(repository) + r"/(?:blob|raw)/main/([^)]+)\)", published)
    assert added == LINK.findall(written)
    assert re.findall(r"!\[[^]]+\]\(([^)]+)\)", published)[0].startswith(f"{repository}/raw/main/docs/screens/")


@pytest.mark.full
def test_the_built_wheel_has_no_relative_link_in_its_long_description(tmp_path):
    copy = shutil.copytree(ROOT, tmp_path / "devkit", ignore=shutil.ignore_patterns(".*", "tests", "build", "dist"))
    environ = {name: value for name, value in os.environ.items() if name != "UV_OFFLINE"}
    command = [sys.executable, "-m", "build", "--wheel", "--installer", "uv", "--outdir", tmp_path / "dist", copy]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode and "Failed to fetch" in done.stdout + done.stderr:
        pytest.skip("needs a package index, for what builds the wheel")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    assert "Description-Content-Type: text/markdown" in metadata
    assert "# devkit" in metadata
    assert "Project-URL: Issues, https://github.com/OWNER/devkit/issues" in metadata
    assert "REPOSITORY/" not in metadata
    assert LINK.findall(metadata) == []


def test_names_and_texts_are_in_american_spelling():
    british = re.compile(
        r"(?i)\w*(?:(?:quanti|utili|initiali|normali|organi|tokeni|memori)s[ei]|virtualisation(?!\.docker)"
        r"|(?:flav|col|neighb|behavi)our|licence|catalogue|data.centre|labelled(?!by))\w*"
    )
    found = {path.name: british.findall(path.read_text(encoding="utf-8", errors="replace")) for path in WRITTEN}
    assert {name: words for name, words in found.items() if words} == {}


def test_the_source_archive_takes_no_files_of_the_same_name_from_elsewhere():
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert [each for each in targets["sdist"]["include"] if not each.startswith("/")] == []


def test_the_page_of_commands_has_every_command_and_option():
    text = render_pages()["reference/commands.md"]
    assert not [name for name in COMMANDS if f"## devkit {name}\n" not in text]
    assert "## devkit export kubernetes\n" in text
    assert "`--save-facts FILE`" in text


def test_symptoms_lead_to_their_checks():
    text = render_pages()["symptoms.md"]
    assert re.search(r"could not select device driver.*\[CTK001\]\(checks/CTK001.md\)", text)


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


def test_every_relative_link_in_the_documentation_leads_to_a_file_of_the_clone():
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
        unknown += [
            f"{command.name} {word}" for word in words if word.startswith("--") and word.partition("=")[0] not in known
        ]
    assert unknown == []


def test_the_addresses_of_the_project_are_set_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    addresses = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    assert addresses["documentation"] == f"{DOCUMENTATION_URL}/"
    owner = addresses["repository"]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in WRITTEN if path.suffix in (".md", ".py")]
    assert [text for text in texts if owner in text] == []
    assert (ROOT / "devkit/py.typed").is_file()


def test_workflows_templates_and_hooks_are_valid_and_their_commands_exist():
    files = [*ROOT.glob(".github/**/*.yml"), ROOT / "action.yml", ROOT / ".pre-commit-hooks.yaml"]
    documents = {path: yaml.safe_load(path.read_text(encoding="utf-8")) for path in files}
    assert len(documents) >= 8
    assert all(documents.values())
    calls = [
        line for path in files for line in re.findall(r"\bdevkit ([a-z]+) [^|\n]*", path.read_text(encoding="utf-8"))
    ]
    assert calls
    assert set(calls) - set(COMMANDS) <= {"answer", "fails", "finds", "doctor"}
    bug = (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8")
    assert "devkit doctor --format markdown" in bug


PRIVATE_WORDS = """
learns answers alone|without seeing each other|equal to the bit|bit-equal|growing cache|noise and all|tails of device numbers
longest gradient|how weights are moved|how the learning rate moves|lay short texts|least likely left out|how freely to choose|longest answer
draw the bounds in|texts that are not learned|the data makes no more|reads no more|whatever is not asked for
has the step taken again|that are no numbers
with the words of one process|gone on (from|with)|passes the step over|own patience|hangs on it|machines of one make|scatter excuses
readings of the moment|punished|a blank between|some hundred mib|spoke against|signed off|is heard|told .* by nobody|goes without a word
are few for a|the way of the air|is braked|clocks free again|tags that stay|has no units for|asks for a turn|held against|memoris
"""
"""What was once written in place of the field's words: see docs/glossary.md."""


def test_no_private_words_where_the_field_has_its_own():
    pattern = re.compile("|".join(PRIVATE_WORDS.strip().split("\n")), re.IGNORECASE)
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/guides").glob("*.md")]
    pages += [*ROOT.glob("examples/*/README.md"), *ROOT.glob("templates/**/*.j2")]
    texts = {
        str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in pages if page.name != "glossary.md"
    }
    texts["help"] = render_pages()["reference/commands.md"]
    found = {name: pattern.findall(text) for name, text in texts.items() if name != "CHANGELOG.md"}
    stages = ("lora-memorizes", "qlora-memorizes")  # names of a contract
    kept = {name for name, text in texts.items() if any(stage in text for stage in stages)}
    assert {name: words for name, words in found.items() if words and name not in kept} == {}


def test_every_test_that_the_comparison_names_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "docs/comparison.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    missing = [
        f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
    ]
    assert not missing


def test_pages_and_sections_that_are_missing_are_found(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/index.html").write_text('<h2 id="there">x</h2>')
    good = '<a href="a/#there">1</a><a href="https://example.org/x">2</a><a href="#x">3</a><a href="a/?q">4</a>'
    (tmp_path / "index.html").write_text(good)
    assert list(find_broken_links(tmp_path)) == []
    (tmp_path / "index.html").write_text(f'{good}<a href="a/#gone">5</a><img src="no.svg">')
    assert list(find_broken_links(tmp_path)) == ["index.html: a/#gone", "index.html: no.svg"]
