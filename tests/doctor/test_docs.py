"""The pages of the documentation site: generated ones are whole, and every link between pages leads somewhere."""

import importlib.util
import posixpath
import re
from pathlib import Path

import pytest
import yaml

from devkit import DOCUMENTATION_URL
from devkit.doctor.registry import CHECKS

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


@pytest.mark.parametrize("path", GENERATED)
def test_every_link_to_another_page_leads_somewhere(path):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGES[path])
    found = [posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) for target in targets]
    assert [target for target in found if target not in PAGES and not (ROOT / "docs" / target).exists()] == []


def test_the_site_is_where_the_pages_of_the_checks_are_linked_to():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["site_url"] == f"{DOCUMENTATION_URL}/"
