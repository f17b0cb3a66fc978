"""Writing: nothing of the user's is lost, nothing is written outside the project, and a kill leaves no half file."""

import contextlib
import errno
import json
import os
import pty
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.render import changes as writing
from devkit.render.changes import compute_changes, write_changes
from devkit.render.devkit_lock import compute_blob_id, parse_lock, render_lock
from devkit.render.files import JOURNAL_PATH, NEXT_JOURNAL_PATH, Artifact, Journal, Step, format_journal
from devkit.whole_files import write_whole
from tests.cli.test_init import GPU, devkit, tree
from tests.render.plans import GPU_PLAN

REPOSITORY = Path(__file__).resolve().parents[2]
DEVKIT_TOML = Artifact.from_text("devkit.toml", 'name = "x"\n')


def generated(**texts: str) -> tuple[Artifact, ...]:
    """Artifacts named by keyword, with `_` for the dot, and their lock."""
    artifacts = tuple(
        Artifact.from_text(f".devcontainer/{name.replace('_', '.')}", text) for name, text in texts.items()
    )
    return (*artifacts, render_lock(GPU_PLAN, artifacts))


FIRST = generated(a_txt="one\n", b_txt="one\n", c_txt="three\n")
THIRD = generated(a_txt="three\n", d_txt="three\n")
SECOND = generated(a_txt="two\n", b_txt="two\n", d_txt="two\n")


def run(root: Path, artifacts=FIRST, *, force: bool = False, edited=(DEVKIT_TOML,)) -> dict[str, str]:
    """Finish what was begun, write, and say what was done to each file."""
    if root.exists():
        writing.finish_writes(root)
    changes = compute_changes(root, artifacts, edited, force=force)
    write_changes(root, changes)
    return {change.path.removeprefix(".devcontainer/"): str(change.action) for change in changes}


def test_a_fresh_project(tmp_path):
    done = run(tmp_path)
    assert set(done.values()) == {"create"}
    assert tree(tmp_path) == {each.path: each.content for each in (DEVKIT_TOML, *FIRST)}


