"""Repairs of a user's own files: computed, shown, refused, written, undone."""

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap

import pytest

from devkit.doctor.model import Fix, Repair, RepairKind
from devkit.errors import DevkitError
from devkit.probe.host import LocalHost, Stat
from devkit.render.adopt.adoption import PatchedHost
from devkit.render.changes import replace_file
from devkit.render.repair import apply_edit, compute_edits, compute_project_changes
from tests.doctor.running import a_finding, a_report, an_outcome

DEV = '{\n  "image": "x" // ours\n}\n'
SHM = Repair(RepairKind.SET, "dev.json", ("runArgs", "-"), '"--shm-size=8gb"')


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "dev.json").write_text(DEV)
    return folder


def edits(project, *repairs):
    return compute_edits(repairs, project, home=project.parent / "home")


def test_several_repairs_of_one_file_are_one_edit(project):
    other = Repair(RepairKind.SET, "dev.json", ("hostRequirements", "gpu"), '"optional"')
    (edit,) = edits(project, SHM, other)
    after = '  "image": "x", // ours\n  "runArgs": ["--shm-size=8gb"],\n  "hostRequirements": {"gpu": "optional"}\n'
    assert edit.after.decode() == f"{{\n{after}}}\n"


def test_changes_of_a_project_leave_the_home_folder_and_what_is_refused_alone(project):
    homes = [Repair(RepairKind.REMOVE, path, ("auths",)) for path in ("~/dev.json", str(project.parent / "dev.json"))]
    absent = Repair(RepairKind.REMOVE, "absent.json", ("image",))
    findings = [a_finding(fix=Fix("x", repairs=(each,))) for each in (*homes, SHM, absent)]
    report = a_report(*(an_outcome(f"PRJ90{number}", each) for number, each in enumerate(findings)))
    changes, refused = compute_project_changes(report, project)
    assert [(each.path, each.before) for each in changes] == [("dev.json", DEV.encode())]
    assert [each.partition(" ")[0] for each in refused] == ["PRJ903"]


def test_what_is_already_so_needs_no_edit(project):
    assert edits(project, Repair(RepairKind.SET, "dev.json", ("image",), '"x"')) == ()


def test_an_edit_is_made_and_can_be_undone(project):
    (edit,) = edits(project, SHM)
    undo = apply_edit(edit)
    assert "--shm-size=8gb" in (project / "dev.json").read_text()
    assert subprocess.run(shlex.split(undo), check=False).returncode == 0
    assert (project / "dev.json").read_text() == DEV
    assert sorted(path.name for path in project.iterdir()) == ["dev.json"]


def test_an_earlier_copy_is_never_overwritten(project):
    (project / "dev.json.devkit-backup").write_text("older")
    apply_edit(edits(project, SHM)[0])
    assert (project / "dev.json.devkit-backup").read_text() == "older"
    assert (project / "dev.json.devkit-backup2").read_text() == DEV


def test_a_folder_is_no_place_for_a_copy(project):
    (project / "dev.json.devkit-backup").mkdir()
    apply_edit(edits(project, SHM)[0])
    assert (project / "dev.json.devkit-backup2").read_text() == DEV


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o755])
def test_permission_bits_stay(project, mode):
    (project / "dev.json").chmod(mode)
    apply_edit(edits(project, SHM)[0])
    assert (project / "dev.json").stat().st_mode & 0o7777 == mode


@pytest.mark.parametrize("path", ["~/daemon.json", "{home}/daemon.json"], ids=["by its tilde", "by its whole path"])
def test_a_path_may_be_in_the_home_folder(project, path):
    home = project.parent / "home"
    home.mkdir()
    (home / "daemon.json").write_text('{\n  "debug": true\n}\n')
    (edit,) = edits(project, Repair(RepairKind.REMOVE, path.format(home=home), ("debug",)))
    assert json.loads(edit.after) == {}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        pytest.param("nowhere.json", "no such file", id="a file that is not there"),
        pytest.param("../out.json", "leads outside", id="a path out of the project"),
        pytest.param("link.json", "leads outside", id="a link out of the project"),
        pytest.param("/etc/hosts", "leads outside", id="a file of the system"),
        pytest.param("latin.json", "can't decode", id="another encoding"),
        pytest.param("huge.json", "too large|larger", id="a huge file"),
        pytest.param("broken.json", "does not parse", id="a file that is broken"),
    ],
)
def test_what_must_be_done_by_hand_is_refused_and_named(project, path, why):
    (project.parent / "out.json").write_text("{}")
    (project / "link.json").symlink_to(project.parent / "out.json")
    (project / "latin.json").write_bytes('{"a": "ü"}'.encode("latin-1"))
    (project / "huge.json").write_bytes(b" " * (2 << 20))
    (project / "broken.json").write_text("{")
    with pytest.raises(DevkitError, match=why) as refused:
        edits(project, Repair(RepairKind.SET, path, ("a",), "1"))
    assert path.rpartition("/")[2] in str(refused.value)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_left_alone(project):
    os.chown(project / "dev.json", 12345, 12345)
    with pytest.raises(DevkitError, match="another user"):
        edits(project, SHM)


def test_a_file_that_changed_in_between_is_left_alone(project):
    (edit,) = edits(project, SHM)
    (project / "dev.json").write_text("mine\n")
    with pytest.raises(DevkitError, match="changed in the meantime"):
        apply_edit(edit)
    assert (project / "dev.json").read_text() == "mine\n"
    assert sorted(path.name for path in project.iterdir()) == ["dev.json"]


def test_a_disk_that_refuses_leaves_everything_as_it_was(project, monkeypatch):
    def refuse(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("devkit.render.changes.replace_beside", refuse)
    with pytest.raises(DevkitError, match="No space left"):
        replace_file(project / "dev.json", DEV.encode(), b"new")
    assert sorted(path.name for path in project.iterdir()) == ["dev.json"]
    assert (project / "dev.json").read_text() == DEV


KILLED = """
import os, signal, sys
from pathlib import Path
from devkit.render import changes

steps = int(sys.argv[2])

def count(name, real):
    def counted(*arguments, **more):
        global steps
        steps -= 1
        if steps < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **more)
    return counted

for name in ("open", "fsync", "replace"):
    setattr(os, name, count(name, getattr(os, name)))
path = Path(sys.argv[1])
changes.replace_beside = os.replace
changes.replace_file(path, path.read_bytes(), b"new\\n" * 1000)
"""


@pytest.mark.full
@pytest.mark.parametrize("steps", range(9))
def test_a_kill_leaves_the_old_file_or_the_new_one(project, steps):
    path = project / "dev.json"
    argv = [sys.executable, "-c", textwrap.dedent(KILLED), str(path), str(steps)]
    done = subprocess.run(argv, check=False, capture_output=True, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    assert path.read_bytes() in (DEV.encode(), b"new\n" * 1000)
    if path.read_bytes() == DEV.encode():
        replace_file(path, DEV.encode(), b"new\n")
    (backup,) = project.glob("*backup*")
    assert (backup.name, backup.read_text()) == ("dev.json.devkit-backup", DEV)


def test_a_file_that_is_to_be_written_is_seen_before(project):
    path, new = str(project / "dev.json"), str(project / "new.yml")
    host = PatchedHost({path: "a: 1\n", new: "b"})
    assert (host.stat(path), host.stat(new)) == (LocalHost().stat(path), Stat("file", 0o644, 0, 0, 0))
    assert (host.stat(new + "2"), host.link(new), host.link(new + "2")) == (None, new, None)
    assert (host.read(path), host.read(new), host.read(new + "2")) == ("a: 1\n", "b", None)
