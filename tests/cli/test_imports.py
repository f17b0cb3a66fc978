"""What a project imports and uv's resolution lacks."""

from dataclasses import replace

import pytest

from devkit.cli.imports import find_missing_imports
from devkit.facts.resolution import Resolved
from devkit.facts.values import Unknown
from devkit.render.devkit_toml import ProjectSettings
from devkit.render.project import PathOptions, open_project
from tests.render.plans import GPU_PLAN


@pytest.mark.parametrize(
    ("resolution", "missing"),
    [
        pytest.param(
            Resolved((("rich", "14.0"), ("pandas", "2.3.0"), ("setuptools", "81.0.0"))),
            ["einops"],
            id="what nothing brings",
        ),
        pytest.param(
            Resolved((("einops", "0.8.1"), ("pandas", "2.3.0"), ("setuptools", "81.0.0"))),
            [],
            id="everything comes with something",
        ),
        pytest.param(
            Resolved((("einops", "0.8.1"), ("pandas", "2.3.0"), ("setuptools", "82.0.0"))),
            ["setuptools"],
            id="in a version that has the module no more",
        ),
        pytest.param(Unknown("--no-resolve was given"), [], id="not known"),
    ],
)
def test_what_comes_with_a_requirement_is_not_missing(tmp_path, resolution, missing):
    (tmp_path / "requirements.txt").write_text("rich\n")
    (tmp_path / "train.py").write_text(
        "import rich\nimport pandas\nimport einops\nimport torch\nimport pkg_resources\n"
    )
    project = open_project(tmp_path, ProjectSettings(), PathOptions())
    found = find_missing_imports(project, replace(GPU_PLAN, resolution=resolution))
    assert [each.name for each in found] == missing


def test_what_conda_installs_is_not_known_so_nothing_is_missing(tmp_path):
    (tmp_path / "environment.yml").write_text("channels: [bioconda]\ndependencies: [hmmer, pandas]\n")
    (tmp_path / "train.py").write_text("import pandas\nimport einops\n")
    project = open_project(tmp_path, ProjectSettings(), PathOptions())
    assert project.dependencies.conda
    assert find_missing_imports(project, replace(GPU_PLAN, resolution=Resolved(()))) == ()
