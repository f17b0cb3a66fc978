"""`devkit doctor --fix` in a project of its own: the diff, the question, the change, the second look."""

import os
import pty
import shlex
import subprocess
import sys

import pytest

from tests.forked_commands import run_devkit

BROKEN = """{
  // ours
  "image": "ubuntu",
  "runArgs": ["--gpus all"], // the GPU
  "hostRequirements": { "gpu": "true" }
}
"""
WELL = BROKEN.replace('"--gpus all"', '"--gpus=all"').replace('"true"', "true")
ONLY = ("--only", "PRJ002", "--only", "PRJ008")


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / ".devcontainer").mkdir(parents=True)
    (folder / ".devcontainer/devcontainer.json").write_text(BROKEN)
    return folder


def written(project):
    return (project / ".devcontainer/devcontainer.json").read_text()


def words_of(project, *arguments):
    return ["doctor", "--project", str(project), *ONLY, *arguments]


def fix(project, *arguments):
    return run_devkit(*words_of(project, "--fix", *arguments))


def fix_on_terminal(project, answers):
    """The same where somebody sits and types; what stood on standard error, and the exit code."""
    master, slave = pty.openpty()
    argv = [sys.executable, "-m", "devkit", *words_of(project, "--fix")]
    with subprocess.Popen(argv, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        os.close(slave)
        os.write(master, answers.encode())
        _, err = process.communicate(timeout=60)
    os.close(master)
    return err, process.returncode


def test_with_yes_everything_is_repaired_and_looked_at_again(project):
    done = fix(project, "--yes")
    assert written(project) == WELL
    assert "fixed: PRJ002 and PRJ008" in done.stderr
    assert "2 checks passed" in done.stdout
    assert done.returncode == 0


def test_the_change_is_shown_before_it_is_made_and_can_be_undone(project):
    done = fix(project, "--yes")
    assert '-  "runArgs": ["--gpus all"], // the GPU' in done.stderr
    assert '+  "runArgs": ["--gpus=all"], // the GPU' in done.stderr
    undo = [line.partition("to undo it: ")[2] for line in done.stderr.splitlines() if "to undo it" in line]
    for command in reversed(undo):
        assert subprocess.run(shlex.split(command), check=False).returncode == 0
    assert written(project) == BROKEN
    assert [path.name for path in (project / ".devcontainer").iterdir()] == ["devcontainer.json"]


def test_without_a_terminal_nobody_is_asked_and_nothing_changes(project):
    done = fix(project)
    assert written(project) == BROKEN
    assert "no terminal to ask on" in done.stderr
    assert done.returncode == 1
    assert "✗ problem: runArgs has '--gpus all' as one item" in done.stdout


@pytest.mark.parametrize(
    ("answers", "after", "code"),
    [
        pytest.param("y\ny\n", WELL, 0, id="yes to both"),
        pytest.param("n\nn\n", BROKEN, 1, id="no to both"),
        pytest.param("\n\n", BROKEN, 1, id="silence is a no"),
        pytest.param("y\nn\n", BROKEN.replace('"--gpus all"', '"--gpus=all"'), 0, id="yes to one: a warning is left"),
    ],
)
def test_each_change_is_asked_for(project, answers, after, code):
    err, returncode = fix_on_terminal(project, answers)
    assert "Change 1 file? [y/N]" in err
    assert written(project) == after
    assert returncode == code


def test_a_file_that_leads_out_of_the_project_is_left_alone(project, tmp_path):
    outside = tmp_path / "shared.json"
    outside.write_text(BROKEN)
    inside = project / ".devcontainer/devcontainer.json"
    inside.unlink()
    inside.symlink_to(outside)
    done = fix(project, "--yes")
    assert outside.read_text() == BROKEN
    assert done.returncode in (0, 1)


def test_what_no_file_repairs_is_printed_and_never_run(monkeypatch, capsys, tmp_path):
    from devkit.cli.doctor import apply_repairs
    from tests.doctor.running import ROOT, a_report

    assert apply_repairs(a_report(ROOT), tmp_path, is_confirmed=True) == ()
    said = capsys.readouterr().err
    assert "No file change can fix these findings." in said
    assert "DRV901 by hand (host, root): Do this." in said
    assert "      sudo do" in said


@pytest.mark.parametrize("change", [{"severity": "note"}, {"confidence": "possible"}], ids=["a note", "only possible"])
def test_yes_does_not_cover_what_somebody_should_look_at(project, capsys, change):
    from devkit.cli.doctor import apply_repairs
    from devkit.doctor.model import Confidence, Fix, Repair, RepairKind, Severity
    from tests.doctor.running import a_finding, a_report, an_outcome

    typed = {"severity": Severity, "confidence": Confidence}
    repairs = (Repair(RepairKind.REMOVE, ".devcontainer/devcontainer.json", ("runArgs",)),)
    finding = a_finding(fix=Fix("x", repairs=repairs), **{name: typed[name](value) for name, value in change.items()})
    assert apply_repairs(a_report(an_outcome("PRJ901", finding)), project, is_confirmed=True) == ()
    assert written(project) == BROKEN
