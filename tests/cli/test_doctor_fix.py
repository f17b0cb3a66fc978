"""`devkit doctor --fix` in a project of its own: the diff, the question, the change, the second look."""

import io
import os
import pty
import shlex
import subprocess
import sys

import pytest

from devkit.cli import repair
from devkit.doctor.model import Fix, Restart, Side
from tests.doctor.machines import healthy
from tests.doctor.running import ROOT, a_finding, a_report, an_outcome
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
    assert "2 checks passed" in " ".join(done.stdout.split())
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


def test_without_a_terminal_what_no_file_repairs_is_printed_and_never_run(capsys, tmp_path):
    assert repair.apply_repairs(a_report(ROOT), tmp_path, is_confirmed=True) == ()
    repair.print_manual_fixes(a_report(ROOT))
    said = capsys.readouterr().err
    assert "No file change can fix these findings." in said
    assert "DRV901 by hand (host, root): Do this." in said
    assert "      sudo do" in said


def guided(monkeypatch, capsys, fix, answer, *, after=()):
    """What is said of one cause with this fix, and how often the machine was examined again, to find `after`."""
    examined = []

    def examine():
        examined.append(a_report(*after))
        return healthy(), examined[-1]

    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n" * 3))
    before = a_report(an_outcome("DRV901", a_finding(fix=fix)), an_outcome("ENG901", a_finding(fix=fix)))
    repair.guide_repairs(healthy(), before, examine)
    return capsys.readouterr().err, len(examined)


def test_a_command_for_the_user_runs_after_a_yes_and_the_machine_is_looked_at_again(monkeypatch, capsys, tmp_path):
    fix = Fix("Make it \x1b[2J.", commands=(f"touch {tmp_path}/made",))
    said, examined = guided(monkeypatch, capsys, fix, "y")
    assert "Make it \\x1b[2J." in said
    assert (tmp_path / "made").exists()
    assert "✓ DRV901 is fixed" in said
    assert examined == 1
    (tmp_path / "made").unlink()
    said, examined = guided(monkeypatch, capsys, fix, "n")
    assert not (tmp_path / "made").exists()
    assert examined == 0


@pytest.mark.parametrize(
    "fix",
    [
        pytest.param({"commands": ("sudo touch FILE",)}, id="sudo"),
        pytest.param({"commands": ("touch FILE",), "root": True}, id="root"),
        pytest.param({"commands": ("touch FILE",), "restart": Restart.LOGIN}, id="a new login"),
        pytest.param({"commands": ("touch FILE", "rm -r FILE")}, id="removes"),
        pytest.param({"commands": ("touch FILE",), "where": Side.IMAGE}, id="elsewhere"),
        pytest.param({"commands": ("touch FILE # <name>",)}, id="a blank to fill in"),
        pytest.param({"commands": ("touch FILE", "unset CUDA_VISIBLE_DEVICES")}, id="the shell's own"),
    ],
)
def test_a_command_that_is_not_devkits_to_run_is_never_run(monkeypatch, capsys, tmp_path, fix):
    fix = fix | {"commands": tuple(each.replace("FILE", f"{tmp_path}/made") for each in fix["commands"])}
    said, _ = guided(monkeypatch, capsys, Fix("Make it.", **fix), "y")
    assert not (tmp_path / "made").exists()
    assert "Run 1 command" not in said


def test_the_dialog_stops_at_the_first_cause_that_is_still_there(monkeypatch, capsys):
    fix = Fix("Do it.", commands=("sudo do",))
    said, examined = guided(monkeypatch, capsys, fix, "", after=(an_outcome("DRV901", a_finding(fix=fix)),))
    assert "DRV901 is still found" in said
    assert "ENG901" not in said
    assert examined == 1
    said, examined = guided(monkeypatch, capsys, fix, "s")
    assert "ENG901" in said
    assert examined == 0


@pytest.mark.parametrize("change", [{"severity": "note"}, {"confidence": "possible"}], ids=["a note", "only possible"])
def test_yes_does_not_cover_what_somebody_should_look_at(project, capsys, change):
    from devkit.doctor.model import Confidence, Repair, RepairKind, Severity

    typed = {"severity": Severity, "confidence": Confidence}
    repairs = (Repair(RepairKind.REMOVE, ".devcontainer/devcontainer.json", ("runArgs",)),)
    finding = a_finding(fix=Fix("x", repairs=repairs), **{name: typed[name](value) for name, value in change.items()})
    assert repair.apply_repairs(a_report(an_outcome("PRJ901", finding)), project, is_confirmed=True) == ()
    assert written(project) == BROKEN
