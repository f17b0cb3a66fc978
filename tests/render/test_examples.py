"""Every example's expected/ folder is what devkit writes today, and so is devkit's own dev container."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from devkit.cli.plan_options import build_request_from_settings
from devkit.compat.version_tables import load_tables
from devkit.render.changes import Action
from devkit.render.devkit_toml import ProjectSettings
from devkit.render.project import compute_project_changes, open_project
from devkit.solver.solve import solve_project
from tests.golden import WRITES

REPOSITORY = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("generate", REPOSITORY / "examples/generate.py")
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)


pytestmark = pytest.mark.golden


def tree(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", generate.EXAMPLES)
def test_an_example_is_fresh(name, tmp_path):
    generate.generate(name, tmp_path / "expected")
    if WRITES:
        shutil.rmtree(REPOSITORY / "examples" / name / "expected")
        shutil.copytree(tmp_path / "expected", REPOSITORY / "examples" / name / "expected")
    assert tree(REPOSITORY / "examples" / name / "expected") == tree(tmp_path / "expected"), "`make goldens`"


def test_every_example_with_choices_is_generated():
    assert {path.parent.name for path in (REPOSITORY / "examples").glob("*/devkit.toml")} == set(generate.EXAMPLES)


def test_devkits_own_dev_container_is_fresh():
    project = open_project(REPOSITORY)
    settings = project.settings
    request = build_request_from_settings(
        ProjectSettings(vendor=settings.vendor, python=settings.python, torch=settings.torch, machine="x86_64")
    )
    plan = solve_project(request, project.dependencies, load_tables())
    changes = compute_project_changes(project, plan, machines=request.machines)
    stale = [change.path for change in changes if change.action is not Action.UNCHANGED]
    assert stale == [], "run `devkit init` in the repository"
