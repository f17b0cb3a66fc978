"""The proof runs where torch is."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.probe.host import NOT_FOUND, LocalHost, ProgramResult
from devkit.verify.local_proof import INSTALL_COMMAND, find_proof_python

OWN, ACTIVE = "/opt/devkit/bin/python", "/home/dev/venv/bin/python"


@dataclass
class TwoPythons:
    """A host with devkit's own Python and, maybe, an active virtual environment's. Values: version and torch."""

    answers: dict[str, str]
    env: dict[str, str] = field(default_factory=dict)
    python: str = OWN

    def stat(self, path):
        return object() if path in self.answers else None

    def link(self, path):
        return None

    def read(self, path):
        return None

    def run(self, argv, *, deadline_s=5.0):
        answer = self.answers.get(argv[0])
        if answer is None:
            return ProgramResult(NOT_FOUND, "", "no such file")
        if argv[1] == "--version":
            return ProgramResult(0, f"Python {answer.split()[0]}\n", "")
        if argv[1] == "-P" and answer.startswith("3.10"):
            return ProgramResult(2, "", "unknown option -P")
        return ProgramResult(0, f"{answer}\n", "")


VENV = {"VIRTUAL_ENV": "/home/dev/venv"}


@pytest.mark.parametrize(
    ("answers", "env", "chosen"),
    [
        pytest.param({OWN: "3.11.7 torch"}, {}, OWN, id="devkit's own, with torch beside it"),
        pytest.param({OWN: "3.12.1 -", ACTIVE: "3.11.7 torch"}, VENV, ACTIVE, id="devkit apart, torch in the venv"),
        pytest.param({OWN: "3.12.1 torch", ACTIVE: "3.11.7 torch"}, VENV, ACTIVE, id="both: the active one"),
        pytest.param({OWN: "3.11.7 torch", ACTIVE: "3.11.7 -"}, VENV, OWN, id="an active environment without torch"),
        pytest.param({OWN: "3.11.7 torch"}, VENV, OWN, id="VIRTUAL_ENV names a folder that is gone"),
    ],
)
def test_the_python_with_torch_is_chosen(answers, env, chosen):
    assert find_proof_python(TwoPythons(answers, env)) == chosen


@pytest.mark.parametrize(
    ("answers", "env", "said"),
    [
        pytest.param({OWN: "3.11.7 -"}, {}, f"torch is not installed for {OWN}", id="no torch"),
        pytest.param({OWN: "3.11.7 -", ACTIVE: "3.11.7 -"}, VENV, ACTIVE, id="no torch in either"),
        pytest.param({OWN: "3.11.7 -", ACTIVE: "3.10.14 torch"}, VENV, "3.10.14", id="torch under a Python too old"),
    ],
)
def test_no_torch_is_a_set_up_error_with_the_command_that_helps(answers, env, said):
    with pytest.raises(DevkitError, match=said) as error:
        find_proof_python(TwoPythons(answers, env))
    assert INSTALL_COMMAND in error.value.hint


def test_this_environment_has_torch():
    pytest.importorskip("torch")
    assert Path(find_proof_python(LocalHost())).exists()
