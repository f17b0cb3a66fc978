import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from devkit.probe import host
from devkit.probe.host import (
    MAX_OUTPUT_BYTES,
    NOT_EXECUTABLE,
    NOT_FOUND,
    TIMED_OUT,
    ProgramResult,
    ask_git,
    run_program,
)


def run(*argv, deadline_s=5.0):
    return run_program(argv, deadline_s=deadline_s)


def python(code, *arguments, deadline_s=5.0):
    return run(sys.executable, "-c", code, *arguments, deadline_s=deadline_s)


def test_output_and_status_are_kept_apart():
    assert run("sh", "-c", "echo out; echo err >&2; exit 3") == ProgramResult(3, "out\n", "err\n")


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        pytest.param(["devkit-no-such-program"], NOT_FOUND, id="no such program"),
        pytest.param(["/etc/passwd/x"], NOT_FOUND, id="a file is no folder"),
        pytest.param(["/etc/passwd"], NOT_EXECUTABLE, id="not executable"),
        pytest.param(["sh", "-c", "kill -SEGV $$"], -11, id="ended by a signal"),
    ],
)
def test_every_end_has_its_code(argv, code):
    assert run(*argv).code == code


def test_arguments_are_not_read_by_a_shell():
    assert run("printf", "%s", "$(id) `id` ; id").out == "$(id) `id` ; id"


def test_programs_answer_in_the_c_locale():
    assert python("import os; print(os.environ['LC_ALL'])").out == "C\n"


def test_nothing_can_be_typed_into_a_probe():
    assert python("import sys; print(repr(sys.stdin.read()))").out == "''\n"


def test_the_system_folders_are_searched_after_the_users_own():
    folders = python("import os; print(os.environ['PATH'])").out.strip().split(":")
    assert folders[: len(os.environ["PATH"].split(":"))] == os.environ["PATH"].split(":")
    assert "/usr/sbin" in folders


@pytest.mark.clock
def test_a_late_program_is_killed_and_what_it_said_is_kept():
    started = time.monotonic()
    done = run("sh", "-c", "echo first; exec sleep 60", deadline_s=0.3)
    assert time.monotonic() - started < 1.5
    assert done == ProgramResult(TIMED_OUT, "first\n", "")


@pytest.mark.clock
def test_a_program_that_ignores_every_signal_it_can_is_killed_too():
    deaf = "import signal, time\nfor n in range(1, 32):\n  n in (9, 19) or signal.signal(n, signal.SIG_IGN)\n"
    started = time.monotonic()
    assert python(deaf + "time.sleep(60)", deadline_s=0.5).code == TIMED_OUT
    assert time.monotonic() - started < 1.5


def test_the_children_of_a_late_program_are_killed_with_it(tmp_path):
    pid_file = tmp_path / "pid"
    run("sh", "-c", 'sleep 60 & echo $! >"$1"; wait', "sh", str(pid_file), deadline_s=0.3)
    assert is_gone(int(pid_file.read_text()))


def is_gone(pid):
    for _ in range(50):
        status = Path(f"/proc/{pid}/status")
        if not status.exists() or "State:\tZ" in status.read_text():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.clock
def test_a_program_that_leaves_a_child_behind_is_not_waited_for(tmp_path):
    started = time.monotonic()
    done = run("sh", "-c", "sleep 60 & echo done", deadline_s=10)
    assert time.monotonic() - started < 2
    assert done == ProgramResult(0, "done\n", "")


def test_endless_output_is_bounded_and_does_not_outlive_the_deadline():
    done = run("sh", "-c", "yes", deadline_s=0.5)
    assert done.code == TIMED_OUT
    assert len(done.out) <= MAX_OUTPUT_BYTES


def test_much_output_on_both_streams_does_not_block():
    done = python("import sys; sys.stdout.write('o' * 300000); sys.stderr.write('e' * 300000)")
    assert (done.code, len(done.out), len(done.err)) == (0, 300000, 300000)


def test_bytes_that_are_no_text_are_replaced():
    assert python(r"import sys; sys.stdout.buffer.write(b'a\xffb\r\n')").out == "a\N{REPLACEMENT CHARACTER}b\n"


def test_no_thread_is_left_behind():
    before = threading.active_count()
    for _ in range(5):
        run("true")
    assert threading.active_count() == before


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def freezer():
    """A control group whose members stay in the kernel, and ignore even SIGKILL, until they are let go."""
    group = FREEZER / f"devkit-{os.getpid()}"
    if not os.access(FREEZER, os.W_OK):
        pytest.skip("needs root and the freezer of control groups version 1, to hold a process in the kernel")
    group.mkdir()
    try:
        yield group
    finally:
        (group / "freezer.state").write_text("THAWED")
        while (group / "tasks").read_text():
            time.sleep(0.02)
        group.rmdir()


@pytest.mark.clock
def test_a_program_that_cannot_die_is_left_behind(freezer):
    stop = threading.Timer(0.2, lambda: (freezer / "freezer.state").write_text("FROZEN"))
    stop.start()
    started = time.monotonic()
    done = run("sh", "-c", 'echo $$ >"$1"; echo held; sleep 60', "sh", str(freezer / "tasks"), deadline_s=0.6)
    assert time.monotonic() - started < 1.2
    assert done == ProgramResult(TIMED_OUT, "held\n", "")
    pid = (freezer / "tasks").read_text().split()[0]
    assert "State:\tD" in Path(f"/proc/{pid}/status").read_text()


BUSY = """
import sys, threading, time
from devkit.probe.host import run_program

def start_more():
    while True:
        run_program(["sh", "-c", f"echo $$ >> {sys.argv[1]}; exec sleep 100"], deadline_s=0.02)

for _ in range(12):
    threading.Thread(target=start_more, daemon=True).start()
time.sleep(0.4)
"""


@pytest.mark.clock
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_program_survives_the_exit_while_threads_start_programs(tmp_path):
    for number in range(2):
        pids = tmp_path / f"pids{number}"
        subprocess.run([sys.executable, "-c", BUSY, str(pids)], check=True, timeout=60)
        started = pids.read_text().split()
        assert started
        assert still_alive(started, after_s=5) == []


def still_alive(pids, *, after_s):
    """Who of them runs on; the kernel takes a moment to end one that was killed."""
    ends_at = time.monotonic() + after_s
    while (left := [pid for pid in pids if is_alive(int(pid))]) and time.monotonic() < ends_at:
        time.sleep(0.05)
    return left


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie, which waits to be collected, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


WITHOUT_FILES = """
import resource
from devkit.probe.host import run_program
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
try:
    print(run_program(["true"], deadline_s=5.0))
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_too_few_files_are_not_a_program_that_cannot_be_executed():
    done = subprocess.run([sys.executable, "-c", WITHOUT_FILES], capture_output=True, text=True, check=False)
    assert done.stdout == "Too many open files\n"


def test_a_null_byte_in_an_argument_starts_nothing():
    assert run_program([sys.executable, "-c", "a\0b"], deadline_s=5).code == NOT_EXECUTABLE


@pytest.mark.skipif(sys.platform == "win32", reason="the program of this test is a script of sh")
def test_a_repository_in_which_git_hangs_is_asked_once(tmp_path, monkeypatch):
    """As where .git/config is a named pipe: each question would take its whole deadline."""
    (tmp_path / "git").write_text(f"#!/bin/sh\necho >> {tmp_path}/asked\nexec sleep 60\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(host, "CALL_DEADLINE_S", 0.5)
    assert [ask_git(tmp_path, "log").code for _ in range(3)] == [TIMED_OUT] * 3
    assert (tmp_path / "asked").read_text() == "\n"
