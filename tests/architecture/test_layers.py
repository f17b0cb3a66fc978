"""The import contracts hold, and a planted break of each kind turns them red."""

import shutil
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
LINT_IMPORTS = Path(sys.executable).parent / "lint-imports"

BREAKS = {
    "a check that runs a program": ("devkit/doctor/model.py", "import subprocess"),
    "a fact that reads the clock": ("devkit/facts/values.py", "import time"),
    "a version table that opens a socket": ("devkit/compat/__init__.py", "import socket"),
    "a solver that calls a probe beside it": ("devkit/solver/plan.py", "import devkit.probe.host"),
    "facts that know the doctor above them": ("devkit/facts/model.py", "import devkit.doctor.model"),
    "a command that imports torch": ("devkit/cli/__init__.py", "import torch"),
    "a renderer that talks to the engine": ("devkit/render/files.py", "import docker"),
    "a probe that draws templates": ("devkit/probe/host.py", "import jinja2"),
    "a doctor that parses the command line": ("devkit/doctor/model.py", "import click"),
}


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LINT_IMPORTS, "--no-cache"], cwd=tree, capture_output=True, text=True, check=False)


@pytest.fixture
def copied(tmp_path):
    shutil.copytree(ROOT / "devkit", tmp_path / "devkit", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_tree_keeps_every_contract():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("path", "line"), BREAKS.values(), ids=BREAKS)
def test_a_planted_break_is_found(copied, path, line):
    source = copied / path
    source.write_text(source.read_text() + f"\n{line}  # noqa\n")
    done = lint(copied)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN" in done.stdout


def test_no_module_imports_itself_by_way_of_others_not_even_later():
    graph = grimp.build_graph("devkit", exclude_type_checking_imports=True, cache_dir=None)

    def check():
        TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()

    check()
    graph.add_import(importer="devkit.text", imported="devkit.cli")
    with pytest.raises(CycleError):
        check()
