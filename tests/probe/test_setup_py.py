"""Packages among the project's own files: setup.py, local builds, workspaces and submodules. Nothing of them runs."""

import time

import pytest

from devkit.facts.dependencies import OUTSIDE_OF_PROJECT, LocalBuild
from devkit.probe.dependencies.local_builds import find_local_builds
from devkit.probe.host import LocalHost
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.reader import read_dependencies
from tests.cases import cases
from tests.probe.test_dependencies import PROJECT, asked, read, unread

# What setup.py hands to setup(), as far as its text says it. Nothing of it runs.


TABLE = """\
import re
_deps = [
    "accelerate>=1.9.0",
    "huggingface-hub>=0.33.4,<1.0",
    "torch>=2.6.0",
    "black[jupyter]",
]
deps = {b: a for a, b in (re.findall(r"^(([^!=<>~ ]+)(?:[!=<>~ ].*)?$)", x)[0] for x in _deps)}


def deps_list(*pkgs):
    return [deps[pkg] for pkg in pkgs]


extras = {}
extras["quality"] = deps_list("black")
extras["torch"] = deps_list("torch")
extras["all"] = extras["quality"] + ["rich"]
install_requires = [
    deps["accelerate"],
    deps["huggingface-hub"],
]
setup(name="p", install_requires=install_requires, extras_require=extras)
"""
"""The pattern of transformers and its kin, as in https://github.com/huggingface/alignment-handbook (Apache-2.0)."""


def needs(folder, text, **choice):
    found = read(folder, {"setup.py": text}, **choice)
    return [need.text for need in found.needs], found


def test_hugging_faces_table_of_requirements_is_read_with_its_extras(tmp_path):
    found = read(tmp_path, {"setup.py": TABLE}, extras=("all",))
    assert [(need.line, need.text) for need in found.needs] == [
        (20, "accelerate>=1.9.0"),
        (21, "huggingface-hub<1.0,>=0.33.4"),
        (16, "black[jupyter]"),
        (18, "rich"),
    ]
    assert (found.extras, found.available.extras) == (("all",), ("quality", "torch"))
    assert (unread(found), found.is_computed) == ({}, False)


@cases(
    "text, expected",
    {
        "a list that grows": (
            "N = ['a>=1']\nN += ['b']\nN.append('c')\nN.extend(['d'])\nN = N + ['e']\nsetup(install_requires=N)",
            "a>=1 b c d e",
        ),
        "tuples in one another": ("N = ('a', *('b', 'c'))\nsetup(install_requires=N)", "a b c"),
        "lines": ("setup(install_requires='\\na\\n# no\\nb==1')", "a b==1"),
        "its keywords as a dictionary": ("O = {'install_requires': ['a']}\nsetup(**O)", "a"),
        "annotated": ("N: list[str] = ['a']\nimport setuptools\nsetuptools.setup(install_requires=N)", "a"),
        "a copy, as in diffusers": ("N = ('b', 'a')\nsetup(install_requires=list(N))", "b a"),
        "a dictionary of lists": ("D = {'x': ['a', 'b']}\nsetup(install_requires=D['x'])", "a b"),
    },
)
def test_what_literals_are_put_together_to_is_read(tmp_path, text, expected):
    found, dependencies = needs(tmp_path, text)
    assert found == expected.split()
    assert not dependencies.is_computed


@cases(
    "text",
    {
        "at once": "setup(install_requires=open('requirements.txt').read().splitlines())",
        "through functions": "def load(path):\n    with open(path) as file:\n        return list(file)\n"
        "def ours():\n    return load('requirements.txt')\nN = ours()\nsetup(install_requires=N)",
    },
)
def test_a_list_that_setup_py_reads_is_read_from_its_file(tmp_path, text):
    found = read(tmp_path, {"setup.py": text, "requirements.txt": "rich\n"})
    assert asked(found) == {"requirements.txt:1": "rich"}
    assert (unread(found), found.is_computed) == ({}, False)


@cases(
    "text, line, expected",
    {
        "one": ("N = ['torch==2.4.1', open('x').read()]\nsetup(install_requires=N)", 1, ["torch==2.4.1"]),
        "on a condition": ("N = ['a']\nif x:\n    N.append('b')\nsetup(install_requires=N)", 2, ["a"]),
        "by a branch": ("if x:\n    N = ['b']\nsetup(install_requires=N)", 1, []),
        "by calls": ("setup(install_requires=[f() for f in g])", 1, []),
        "all of it": ("setup(**load())", 1, []),
        "without end": ("def f(n):\n    return f(n)\nsetup(install_requires=f('a'))", 3, []),
        "in a circle": ("N = M\nM = N\nsetup(install_requires=[N])", 1, []),
        "either of two lists": (
            "N = ['a']\nif X:\n    N = ['b']\nelse:\n    N = ['c']\nsetup(install_requires=N)",
            2,
            [],
        ),
    },
)
def test_what_only_running_it_tells_is_named_and_left_to_the_build(tmp_path, text, line, expected):
    found, dependencies = needs(tmp_path, text)
    assert found == expected
    assert f"setup.py:{line}" in unread(dependencies)
    assert dependencies.is_computed


