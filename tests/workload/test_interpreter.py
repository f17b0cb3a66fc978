"""Commands that need torch run in the project's interpreter, with devkit's own requirements after its packages."""

import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest

import devkit
from devkit.errors import DevkitError
from devkit.facts.values import Release
from devkit.probe.host import NOT_FOUND, ProgramResult
from devkit.probe.machine.interpreter import find_workload_python
from devkit.release import INSTALL_WORKLOAD_COMMAND
from devkit.workload.interpreter import WORKLOAD_PACKAGES, find_torch_interpreter
from tests.cases import cases

OWN, ACTIVE, NAMED = "/opt/devkit/bin/python", "/home/dev/venv/bin/python", "/opt/conda/bin/python"
VENV = {"VIRTUAL_ENV": "/home/dev/venv"}


@dataclass
class SeveralPythons:
    """A host with devkit's own Python and others. Values: the version and those of the workload's packages it has."""

    answers: dict[str, str]
    env: dict[str, str] = field(default_factory=dict)
    python: str = OWN

    def stat(self, path):
        return object() if path in self.answers else None

    def link(self, path):
        return None

    def read(self, path):
        is_there = path == "/home/dev/venv/pyvenv.cfg" and ACTIVE in self.answers
        return f"version = {self.answers[ACTIVE].split()[0]}\n" if is_there else None

    def list(self, path):
        return ("python3.9",) if path == "/home/dev/venv/lib" else ()

    def run(self, argv, *, deadline_s=5.0):
        answer = self.answers.get(argv[0])
        if answer is None:
            return ProgramResult(NOT_FOUND, "", "no such file")
        if argv[1] == "--version":
            return ProgramResult(0, f"Python {answer.split()[0]}\n", "")
        if argv[1] == "-P" and answer.startswith("3.10"):
            return ProgramResult(2, "", "unknown option -P")
        return ProgramResult(0, f"{answer}\n", "")


@cases(
    "answers, env, chosen",
    {
        "devkit apart, torch in the venv": ({OWN: "3.12.1", ACTIVE: "3.11.7 torch"}, VENV, ACTIVE),
        "both: the active one": ({OWN: "3.12.1 torch", ACTIVE: "3.11.7 torch"}, VENV, ACTIVE),
        "a Python older than devkit's": ({OWN: "3.12.1", ACTIVE: "3.10.14 torch"}, VENV, ACTIVE),
        "an active environment without torch": ({OWN: "3.11.7 torch", ACTIVE: "3.11.7"}, VENV, OWN),
        "VIRTUAL_ENV names a folder that is gone": ({OWN: "3.11.7 torch"}, VENV, OWN),
        "the one that is named": (
            {OWN: "3.11.7 torch", ACTIVE: "3.11.7 torch", NAMED: "3.11.7 torch"},
            {**VENV, "DEVKIT_PYTHON": NAMED},
            NAMED,
        ),
    },
)
def test_the_python_with_torch_is_chosen(answers, env, chosen):
    assert find_torch_interpreter(SeveralPythons(answers, env)).executable == chosen


def test_the_version_is_that_of_the_python_itself_and_not_of_another_environment():
    for env in (VENV, {**VENV, "DEVKIT_PYTHON": NAMED}):
        found = find_workload_python(SeveralPythons({OWN: "3.12.1", NAMED: "3.12.1"}, env))
        assert found.version == Release.parse("3.12.1")


@cases(
    "answers, env, said, hint",
    {
        "no torch": ({OWN: "3.11.7"}, {}, f"torch is not installed for {OWN}", INSTALL_WORKLOAD_COMMAND),
        "no torch in either": (
            {OWN: "3.11.7", ACTIVE: "3.11.7"},
            VENV,
            f"the project's environment has no torch: {ACTIVE}",
            f"uv pip install --python {ACTIVE} torch",
        ),
        "the one that is named has none, whatever the others have": (
            {OWN: "3.11.7 torch", NAMED: "3.11.7"},
            {"DEVKIT_PYTHON": NAMED},
            f"the project's environment has no torch: {NAMED}",
            f"--python {NAMED}",
        ),
    },
)
def test_no_torch_is_a_set_up_error_with_the_command_that_helps(answers, env, said, hint):
    with pytest.raises(DevkitError, match=said) as error:
        find_torch_interpreter(SeveralPythons(answers, env))
    assert hint in error.value.hint


PACKAGE = """
import sys, click, devkit
print(sys.prefix, click.__file__, devkit.__file__, *sys.path, sep="\\n", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def project(tmp_path):
    """Makes an environment without pip, with stand-ins for packages that say where they run. Returns a command's run."""
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv/bin/python"
    site = next((tmp_path / "venv/lib").glob("python3.*/site-packages"))

    def run(*words, packages=WORKLOAD_PACKAGES, python=str(python), **environment):
        for name in (*packages, "devkit"):
            (site / name).mkdir()
            (site / name / "__init__.py").write_text(PACKAGE)
        env = {**os.environ, "VIRTUAL_ENV": str(tmp_path / "venv"), **environment}
        env["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "first"), str(Path(devkit.__file__).parents[1])])
        env.pop("DEVKIT_PYTHON", None)
        return subprocess.run(
            [sys.executable, "-m", "devkit", *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
        )

    (tmp_path / "data.jsonl").write_text('{"text": "one"}\n' * 20)
    return run


@cases(
    "words",
    {
        "finetune": ("finetune", "--model", "m", "--data", "data.jsonl", "--output", "run"),
        "generate": ("generate", "--model", "m", "--merge", "whole"),
    },
)
def test_a_command_goes_on_in_the_projects_environment(project, tmp_path, words):
    (tmp_path / "m").mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "m" / name).write_text('{"model_type": "llama"}')
    (tmp_path / "m/model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    done = project(*words)
    assert done.returncode == 7, done.stderr
    prefix, own_click, own_devkit, *path = done.stderr.splitlines()
    assert prefix == str(tmp_path / "venv")
    assert (own_click, own_devkit) == (click.__file__, devkit.__file__)
    folders = [str(Path(folder).resolve()) for folder in path]
    own_requirements = str(Path(click.__file__).parents[1].resolve())
    assert folders.index(own_requirements) > max(at for at, folder in enumerate(folders) if folder.startswith(prefix))
