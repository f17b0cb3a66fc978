"""Packages of a project besides itself: members of its workspace, folders that its files install, git submodules."""

import pytest

from devkit.facts.dependencies import OUTSIDE_OF_PROJECT

from .test_dependencies import PROJECT, read

MEMBER = f"{PROJECT}[build-system]\nrequires = []\n"
# As in https://github.com/Physical-Intelligence/openpi.
OPENPI = {
    "pyproject.toml": f'{PROJECT}dependencies = ["openpi-client", "rich"]\n[tool.uv.sources]\n'
    'openpi-client = {workspace = true}\n[tool.uv.workspace]\nmembers = ["packages/*"]\n[build-system]\n',
    "packages/openpi-client/pyproject.toml": MEMBER,
    "packages/notes/readme.md": "",
    ".gitmodules": '[submodule "third_party/aloha"]\n\tpath = third_party/aloha\n\turl = https://example.org/aloha.git\n'
    '[submodule "libero"]\n\tpath = third_party/libero\n',
    "third_party/libero/readme.md": "fetched",
}


def test_the_members_of_a_workspace_belong_to_the_project(tmp_path):
    found = read(tmp_path, OPENPI)
    assert [(each.place, each.path, each.line) for each in found.local] == [
        ("packages/openpi-client", "pyproject.toml", 8)
    ]
    assert ([need.name for need in found.needs], found.left_out) == (["rich"], ())
    assert found.submodules == ("third_party/aloha", "third_party/libero")
    assert found.missing_submodules == ("third_party/aloha",)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param('members = ["libs/*"]', ["libs/a", "libs/b"], id="a pattern"),
        pytest.param('members = ["libs/a/", "./libs/b"]', ["libs/a", "libs/b"], id="by name"),
        pytest.param('members = ["*/*"]\nexclude = ["libs/b"]', ["libs/a"], id="but one"),
        pytest.param('members = ["../*"]', [], id="out of the project"),
    ],
)
def test_members_are_named_by_patterns(tmp_path, settings, expected):
    files = {
        "pyproject.toml": f"{PROJECT}[tool.uv.workspace]\n{settings}\n",
        "libs/a/pyproject.toml": MEMBER,
        "libs/b/pyproject.toml": MEMBER,
        "libs/virtual/pyproject.toml": PROJECT,
        "libs/none/pyproject.toml": f"{MEMBER}[tool.uv]\npackage = false\n",
        "libs/broken/pyproject.toml": "[",
    }
    assert [each.place for each in read(tmp_path, files).local] == expected


@pytest.mark.parametrize(
    ("line", "place"),
    [
        pytest.param("-e ./sub", "sub", id="editable"),
        pytest.param("./sub[train] ; python_version > '3'", "sub", id="with extras and a marker"),
        pytest.param("-e file:sub#egg=sub", "sub", id="with its name behind"),
        pytest.param("file:./sub", "sub", id="by its address"),
        pytest.param("wheels/sub-1.0-py3-none-any.whl", "wheels/sub-1.0-py3-none-any.whl", id="an archive"),
        pytest.param("-e ../sub", None, id="outside of the project"),
        pytest.param("-e /opt/sub", None, id="elsewhere on the machine"),
        pytest.param("-e $HOME/sub", None, id="by a variable"),
    ],
)
def test_folders_of_requirement_lists_are_installed_with_the_project(tmp_path, line, place):
    found = read(tmp_path, {"requirements.txt": f"rich\n{line}\n"})
    assert [each.place for each in found.local] == ([place] if place else [])
    assert [(each.line, each.because) for each in found.left_out] == ([] if place else [(2, OUTSIDE_OF_PROJECT)])
    assert found.lists == ()


def test_the_extras_of_the_project_may_be_named_in_its_list(tmp_path):
    extras = '[project.optional-dependencies]\ntrain = ["peft"]\ndocs = ["sphinx"]\n'
    files = {"requirements.txt": "-e .[train]\n", "pyproject.toml": f"{MEMBER}{extras}"}
    found = read(tmp_path, files)
    assert (found.extras, [need.name for need in found.needs], found.local) == (("train",), ["peft"], ())


@pytest.mark.parametrize(("attributes", "uses"), [("*.bin filter=lfs diff=lfs\n", True), ("* text=auto\n", False)])
def test_git_lfs_shows_in_the_attributes(tmp_path, attributes, uses):
    assert read(tmp_path, {".gitattributes": attributes, "requirements.txt": "rich\n"}).uses_lfs is uses
