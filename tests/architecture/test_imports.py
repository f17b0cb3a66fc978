"""The import contracts hold, a planted break of each kind turns them red, and quick commands load nothing heavy."""

import json
import shutil
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

HEAVY = ("torch", "transformers", "peft", "bitsandbytes", "accelerate")
LATER = ("jinja2", "docker", "pynvml", "tomlkit")
"""Light, but of no use for printing help."""

SCRIPT = """
import io, json, sys
sys.argv = ["devkit", *{words!r}]
sys.stdout = io.StringIO()
from devkit.cli import main
try:
    main()
except SystemExit:
    pass
sys.__stdout__.write(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""


def loaded_by(*words: str, cwd: Path | None = None) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(words=words)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=cwd,
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("words", [("--help",), ("--version",)], ids=["help", "version"])
def test_help_loads_click_alone(words):
    assert not loaded_by(*words) & {*HEAVY, *LATER}


@pytest.mark.parametrize(
    "words",
    [("doctor",), ("doctor", "--list", "--json"), ("verify", "--help"), ("init", "--help")],
    ids=["doctor", "list of checks", "help of verify", "help of init"],
)
def test_a_quick_command_never_loads_torch_into_its_process(words):
    assert not loaded_by(*words) & {*HEAVY}


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
