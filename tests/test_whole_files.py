"""Files that are written whole: a disk that refuses leaves the older one as it was, and nothing beside it."""

import errno
import os
import signal
import stat
import subprocess
import sys

import pytest

from devkit.errors import DevkitError
from devkit.whole_files import write_whole

posix = pytest.mark.skipif(sys.platform == "win32", reason="limits and modes of POSIX")
ON_A_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from devkit.errors import DevkitError
from devkit.whole_files import write_whole
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    write_whole(Path(sys.argv[1]), b"new" * 1000)
except DevkitError as error:
    sys.exit(error.message)
"""


@posix
@pytest.mark.parametrize("existed", [True, False])
def test_a_full_disk_leaves_the_older_file(tmp_path, existed):
    path = tmp_path / "report.json"
    if existed:
        path.write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", ON_A_FULL_DISK, str(path)], capture_output=True, text=True, check=False
    )
    assert f"cannot write {path}" in done.stderr
    assert [each.read_text() for each in tmp_path.iterdir()] == (["old"] if existed else [])


@posix
def test_the_mode_of_the_older_file_stays_and_a_link_is_followed(tmp_path):
    path, link = tmp_path / "report.json", tmp_path / "link.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, b"new")
    assert link.is_symlink() and path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@posix
def test_a_pipe_is_written_to_where_somebody_reads_it(tmp_path, monkeypatch):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["sh", "-c", 'sleep 0.5; exec cat "$0" > "$1"', pipe, tmp_path / "read"])
    content = b"new" * 100_000  # more than a pipe holds
    write_whole(pipe, content)
    assert reader.wait(timeout=30) == 0
    assert (tmp_path / "read").read_bytes() == content
    monkeypatch.setattr("devkit.whole_files.PIPE_TIMEOUT_S", 0.1)
    with pytest.raises(DevkitError, match="nobody read it"):
        write_whole(pipe, b"new")


def test_in_a_folder_of_somebody_elses_the_file_itself_is_written(tmp_path, monkeypatch):
    def refuse(path, *_words):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    (tmp_path / "mine.json").write_text("old")
    monkeypatch.setattr(os, "open", refuse)
    write_whole(tmp_path / "mine.json", b"new")
    with pytest.raises(DevkitError, match="Permission denied"):
        write_whole(tmp_path / "other.json", b"new")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["new"]


def test_a_link_to_itself_is_said(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DevkitError, match=r"a link to itself|Too many levels"):
        write_whole(tmp_path / "loop", b"new")


def test_a_folder_that_is_missing_is_said(tmp_path):
    with pytest.raises(DevkitError, match="cannot write"):
        write_whole(tmp_path / "gone" / "report.json", b"new")


@posix
def test_a_kill_between_writing_and_renaming_leaves_the_older_file(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")
    child = os.fork()
    if child == 0:

        def kill(event, _arguments):
            if event == "os.rename":
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill)
        write_whole(path, b"new")
        os._exit(0)
    os.waitpid(child, 0)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
    write_whole(path, b"new")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["new"]


@posix
def test_what_another_process_writes_beside_the_file_stays(tmp_path):
    (tmp_path / f".report.json.{os.getppid()}-7").write_text("begun")
    (tmp_path / ".report.json.old-7").write_text("mine")
    write_whole(tmp_path / "report.json", b"new")
    assert {each.read_text() for each in tmp_path.iterdir()} == {"begun", "mine", "new"}
