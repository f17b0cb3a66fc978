"""What programs import and install beyond the requirements, and what the project computes with."""

import json
import time
from dataclasses import replace

import pytest

from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import (
    NOTHING_CHOSEN,
    Framework,
    ImportedPackage,
    PackageRequirement,
    RequirementRole,
    SystemPackage,
)
from devkit.probe.dependencies.imports import MAX_FILES, find_imported_packages
from devkit.probe.dependencies.system_packages import find_system_packages
from devkit.probe.host import LocalHost
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.reader import (
    find_development_choice,
    read_dependencies,
    read_local_dependencies,
    read_local_imports,
)
from tests.cases import cases

# What programs import and no file of the project asks for.


DISTRIBUTIONS = load_tables().imports.distributions()


def imported(folder, files, declared=()):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    found = find_imported_packages(
        ProjectFiles(LocalHost(), str(folder)), declared=declared, distributions=DISTRIBUTIONS
    )
    return {each.name or f"?{each.module}": each.origin for each in found}


def test_programs_of_a_project_without_dependency_files_say_what_they_need(tmp_path):
    files = {
        "train.py": "import os, json\nimport torch\nimport numpy as np, wandb\nfrom model import GPT\n"
        "if True:\n    from transformers import AutoModel\nfrom . import near\n",
        "model.py": "def load():\n    import tiktoken.core\n",
        "data/books/prepare.py": "from datasets import load_dataset\nimport strange.thing\n",
        "lib/__init__.py": "",
        "use.py": "from lib.part import x\nimport prepare\n",
    }
    assert imported(tmp_path, files) == {
        "numpy": "train.py:3",
        "wandb": "train.py:3",
        "transformers": "train.py:6",
        "tiktoken": "model.py:2",
        "datasets": "data/books/prepare.py:1",
        "?strange": "data/books/prepare.py:2",
    }


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("try:\n    import wandb\nexcept ImportError:\n    wandb = None\n", id="below try"),
        pytest.param("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import wandb\n", id="for types"),
        pytest.param('"""\nimport wandb\n"""\n', id="in a docstring"),
        pytest.param("import wandb\n)(\n", id="in a file that is not Python"),
    ],
)
def test_an_import_that_nothing_depends_on_does_not_count(tmp_path, text):
    assert imported(tmp_path, {"train.py": text}) == {}


def test_a_module_that_is_tried_from_two_places_is_needed(tmp_path):
    # https://github.com/open-mmlab/OpenPCDet/blob/master/pcdet/utils/spconv_utils.py
    text = "try:\n    import spconv.pytorch as spconv\nexcept ImportError:\n    import spconv as spconv\n    import wandb\n"
    assert imported(tmp_path, {"utils.py": text}, ["torch"]) == {"spconv-cu120": "utils.py:4"}


@pytest.mark.parametrize(
    ("text", "declared", "found"),
    [
        (
            "import torchaudio\n\ndef f(x):\n    return torchaudio.load(x)\n",
            ["torchaudio"],
            {"torchcodec": "train.py:4"},
        ),
        ("import torchaudio\ntorchaudio.save('a', b, 1)\n", ["torchaudio", "torchcodec"], {}),
        ("import torchaudio\ntorchaudio.functional.resample(b, 1, 2)\n", ["torchaudio"], {}),
    ],
)
def test_who_reads_audio_files_with_torchaudio_needs_what_decodes_them(tmp_path, text, declared, found):
    assert imported(tmp_path, {"train.py": text}, declared) == found


@pytest.mark.parametrize("folder", [".git", "tests", "docs", "venv", "third_party", "a/b/c/d/e"])
def test_other_peoples_programs_and_tests_do_not_count(tmp_path, folder):
    assert imported(tmp_path, {f"{folder}/x.py": "import wandb\n"}) == {}


def test_where_packages_are_declared_only_what_the_program_cannot_do_without_counts(tmp_path):
    files = {
        "lib/model.py": "import cv2\nimport yaml\nimport strange\nimport einops\ndef f():\n    import wandb\n",
        "examples/run.py": "import gradio\n",
    }
    assert imported(tmp_path, files, ["opencv-python-headless", "PyYAML"]) == {"einops": "lib/model.py:4"}


