"""Repairs of a user's own files: computed, shown, refused, written, undone."""

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap

import pytest

from devkit.doctor.model import Repair, RepairKind
from devkit.errors import DevkitError
from devkit.probe.host import Stat
from devkit.render.adopt.adoption import PatchedHost
from devkit.render.changes import replace_file
from devkit.render.repair import CannotRepair, apply_edit, apply_repair, compute_edits

COMPOSE = "services:\n  dev:\n    image: x  # ours\n"
SHM = Repair(RepairKind.SET, "compose.yml", ("services", "dev", "shm_size"), '"8gb"')


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "compose.yml").write_text(COMPOSE)
    return folder


def edits(project, *repairs):
    return compute_edits(repairs, project, home=project.parent / "home")


def test_several_repairs_of_one_file_are_one_edit(project):
    other = Repair(RepairKind.SET, "compose.yml", ("services", "dev", "ipc"), '"private"')
    (edit,) = edits(project, SHM, other)
    assert edit.after.decode() == COMPOSE + "    shm_size: 8gb\n    ipc: private\n"


def test_the_diff_names_the_file_and_the_lines(project):
    (edit,) = edits(project, SHM)
    assert edit.format_diff().splitlines()[:2] == ["--- a/compose.yml", "+++ b/compose.yml"]
    assert "+    shm_size: 8gb" in edit.format_diff().splitlines()


def test_what_is_already_so_needs_no_edit(project):
    assert edits(project, Repair(RepairKind.SET, "compose.yml", ("services", "dev", "image"), '"x"')) == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"runArgs": ["--gpus=all"], "a": 1}', '{"a": 1}'),
        ('{"runArgs": [\n  // or podman\n  "--gpus=all"\n], "a": 1}', '{"runArgs": [\n  // or podman\n], "a": 1}'),
        ('{"a": 1}', '{"a": 1}'),
    ],
    ids=["a list", "a list with a comment of its own", "no such key"],
)
def test_a_removed_list_leaves_its_comments(before, after):
    removal = Repair(RepairKind.REMOVE, "devcontainer.json", ("runArgs",))
    assert apply_repair(before.encode(), removal) == after


def test_an_edit_is_made_and_can_be_undone(project):
    (edit,) = edits(project, SHM)
    undo = apply_edit(edit)
    assert "shm_size: 8gb" in (project / "compose.yml").read_text()
    assert subprocess.run(shlex.split(undo), check=False).returncode == 0
    assert (project / "compose.yml").read_text() == COMPOSE
    assert sorted(path.name for path in project.iterdir()) == ["compose.yml"]


def test_an_earlier_copy_is_never_overwritten(project):
    (project / "compose.yml.devkit-backup").write_text("older")
    apply_edit(edits(project, SHM)[0])
    assert (project / "compose.yml.devkit-backup").read_text() == "older"
    assert (project / "compose.yml.devkit-backup2").read_text() == COMPOSE


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o755])
def test_permission_bits_stay(project, mode):
    (project / "compose.yml").chmod(mode)
    apply_edit(edits(project, SHM)[0])
    assert (project / "compose.yml").stat().st_mode & 0o7777 == mode


def test_a_directory_is_made_and_can_be_undone(project):
    (edit,) = edits(project, Repair(RepairKind.MAKE_DIRECTORY, "a/b"))
    assert edit.format_diff() == "make the directory a/b"
    assert apply_edit(edit) == shlex.join(["rmdir", str(project / "a/b")])
    assert (project / "a/b").is_dir()


def test_a_path_may_be_in_the_home_folder(project):
    home = project.parent / "home"
    home.mkdir()
    (home / "daemon.json").write_text('{\n  "debug": true\n}\n')
    repair = Repair(RepairKind.REMOVE, "~/daemon.json", ("debug",))
    (edit,) = edits(project, repair)
    assert json.loads(edit.after) == {}


@pytest.mark.parametrize(
    ("text", "key", "value", "after"),
    [
        pytest.param("a\n  b\nc\n", "b", "x", "a\n  x\nc\n", id="indentation stays"),
        pytest.param("a\r\nb\r\n", "b", "x", "a\r\nx\r\n", id="line ends stay"),
        pytest.param("a\nb", "b", "x", "a\nx", id="a last line without end"),
        pytest.param("a\nb\nc\n", "b", "", "a\nc\n", id="nothing takes the line away"),
    ],
)
def test_one_line_is_replaced(project, text, key, value, after):
    (project / "Dockerfile").write_bytes(text.encode())
    (edit,) = edits(project, Repair(RepairKind.REPLACE, "Dockerfile", (key,), value))
    assert edit.after.decode() == after


def test_toml_keeps_its_comments(project):
    (project / "c.toml").write_text('# top\n[a]\nmode = "legacy" # why\n')
    (edit,) = edits(project, Repair(RepairKind.SET, "c.toml", ("a", "mode"), '"cdi"'))
    assert edit.after.decode() == '# top\n[a]\nmode = "cdi" # why\n'
    (edit,) = edits(project, Repair(RepairKind.SET, "c.toml", ("b", "x"), "1"))
    assert edit.after.decode().endswith("[b]\nx = 1\n")
    (edit,) = edits(project, Repair(RepairKind.REMOVE, "c.toml", ("a", "mode")))
    assert "mode" not in edit.after.decode()