def test_a_second_run_changes_nothing_not_even_times(tmp_path):
    run(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert set(run(tmp_path).values()) == {"unchanged"}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_new_plan_updates_creates_and_removes(tmp_path):
    run(tmp_path)
    done = run(tmp_path, SECOND)
    assert (done["a.txt"], done["d.txt"], done["c.txt"]) == ("update", "create", "remove")
    assert set(tree(tmp_path)) == {each.path for each in (DEVKIT_TOML, *SECOND)}


def test_an_edit_where_devkit_has_a_change_too_is_refused_with_what_devkit_wants_and_nothing_is_written(tmp_path):
    run(tmp_path)
    (tmp_path / ".devcontainer/a.txt").write_text("mine\n")
    before = tree(tmp_path)
    with pytest.raises(DevkitError, match=r"changes and devkit's conflict in \.devcontainer/a\.txt$") as refused:
        run(tmp_path, SECOND)
    assert "line 1, devkit would write:\n  two" in refused.value.hint
    assert "--force" in refused.value.hint
    assert tree(tmp_path) == before


def test_force_replaces_what_devkit_wrote(tmp_path):
    run(tmp_path)
    (tmp_path / ".devcontainer/a.txt").write_text("mine\n")
    assert run(tmp_path, SECOND, force=True)["a.txt"] == "update"


def test_what_the_user_wrote_stays_where_devkit_needs_no_other_text(tmp_path):
    run(tmp_path)
    mine = {"a.txt": "two\n", "c.txt": "a stale file, changed\n", "mine.txt": "beside devkit's\n"}
    for name, text in mine.items():
        (tmp_path / ".devcontainer" / name).write_text(text)
    done = run(tmp_path, SECOND)
    assert (done["a.txt"], "c.txt" in done) == ("unchanged", False)
    assert {name: (tmp_path / ".devcontainer" / name).read_text() for name in mine} == mine


@pytest.mark.parametrize(
    ("path", "force"),
    [
        (".devcontainer/a.txt", True),
        (".devcontainer/other.json", False),
        (".devcontainer/sub/devcontainer.json", True),
        (".devcontainer.json", False),
    ],
)
def test_a_dev_container_that_devkit_did_not_write_is_never_touched(tmp_path, path, force):
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("mine\n")
    with pytest.raises(DevkitError, match="did not write") as refused:
        run(tmp_path, force=force)
    assert path in refused.value.message
    assert tree(tmp_path) == {path: b"mine\n"}


def test_a_file_that_devkit_did_not_write_stays_even_when_it_wrote_others(tmp_path):
    run(tmp_path)
    (tmp_path / ".devcontainer/d.txt").write_text("mine\n")
    with pytest.raises(DevkitError, match=r"d\.txt"):
        run(tmp_path, SECOND, force=True)


def test_this_hosts_own_settings_do_not_count_as_a_foreign_dev_container(tmp_path):
    (tmp_path / ".devcontainer/wheelhouse").mkdir(parents=True)
    (tmp_path / ".devcontainer/wheelhouse/x.whl").touch()
    (tmp_path / ".devcontainer/.env").write_text("DEVKIT_GPU=cpu\n")
    assert run(tmp_path)["a.txt"] == "create"


@pytest.mark.parametrize("link", [".devcontainer", ".devcontainer/a.txt", "devkit.toml", "devkit.lock"])
def test_a_symbolic_link_out_of_the_project_is_refused(tmp_path, link):
    root, outside = tmp_path / "project", tmp_path / "outside"
    (root / link).parent.mkdir(parents=True)
    outside.mkdir()
    (root / link).symlink_to(outside if link == ".devcontainer" else outside / "file")
    with pytest.raises(DevkitError, match="leads outside the project"):
        run(root)
    assert list(outside.iterdir()) == []


def test_a_lock_cannot_reach_out_of_the_project(tmp_path):
    root, victim = tmp_path / "project", tmp_path / "victim"
    run(root)
    victim.write_text("theirs")
    lock = (root / "devkit.lock").read_text().replace(".devcontainer/c.txt", "../victim")
    written = parse_lock(lock.encode()).files["../victim"]
    (root / "devkit.lock").write_text(lock.replace(written, compute_blob_id(b"theirs")))
    with pytest.raises(DevkitError, match="leads outside the project"):
        run(root, SECOND)
    assert victim.exists()


def test_a_lock_that_cannot_be_read_stops_the_run(tmp_path):
    run(tmp_path)
    (tmp_path / ".devcontainer/a.txt").write_text("mine\n")
    start = '{"schema": "devkit.lock/3", "files": '
    # The last: an ID that is no hash would be opened as a file, and be an option of git.
    ids = ('{".devcontainer/a.txt": 1}', '{".devcontainer/a.txt": "/dev/zero"}', '{".devcontainer/a.txt": "--batch"}')
    for text in (
        "",
        "{",
        "[]",
        "{}",
        '{"schema": "devkit.lock/9", "files": {}}',
        *(f"{start}{each}}}" for each in ("[1]", *ids)),
    ):
        (tmp_path / "devkit.lock").write_text(text)
        with pytest.raises(DevkitError, match=r"devkit\.lock (is damaged|has schema)"):
            run(tmp_path, SECOND)


def test_a_directory_in_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "devkit.toml").mkdir()
    with pytest.raises(DevkitError, match="is a directory"):
        run(tmp_path)


def test_a_disk_that_refuses_leaves_the_old_tree(tmp_path):
    run(tmp_path)
    before = tree(tmp_path)
    changes = compute_changes(tmp_path, SECOND, (DEVKIT_TOML,), force=False)
    # A directory where the last staged file must go: staging fails after the others were staged.
    (tmp_path / ".devcontainer/.d.txt.devkit-new").mkdir()
    with pytest.raises(DevkitError, match=r"cannot write \S*d\.txt\.devkit-new: ") as refused:
        write_changes(tmp_path, changes)
    assert "Nothing was changed" in refused.value.hint
    (tmp_path / ".devcontainer/.d.txt.devkit-new").rmdir()
    assert tree(tmp_path) == before


def test_on_a_full_disk_the_advice_is_to_free_space(tmp_path, monkeypatch):
    def refuse(*_words):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing, "_write_synced", refuse)
    with pytest.raises(DevkitError, match="No space left") as refused:
        run(tmp_path / "new" / "project")
    assert refused.value.hint == "Free space on that disk. Nothing was changed."
    assert list(tmp_path.iterdir()) == [], "folders made for the project are removed"


