"""What programs import and no file of the project asks for."""

import time

import pytest

from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import ImportedPackage
from devkit.probe.dependencies.imports import MAX_FILES, find_imported_packages
from devkit.probe.host import LocalHost
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.reader import read_local_dependencies, read_local_imports

DISTRIBUTIONS = load_tables().imports.distributions()


def imported(folder, files, declared=()):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    found = find_imported_packages(
        ProjectFiles(LocalHost(), str(folder)), declared=declared, distributions=DISTRIBUTIONS
    )
    return {each.name or f"?{each.module}": each.origin for each in found}


@pytest.mark.parametrize(
    ("module", "name"),
    [("cv2", "opencv-python"), ("PIL", "pillow"), ("yaml", "pyyaml"), ("sklearn", "scikit-learn"), ("numpy", "numpy"),
     ("huggingface_hub", "huggingface-hub"), ("clip", None), ("apex", None)],
)  # fmt: skip
def test_a_module_stands_for_the_distribution_that_brings_it(module, name):
    # clip and apex are other packages on the index than those that programs mean.
    assert DISTRIBUTIONS.get(module) == name


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