@pytest.mark.parametrize(
    ("repair", "why"),
    [
        pytest.param(Repair(RepairKind.SET, "nowhere.yml", ("a",), "1"), "no such file", id="a file that is not there"),
        pytest.param(Repair(RepairKind.SET, "../out.yml", ("a",), "1"), "outside of", id="a path out of the project"),
        pytest.param(Repair(RepairKind.SET, "link.yml", ("a",), "1"), "outside of", id="a link out of the project"),
        pytest.param(Repair(RepairKind.SET, "/etc/hosts", ("a",), "1"), "outside of", id="a file of the system"),
        pytest.param(Repair(RepairKind.SET, "binary.yml", ("a",), "1"), "not a text file", id="no text"),
        pytest.param(Repair(RepairKind.SET, "latin.yml", ("a",), "1"), "not UTF-8", id="another encoding"),
        pytest.param(Repair(RepairKind.SET, "huge.yml", ("a",), "1"), "ordinary size", id="a huge file"),
        pytest.param(Repair(RepairKind.SET, "Dockerfile", ("a",), "1"), "format", id="a format that is not edited"),
        pytest.param(
            Repair(RepairKind.REPLACE, "Dockerfile", ("x",), "1"), "does not occur", id="a line that is not there"
        ),
        pytest.param(
            Repair(RepairKind.REPLACE, "Dockerfile", ("twice",), "1"), "2 times", id="a line that is there twice"
        ),
        pytest.param(Repair(RepairKind.SET, "broken.json", ("a",), "1"), "does not parse", id="a file that is broken"),
        pytest.param(Repair(RepairKind.MAKE_DIRECTORY, "../x"), "outside of", id="a directory elsewhere"),
    ],
)
def test_what_must_be_done_by_hand_is_refused_and_named(project, repair, why):
    (project.parent / "out.yml").write_text("a: 0\n")
    (project / "link.yml").symlink_to(project.parent / "out.yml")
    (project / "binary.yml").write_bytes(b"a: \0\n")
    (project / "latin.yml").write_bytes("a: ü\n".encode("latin-1"))
    (project / "huge.yml").write_bytes(b"a: 1\n" * 300_000)
    (project / "Dockerfile").write_text("twice\ntwice\n")
    (project / "broken.json").write_text("{")
    with pytest.raises(CannotRepair, match=why) as refused:
        edits(project, repair)
    assert str(refused.value).startswith(repair.path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_left_alone(project):
    os.chown(project / "compose.yml", 12345, 12345)
    with pytest.raises(CannotRepair, match="another user"):
        edits(project, SHM)


def test_a_file_that_changed_in_between_is_left_alone(project):
    (edit,) = edits(project, SHM)
    (project / "compose.yml").write_text("mine\n")
    with pytest.raises(DevkitError, match="changed in between"):
        apply_edit(edit)
    assert (project / "compose.yml").read_text() == "mine\n"
    assert sorted(path.name for path in project.iterdir()) == ["compose.yml"]


def test_a_disk_that_refuses_leaves_everything_as_it_was(project):
    def refuse(source, target):
        raise OSError(28, "No space left on device")

    with pytest.raises(DevkitError, match="No space left"):
        replace_file(project / "compose.yml", COMPOSE.encode(), b"new", replace=refuse)
    assert sorted(path.name for path in project.iterdir()) == ["compose.yml"]
    assert (project / "compose.yml").read_text() == COMPOSE


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
changes.replace_file(path, path.read_bytes(), b"new\\n" * 1000, replace=os.replace)
"""


@pytest.mark.full
@pytest.mark.parametrize("steps", range(9))
def test_a_kill_leaves_the_old_file_or_the_new_one(project, steps):
    path = project / "compose.yml"
    argv = [sys.executable, "-c", textwrap.dedent(KILLED), str(path), str(steps)]
    done = subprocess.run(argv, check=False, capture_output=True, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    assert path.read_bytes() in (COMPOSE.encode(), b"new\n" * 1000)
    if path.read_bytes() == COMPOSE.encode():
        replace_file(path, COMPOSE.encode(), b"new\n")
    (backup,) = project.glob("*backup*")
    assert (backup.name, backup.read_text()) == ("compose.yml.devkit-backup", COMPOSE)


def test_a_file_that_is_to_be_written_is_seen_before(project):
    path, new = str(project / "compose.yml"), str(project / "new.yml")
    host = PatchedHost({path: "a: 1\n", new: "b"})
    before = (project / "compose.yml").stat()
    found = host.stat(path)
    assert (found.size, found.mode & 0o777, found.uid) == (5, before.st_mode & 0o777, before.st_uid)
    assert host.stat(new) == Stat("file", 0o644, 0, 0, 1)
    assert (host.stat(new + "2"), host.link(new), host.link(new + "2")) == (None, new, None)
    assert (host.read(path), host.read(new), host.read(new + "2")) == ("a: 1\n", "b", None)