@pytest.mark.parametrize(
    ("write", "is_lasting"),
    [
        pytest.param(lambda path: run(path.parent, edited=(Artifact("devkit.toml", b"new"),)), True, id="a run"),
        pytest.param(lambda path: writing.replace_file(path, b"old", b"new"), True, id="a repair"),
        pytest.param(lambda path: write_whole(path, b"new"), False, id="a report"),
    ],
)
def test_a_power_cut_leaves_no_half_file_and_takes_back_no_change_of_a_project(
    tmp_path, monkeypatch, write, is_lasting
):
    path = tmp_path / "devkit.toml"
    path.write_text("old")
    synced = []
    sync = os.fsync

    def watch(descriptor):
        sync(descriptor)
        found = os.fstat(descriptor)
        synced.append((found.st_ino, path.read_text(), found.st_size if stat.S_ISREG(found.st_mode) else 0))

    monkeypatch.setattr(os, "fsync", watch)
    write(path)
    assert (path.stat().st_ino, "old", 3) in synced, "the content is on the disk before it has the name"
    assert ((tmp_path.stat().st_ino, "new", 0) in synced) == is_lasting, "the folder, with the name"


def test_a_file_that_is_held_open_is_named_and_the_next_run_goes_on(tmp_path):
    run(tmp_path)
    replace_beside = writing.replace_beside

    def refuse(source, target):
        if target.name == "a.txt":
            raise PermissionError(errno.EACCES, "Permission denied", str(source), None, str(target))
        replace_beside(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "replace_beside", refuse)
        with pytest.raises(DevkitError, match=r"cannot replace .*a\.txt: Permission denied"):
            run(tmp_path, SECOND)
    assert writing.is_unfinished(tmp_path)
    assert run(tmp_path, SECOND)["a.txt"] == "unchanged"
    assert tree(tmp_path) == {each.path: each.content for each in (DEVKIT_TOML, *SECOND)}


def test_a_project_that_cannot_be_made_is_said_and_one_that_can_leaves_nothing(tmp_path):
    (tmp_path / "file").touch()
    for write in (writing.require_root, run):
        with pytest.raises(DevkitError, match=r"cannot make .*: Not a directory"):
            write(tmp_path / "file/project")
    writing.require_root(tmp_path / "a/project")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_digest_is_of_what_changes_in_any_order(tmp_path):
    run(tmp_path)
    changes = compute_changes(tmp_path, SECOND, (DEVKIT_TOML,))
    whole = writing.compute_digest(changes)
    assert whole == writing.compute_digest(each for each in reversed(changes) if each.path != "devkit.toml")
    assert (
        len({whole, *(writing.compute_digest(each for each in changes if each is not left) for left in changes)}) == 6
    )


def test_private_settings_stay_private_and_a_script_may_run(tmp_path):
    env = Artifact(".devcontainer/.env", b"A='b'\n", 0o600)
    script = Artifact.from_text(".devcontainer/gpu.sh", "#!/bin/sh\n", 0o755)
    run(tmp_path, (script, render_lock(GPU_PLAN, (script,))), edited=(DEVKIT_TOML, env))
    assert (tmp_path / ".devcontainer/.env").stat().st_mode & 0o777 == 0o600
    assert os.access(tmp_path / ".devcontainer/gpu.sh", os.X_OK)


@pytest.mark.parametrize("is_committed", [False, True], ids=["in the data folder", "in a teammate's repository"])
def test_an_edit_is_merged_with_the_version_that_devkit_wrote(tmp_path, monkeypatch, is_committed):
    run(tmp_path, generated(b_txt="one\ntwo\n"))
    if is_committed:
        git = ["git", "-C", str(tmp_path), "-c", "user.name=Dev", "-c", "user.email=dev@example.org"]
        for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "x"]):
            subprocess.run([*git, *words], check=True)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path.with_name(f"{tmp_path.name}-teammate")))
    (tmp_path / ".devcontainer/b.txt").write_text("one\ntwo\nmine\n")
    assert run(tmp_path, generated(b_txt="zero\none\ntwo\n"))["b.txt"] == "merge"
    assert (tmp_path / ".devcontainer/b.txt").read_text() == "zero\none\ntwo\nmine\n"


def test_without_the_version_that_devkit_wrote_an_edit_cannot_be_merged_and_is_refused(tmp_path, monkeypatch):
    run(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path.with_name(f"{tmp_path.name}-teammate")))
    (tmp_path / ".devcontainer/a.txt").write_text("mine\n")
    before = tree(tmp_path)
    with pytest.raises(DevkitError, match=r"changed since devkit wrote it: \.devcontainer/a\.txt$") as refused:
        run(tmp_path, SECOND)
    assert "-mine\n+two" in refused.value.hint
    assert tree(tmp_path) == before


