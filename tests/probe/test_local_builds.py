"""How packages among the project's own files are built, read from setup.py and pyproject.toml without running them."""

import pytest

from devkit.facts.dependencies import LocalBuild
from devkit.probe.dependencies.local_builds import find_local_builds
from devkit.probe.host import LocalHost
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.reader import read_dependencies

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


@pytest.mark.parametrize(
    ("files", "origin"),
    [
        pytest.param({"setup.py": "from setuptools import setup\nsetup()\n"}, "", id="an ordinary package"),
        pytest.param({"setup.py": "def make():\n    import torch\n"}, "setup.py:2", id="an import in a function"),
        pytest.param(
            {"setup.py": "from torchvision import x\nimport torchlike\n"}, "", id="names that only begin alike"
        ),
        pytest.param(
            {"pyproject.toml": '[project]\nname = "x"\n[build-system]\nrequires = ["setuptools", "torch>=2.5"]\n'},
            "pyproject.toml:4",
            id="a build requirement",
        ),
        pytest.param({"pyproject.toml": '[build-system]\nrequires = ["torchmetrics"]\n'}, "", id="another requirement"),
        pytest.param(
            {"setup.py": "import torch\n", "pyproject.toml": "not TOML ["}, "setup.py:1", id="a broken manifest"
        ),
    ],
)
def test_whether_a_build_needs_torch(tmp_path, files, origin):
    (found,) = find(tmp_path, **files)
    assert (found.origin, found.needs_torch) == (origin, bool(origin))


def test_build_requirements_are_those_without_torch(tmp_path):
    (found,) = find(
        tmp_path, **{"pyproject.toml": '[build-system]\nrequires = ["setuptools>=61", "torch", "numpy<2"]\n'}
    )
    assert found.requires == ("setuptools>=61", "numpy<2")


def test_a_folder_that_builds_nothing_is_none(tmp_path):
    assert find(tmp_path, **{"pyproject.toml": "[project]\nname = 'x'\n"}) == ()


def test_folders_that_are_required_and_submodules_count_where_they_compile(tmp_path):
    files = {
        ".gitmodules": MODULES,
        "submodules/simple-knn/setup.py": EXTENSION,
        "kernels/setup.py": EXTENSION,
        "plain/setup.py": "setup(name='plain')\n",
    }
    assert [each.path for each in find(tmp_path, "./kernels", "plain", **files)] == ["kernels", "submodules/simple-knn"]


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
