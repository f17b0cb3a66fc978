"""What a project computes with, as its files show."""

import pytest

from devkit.facts.dependencies import Framework
from devkit.probe.project.reader import read_local_dependencies

CMAKE = "cmake_minimum_required(VERSION 3.18)\nproject(fast LANGUAGES C CXX CUDA)\n"


def read(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return read_local_dependencies(str(folder))


@pytest.mark.parametrize(
    ("files", "framework", "because"),
    [
        pytest.param({}, "torch", "", id="an empty folder"),
        pytest.param({"requirements.txt": "transformers\ntorch\n"}, "torch", "requirements.txt:2", id="torch"),
        pytest.param({"requirements.txt": "jax\ntorchvision\n"}, "torch", "torchvision", id="torch goes first"),
        pytest.param({"requirements.txt": "numpy\nflax>=0.8\n"}, "jax", "requirements.txt:2 names flax", id="JAX"),
        pytest.param({"requirements.txt": "tensorflow<2.11\n"}, "tensorflow", "tensorflow", id="TensorFlow"),
        pytest.param(
            {"requirements.txt": "transformers\n"}, "torch", "names transformers", id="what needs a framework"
        ),
        pytest.param({"requirements.txt": "transformers\noptax\n"}, "jax", "optax", id="and has one"),
        pytest.param({"requirements.txt": "keras\n", "a.py": "import torch\n"}, "torch", "a.py:1", id="Keras on torch"),
        pytest.param(
            {"setup.py": "from setuptools import setup\nsetup(install_requires=read())\n"}, "torch", "", id="computed"
        ),
        pytest.param({"train.py": "import os\nimport jax.numpy as jnp\n"}, "jax", "train.py:2", id="an import"),
        pytest.param({"train.py": "try:\n    import jax\nexcept ImportError:\n    pass\n"}, "torch", "", id="if there"),
        pytest.param(
            {"requirements.txt": "numpy\n", "run.py": "import tensorflow as tf\n"},
            "tensorflow",
            "run.py:1",
            id="untold",
        ),
        pytest.param({"CMakeLists.txt": CMAKE}, "cuda", "CMakeLists.txt:2", id="a language of CMake"),
        pytest.param(
            {"CMakeLists.txt": "# CUDA\nfind_package(\n  CUDAToolkit REQUIRED)\n"}, "cuda", ":3", id="a toolkit"
        ),
        pytest.param({"src/CMakeLists.txt": "enable_language(CUDA)\n"}, "cuda", "src/CMakeLists.txt:1", id="a folder"),
        pytest.param({"Makefile": "run: a.cu\n\tnvcc -o run a.cu\n"}, "cuda", "Makefile:2", id="a Makefile"),
        pytest.param({"CMakeLists.txt": CMAKE, "a.py": "import torch\n"}, "torch", "a.py:1", id="a torch extension"),
        pytest.param({"CMakeLists.txt": CMAKE, "requirements.txt": "numpy\n"}, "cuda", "CMake", id="with its tools"),
        pytest.param({"CMakeLists.txt": "project(fast CXX)\n# CUDA\n"}, "none", "CMakeLists.txt", id="C++"),
        pytest.param({"requirements.txt": "requests\n"}, "none", "requirements.txt", id="Python alone"),
        pytest.param({"Cargo.toml": "[package]\n"}, "none", "Cargo.toml", id="Rust"),
        pytest.param({"go.mod": "module a\n"}, "none", "go.mod", id="Go"),
        pytest.param({"package.json": "{}"}, "none", "package.json", id="JavaScript"),
        pytest.param({"notes.txt": "jax"}, "torch", "", id="nothing that says it"),
    ],
)
def test_the_framework_is_read_from_the_files(tmp_path, files, framework, because):
    found = read(tmp_path, files)
    assert (found.framework, because in found.framework_because) == (Framework(framework), True)


def test_nvcc_is_named_where_another_framework_is_used(tmp_path):
    found = read(tmp_path, {"Makefile": "all:\n\t# nvcc is needed\n\tnvcc a.cu\n", "train.py": "import torch\n"})
    assert (found.framework, found.cuda_build) == (Framework.TORCH, "Makefile:3")


def test_what_only_a_lock_names_counts_last(tmp_path):
    lock = "version = 1\nrequires-python = '>=3.12'\n" + "".join(
        f"[[package]]\nname = '{name}'\nversion = '1.0'\nsource = {{registry = 'https://pypi.org/simple'}}\n"
        for name in ("torch", "jax", "a")
    )
    project = "[project]\nname = 'a'\nversion = '1'\nrequires-python = '>=3.12'\ndependencies = ['jax']\n"
    assert read(tmp_path, {"pyproject.toml": project, "uv.lock": lock}).framework is Framework.JAX