def test_a_damaged_version_in_the_data_folder_is_not_taken(tmp_path, monkeypatch):
    store = tmp_path / "data"
    monkeypatch.setenv("XDG_DATA_HOME", str(store))
    run(tmp_path / "project")
    for path in (store / "devkit/versions").iterdir():
        path.write_bytes(b"cut")
    (tmp_path / "project/.devcontainer/a.txt").write_text("mine\n")
    with pytest.raises(DevkitError, match="changed since devkit wrote it"):
        run(tmp_path / "project", SECOND)


def test_a_lock_that_calls_a_file_of_the_users_local_takes_nothing_away(tmp_path):
    run(tmp_path)
    (tmp_path / "train.py").write_text("mine\n")
    lock = json.loads((tmp_path / "devkit.lock").read_text())
    lock["files"] |= {"train.py": "", ".devcontainer/wheels/old.whl": ""}
    (tmp_path / "devkit.lock").write_text(json.dumps(lock))
    (tmp_path / ".devcontainer/wheels").mkdir()
    (tmp_path / ".devcontainer/wheels/old.whl").touch()
    assert run(tmp_path, SECOND)["wheels/old.whl"] == "remove"
    assert (tmp_path / "train.py").exists()


def test_a_data_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "data").write_text("a file")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert set(run(tmp_path / "project").values()) == {"create"}


def test_a_file_changed_between_the_question_and_the_answer_stays_as_it_is(tmp_path):
    run(tmp_path)
    changes = compute_changes(tmp_path, SECOND, (DEVKIT_TOML,))
    (tmp_path / ".devcontainer/a.txt").write_text("mine\n")
    before = tree(tmp_path)
    with pytest.raises(DevkitError, match=r"a\.txt was changed in the meantime"):
        write_changes(tmp_path, changes)
    assert tree(tmp_path) == before


def test_what_another_run_did_meanwhile_is_not_done_twice(tmp_path):
    first, second = (compute_changes(tmp_path, FIRST, (DEVKIT_TOML,)) for _ in range(2))
    write_changes(tmp_path, first)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    write_changes(tmp_path, second)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_users_permissions_stay(tmp_path):
    run(tmp_path)
    (tmp_path / ".devcontainer/a.txt").chmod(0o640)
    run(tmp_path, SECOND)
    assert (tmp_path / ".devcontainer/a.txt").stat().st_mode & 0o777 == 0o640


def test_a_link_that_leads_to_itself_is_refused(tmp_path):
    (tmp_path / ".devcontainer").mkdir()
    (tmp_path / ".devcontainer/a.txt").symlink_to("a.txt")
    with pytest.raises(DevkitError, match=r"a\.txt cannot be followed"):
        run(tmp_path)


def test_a_lock_with_a_name_that_no_file_can_have_is_refused(tmp_path):
    run(tmp_path)
    lock = (tmp_path / "devkit.lock").read_text().replace(".devcontainer/c.txt", "c\\u0000.txt")
    (tmp_path / "devkit.lock").write_text(lock)
    with pytest.raises(DevkitError, match="no file can have the name"):
        run(tmp_path, SECOND)


# Writing when something goes wrong: killed at every step, a full disk, two runs at once, Ctrl-C at the question.


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


@pytest.mark.full
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
        after = THIRD if step % 2 else SECOND
        run(root, after)
        assert tree(root) == {each.path: each.content for each in (DEVKIT_TOML, *after)}, step


@pytest.mark.full
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
    assert all("was changed in the meantime" in message for message in outcomes)
    assert len(outcomes) == 4


@pytest.mark.full
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


def test_a_folder_exchanged_for_a_link_between_look_and_write_leads_nowhere(tmp_path, monkeypatch):
    project, outside = tmp_path / "project", tmp_path / "outside"
    project.mkdir()
    outside.mkdir()
    changes = compute_changes(project, FIRST, (DEVKIT_TOML,))
    folder = next(Path(each.path).parts[0] for each in changes if "/" in each.path)

    replace_beside = writing.replace_beside

    def exchange_and_replace(source, target):
        if target.parent != project and not (project / folder).is_symlink():
            (project / folder).rename(tmp_path / "moved")
            (project / folder).symlink_to(outside)
        replace_beside(source, target)

    monkeypatch.setattr(writing, "replace_beside", exchange_and_replace)
    with pytest.raises(DevkitError, match=r"cannot replace|leads outside the project"):
        writing.write_changes(project, changes)
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


# The journal: what a run that was killed had begun is finished or rolled back, and said.


def kill_writing(root: Path, changes, *, before: str = ".devkit.lock.devkit-new", event: str = "os.rename") -> None:
    """Write in a process that is killed before the rename, or another event, of the staged file of this name."""
    child = os.fork()
    if child == 0:

        def kill(name, arguments):
            if name == event and Path(str(arguments[0])).name == before:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill)
        writing.write_changes(root, changes)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@needs_fork
