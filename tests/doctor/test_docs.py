"""The pages of the documentation site: generated ones are whole, and every link between pages leads somewhere."""

import importlib.util
import posixpath
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace

import yaml

from devkit.doctor.registry import CHECKS
from devkit.release import DOCUMENTATION_URL

ROOT = Path(__file__).resolve().parents[2]


def load_generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATED = load_generator().render_pages()
WRITTEN = {
    path.relative_to(ROOT / "docs").as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").rglob("*.md"))
}
PAGES = WRITTEN | GENERATED


def test_every_check_has_a_page():
    assert {f"checks/{check.code}.md" for check in CHECKS} <= set(GENERATED)


def test_every_link_to_another_page_leads_somewhere():
    links = {
        (path, posixpath.normpath(posixpath.join(posixpath.dirname(path), target)))
        for path in GENERATED
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGES[path])
    }
    assert len(links) > len(CHECKS)
    assert [link for link in links if link[1] not in PAGES and not (ROOT / "docs" / link[1]).exists()] == []


def test_the_site_is_where_the_pages_of_the_checks_are_linked_to():
    assert "site_url" not in yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert load_generator().on_config(SimpleNamespace()).site_url == f"{DOCUMENTATION_URL}/"


def test_every_page_is_in_the_navigation_once():
    listed = []

    def collect(part):
        if isinstance(part, str):
            listed.append(part)
        else:
            for each in part.values() if isinstance(part, dict) else part:
                collect(each)

    collect(load_generator().on_config(SimpleNamespace()).nav)
    pages = {path for path in PAGES if path.endswith(".md")} - {"glossary.md"}  # the words of the code
    one_each = {path for path in pages if not path.startswith("checks/")} | {"checks/README.md"}
    assert sorted(listed) == sorted(one_each)


def test_the_check_that_contributing_shows_is_in_the_code():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shown = {
        kind: textwrap.dedent(block)
        for kind, block in re.findall(r"```(python|toml)\n(   (?:@check|\[check)(?:.|\n)*?)   ```", text)
    }
    assert shown["python"] in (ROOT / "devkit/doctor/checks/network.py").read_text(encoding="utf-8")
    assert shown["toml"] in (ROOT / "devkit/doctor/signatures/failures/NET.toml").read_text(encoding="utf-8")


PLACEHOLDERS = re.compile(
    r"what the user would see otherwise|which readings decide|a public page, issue or manual|the condition in one"
)


def test_no_explanation_is_that_of_the_guide():
    for check in CHECKS:
        parts = dict(check.explanation)
        assert not PLACEHOLDERS.search(" ".join(parts.values())), check.code
        assert all(len(text) > 15 for text in parts.values()), (check.code, parts)
