"""Writing when something goes wrong: killed at every step, a full disk, two runs at once, Ctrl-C at the question."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.render import changes as writing
from devkit.render.changes import compute_changes
from tests.cli.test_init import GPU, devkit, tree
from tests.render.test_write import DEVKIT_TOML, FIRST, SECOND, run

REPOSITORY = Path(__file__).resolve().parents[2]

KILLED_AT_EACH_STEP = """
import os, shutil, signal, sys
from pathlib import Path
from tests.render.test_write import DEVKIT_TOML, FIRST, SECOND, compute_changes, run, write_changes
STEPS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock", "shutil.rmtree")
existed, scratch = sys.argv[1] == "existed", Path(sys.argv[2])
for step in range(10_000):
    root = scratch / str(step)
    root.mkdir()
    if existed:
        run(root)
    child = os.fork()
    if child == 0:
        left = step
        changes = compute_changes(root, SECOND, (DEVKIT_TOML,))
        def count(event, arguments):
            global left
            if event in STEPS:
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
        sys.addaudithook(count)
        write_changes(root, changes)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) == 0:
        shutil.rmtree(root)
        print(step)
        break
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("existed", ["existed", "fresh"], ids=["an update", "a fresh project"])
def test_a_kill_before_any_system_call_leaves_whole_files_and_the_next_run_finishes(tmp_path, existed):
    if existed == "existed":
        run(tmp_path / "old")
        old = tree(tmp_path / "old")
    else:
        old = {}
    (tmp_path / "killed").mkdir()
    argv = [sys.executable, "-c", KILLED_AT_EACH_STEP, existed, str(tmp_path / "killed")]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    steps = int(done.stdout)
    assert steps > 20, "the steps were counted"
    new = {each.path: each.content for each in (DEVKIT_TOML, *SECOND)}
    for step in range(steps):
        root = tmp_path / "killed" / str(step)
        for path, content in tree(root).items():
            assert path.endswith(".devkit-new") or content in (old.get(path), new.get(path)), (step, path)
        run(root, SECOND)
        assert tree(root) == new, step


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 96 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("command", ["init", "update"])
def test_a_full_disk_is_one_line_and_leaves_everything_as_it_was(small_disk, tmp_path, command):
    project = small_disk / "project"
    if command == "update":
        assert devkit("init", tmp_path / "project", *GPU).returncode == 0
        project.mkdir()
        for path in ("devkit.toml", "devkit.lock", ".devcontainer/Dockerfile"):
            (project / path).parent.mkdir(exist_ok=True)
            (project / path).write_bytes((tmp_path / "project" / path).read_bytes()[: 20 << 10])
        lock = b'{"schema": "devkit.lock/3", "files": {}}'
        (project / "devkit.lock").write_bytes(lock)
        (project / ".devcontainer/Dockerfile").unlink()
    (small_disk / "filler").write_bytes(b"x" * (40 << 10))
    before = tree(small_disk)
    done = devkit(command, project, *(GPU if command == "init" else ()))
    assert done.returncode == 2, done
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert tree(small_disk) == before


def test_many_runs_at_once_write_one_whole_tree(tmp_path):
    plans = [compute_changes(tmp_path, artifacts, (DEVKIT_TOML,)) for artifacts in (FIRST, SECOND) * 4]
    outcomes = []

    def attempt(changes):
        try:
            writing.write_changes(tmp_path, changes)
        except DevkitError as refusal:
            outcomes.append(refusal.message)

    threads = [threading.Thread(target=attempt, args=(changes,)) for changes in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = [{each.path: each.content for each in (DEVKIT_TOML, *artifacts)} for artifacts in (FIRST, SECOND)]
    assert tree(tmp_path) in whole
    assert all("was changed in between" in message for message in outcomes)
    assert len(outcomes) == 4


def test_ctrl_c_at_the_question_writes_nothing(tmp_path):
    assert devkit("init", tmp_path, *GPU, "--python", "3.12").returncode == 0
    before = tree(tmp_path)
    controller, terminal = pty.openpty()
    argv = [sys.executable, "-m", "devkit", "init", str(tmp_path), "--python", "3.11"]
    process = subprocess.Popen(argv, cwd=REPOSITORY, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    seen = b""
    deadline_s = time.monotonic() + 60
    while b"[y/N]" not in seen and time.monotonic() < deadline_s:
        seen += os.read(controller, 4096)
    while process.poll() is None and time.monotonic() < deadline_s:
        # Pressed once more where Python was not yet waiting for the answer.
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    assert process.wait(1) == 130
    os.close(controller)
    assert b"Replace" in seen
    assert tree(tmp_path) == before


def test_a_folder_exchanged_for_a_link_between_look_and_write_leads_nowhere(tmp_path):
    project, outside = tmp_path / "project", tmp_path / "outside"
    project.mkdir()
    outside.mkdir()
    changes = compute_changes(project, FIRST, (DEVKIT_TOML,))
    folder = next(Path(each.path).parts[0] for each in changes if "/" in each.path)

    def exchange_and_replace(source, target):
        if not (project / folder).is_symlink():
            (project / folder).rename(tmp_path / "moved")
            (project / folder).symlink_to(outside)
        writing.replace_beside(source, target)

    with pytest.raises(DevkitError, match="cannot replace"):
        writing.write_changes(project, changes, replace=exchange_and_replace)
    assert tree(outside) == {}


def test_an_ignore_file_that_is_a_link_within_the_project_stays_a_link(tmp_path):
    (tmp_path / ".devcontainer").mkdir()
    for name in (".gitignore", ".dockerignore"):
        (tmp_path / f"mine{name}").write_text("mine\n")
        (tmp_path / ".devcontainer" / name).symlink_to(f"../mine{name}")
    assert devkit("init", tmp_path, *GPU).returncode == 0
    for name in (".gitignore", ".dockerignore"):
        assert (tmp_path / ".devcontainer" / name).is_symlink()
        assert (tmp_path / f"mine{name}").read_text().startswith("mine\n")