def test_a_run_killed_while_it_prepares_is_rolled_back(tmp_path):
    run(tmp_path)
    before = tree(tmp_path)
    nested = Artifact(".devcontainer/deep/er/file", b"new")
    changes = compute_changes(tmp_path, SECOND, (nested, DEVKIT_TOML))
    kill_writing(tmp_path, changes, before=".d.txt.devkit-new", event="open")
    assert (tmp_path / ".devcontainer/deep/er").is_dir()
    assert writing.is_unfinished(tmp_path)
    assert "its prepared files were removed" in writing.finish_writes(tmp_path)
    assert tree(tmp_path) == before
    assert not (tmp_path / ".devcontainer/deep").exists()


@needs_fork
def test_a_run_killed_between_two_renames_is_finished_and_said(tmp_path):
    run(tmp_path)
    kill_writing(tmp_path, compute_changes(tmp_path, SECOND, (DEVKIT_TOML,)))
    (tmp_path / NEXT_JOURNAL_PATH).write_text("torn")
    assert "finished the changes of an interrupted devkit:" in writing.finish_writes(tmp_path)
    assert tree(tmp_path) == {each.path: each.content for each in (DEVKIT_TOML, *SECOND)}
    assert writing.finish_writes(tmp_path) == ""


@needs_fork
def test_a_write_of_other_files_finishes_first_what_a_killed_run_had_begun(tmp_path):
    run(tmp_path)
    kill_writing(tmp_path, compute_changes(tmp_path, SECOND, (DEVKIT_TOML,)))
    notes = Artifact("notes.txt", b"mine")
    write_changes(tmp_path, [writing.compute_change(tmp_path, notes)])
    assert tree(tmp_path) == {each.path: each.content for each in (DEVKIT_TOML, notes, *SECOND)}


@needs_fork
def test_a_file_that_was_edited_after_a_kill_is_kept(tmp_path):
    run(tmp_path)
    kill_writing(tmp_path, compute_changes(tmp_path, SECOND, (DEVKIT_TOML,)))
    (tmp_path / "devkit.lock").write_text("mine")
    (tmp_path / ".devcontainer/.a.txt.devkit-new").write_text("left over")
    assert "left unchanged, because they were edited since: devkit.lock" in writing.finish_writes(tmp_path)
    assert (tmp_path / "devkit.lock").read_text() == "mine"
    assert not [*tmp_path.rglob(".*.devkit-new")]


@needs_fork
def test_a_journal_that_came_with_a_clone_is_not_followed(tmp_path):
    root, clone = tmp_path / "root", tmp_path / "clone"
    run(root)
    kill_writing(root, compute_changes(root, SECOND, (DEVKIT_TOML,)))
    shutil.copytree(root, clone)
    before = tree(clone)
    assert writing.finish_writes(clone) == ""
    assert tree(clone) == before


@needs_fork
def test_a_journal_that_is_torn_or_of_another_release_is_not_followed(tmp_path):
    run(tmp_path)
    kill_writing(tmp_path, compute_changes(tmp_path, SECOND, (DEVKIT_TOML,)))
    journal = tmp_path / JOURNAL_PATH
    text = journal.read_text()
    folder = f'"folder": {tmp_path.stat().st_ino}'
    assert writing.is_unfinished(tmp_path) and folder in text
    for damaged in (text[:40], text.replace("journal/1", "journal/9"), "[]", text.replace(folder, '"folder": 1e999')):
        journal.write_text(damaged)
        before = tree(tmp_path)
        assert not writing.is_unfinished(tmp_path)
        assert writing.finish_writes(tmp_path) == ""
        assert tree(tmp_path) == before


@pytest.mark.parametrize("path", ["../outside.txt", "/etc/passwd", "link/x"])
def test_a_journal_leads_nowhere_outside_of_the_project(tmp_path, path):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside.txt").write_text("old")
    (tmp_path / ".outside.txt.devkit-new").write_text("new")
    (root / "link").symlink_to(tmp_path)
    ids = [writing.compute_blob_id(text) for text in (b"old", b"new")]
    journal = Journal(root.stat().st_ino, (Step(path, *ids),), is_staged=True)
    (root / JOURNAL_PATH).write_bytes(format_journal(journal))
    with pytest.raises(DevkitError):
        writing.finish_writes(root)
    assert (tmp_path / "outside.txt").read_text() == "old"