def test_setup_py_is_parsed_and_never_run(tmp_path):
    text = (
        "import os\nos.mkdir('ran')\nfrom setuptools import setup\n"
        "setup(name='p', python_requires='>=3.9', install_requires=[__import__('os').mkdir('ran')])\n"
    )
    _, found = needs(tmp_path, text)
    assert found.python[0].specifier == ">=3.9"
    assert found.builds_itself
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("growth", ["N = N + N\n", "N += N\n", "N.extend(N)\n", "N = [N, N]\n"])
def test_a_list_that_doubles_again_and_again_takes_no_time(tmp_path, growth):
    began = time.monotonic()
    _, found = needs(tmp_path, f"N = ['a' * 10, 'b']\n{growth * 60}setup(install_requires=N)")
    assert found.is_computed
    assert time.monotonic() - began < 2


# How packages among the project's own files are built, read from setup.py and pyproject.toml without running them.


EXTENSION = """import os
# import torch
import torch
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

modules = [CUDAExtension(name="not_this", sources=[], extra_compile_args={"nvcc": ["-std=c++17"]})]
setup(name="Tiny_Ext", ext_modules=modules)
"""
MODULES = '[submodule "knn"]\n\tpath = submodules/simple-knn\n\turl = https://example.org/knn.git\n'


def find(folder, *folders, **files):
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return find_local_builds(ProjectFiles(LocalHost(), str(folder)), folders)


def test_an_extension_is_read_and_not_run(tmp_path):
    found = find(tmp_path, **{"setup.py": EXTENSION})
    assert found == (LocalBuild(".", "tiny-ext", "setup.py:3", has_cuda=True, requires=(), cxx=17),)


@cases(
    "files, origin",
    {
        "an ordinary package": ({"setup.py": "from setuptools import setup\nsetup()\n"}, ""),
        "an import in a function": ({"setup.py": "def make():\n    import torch\n"}, "setup.py:2"),
        "names that only begin alike": ({"setup.py": "from torchvision import x\nimport torchlike\n"}, ""),
        "a build requirement": (
            {"pyproject.toml": '[project]\nname = "x"\n[build-system]\nrequires = ["setuptools", "torch>=2.5"]\n'},
            "pyproject.toml:4",
        ),
        "another requirement": ({"pyproject.toml": '[build-system]\nrequires = ["torchmetrics"]\n'}, ""),
        "a broken manifest": ({"setup.py": "import torch\n", "pyproject.toml": "not TOML ["}, "setup.py:1"),
    },
)
def test_whether_a_build_needs_torch(tmp_path, files, origin):
    (found,) = find(tmp_path, **files)
    assert (found.origin, found.needs_torch) == (origin, bool(origin))


def test_build_requirements_are_those_without_torch(tmp_path):
    (found,) = find(
        tmp_path, **{"pyproject.toml": '[build-system]\nrequires = ["setuptools>=61", "torch", "numpy<2"]\n'}
    )
    assert found.requires == ("setuptools>=61", "numpy<2")


def test_a_required_submodule_that_is_not_fetched_is_known_by_its_folder(tmp_path):
    (found,) = find(tmp_path, "submodules/simple-knn", **{".gitmodules": MODULES})
    assert (found.name, found.origin) == ("simple-knn", ".gitmodules")
    assert find(tmp_path, **{".gitmodules": MODULES}) == ()


def test_they_are_among_the_dependencies_with_the_name_from_setup_py(tmp_path):
    (tmp_path / "setup.py").write_text(EXTENSION)
    (tmp_path / "requirements.txt").write_text("torch\n./kernels\n")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "setup.py").write_text(EXTENSION)
    found = read_dependencies(LocalHost(), project=str(tmp_path))
    assert found.name == "tiny-ext"
    assert [each.path for each in found.builds] == [".", "kernels"]


# Packages of a project besides itself: members of its workspace, folders that its files install, git submodules.


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


@cases(
    "settings, expected",
    {
        "a pattern": ('members = ["libs/*"]', ["libs/a", "libs/b"]),
        "by name": ('members = ["libs/a/", "./libs/b"]', ["libs/a", "libs/b"]),
        "but one": ('members = ["*/*"]\nexclude = ["libs/b"]', ["libs/a"]),
        "out of the project": ('members = ["../*"]', []),
    },
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


@cases(
    "line, place",
    {
        "editable": ("-e ./sub", "sub"),
        "with extras and a marker": ("./sub[train] ; python_version > '3'", "sub"),
        "with its name behind": ("-e file:sub#egg=sub", "sub"),
        "by its address": ("file:./sub", "sub"),
        "an archive": ("wheels/sub-1.0-py3-none-any.whl", "wheels/sub-1.0-py3-none-any.whl"),
        "outside the project": ("-e ../sub", None),
        "elsewhere on the machine": ("-e /opt/sub", None),
        "by a variable": ("-e $HOME/sub", None),
    },
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


@pytest.mark.parametrize(
    ("files", "maps_nothing"),
    [
        ({"own/nets.py": ""}, True),
        ({"own/__init__.py": ""}, False),
        ({"src/own/__init__.py": ""}, False),
        ({"setup.py": "setup(name='own', packages=find_namespace_packages())\n", "own/nets.py": ""}, False),
    ],
)
def test_a_package_in_which_setuptools_finds_no_folder_maps_nothing(tmp_path, files, maps_nothing):
    (found,) = find(tmp_path, **{"setup.py": "setup(name='own', packages=find_packages())\n", **files})
    assert found.maps_nothing is maps_nothing