def test_what_an_extra_or_a_lock_brings_is_declared(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "lib"\ndependencies = ["rich"]\n[project.optional-dependencies]\nui = ["gradio"]\n'
    )
    (tmp_path / "lib.py").write_text("import gradio\nimport torchvision\n")
    found = read_local_imports(str(tmp_path), read_local_dependencies(str(tmp_path)))
    assert found == (ImportedPackage("torchvision", "torchvision", "lib.py", 2),)


def test_a_large_repository_is_not_read_to_its_end(tmp_path):
    for number in range(MAX_FILES + 50):
        (tmp_path / f"m{number:04}.py").write_text("import wandb\n" if number == MAX_FILES + 20 else "import numpy\n")
    began = time.monotonic()
    assert imported(tmp_path, {}) == {"numpy": "m0000.py:1"}
    assert time.monotonic() - began < 5


# What a project computes with, as its files show.


CMAKE = "cmake_minimum_required(VERSION 3.18)\nproject(fast LANGUAGES C CXX CUDA)\n"


def read(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return read_local_dependencies(str(folder))


@cases(
    "files, framework, because",
    {
        "an empty folder": ({}, "torch", ""),
        "torch": ({"requirements.txt": "transformers\ntorch\n"}, "torch", "requirements.txt:2"),
        "torch goes first": ({"requirements.txt": "jax\ntorchvision\n"}, "torch", "torchvision"),
        "JAX": ({"requirements.txt": "numpy\nflax>=0.8\n"}, "jax", "requirements.txt:2 names flax"),
        "TensorFlow": ({"requirements.txt": "tensorflow<2.11\n"}, "tensorflow", "tensorflow"),
        "what needs a framework": ({"requirements.txt": "transformers\n"}, "torch", "names transformers"),
        "and has one": ({"requirements.txt": "transformers\noptax\n"}, "jax", "optax"),
        "Keras on torch": ({"requirements.txt": "keras\n", "a.py": "import torch\n"}, "torch", "a.py:1"),
        "computed": ({"setup.py": "from setuptools import setup\nsetup(install_requires=read())\n"}, "torch", ""),
        "an import": ({"train.py": "import os\nimport jax.numpy as jnp\n"}, "jax", "train.py:2"),
        "if there": ({"train.py": "try:\n    import jax\nexcept ImportError:\n    pass\n"}, "torch", ""),
        "untold": ({"requirements.txt": "numpy\n", "run.py": "import tensorflow as tf\n"}, "tensorflow", "run.py:1"),
        "a language of CMake": ({"CMakeLists.txt": CMAKE}, "cuda", "CMakeLists.txt:2"),
        "a toolkit": ({"CMakeLists.txt": "# CUDA\nfind_package(\n  CUDAToolkit REQUIRED)\n"}, "cuda", ":3"),
        "a folder": ({"src/CMakeLists.txt": "enable_language(CUDA)\n"}, "cuda", "src/CMakeLists.txt:1"),
        "a Makefile": ({"Makefile": "run: a.cu\n\tnvcc -o run a.cu\n"}, "cuda", "Makefile:2"),
        "a torch extension": ({"CMakeLists.txt": CMAKE, "a.py": "import torch\n"}, "torch", "a.py:1"),
        "with its tools": ({"CMakeLists.txt": CMAKE, "requirements.txt": "numpy\n"}, "cuda", "CMake"),
        "C++": ({"CMakeLists.txt": "project(fast CXX)\n# CUDA\n"}, "none", "CMakeLists.txt"),
        "Python alone": ({"requirements.txt": "requests\n"}, "none", "requirements.txt"),
        "Rust": ({"Cargo.toml": "[package]\n"}, "none", "Cargo.toml"),
        "Go": ({"go.mod": "module a\n"}, "none", "go.mod"),
        "JavaScript": ({"package.json": "{}"}, "none", "package.json"),
        "nothing that says it": ({"notes.txt": "jax"}, "torch", ""),
    },
)
def test_the_framework_is_read_from_the_files(tmp_path, files, framework, because):
    found = read(tmp_path, files)
    assert (found.framework, because in found.framework_because) == (Framework(framework), True)


def test_nvcc_is_named_where_another_framework_is_used(tmp_path):
    found = read(tmp_path, {"Makefile": "all:\n\t# nvcc is needed\n\tnvcc a.cu\n", "train.py": "import torch\n"})
    assert (found.framework, found.cuda_build) == (Framework.TORCH, "Makefile:3")


@pytest.mark.parametrize(
    ("program", "origin"),
    [
        ("import torch\nfrom torch.utils.cpp_extension import load\nload(sources=['ops/a.cu'])\n", "ops/build.py:2"),
        (
            "import torch.utils.cpp_extension\ntorch.utils.cpp_extension.load_inline(cuda_sources=[x])\n",
            "ops/build.py:2",
        ),
        ("from torch.utils.cpp_extension import load\nload(sources=['a.cpp'])\n", ""),
        ("from torch.utils.cpp_extension import BuildExtension\nsources = ['a.cu']\n", ""),
        ("# torch.utils.cpp_extension.load(sources=['a.cu'])\n", ""),
    ],
)
def test_code_that_torch_compiles_at_run_time_needs_nvcc(tmp_path, program, origin):
    # As in https://github.com/NVlabs/stylegan3, torch_utils/custom_ops.py.
    assert read(tmp_path, {"ops/build.py": program, "requirements.txt": "torch\n"}).cuda_build == origin


# Debian packages that a project's files install with apt.


def find(folder, **files):
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return find_system_packages(ProjectFiles(LocalHost(), str(folder)), ["server/requirements.txt"])


@cases(
    "path, text, names",
    {
        "one line": ("Dockerfile", "FROM x\nRUN apt-get update && apt-get install -y ffmpeg\n", "ffmpeg"),
        "continued, with a comment and a version": (
            "Dockerfile",
            "FROM x\nRUN apt-get install -y --no-install-recommends \\\n    # sound\n    sox \\\n    libsox-dev=14.4 \\\n && rm -rf /x\n",
            "sox libsox-dev",
        ),
        "heredoc": ("Dockerfile", "FROM x\nRUN <<EOF\napt-get update\napt-get install -y sox\nEOF\n", "sox"),
        "only a comment": ("Dockerfile", "FROM x\n# RUN apt-get install sox\n", ""),
        "variables": ("Dockerfile", "FROM x\nRUN apt-get install -y $PACKAGES ${MORE} sox\n", "sox"),
        "beside the list that counts": ("server/Dockerfile", "FROM x\nRUN apt install sox\n", "sox"),
        "of another program": ("other/Dockerfile", "FROM x\nRUN apt install sox\n", ""),
        "in a folder, by its end": ("docker/cuda.Dockerfile", "FROM x\nRUN apt install sox\n", "sox"),
        "CI": (".github/workflows/test.yml", "- run: |\n    sudo apt-get install -y sox \\\n      swig\n", "sox swig"),
        "guide": ("README.md", "# on Ubuntu\nsudo apt update && sudo apt install ffmpeg\n", "ffmpeg"),
        "in the middle of a sentence": ("README.md", "Run `apt install sox`, then go on.\n", "sox"),
        "other installers": ("README.md", "Run `pip install sox`, or `brew install ffmpeg`.\n", ""),
        "devkit's own output": (".devcontainer/Dockerfile", "FROM x\nRUN apt-get install sox\n", ""),
    },
)
def test_finds_the_names(tmp_path, path, text, names):
    assert [each.name for each in find(tmp_path, **{path: text})] == names.split()


def test_tells_file_and_line_and_each_name_once(tmp_path):
    found = find(
        tmp_path, **{"README.md": "\n\napt install sox\n", ".github/workflows/a.yml": "- run: apt install sox swig\n"}
    )
    assert found == (
        SystemPackage("sox", "README.md", 3),
        SystemPackage("swig", ".github/workflows/a.yml", 1, is_from_ci=True),
    )


@cases(
    "call, names",
    {
        "a list": ("subprocess.run(['sox', path])", "sox"),
        "a tuple": ("sp.check_output(('git', 'log'))", "git"),
        "up to what is computed": ("subprocess.Popen(f'ffmpeg -i {path} | tee x', shell=True)", "ffmpeg"),
        "a sum": ("os.system('wget ' + url)", "wget"),
        "steps of a shell": ("os.system('sudo A=1 unzip {} && rm {}'.format(a, b))", "unzip rm"),
        "looked for": ("shutil.which('java')", "java"),
        "only computed": ("subprocess.run([tool, path]); os.system(f'{tool} x'); run('gone')", ""),
        "the project's own": ("subprocess.run(['./own.sh']); subprocess.run([])", ""),
    },
)
def test_finds_the_programs_that_code_starts(tmp_path, call, names):
    (tmp_path / "train.py").write_text(f"import os\n{call}\n")
    found = read_dependencies(LocalHost(), project=str(tmp_path)).programs
    assert found == tuple(SystemPackage(name, "train.py", 2) for name in names.split())


def test_they_and_the_projects_name_are_among_its_dependencies(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "Open_AI.whisper"\n')
    (tmp_path / "README.md").write_text("apt install ffmpeg\n")
    found = read_dependencies(LocalHost(), project=str(tmp_path))
    assert found.name == "open-ai-whisper"
    assert [each.origin for each in found.system] == ["README.md:1"]


def test_notebooks_are_programs_with_what_they_install_themselves(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["import gymnasium"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "import einops\n", "if True:\n", "    !nvidia-smi\n"]},
        {"cell_type": "code", "source": "%%bash\nimport boto3"},
        {"cell_type": "code", "source": "!pip install -q timm 'wandb>=0.20' nobody-knows-this\n%pip install peft"},
    ]
    (tmp_path / "demo.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "broken.ipynb").write_text("{")
    (tmp_path / "requirements.txt").write_text("torch\npeft\n")
    found = read_local_imports(str(tmp_path), read_local_dependencies(str(tmp_path), NOTHING_CHOSEN))
    assert {each.name for each in found} == {"einops", "timm", "wandb", "ipykernel"}
    (tmp_path / "requirements.txt").write_text("torch\neinops\njupyterlab\n")
    found = read_local_imports(str(tmp_path), read_local_dependencies(str(tmp_path), NOTHING_CHOSEN))
    assert "ipykernel" not in {each.name for each in found}


def test_who_develops_gets_groups_for_tests_and_the_extras_that_programs_import(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "own"\nversion = "1"\ndependencies = ["torch"]\n[project.optional-dependencies]\n'
        'logs = ["wandb"]\nserve = ["fastapi"]\ntables = ["polars"]\nnpu = ["polars"]\nTest = ["pytest"]\n'
        '[dependency-groups]\ntesting = ["hypothesis"]\ndocs = ["mkdocs"]\ndev = ["ruff"]\n'
    )
    (tmp_path / "own.py").write_text("import wandb\n\ndef serve():\n    import fastapi\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_own.py").write_text("import timm\ntry:\n    import polars\nexcept ImportError:\n    pass\n")
    dependencies = read_local_dependencies(str(tmp_path), NOTHING_CHOSEN)
    found = find_development_choice(str(tmp_path), dependencies)
    assert ({*found.extras}, {*found.groups}) == ({"logs", "Test", "serve", "tables"}, {"testing"})
    # Wherever an import stands, the package is added that a table or a list of some part of the project knows, and no extra.
    (tmp_path / "part/of").mkdir(parents=True)
    (tmp_path / "part/of/requirements.txt").write_text(
        "natural-sort==1\ntorchaudio\nmmcv\nb @ https://x.example/b.zip\n"
    )
    tried = "    try:\n        import wandb\n        import einops\n    except ImportError:\n        pass\n"
    (tmp_path / "part/run.py").write_text(
        f"def f():\n    import natural_sort, torchaudio, mmcv, b, unnamed, jax\n{tried}"
    )
    assert {each.name for each in read_local_imports(str(tmp_path), dependencies)} == set()
    assert {each.name for each in read_local_imports(str(tmp_path), dependencies, is_for_work=True)} == {
        "timm",
        "natural-sort",
        "torchaudio",
        "einops",
    }


def test_an_extra_counts_that_a_lock_holds_and_nothing_in_use_brings(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.poetry]\nname = "own"\n[tool.poetry.dependencies]\nwandb = { version = "*", optional = true }\n'
        '[tool.poetry.extras]\nlogs = ["wandb"]\n'
    )
    (tmp_path / "own.py").write_text("import wandb\n")
    found = read_local_dependencies(str(tmp_path), NOTHING_CHOSEN)
    limit = PackageRequirement("wandb", "==0.16.6", "poetry.lock", 1, role=RequirementRole.CONSTRAINT)
    assert find_development_choice(str(tmp_path), replace(found, needs=(*found.needs, limit))).extras == ("logs",)
