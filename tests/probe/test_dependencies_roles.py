"""Which lines an installer is handed as they are, and which devkit must write out for it."""

import pytest

from devkit.facts.dependencies import NO_DEPENDENCIES, RequirementRole
from devkit.probe.project.reader import read_local_dependencies

from .test_dependencies import PROJECT, read, unread

BY_ADDRESS = "torch @ https://example.org/torch-2.4.1-cp311-cp311-linux_x86_64.whl\n"
CONDA = "dependencies:\n  - pip:\n    - -r a.txt\n"
IN_FOLDER = '[tool.uv.sources]\nnear = {path = "near"}\n'


def roles(found):
    return {need.name: need.role for need in found.needs}


@pytest.mark.parametrize(
    ("files", "lists"),
    [
        pytest.param({"requirements.txt": "rich\n"}, ("requirements.txt",), id="a list"),
        pytest.param({"pyproject.toml": f'{PROJECT}dependencies = ["rich"]\n'}, ("pyproject.toml",), id="a table"),
        pytest.param({"requirements.txt": "rich\n-e .\n"}, (), id="a list that installs the project"),
        pytest.param({"requirements.txt": "rich\n-e git+https://e.org/x#egg=x\n"}, (), id="a list with a checkout"),
        pytest.param({"requirements.txt": "rich\n./libs/near\n"}, (), id="a list with a folder"),
        pytest.param({"requirements.txt": f"rich\n{BY_ADDRESS}"}, (), id="torch by its address"),
        pytest.param({"pyproject.toml": f'{PROJECT}dependencies = ["rich", "near"]\n{IN_FOLDER}'}, (), id="a folder"),
        pytest.param({"setup.cfg": "[options]\ninstall_requires = rich\n"}, (), id="setup.cfg"),
        pytest.param({"environment.yml": "dependencies:\n  - pip:\n    - rich\n"}, (), id="conda"),
        pytest.param({"environment.yml": CONDA, "a.txt": "rich"}, ("a.txt",), id="a list of conda's"),
        pytest.param({"environment.yml": CONDA, "a.txt": "rich\n-e ."}, (), id="one that installs the project"),
    ],
)  # fmt: skip
def test_a_file_is_handed_over_where_an_installer_can_take_it_whole(tmp_path, files, lists):
    found = read(tmp_path, files)
    assert found.lists == lists
    assert roles(found)["rich"] is (RequirementRole.PASSED_THROUGH if lists else RequirementRole.GENERATED)


@pytest.mark.parametrize("group", ["dev", "docs"])
def test_only_the_groups_of_a_development_environment_count(tmp_path, group):
    text = f'{PROJECT}dependencies = []\n[dependency-groups]\n{group} = ["pytest"]\n'
    assert read(tmp_path, {"pyproject.toml": text}).groups == (("dev",) if group == "dev" else ())


def test_groups_of_an_older_pdm_are_written_out(tmp_path):
    text = f'{PROJECT}dependencies = ["rich"]\n[tool.pdm.dev-dependencies]\ndev = ["pytest"]\n'
    found = read(tmp_path, {"pyproject.toml": text})
    assert roles(found) == {"rich": RequirementRole.PASSED_THROUGH, "pytest": RequirementRole.GENERATED}


@pytest.mark.parametrize(
    ("ignored", "is_hidden"),
    [
        pytest.param("*.lock\n", True, id="by a pattern"),
        pytest.param("*\n!src\n", True, id="as all but some"),
        pytest.param("*\n!pyproject.toml\n!uv.lock\n", False, id="all but these"),
        pytest.param("data\n# *.lock\n", False, id="not at all"),
    ],
)
def test_a_file_that_the_build_may_not_see_is_written_out(tmp_path, ignored, is_hidden):
    lock = '[[package]]\nname = "rich"\nversion = "14.0"\n'
    table = f'{PROJECT}dependencies = ["rich"]\n'
    found = read(tmp_path, {"pyproject.toml": table, "uv.lock": lock, ".dockerignore": ignored})
    assert found.lock == ("" if is_hidden else "uv.lock")
    assert (".dockerignore:1" in unread(found)) is is_hidden
    assert found.needs[0].role is (RequirementRole.GENERATED if is_hidden else RequirementRole.PASSED_THROUGH)


@pytest.mark.parametrize(
    ("files", "is_package"),
    [
        pytest.param({"pyproject.toml": f"{PROJECT}[build-system]\n"}, True, id="a build system"),
        pytest.param({"setup.py": ""}, True, id="setup.py"),
        pytest.param({"pyproject.toml": PROJECT}, False, id="no build system"),
        pytest.param({"requirements.txt": "rich\n"}, False, id="a list alone"),
        pytest.param({"pyproject.toml": "[tool.poetry]\npackage-mode = false\n[build-system]\n"}, False, id="Poetry"),
        pytest.param({"pyproject.toml": "[tool.uv]\npackage = false\n[build-system]\n"}, False, id="uv"),
        pytest.param({"pyproject.toml": "[tool.pdm]\ndistribution = false\n[build-system]\n"}, False, id="PDM"),
    ],
)
def test_a_project_is_a_package_unless_its_tool_says_otherwise(tmp_path, files, is_package):
    assert read(tmp_path, files).builds_itself is is_package


def test_a_folder_of_this_machine_is_read_only_where_it_holds_such_files(tmp_path):
    assert read_local_dependencies(str(tmp_path)) == read_local_dependencies(str(tmp_path / "gone")) == NO_DEPENDENCIES
    read(tmp_path, {"requirements.txt": "rich\n"})
    assert read_local_dependencies(str(tmp_path)).needs[0].name == "rich"


def test_a_workspace_of_uv_differs_from_a_project(tmp_path):
    assert not read(tmp_path, {"pyproject.toml": f"{PROJECT}[tool.uv]\n"}).has_members
    assert read(tmp_path, {"pyproject.toml": f'{PROJECT}[tool.uv.workspace]\nmembers = ["a/*"]\n'}).has_members
